// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

// This file writes answers of Gemini's generateContent, whole and as a stream.

// geminiStream writes frames. A call goes out whole, once its arguments are
// complete and those before it are out.
type geminiStream struct {
	o       *answerContext
	tail    []byte // after the candidates
	choices []geminiOut
	size    int // bytes of arguments so far, of all calls
	usage   Usage
	bad     bool // a candidate is, and was not cut short
}

// geminiOut is what is still to go out of one candidate.
type geminiOut struct {
	calls  []block // the first is the next to go
	ended  []bool  // for each of calls
	bad    bool    // a call had arguments that are no object
	reason finish
}

func newGeminiStream(o *answerContext) answerWriter { return &geminiStream{o: o} }

func (w *geminiStream) write(out []byte, e *event) []byte {
	switch e.kind {
	case evStart:
		w.tail = geminiTail(w.o, e.id, e.name)
		return out
	case evUsage:
		w.usage = e.usage
		return out
	case evPing:
		return out // clients take each line for data
	case evError:
		return append(out, e.err.StreamError(OpGenerate, w.o.RequestID)...)
	case evEnd:
		return w.end(out)
	}
	if w.bad {
		return out
	}
	if w.tail == nil {
		w.tail = geminiTail(w.o, nil, nil)
	}
	for len(w.choices) <= e.choice {
		w.choices = append(w.choices, geminiOut{})
	}
	c := &w.choices[e.choice]
	switch e.kind {
	case evText, evRefusal, evReasoning, evSignature, evRedacted, evMedia:
		out = w.open(out, e.choice)
		switch e.kind {
		case evMedia:
			out = appendGeminiMedium(out, e.name, e.text, e.id)
		case evSignature:
			out = appendGeminiThought(out, lit{}, e.text)
		case evRedacted:
			out = appendGeminiThought(out, nil, e.text)
		case evReasoning:
			out = appendGeminiThought(out, e.text, nil)
		default:
			out = append(appendText(append(out, '{'), "text", e.text), '}')
			if e.probs != nil {
				out = appendGeminiProbs(append(out, `]},"logprobsResult":`...), e.probs)
				return append(append(append(out, "}]"...), w.tail...), "}\n\n"...)
			}
		}
		return w.shut(out)
	case evToolStart:
		c.calls = append(c.calls, block{kind: evToolStart, tool: e.tool, id: clone(e.id), name: clone(e.name), sign: clone(e.sign)})
		c.ended = append(c.ended, false)
	case evToolArgs, evToolEnd:
		for i := range c.calls {
			if c.calls[i].tool == e.tool {
				if w.size += len(e.text); w.size > maxWaiting {
					c.bad = true // better broken than without end
					return out
				}
				c.calls[i].text = append(c.calls[i].text, e.text...)
				c.ended[i] = c.ended[i] || e.kind == evToolEnd
			}
		}
		for len(c.calls) > 0 && c.ended[0] {
			out = w.call(out, e.choice)
		}
	case evFinish:
		c.reason = e.reason
		for len(c.calls) > 0 {
			out = w.call(out, e.choice)
		}
		w.bad = w.bad || c.bad && !cutShort(c.reason)
	}
	return out
}

// call writes the next call of a candidate.
func (w *geminiStream) call(out []byte, choice int) []byte {
	c := &w.choices[choice]
	b := c.calls[0]
	c.calls, c.ended = c.calls[1:], c.ended[1:]
	frame := w.open(out, choice)
	frame, ok := appendGeminiCall(frame, &b)
	if !ok {
		c.bad = true
		return out
	}
	return w.shut(frame)
}

// cutShort says that the answer came to its bound, where the last call may be
// incomplete: it is then left out.
func cutShort(f finish) bool { return f == finishLength || f == finishContext }

// geminiTail are the members of all frames after the candidates.
func geminiTail(o *answerContext, id, model lit) []byte {
	if len(id) == 0 {
		id = literal(o.RequestID)
	}
	if o.Model != "" {
		model = literal(o.Model)
	}
	b := appendLit([]byte(`,"modelVersion":`), model)
	return appendText(b, "responseId", id)
}

// open begins a frame of one candidate, up to the inside of its parts.
func (w *geminiStream) open(out []byte, choice int) []byte {
	return append(geminiCandidate(append(out, `data: {"candidates":[`...), choice), '[')
}

// geminiCandidate begins a candidate, up to its parts.
func geminiCandidate(out []byte, index int) []byte {
	out = append(appendComma(out), `{"index":`...)
	return append(appendInt(out, index), `,"content":{"role":"model","parts":`...)
}

// shut ends what open began.
func (w *geminiStream) shut(out []byte) []byte {
	out = append(out, "]}}]"...)
	return append(append(out, w.tail...), "}\n\n"...)
}

