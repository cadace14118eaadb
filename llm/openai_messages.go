// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import "github.com/penstock/penstock/internal/jsonedit"

// This file reads the messages of a request for chat completions.

// message is one message, of which the parts are read once the role is known:
// a client may put the members in any order.
type message struct {
	role     lit
	text     lit // content that is a string
	name     lit
	callID   lit
	refusal  lit
	thought  lit
	cache    []byte
	content  saved // content that is an array
	calls    saved
	function saved
	thoughts saved // thinking_blocks
	images   saved // that an earlier answer held
}

func (r *openAIReader) messages() {
	if !r.array("messages") {
		return
	}
	r.turns = make([]turn, 0, 16)
	r.parts = make([]part, 0, 16)
	for i := 0; r.element(); i++ {
		r.message(i)
	}
}

func (r *openAIReader) message(i int) {
	var m message
	if !r.s.Object() {
		r.s.Skip()
		r.refuse(at("messages", i), "must be an object")
		return
	}
	for key := range r.members() {
		switch key {
		case "role":
			m.role = r.text("role")
		case "content":
			if r.s.Peek() == jsonedit.String {
				m.text = r.text("")
			} else if m.content = r.save(); r.body[spanStart(m.content)] != '[' {
				r.refuse("content", "must be a string or an array of parts")
			}
		case "name":
			m.name = r.text("name")
		case "tool_call_id":
			m.callID = r.text("tool_call_id")
		case "refusal":
			m.refusal = r.text("refusal")
		case "reasoning_content", "reasoning":
			m.thought = r.text(key)
		case "thinking_blocks":
			m.thoughts = r.save()
		case "images":
			m.images = r.save()
		case "tool_calls":
			m.calls = r.save()
		case "function_call":
			m.function = r.save()
		case "cache_control":
			m.cache = r.raw()
		case "annotations":
			r.s.Skip() // of an earlier answer: nothing for the model
		default:
			r.other("messages.", key)
		}
	}
	if r.err != nil {
		r.prefix(at("messages", i))
		return
	}
	after := r.s
	r.turn(i, &m)
	r.s = after
}

// spanStart is where a saved value begins.
func spanStart(at saved) int {
	at.s.Peek()
	return at.s.Pos()
}

func (r *openAIReader) turn(i int, m *message) {
	if m.images.is && string(m.role) != "assistant" {
		r.ignore("messages.images", nil)
	}
	where := func(member string) string { return at("messages", i) + "." + member }
	none := m.text == nil && !m.content.is
	switch role := string(m.role); role {
	case "system", "developer", "user":
		kind := roleUser
		if role != "user" {
			kind = roleSystem
		}
		r.begin(kind, i).name = m.name
		if none {
			r.refuse(where("content"), "is missing")
		}
		r.content(i, m)
	case "assistant":
		r.begin(roleAssistant, i).name = m.name
		r.assistant(i, m)
		if none && len(r.partsOf(&r.turns[len(r.turns)-1])) == 0 {
			r.refuse(where("content"), "is missing")
		}
	case "tool", "function":
		r.begin(roleUser, i)
		id := m.callID
		if role == "function" {
			id = r.legacyID()
		}
		switch {
		case len(id) == 0:
			r.refuse(where("tool_call_id"), "is missing")
		case none:
			r.refuse(where("content"), "is missing")
		}
		p := part{kind: partToolResult, id: id, name: m.name, cache: m.cache, place: place{turn: int32(i), index: -1, sub: -1}}
		m.cache = nil
		p.from = len(r.inner)
		r.contentInto(&r.inner, i, m)
		p.to = len(r.inner)
		r.add(p)
	case "":
		r.refuse(where("role"), "is missing")
	default:
		r.refuse(where("role"), "must be system, developer, user, assistant, tool or function")
	}
}

// content reads the content into the turn.
func (r *openAIReader) content(i int, m *message) {
	r.contentInto(&r.parts, i, m)
	r.turns[len(r.turns)-1].to = len(r.parts)
}

