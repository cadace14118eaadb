// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

// This file writes requests for OpenAI's Responses.

type responsesWriter struct{ *requestWriter }

func writeResponses(w *requestWriter) {
	o := responsesWriter{w}
	w.out = append(w.out, '{')
	w.quoted("model", literal(w.backend.Model))
	first := 0
	for first < len(w.turns) && w.turns[first].role == roleSystem {
		first++
	}
	if first == len(w.turns) {
		first = 0 // the server wants some input
	}
	o.instructions(w.turns[:first])
	w.member("input")
	w.out = append(w.out, '[')
	for i := first; i < len(w.turns) && w.err == nil; i++ {
		o.turn(&w.turns[i])
	}
	w.some()
	w.out = append(w.out, ']')
	o.toolList()
	o.toolChoice()
	o.params()
	w.out = append(w.out, '}')
}

// some refuses a list of messages that came out empty.
func (w *requestWriter) some() {
	if w.out[len(w.out)-1] == '[' {
		w.refuse(cannot(w.list(), "must have a message of the user for this server"))
	}
}

// instructions writes what the system says before all else.
func (o *responsesWriter) instructions(turns []turn) {
	first := true
	for i := range turns {
		o.name(&turns[i])
		parts := o.partsOf(&turns[i])
		for j := range parts {
			if first {
				o.out = append(appendMember(o.out, "instructions"), '"')
			} else {
				o.out = append(o.out, `\n\n`...)
			}
			first = false
			o.out = append(o.out, parts[j].text...)
			o.cached(&parts[j])
		}
	}
	if !first {
		o.out = append(o.out, '"')
	}
}

func (o *responsesWriter) name(t *turn) {
	if t.name != nil {
		o.drop("messages.name")
	}
}

// cached notes that the mark of a prefix to be cached is lost.
func (o *responsesWriter) cached(p *part) {
	if p.cache != nil {
		o.drop("cache_control")
	}
}

// turn writes the items of a turn in the order of its parts. Neighbours that
// belong into a message share one.
func (o *responsesWriter) turn(t *turn) {
	role := map[role]string{roleSystem: "developer", roleUser: "user", roleAssistant: "assistant"}[t.role]
	o.name(t)
	parts := o.partsOf(t)
	open := false
	shut := func() {
		if open {
			o.out = append(o.out, ']', '}')
		}
		open = false
	}
	for i := range parts {
		p := &parts[i]
		o.cached(p)
		switch p.kind {
		case partToolCall:
			shut()
			o.call(p)
		case partToolResult:
			shut()
			o.result(p)
		case partThinking, partRedacted:
			shut()
			o.thought(p)
		case partOther:
			o.other(p)
		default:
			if !open {
				open = true
				o.open()
				o.out = append(o.out, `"type":"message"`...)
				o.quoted("role", lit(role))
				o.member("content")
				o.out = append(o.out, '[')
			}
			o.part(p, t.role == roleAssistant)
		}
	}
	shut()
}

func (o *responsesWriter) call(p *part) {
	o.open()
	o.out = append(o.out, `"type":"function_call"`...)
	o.quoted("call_id", p.id)
	o.quoted("name", p.name)
	o.member("arguments")
	o.out = append(appendEscaped(o.out, p.args), '}')
}

func (o *responsesWriter) result(p *part) {
	o.open()
	o.out = append(o.out, `"type":"function_call_output"`...)
	o.quoted("call_id", p.id)
	inner, media := o.partsOfResult(p), false
	for i := range inner {
		o.cached(&inner[i])
		media = media || inner[i].kind != partText && inner[i].kind != partOther
	}
	o.member("output")
	if media {
		o.out = append(o.out, '[')
		if p.isError {
			o.part(&part{kind: partText, text: lit("Error:")}, false)
		}
		for i := range inner {
			if inner[i].kind == partOther {
				o.other(&inner[i])
			} else {
				o.part(&inner[i], false)
			}
		}
		o.out = append(o.out, ']', '}')
		return
	}
	o.out = append(o.resultText(append(o.out, '"'), p), '"', '}')
}

