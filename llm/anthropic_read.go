// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"strings"

	"github.com/penstock/penstock/internal/jsonedit"
)

// This file reads requests for Anthropic's Messages.

type anthropicReader struct{ requestReader }

func readAnthropic(c *chat, body []byte, depth int) *Error {
	r := &anthropicReader{*newRequestReader(c, body, depth)}
	r.object("body")
	var list saved // of messages: the system prompt comes first, wherever it stands
	for {
		name, ok := r.next()
		if !ok {
			break
		}
		switch {
		case r.null():
		case name == "messages":
			list = r.save()
		default:
			r.member(name)
		}
	}
	if list.is && r.err == nil {
		r.back(list)
		r.messages()
	}
	return r.err
}

func (r *anthropicReader) member(name string) {
	switch name {
	case "model", "stream":
		r.s.Skip()
	case "system":
		r.system()
	case "max_tokens":
		r.set(paramMaxTokens, name, r.number(name))
	case "temperature":
		r.set(paramTemperature, name, r.number(name))
	case "top_p":
		r.set(paramTopP, name, r.number(name))
	case "top_k":
		r.set(paramTopK, name, r.number(name))
	case "stop_sequences":
		r.stops(name)
	case "tools":
		r.toolList()
	case "tool_choice":
		r.toolChoice(name)
	case "thinking":
		r.thinking(name)
	case "output_config":
		r.outputConfig(name)
	case "service_tier":
		switch r.word(name) {
		case "auto":
			r.set(paramTier, name, []byte(`"auto"`))
		case "standard_only":
			r.set(paramTier, name, []byte(`"default"`))
		default:
			r.refuse(name, "must be auto or standard_only")
		}
	case "metadata":
		r.metadata(name)
	case "cache_control":
		r.set(paramCache, name, r.typed(name, jsonedit.Object))
	default:
		r.other("", name)
	}
}

func (r *anthropicReader) metadata(name string) {
	if !r.object(name) {
		return
	}
	for {
		key, ok := r.next()
		if !ok {
			return
		}
		if key == "user_id" && !r.null() {
			r.set(paramUser, name+".user_id", r.typed(name+".user_id", jsonedit.String))
			continue
		}
		r.other(name+".", key)
	}
}

func (r *anthropicReader) outputConfig(name string) {
	if !r.object(name) {
		return
	}
	for {
		key, ok := r.next()
		if !ok {
			return
		}
		switch path := name + "." + key; {
		case r.null():
		case key == "effort":
			r.effort(path)
		case key == "format":
			r.outputFormat(path)
		default:
			r.other(name+".", key)
		}
	}
}

func (r *anthropicReader) outputFormat(name string) {
	if !r.object(name) {
		return
	}
	for {
		key, ok := r.next()
		if !ok {
			break
		}
		switch path := name + "." + key; key {
		case "type":
			if r.word(path) != "json_schema" {
				r.refuse(path, "must be json_schema")
			}
		case "schema":
			r.format.schema = r.typed(path, jsonedit.Object)
		default:
			r.other(name+".", key)
		}
	}
	if r.format.schema == nil {
		r.refuse(name+".schema", "is missing")
	}
	r.format.kind = formatSchema
	r.set(paramFormat, name, []byte("{}"))
}

func (r *anthropicReader) system() {
	r.begin(roleSystem, -1)
	if t, ok := r.s.Text(); ok {
		r.add(part{kind: partText, text: t.Of(r.body), place: place{"system", -1, -1, -1}})
		return
	}
	if !r.array("system") {
		return
	}
	for i := 0; r.element(); i++ {
		p := r.block(place{"system", -1, int32(i), -1}, false)
		if p.kind != partText {
			r.refuse(r.path(p.place), "must be text")
		}
		r.add(p)
	}
}

func (r *anthropicReader) toolList() {
	if !r.array("tools") {
		return
	}
	for i := 0; r.element(); i++ {
		t := tool{kind: toolFunction, index: i}
		if !r.s.Object() {
			r.refuse(t.where(), "must be an object")
			return
		}
		if r.tool(&t); r.err != nil {
			r.prefix(t.where())
		}
		r.tools = append(r.tools, t)
	}
}

func (r *anthropicReader) tool(t *tool) {
	for key := range r.members() {
		switch key {
		case "type":
			if label := r.text("type"); string(label) != "custom" {
				t.kind, t.label = toolServer, label.String()
			}
		case "name":
			t.name = r.text("name")
		case "description":
			t.about = r.text("description")
		case "input_schema":
			t.schema = r.typed("input_schema", jsonedit.Object)
		case "strict":
			t.strict = r.boolean("strict")
		case "cache_control":
			t.cache = r.raw()
		default:
			if t.kind == toolServer {
				r.s.Skip()
				continue
			}
			r.other("tools.", key)
		}
	}
	if t.kind == toolFunction && len(t.name) == 0 {
		r.refuse("name", "is missing")
	}
}