func (r *openAIReader) contentInto(to *[]part, i int, m *message) {
	if m.text != nil {
		*to = append(*to, part{kind: partText, text: m.text, cache: m.cache, place: place{"content", int32(i), -1, -1}})
		return
	}
	if !m.content.is || r.err != nil {
		return
	}
	r.back(m.content)
	r.s.Array()
	for j := 0; r.element(); j++ {
		*to = append(*to, r.part(place{"content", int32(i), int32(j), -1}, string(m.role)))
	}
	if n := len(*to); m.cache != nil && n > 0 && (*to)[n-1].cache == nil {
		(*to)[n-1].cache = m.cache
	}
}

func (r *openAIReader) assistant(i int, m *message) {
	switch {
	case m.thoughts.is:
		r.back(m.thoughts)
		if !r.array(at("messages", i) + ".thinking_blocks") {
			return
		}
		for j := 0; r.element(); j++ {
			p := r.part(place{"thinking_blocks", int32(i), int32(j), -1}, "assistant")
			if p.kind != partThinking && p.kind != partRedacted {
				r.refuse(r.path(p.place), "must be a block of thinking")
			}
			r.add(p)
		}
	case m.thought != nil:
		r.add(part{kind: partThinking, text: m.thought, place: place{"reasoning_content", int32(i), -1, -1}})
	}
	r.content(i, m)
	if m.refusal != nil {
		r.add(part{kind: partRefusal, text: m.refusal, place: place{"refusal", int32(i), -1, -1}})
	}
	if m.images.is && r.err == nil {
		r.back(m.images)
		if !r.array(at("messages", i) + ".images") {
			return
		}
		for j := 0; r.element(); j++ {
			r.add(r.part(place{"images", int32(i), int32(j), -1}, "tool"))
		}
	}
	if m.calls.is && r.err == nil {
		r.back(m.calls)
		if !r.array(at("messages", i) + ".tool_calls") {
			return
		}
		for j := 0; r.element(); j++ {
			r.call(place{"tool_calls", int32(i), int32(j), -1})
		}
	}
	if m.function.is && r.err == nil {
		r.back(m.function)
		r.legacy++
		p := part{kind: partToolCall, id: r.legacyID(), place: place{"function_call", int32(i), -1, -1}}
		if r.called(&p, "function_call"); r.err != nil {
			r.prefix(at("messages", i))
		}
		r.add(p)
	}
}

// call reads one element of tool_calls.
func (r *openAIReader) call(where place) {
	path := func() string { return r.path(where) }
	if !r.s.Object() {
		r.s.Skip()
		r.refuse(path(), "must be an object")
		return
	}
	p := part{kind: partToolCall, place: where}
	found := false
	for key := range r.members() {
		switch key {
		case "id":
			p.id = r.text("id")
		case "type":
			if kind := r.text("type"); string(kind) != "function" && len(kind) > 0 {
				r.refuse("type", "must be function")
			}
		case "function":
			found = true
			r.called(&p, "function")
		case "extra_content":
			p.sign = r.signature()
		case "index":
			r.s.Skip()
		default:
			r.other("messages.tool_calls.", key)
		}
	}
	switch {
	case len(p.id) == 0:
		r.refuse("id", "is missing")
	case !found:
		r.refuse("function", "is missing")
	}
	if r.err != nil {
		r.prefix(path())
	}
	r.add(p)
}

// called reads the name and the arguments of a call. It tells errors from inside
// of the member name.
func (r *openAIReader) called(p *part, name string) {
	if !r.object(name) {
		return
	}
	p.args = []byte("{}")
	for key := range r.members() {
		switch key {
		case "name":
			p.name = r.text("name")
		case "arguments":
			p.args = r.arguments(r.text("arguments"), func() string { return "arguments" })
		default:
			r.s.Skip()
		}
	}
	if len(p.name) == 0 {
		r.refuse("name", "is missing")
	}
	if r.err != nil {
		r.prefix(name)
	}
}

// signature reads {"google":{"thought_signature":"…"}}.
func (r *requestReader) signature() (sign lit) {
	if !r.s.Object() {
		r.s.Skip()
		return nil
	}
	for {
		key, ok := r.next()
		if !ok {
			return sign
		}
		if key != "google" || !r.s.Object() {
			r.s.Skip()
			continue
		}
		for {
			key, ok := r.next()
			if !ok {
				break
			}
			if t, isText := r.s.Text(); isText && key == "thought_signature" {
				sign = t.Of(r.body)
			} else if !isText {
				r.s.Skip()
			}
		}
	}
}

