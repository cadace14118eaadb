// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"github.com/penstock/penstock/internal/jsonedit"
)

// This file reads the input of a request for OpenAI's Responses. Its items are
// smaller than turns: what the model did in one answer is a reasoning item, a
// message and calls, which become one turn here, and so do the answers of tools.

// item is one item of the input, of which the parts are read once the type is
// known.
type item struct {
	kind    lit
	role    lit
	callID  lit
	name    lit
	args    lit
	secret  lit // encrypted_content
	sign    lit // of a call, in extra_content
	result  lit // the data of an image
	format  lit // its output_format
	cache   []byte
	content saved
	output  saved
	summary saved
}

func (r *responsesReader) input() {
	if t, ok := r.s.Text(); ok {
		r.begin(roleUser, 0)
		r.add(part{kind: partText, text: t.Of(r.body), place: place{"input", -1, -1, -1}})
		return
	}
	if !r.array("input") {
		return
	}
	for i := 0; r.element(); i++ {
		r.item(i)
	}
}

func (r *responsesReader) item(i int) {
	var m item
	if !r.s.Object() {
		r.s.Skip()
		r.refuse(at("input", i), "must be an object")
		return
	}
	for key := range r.members() {
		switch key {
		case "type":
			m.kind = r.text("type")
		case "role":
			m.role = r.text("role")
		case "call_id":
			m.callID = r.text("call_id")
		case "name":
			m.name = r.text("name")
		case "arguments":
			m.args = r.text("arguments")
		case "encrypted_content":
			m.secret = r.text("encrypted_content")
		case "content":
			m.content = r.save()
		case "output":
			m.output = r.save()
		case "summary":
			m.summary = r.save()
		case "extra_content":
			m.sign = r.signature()
		case "result":
			m.result = r.text("result")
		case "output_format":
			m.format = r.text("output_format")
		case "cache_control":
			m.cache = r.raw()
		case "id", "status", "phase":
			r.s.Skip() // of the answer in which the item was given out
		default:
			if known := string(m.kind); known == "" || known == "message" || known == "function_call" || known == "function_call_output" || known == "reasoning" {
				r.other("input.", key)
			} else {
				r.s.Skip()
			}
		}
	}
	if r.err != nil {
		r.prefix(at("input", i))
		return
	}
	after := r.s
	r.itemOf(i, &m)
	r.s = after
}

func (r *responsesReader) itemOf(i int, m *item) {
	where := func(member string) string { return at("input", i) + "." + member }
	whole := place{turn: int32(i), index: -1, sub: -1}
	switch kind := m.kind.String(); kind {
	case "", "message":
		r.message(i, m)
	case "function_call":
		switch {
		case len(m.callID) == 0:
			r.refuse(where("call_id"), "is missing")
		case len(m.name) == 0:
			r.refuse(where("name"), "is missing")
		}
		r.assistant(i)
		args := r.arguments(m.args, func() string { return where("arguments") })
		r.add(part{kind: partToolCall, id: m.callID, name: m.name, args: args, sign: m.sign, cache: m.cache, place: whole})
	case "function_call_output":
		switch {
		case len(m.callID) == 0:
			r.refuse(where("call_id"), "is missing")
		case !m.output.is:
			r.refuse(where("output"), "is missing")
		}
		r.results(i)
		p := part{kind: partToolResult, id: m.callID, cache: m.cache, place: whole, from: len(r.inner)}
		r.content(&r.inner, i, "output", m.output, "tool")
		p.to = len(r.inner)
		r.add(p)
	case "reasoning":
		r.thought(i, m)
	case "image_generation_call": // of an earlier answer
		if len(m.result) == 0 {
			r.ignore("input.image_generation_call", nil)
			return
		}
		r.assistant(i)
		p := part{kind: partImage, data: m.result, media: "image/png", place: whole}
		if m.format != nil {
			p.media = "image/" + m.format.String()
		}
		r.add(p)
	case "item_reference":
		r.stored(at("input", i))
	default:
		if r.err == nil {
			r.err = cannot(where("type"), "is "+kind+", which this model's server does not know")
		}
	}
}