// resultText appends the texts of what a tool answered, each on a line of its
// own, as the text of a literal.
func (w *requestWriter) resultText(b []byte, p *part) []byte {
	if p.isError {
		b = append(b, "Error: "...)
	}
	inner, first := w.partsOfResult(p), true
	for i := range inner {
		switch q := &inner[i]; q.kind {
		case partText:
			if !first {
				b = append(b, `\n`...)
			}
			first = false
			b = append(b, q.text...)
		case partOther:
			w.other(q)
		}
	}
	return b
}

// thought writes what the server can read of what was thought: with its
// encrypted form only.
func (o *responsesWriter) thought(p *part) {
	if len(p.sign) == 0 {
		o.drop("messages.thinking")
		return
	}
	o.open()
	o.out = append(o.out, `"type":"reasoning","summary":[`...)
	if p.kind == partThinking && len(p.text) > 0 {
		o.open()
		o.out = append(o.out, `"type":"summary_text"`...)
		o.quoted("text", p.text)
		o.out = append(o.out, '}')
	}
	o.out = append(o.out, ']')
	o.quoted("encrypted_content", p.sign)
	o.out = append(o.out, '}')
}

// part writes a part of a message.
func (o *responsesWriter) part(p *part, assistant bool) {
	o.open()
	switch p.kind {
	case partText:
		if assistant {
			o.out = append(o.out, `"type":"output_text"`...)
		} else {
			o.out = append(o.out, `"type":"input_text"`...)
		}
		o.quoted("text", p.text)
	case partRefusal:
		o.out = append(o.out, `"type":"refusal"`...)
		o.quoted("refusal", p.text)
	case partImage:
		o.out = append(o.out, `"type":"input_image"`...)
		switch {
		case p.data != nil:
			o.dataURL("image_url", p)
		case p.url != nil:
			o.quoted("image_url", p.url)
		default:
			o.refuse(cannot(o.path(p.place), "is a file of another provider; send its data or a URL"))
		}
	case partFile:
		o.file(p)
	default:
		o.refuse(cannot(o.path(p.place), "cannot be sent to this server: it takes no audio"))
	}
	o.out = append(o.out, '}')
}

func (o *responsesWriter) file(p *part) {
	if p.text != nil {
		o.unnamed(p)
		o.out = append(o.out, `"type":"input_text"`...)
		o.quoted("text", p.text)
		return
	}
	o.out = append(o.out, `"type":"input_file"`...)
	switch {
	case isVideo(p):
		o.refuse(cannot(o.path(p.place), "is a video, which this server does not take"))
	case p.data != nil:
		name := p.name
		if len(name) == 0 {
			name = lit("document.pdf")
		}
		o.quoted("filename", name)
		o.dataURL("file_data", p)
	case p.url != nil:
		o.quoted("file_url", p.url)
	default:
		o.refuse(cannot(o.path(p.place), "is a file that only its own provider can read; send its data"))
	}
}

func (o *responsesWriter) dataURL(name string, p *part) {
	o.member(name)
	o.out = append(o.out, `"data:`...)
	o.out = append(o.out, literal(p.media)...)
	o.out = append(o.out, ";base64,"...)
	o.out = append(append(o.out, p.data...), '"')
}

func (o *responsesWriter) toolList() {
	before := len(o.out)
	o.member("tools")
	o.out = append(o.out, '[')
	empty := len(o.out)
	for i := range o.tools {
		t := &o.tools[i]
		if t.cache != nil {
			o.drop("cache_control")
		}
		if t.kind != toolFunction {
			o.notTool(t)
			continue
		}
		o.open()
		o.out = append(o.out, `"type":"function"`...)
		o.quoted("name", t.name)
		if t.about != nil {
			o.quoted("description", t.about)
		}
		if t.schema != nil {
			o.raw("parameters", t.schema)
		} else {
			o.raw("parameters", []byte(emptySchema))
		}
		strict := t.strict
		if strict == nil {
			strict = []byte("false") // this dialect, and no other, means true else
		}
		o.raw("strict", strict)
		o.out = append(o.out, '}')
	}
	if len(o.out) == empty {
		o.out = o.out[:before]
		return
	}
	o.out = append(o.out, ']')
}