// part reads one part of a content.
func (r *openAIReader) part(where place, role string) part {
	p := part{place: where}
	if t, ok := r.s.Text(); ok {
		p.kind, p.text = partText, t.Of(r.body)
		return p
	}
	if !r.s.Object() {
		r.s.Skip()
		r.refuse(r.path(where), "must be an object")
		return p
	}
	var kind, text, refusal, thought lit
	var medium saved
	var is string
	for key := range r.members() {
		switch key {
		case "type":
			kind = r.text("type")
		case "text":
			text = r.text("text")
		case "refusal":
			refusal = r.text("refusal")
		case "thinking":
			thought = r.text("thinking")
		case "signature", "data":
			p.sign = r.text(key)
		case "cache_control":
			p.cache = r.raw()
		case "image_url", "input_audio", "file":
			medium, is = r.save(), key
		case "index":
			r.s.Skip() // of an image of an earlier answer
		default:
			r.other("messages.content.", key)
		}
	}
	if r.err != nil {
		r.prefix(r.path(where))
		return p
	}
	after := r.s
	switch name := string(kind); name {
	case "text", "":
		if p.kind, p.text = partText, text; text == nil {
			r.refuse(r.path(where)+".text", "is missing")
		}
	case "refusal":
		p.kind, p.text = partRefusal, refusal
	case "thinking":
		p.kind, p.text = partThinking, thought
	case "redacted_thinking":
		p.kind = partRedacted
	case "image_url", "input_audio", "file":
		if is != name {
			r.refuse(r.path(where)+"."+name, "is missing")
			break
		}
		r.back(medium)
		r.medium(&p, name)
	default:
		r.refuse(r.path(where)+".type", "is "+kind.String()+", which is not known here")
	}
	r.s = after
	media := p.kind == partImage || p.kind == partAudio || p.kind == partFile
	if r.err == nil && (media && role != "user" && role != "tool" || (p.kind >= partRefusal && p.kind <= partRedacted) && role != "assistant") {
		r.refuse(r.path(where), "is not allowed in a message of the role "+role)
	}
	return p
}

// medium reads an image, a sound or a file.
func (r *openAIReader) medium(p *part, name string) {
	path := func(member string) string { return r.path(p.place) + "." + name + member }
	var url, data, format lit
	if t, ok := r.s.Text(); ok && name == "image_url" {
		url = t.Of(r.body)
	} else if !r.s.Object() {
		r.refuse(path(""), "must be an object")
		return
	} else {
		for key := range r.members() {
			switch key {
			case "url", "file_data":
				url = r.text(path("." + key))
			case "data":
				data = r.text(path(".data"))
			case "format":
				format = r.text(path(".format"))
			case "file_id":
				p.id = r.text(path(".file_id"))
			case "filename":
				p.name = r.text(path(".filename"))
			case "detail":
				if d := r.text(path(".detail")); string(d) != "auto" {
					r.ignore("messages.content.image_url.detail", d)
				}
			default:
				r.other("messages.content."+name+".", key)
			}
		}
	}
	media, inline, is, ok := dataURL(url)
	switch {
	case r.err != nil:
	case name == "input_audio":
		p.kind, p.data, p.media = partAudio, data, "audio/"+format.String()
		if len(data) == 0 {
			r.refuse(path(".data"), "is missing")
		}
	case !ok:
		r.refuse(path(".url"), "is a data URL that is not in base64")
	case is:
		p.kind, p.media, p.data = partImage, media, inline
		if name == "file" || mediumOf([]byte(media)) == mediumFile {
			p.kind = partFile
		}
	case name == "file":
		if p.kind = partFile; p.id == nil {
			r.refuse(path(".file_data"), "must be a data URL, or file_id must be set")
		}
	case isWeb(url):
		p.kind, p.url = partImage, url
	case isStored(url):
		p.kind, p.id = partImage, url
	default:
		r.refuse(path(".url"), "must be an http, https, gs or data URL")
	}
}