// assistant goes on with what the model did, in the turn of its last answer.
func (r *responsesReader) assistant(i int) {
	if n := len(r.turns); n == 0 || r.turns[n-1].role != roleAssistant {
		r.begin(roleAssistant, i)
	}
}

// results goes on with what tools answered.
func (r *responsesReader) results(i int) {
	n := len(r.turns)
	if n > 0 && r.turns[n-1].role == roleUser {
		parts := r.partsOf(&r.turns[n-1])
		if k := len(parts); k > 0 && parts[k-1].kind == partToolResult {
			return
		}
	}
	r.begin(roleUser, i)
}

func (r *responsesReader) message(i int, m *item) {
	where := func(member string) string { return at("input", i) + "." + member }
	role := m.role.String()
	switch role {
	case "user":
		r.begin(roleUser, i)
	case "system", "developer":
		r.begin(roleSystem, i)
	case "assistant":
		// Two messages in a row are two answers; what was thought or called
		// before a message is of the same.
		n := len(r.turns)
		if n > 0 && r.turns[n-1].role == roleAssistant {
			parts := r.partsOf(&r.turns[n-1])
			if k := len(parts); k > 0 && (parts[k-1].kind == partText || parts[k-1].kind == partRefusal) {
				r.begin(roleAssistant, i)
			}
		}
		r.assistant(i)
	case "":
		r.refuse(where("role"), "is missing")
		return
	default:
		r.refuse(where("role"), "must be system, developer, user or assistant")
		return
	}
	if !m.content.is {
		r.refuse(where("content"), "is missing")
		return
	}
	from := len(r.parts)
	r.content(&r.parts, i, "content", m.content, role)
	r.turns[len(r.turns)-1].to = len(r.parts)
	if n := len(r.parts); m.cache != nil && n > from && r.parts[n-1].cache == nil {
		r.parts[n-1].cache = m.cache
	}
}

// content reads a string or parts.
func (r *responsesReader) content(to *[]part, i int, field string, content saved, role string) {
	if r.err != nil {
		return
	}
	r.back(content)
	if t, ok := r.s.Text(); ok {
		*to = append(*to, part{kind: partText, text: t.Of(r.body), place: place{field, int32(i), -1, -1}})
		return
	}
	if !r.s.Array() {
		r.refuse(at("input", i)+"."+field, "must be a string or an array of parts")
		return
	}
	for j := 0; r.element(); j++ {
		*to = append(*to, r.part(place{field, int32(i), int32(j), -1}, role))
	}
}

// thought reads a reasoning item. One without any summary is readable for the
// server only.
func (r *responsesReader) thought(i int, m *item) {
	p := part{kind: partThinking, sign: m.secret, place: place{turn: int32(i), index: -1, sub: -1}}
	texts := 0
	for _, list := range [...]saved{m.summary, m.content} {
		if !list.is || r.err != nil {
			continue
		}
		r.back(list)
		if !r.s.Array() {
			r.refuse(at("input", i)+".summary", "must be an array")
			return
		}
		for r.element() {
			if !r.s.Object() {
				r.refuse(at("input", i)+".summary", "must have objects only")
				return
			}
			for {
				key, ok := r.next()
				if !ok {
					break
				}
				if t, isText := r.s.Text(); isText && key == "text" {
					if texts++; len(p.text) > 0 {
						p.text = append(p.text[:len(p.text):len(p.text)], `\n\n`...)
						p.text = append(p.text, t.Of(r.body)...)
					} else {
						p.text = t.Of(r.body)
					}
				} else if !isText {
					r.s.Skip()
				}
			}
		}
	}
	switch {
	case texts == 0 && m.secret == nil:
		r.ignore("input.reasoning", nil) // only its server knows it, by its id
		return
	case texts == 0:
		p.kind = partRedacted
	}
	r.assistant(i)
	r.add(p)
}