// emptySchema is that of a function without parameters.
const emptySchema = `{"type":"object","properties":{}}`

func (o *responsesWriter) toolChoice() {
	c := &o.choice
	o.take(paramChoice)
	o.take(paramParallel)
	if o.functions() == 0 {
		return
	}
	switch c.mode {
	case choiceAuto, choiceNone, choiceAny:
		word := lit(map[choiceMode]string{choiceAuto: "auto", choiceNone: "none", choiceAny: "required"}[c.mode])
		if c.allowed == nil {
			o.quoted("tool_choice", word)
			break
		}
		o.out = append(appendMember(o.out, "tool_choice"), `{"type":"allowed_tools"`...)
		o.quoted("mode", word)
		o.member("tools")
		o.out = append(o.out, '[')
		for _, name := range c.allowed {
			o.open()
			o.out = append(o.out, `"type":"function"`...)
			o.quoted("name", name)
			o.out = append(o.out, '}')
		}
		o.out = append(o.out, ']', '}')
	case choiceTool:
		o.out = append(appendMember(o.out, "tool_choice"), `{"type":"function"`...)
		o.quoted("name", c.name)
		o.out = append(o.out, '}')
	}
	if c.single {
		o.raw("parallel_tool_calls", []byte("false"))
	}
}

func (o *responsesWriter) params() {
	o.one()
	o.take(paramMaxTokens)
	if o.maxTokens > 0 {
		o.raw("max_output_tokens", appendInt(nil, o.maxTokens))
	}
	for _, p := range [...]struct {
		kind paramKind
		name string
	}{
		{paramTemperature, "temperature"}, {paramTopP, "top_p"}, {paramUser, "user"}, {paramMetadata, "metadata"},
		{paramStore, "store"}, {paramCacheKey, "prompt_cache_key"}, {paramTier, "service_tier"},
	} {
		if !o.backend.Quirks.refuses(p.name) {
			o.pass(p.kind, p.name)
		}
	}
	include := []byte{'['}
	if !o.backend.Quirks.refuses("logprobs") && o.take(paramLogprobs) != nil {
		o.pass(paramTopLogprobs, "top_logprobs")
		include = append(include, `"message.output_text.logprobs"`...)
	}
	o.take(paramReasoning)
	if word := o.reasoning.word(); word != "" && (word != "none" || o.reasoning.effort == "none") {
		o.out = append(appendMember(o.out, "reasoning"), '{')
		o.quoted("effort", lit(word))
		o.out = append(o.out, '}')
		if o.dialect != DialectOpenAI && word != "none" {
			// The client's dialect has signatures, without which it could not
			// send back what was thought.
			include = append(appendComma(include), `"reasoning.encrypted_content"`...)
		}
	} else if o.reasoning.adaptive {
		o.drop(o.nameOf(paramReasoning))
	}
	if len(include) > 1 {
		o.raw("include", append(include, ']'))
	}
	o.textOptions()
	if o.stream {
		o.raw("stream", []byte("true"))
	}
}

// one refuses more than one choice.
func (w *requestWriter) one() {
	if w.n > 1 {
		w.refuse(cannot(w.nameOf(paramN), "must be 1 for this server"))
	}
}

func (o *responsesWriter) textOptions() {
	f := &o.format
	o.take(paramFormat)
	verbosity := o.take(paramVerbosity)
	if f.kind == formatText && verbosity == nil {
		return
	}
	o.out = append(appendMember(o.out, "text"), '{')
	if verbosity != nil {
		o.raw("verbosity", verbosity)
	}
	switch f.kind {
	case formatJSON:
		o.raw("format", []byte(`{"type":"json_object"}`))
	case formatSchema:
		o.out = append(appendMember(o.out, "format"), `{"type":"json_schema"`...)
		name := f.name
		if len(name) == 0 {
			name = lit("response")
		}
		o.quoted("name", name)
		if f.about != nil {
			o.quoted("description", f.about)
		}
		o.raw("schema", f.schema)
		strict := f.strict
		if strict == nil {
			strict = []byte("false")
		}
		o.raw("strict", strict)
		o.out = append(o.out, '}')
	}
	o.out = append(o.out, '}')
}