// end writes the last frame: how each candidate ended, and the usage.
func (w *geminiStream) end(out []byte) []byte {
	if w.bad {
		w.o.fault = badArguments
		return append(out, UpstreamFailed(badArguments).StreamError(OpGenerate, w.o.RequestID)...)
	}
	if w.tail == nil {
		w.tail = geminiTail(w.o, nil, nil)
	}
	out = append(out, `data: {"candidates":[`...)
	for i := range w.choices {
		out = append(geminiCandidate(out, i), `[]},"finishReason":"`...)
		out = append(append(out, geminiFinish(w.choices[i].reason)...), `"}`...)
	}
	out = append(append(out, ']'), w.tail...)
	if w.usage.Told() {
		out = appendGeminiUsage(append(out, `,"usageMetadata":`...), &w.usage)
	}
	return append(out, "}\n\n"...)
}

// badArguments is the fault of a call whose arguments cannot be said as JSON.
const badArguments = "the server called a tool with arguments that are no JSON object"

// geminiFinish is the word for why a candidate ended.
func geminiFinish(f finish) string {
	switch f {
	case finishLength, finishContext:
		return "MAX_TOKENS"
	case finishFilter, finishRefusal:
		return "SAFETY"
	case finishOther:
		return "OTHER"
	}
	return "STOP"
}

// appendGeminiThought appends a part of what was thought. One without text is
// for the server only.
func appendGeminiThought(b []byte, text, sign lit) []byte {
	b = append(appendComma(b), '{')
	if text != nil {
		b = appendText(b, "text", text)
	}
	b = append(appendMember(b, "thought"), "true"...)
	if len(sign) > 0 {
		b = appendText(b, "thoughtSignature", geminiSign(sign))
	}
	return append(b, '}')
}

// appendGeminiCall appends a part that is a call. It says no if the arguments
// are no object.
func appendGeminiCall(b []byte, call *block) ([]byte, bool) {
	args, ok := call.arguments()
	if !ok {
		return b, false
	}
	b = append(appendComma(b), `{"functionCall":{`...)
	b = appendText(appendText(b, "id", call.id), "name", call.name)
	b = append(appendLine(appendMember(b, "args"), args), '}')
	if call.sign != nil {
		b = appendText(b, "thoughtSignature", call.sign)
	}
	return append(b, '}'), true
}

func appendGeminiUsage(b []byte, u *Usage) []byte {
	b = appendInt(append(b, `{"promptTokenCount":`...), u.Prompt())
	b = appendInt(append(b, `,"candidatesTokenCount":`...), u.Completion()-u.Reasoning)
	if u.Reasoning > 0 {
		b = appendInt(append(b, `,"thoughtsTokenCount":`...), u.Reasoning)
	}
	if u.CacheRead > 0 {
		b = appendInt(append(b, `,"cachedContentTokenCount":`...), u.CacheRead)
	}
	b = appendInt(append(b, `,"totalTokenCount":`...), u.Prompt()+u.Completion())
	return append(b, '}')
}

// geminiWhole writes a whole answer.
type geminiWhole struct {
	o *answerContext
	g gathered
}

func newGeminiWhole(o *answerContext) answerWriter { return &geminiWhole{o: o} }

func (w *geminiWhole) write(out []byte, e *event) []byte {
	switch e.kind {
	case evError:
		return append(out, e.err.Body(OpGenerate, w.o.RequestID)...)
	case evEnd:
		return w.end(out)
	}
	w.g.take(e)
	return out
}

func (w *geminiWhole) end(out []byte) []byte {
	g, start := &w.g, len(out)
	out = append(out, `{"candidates":[`...)
	for i := range g.choices {
		c := &g.choices[i]
		out = append(geminiCandidate(out, i), '[')
		for j := range c.blocks {
			b := &c.blocks[j]
			ok := true
			switch b.kind {
			case evText, evRefusal:
				out = append(appendText(append(appendComma(out), '{'), "text", b.text), '}')
			case evMedia:
				out = appendGeminiMedium(out, b.name, b.text, b.id)
			case evReasoning:
				out = appendGeminiThought(out, append(lit{}, b.text...), b.sign)
			case evRedacted:
				out = appendGeminiThought(out, nil, b.sign)
			case evToolStart:
				out, ok = appendGeminiCall(out, b)
			}
			if !ok && !cutShort(c.reason) {
				w.o.fault = badArguments
				return append(out[:start], UpstreamFailed(badArguments).Body(OpGenerate, w.o.RequestID)...)
			}
		}
		out = append(out, "]}"...)
		if probs := c.probs(); probs != nil {
			out = appendGeminiProbs(append(out, `,"logprobsResult":`...), probs)
		}
		out = append(append(out, `,"finishReason":"`...), geminiFinish(c.reason)...)
		out = append(out, `"}`...)
	}
	out = append(append(out, ']'), geminiTail(w.o, g.id, g.model)...)
	if g.usage.Told() {
		out = appendGeminiUsage(append(out, `,"usageMetadata":`...), &g.usage)
	}
	return append(out, '}', '\n')
}