// part reads one part of a content.
func (r *responsesReader) part(where place, role string) part {
	p := part{place: where}
	if !r.s.Object() {
		r.s.Skip()
		r.refuse(r.path(where), "must be an object")
		return p
	}
	var kind, text, refusal, url, data lit
	var audio saved
	for key := range r.members() {
		switch key {
		case "type":
			kind = r.text("type")
		case "text":
			text = r.text("text")
		case "refusal":
			refusal = r.text("refusal")
		case "image_url", "file_url":
			url = r.text(key)
		case "file_data":
			data = r.text("file_data")
		case "file_id":
			p.id = r.text("file_id")
		case "filename":
			p.name = r.text("filename")
		case "input_audio":
			audio = r.save()
		case "cache_control":
			p.cache = r.raw()
		case "detail":
			if d := r.text("detail"); string(d) != "auto" {
				r.ignore("input.content.detail", d)
			}
		case "annotations", "logprobs":
			r.s.Skip() // of an earlier answer: nothing for the model
		default:
			r.other("input.content.", key)
		}
	}
	if r.err != nil {
		r.prefix(r.path(where))
		return p
	}
	switch string(kind) {
	case "input_text", "output_text", "text":
		if p.kind, p.text = partText, text; text == nil {
			r.refuse(r.path(where)+".text", "is missing")
		}
	case "refusal":
		p.kind, p.text = partRefusal, refusal
	case "input_image":
		p.kind = partImage
		r.source(&p, url, "image_url")
	case "input_file":
		p.kind = partFile
		if url == nil {
			url = data
			r.source(&p, url, "file_data")
		} else {
			r.source(&p, url, "file_url")
		}
	case "input_audio":
		after := r.s
		r.audio(&p, audio)
		r.s = after
	default:
		r.refuse(r.path(where)+".type", "is "+kind.String()+", which is not known here")
	}
	if media := p.kind == partImage || p.kind == partAudio || p.kind == partFile; media && role != "user" && role != "tool" {
		r.refuse(r.path(where), "is not allowed in a message of the role "+role)
	}
	return p
}

// source reads where the data of an image or a file are.
func (r *responsesReader) source(p *part, url lit, member string) {
	path := func() string { return r.path(p.place) + "." + member }
	media, inline, is, ok := dataURL(url)
	switch {
	case url == nil:
		if p.id == nil {
			r.refuse(path(), "is missing")
		}
	case !ok:
		r.refuse(path(), "is a data URL that is not in base64")
	case is:
		p.media, p.data = media, inline
	case isWeb(url):
		p.url = url
	case isStored(url):
		p.id = url
	case member == "file_data":
		p.media, p.data = mediaOfName(p.name.String()), url // bare base64
	default:
		r.refuse(path(), "must be an http, https, gs or data URL")
	}
}

// isStored says that a URL names an object in Google's storage, which only
// Gemini's servers read.
func isStored(url lit) bool { return len(url) > 5 && string(url[:5]) == "gs://" }

func (r *responsesReader) audio(p *part, audio saved) {
	p.kind = partAudio
	if !audio.is {
		r.refuse(r.path(p.place)+".input_audio", "is missing")
		return
	}
	r.back(audio)
	if !r.object(r.path(p.place) + ".input_audio") {
		return
	}
	for {
		key, ok := r.next()
		if !ok {
			break
		}
		switch {
		case key == "data" && r.s.Peek() == jsonedit.String:
			p.data = r.text("data")
		case key == "format" && r.s.Peek() == jsonedit.String:
			p.media = "audio/" + r.text("format").String()
		default:
			r.s.Skip()
		}
	}
	if len(p.data) == 0 {
		r.refuse(r.path(p.place)+".input_audio.data", "is missing")
	}
}