func (r *anthropicReader) toolChoice(name string) {
	c := &r.choice
	if !r.object(name) {
		return
	}
	r.set(paramChoice, name, []byte("{}"))
	for {
		key, ok := r.next()
		if !ok {
			break
		}
		switch path := name + "." + key; key {
		case "type":
			switch r.word(path) {
			case "auto":
				c.mode = choiceAuto
			case "any":
				c.mode = choiceAny
			case "tool":
				c.mode = choiceTool
			case "none":
				c.mode = choiceNone
			default:
				r.refuse(path, "must be auto, any, tool or none")
			}
		case "name":
			if !r.null() {
				c.name = r.text(path)
			}
		case "disable_parallel_tool_use":
			if raw := r.boolean(path); truth(raw) {
				c.single = true
				r.set(paramParallel, path, raw)
			}
		default:
			r.other(name+".", key)
		}
	}
	switch {
	case c.mode == choiceUnset:
		r.refuse(name+".type", "is missing")
	case c.mode == choiceTool && len(c.name) == 0:
		r.refuse(name+".name", "is missing")
	}
}

func (r *anthropicReader) messages() {
	if !r.array("messages") {
		return
	}
	for i := 0; r.element(); i++ {
		r.message(i)
	}
}

func (r *anthropicReader) message(i int) {
	if !r.s.Object() {
		r.s.Skip()
		r.refuse(at("messages", i), "must be an object")
		return
	}
	var who lit
	var content saved
	for {
		key, ok := r.next()
		if !ok {
			break
		}
		switch key {
		case "role":
			who = r.text("role")
		case "content":
			content = r.save()
		default:
			r.other("messages.", key)
		}
	}
	if r.err != nil {
		r.prefix(at("messages", i))
		return
	}
	where := func(member string) string { return at("messages", i) + "." + member }
	switch string(who) {
	case "user":
		r.begin(roleUser, i)
	case "assistant":
		r.begin(roleAssistant, i)
	case "":
		r.refuse(where("role"), "is missing")
	default:
		r.refuse(where("role"), "must be user or assistant")
	}
	if !content.is {
		r.refuse(where("content"), "is missing")
	}
	if r.err != nil {
		return
	}
	after := r.s
	r.back(content)
	if t, ok := r.s.Text(); ok {
		r.add(part{kind: partText, text: t.Of(r.body), place: place{"content", int32(i), -1, -1}})
	} else if r.s.Array() {
		for j := 0; r.element(); j++ {
			p := r.block(place{"content", int32(i), int32(j), -1}, true)
			r.fits(&p, string(who) == "user")
			r.add(p)
		}
	} else {
		r.refuse(where("content"), "must be a string or an array of blocks")
	}
	r.s = after
}

// fits refuses a block in a message of the other role.
func (r *anthropicReader) fits(p *part, user bool) {
	wrong := false
	switch p.kind {
	case partThinking, partRedacted, partToolCall:
		wrong = user
	case partImage, partFile, partToolResult:
		wrong = !user
	}
	if wrong && r.err == nil {
		r.refuse(r.path(p.place), "is not allowed in a message of this role")
	}
}

// anthropicBlock is what a block holds; its type tells what is meant.
type anthropicBlock struct {
	kind, text, thinking, sign, data lit
	id, name, result, title          lit
	input                            []byte
	source, content                  saved
}

// block reads one block of content; results says that it may be what a tool
// answered.
func (r *anthropicReader) block(where place, results bool) part {
	p := part{place: where}
	if !r.s.Object() {
		r.s.Skip()
		r.refuse(r.path(where), "must be an object")
		return p
	}
	var b anthropicBlock
	for key := range r.members() {
		switch key {
		case "type":
			b.kind = r.text("type")
		case "text":
			b.text = r.text("text")
		case "thinking":
			b.thinking = r.text("thinking")
		case "signature":
			b.sign = r.text("signature")
		case "data":
			b.data = r.text("data")
		case "id":
			b.id = r.text("id")
		case "name":
			b.name = r.text("name")
		case "tool_use_id":
			b.result = r.text("tool_use_id")
		case "title":
			b.title = r.text("title")
		case "input":
			if kind := r.s.Peek(); kind == jsonedit.Object {
				b.input = r.raw()
			} else {
				r.s.Skip()
				r.refuse("input", "must be an object")
			}
		case "source":
			b.source = r.save()
		case "content":
			b.content = r.save()
		case "is_error":
			p.isError = truth(r.boolean("is_error"))
		case "cache_control":
			p.cache = r.raw()
		default:
			r.other("messages.content.", key)
		}
	}
	if r.err != nil {
		r.prefix(r.path(where))
		return p
	}
	after := r.s
	r.means(&p, &b, results)
	r.s = after
	return p
}

// means makes a part of a block by its type.
func (r *anthropicReader) means(p *part, b *anthropicBlock, results bool) {
	missing := func(member string) { r.refuse(r.path(p.place)+member, "is missing") }
	switch kind := string(b.kind); kind {
	case "text":
		if p.kind, p.text = partText, b.text; b.text == nil {
			missing(".text")
		}
	case "thinking":
		if p.kind, p.text = partThinking, b.thinking; len(b.sign) > 0 {
			p.sign = b.sign
		}
	case "redacted_thinking":
		p.kind, p.sign = partRedacted, b.data
	case "tool_use":
		p.kind, p.id, p.name, p.args = partToolCall, b.id, b.name, b.input
		switch {
		case len(b.id) == 0:
			missing(".id")
		case len(b.name) == 0:
			missing(".name")
		case b.input == nil:
			p.args = []byte("{}")
		}
	case "tool_result":
		p.kind, p.id = partToolResult, b.result
		switch {
		case !results:
			r.refuse(r.path(p.place), "must not be inside what a tool answered")
		case len(b.result) == 0:
			missing(".tool_use_id")
		case b.content.is:
			r.result(p, b.content)
		}
	case "image", "document":
		p.kind, p.name = partImage, b.title
		if kind == "document" {
			p.kind = partFile
		}
		if !b.source.is {
			missing(".source")
			return
		}
		r.back(b.source)
		r.source(p)
	case "":
		missing(".type")
	default:
		if !ofServer(kind) {
			r.refuse(r.path(p.place)+".type", "is "+b.kind.String()+", which is not known here")
			return
		}
		p.kind, p.name = partOther, b.kind
	}
}

// ofServer says that a block tells what a tool did that the server ran itself.
// Other servers can do without it.
func ofServer(kind string) bool {
	return kind == "server_tool_use" || kind == "mcp_tool_use" || strings.HasSuffix(kind, "_tool_result")
}

// result reads what a tool answered: text or blocks.
func (r *anthropicReader) result(p *part, content saved) {
	r.back(content)
	p.from = len(r.inner)
	if t, ok := r.s.Text(); ok {
		r.inner = append(r.inner, part{kind: partText, text: t.Of(r.body), place: p.place})
	} else if r.s.Array() {
		for k := 0; r.element(); k++ {
			where := p.place
			where.sub = int32(k)
			r.inner = append(r.inner, r.block(where, false))
		}
	} else {
		r.refuse(r.path(p.place)+".content", "must be a string or an array of blocks")
	}
	p.to = len(r.inner)
}

// source reads where an image or a document comes from.
func (r *anthropicReader) source(p *part) {
	path := func(member string) string { return r.path(p.place) + ".source" + member }
	if !r.s.Object() {
		r.refuse(path(""), "must be an object")
		return
	}
	var kind, data lit
	var content saved
	for {
		key, ok := r.next()
		if !ok {
			break
		}
		switch key {
		case "type":
			kind = r.text(path(".type"))
		case "media_type":
			p.media = r.word(path(".media_type"))
		case "data":
			data = r.text(path(".data"))
		case "url":
			p.url = r.text(path(".url"))
		case "file_id":
			p.id = r.text(path(".file_id"))
		case "content":
			content = r.save()
		default:
			r.other("messages.content.source.", key)
		}
	}
	switch string(kind) {
	case "base64":
		if p.data = data; len(data) == 0 {
			r.refuse(path(".data"), "is missing")
		}
	case "text":
		p.text = data
	case "url":
		if !isWeb(p.url) {
			r.refuse(path(".url"), "must be an http or https URL")
		}
	case "file":
		if len(p.id) == 0 {
			r.refuse(path(".file_id"), "is missing")
		}
	case "content":
		if content.is {
			r.back(content)
			r.documentText(p)
		}
	default:
		r.refuse(path(".type"), "must be base64, text, url, content or file")
	}
}

// documentText reads a document that is text in blocks.
func (r *anthropicReader) documentText(p *part) {
	p.text = lit{}
	if t, ok := r.s.Text(); ok {
		p.text = t.Of(r.body)
		return
	}
	if !r.s.Array() {
		return
	}
	for r.element() {
		q := r.block(p.place, false)
		if q.kind != partText {
			r.refuse(r.path(p.place)+".source.content", "may hold text only")
		}
		if len(p.text) > 0 {
			p.text = append(p.text[:len(p.text):len(p.text)], `\n`...)
		}
		p.text = append(p.text[:len(p.text):len(p.text)], q.text...)
	}
}
