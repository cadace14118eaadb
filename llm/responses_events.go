// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"strconv"
	"strings"
)

// This file writes answers of OpenAI's Responses, whole and as a stream. The
// last event of a stream holds all of the response, so that its text is kept.

// outItem is an item of the output.
type outItem struct {
	kind   itemKind
	tool   int
	id     lit
	callID lit
	name   lit
	sign   lit       // encrypted content of reasoning, signature of a call
	texts  []outText // parts of a message, or the one of a summary
	args   lit       // of a call; the data of an image
	ended  bool
}

// outText is a part of an item.
type outText struct {
	refusal bool
	text    lit
	probs   []byte // see logprobs.go
}

// responsesStream writes events.
type responsesStream struct {
	o        *answerContext
	id       lit
	model    lit
	created  int64
	begun    bool
	sequence int
	items    []outItem
	kept     int // bytes of text in items
	reason   finish
	usage    Usage
}

func newResponsesStream(o *answerContext) answerWriter { return &responsesStream{o: o} }

func (w *responsesStream) write(out []byte, e *event) []byte {
	switch e.kind {
	case evPing:
		return append(out, ": ping\n\n"...)
	case evUsage:
		w.usage = e.usage
		return out
	}
	if !w.begun {
		out = w.start(out, e)
	}
	if e.choice > 0 {
		return out // this dialect has one choice
	}
	switch e.kind {
	case evText, evRefusal:
		return w.text(out, e)
	case evReasoning:
		out, item := w.open(out, itemReasoning)
		if len(item.texts) == 0 {
			out = w.beginSummary(out, item)
		}
		w.keep(&item.texts[0].text, e.text)
		out = w.ofItem(out, "response.reasoning_summary_text.delta", len(w.items)-1)
		out = append(out, `,"summary_index":0`...)
		return w.shut(appendText(out, "delta", e.text))
	case evSignature:
		out, item := w.open(out, itemReasoning)
		if len(item.texts) == 0 {
			out = w.beginSummary(out, item)
		}
		item.sign = clone(e.text)
		return w.endItem(out, len(w.items)-1, "completed")
	case evRedacted:
		out = w.endOpen(out)
		out, item := w.open(out, itemReasoning)
		item.sign = clone(e.text)
		return w.endItem(out, len(w.items)-1, "completed")
	case evMedia:
		return w.image(out, e)
	case evToolStart:
		out = w.endOpen(out)
		w.items = append(w.items, outItem{
			kind: itemCall, tool: e.tool, id: w.itemID("fc_", len(w.items)),
			callID: clone(e.id), name: clone(e.name), sign: clone(e.sign),
		})
		return w.added(out, len(w.items)-1)
	case evToolArgs:
		if i := w.call(e.tool); i >= 0 && len(e.text) > 0 {
			return w.args(out, i, e.text)
		}
	case evToolEnd:
		if i := w.call(e.tool); i >= 0 {
			return w.endItem(out, i, "completed")
		}
	case evFinish:
		w.reason = e.reason
	case evEnd:
		return w.end(out)
	case evError:
		return w.failed(out, e.err)
	}
	return out
}

// keep adds to what is kept for the end. Beyond the bound on a whole answer
// nothing is kept, and what the end repeats is cut.
func (w *responsesStream) keep(to *lit, text lit) {
	if w.kept += len(text); w.kept <= w.o.MaxBody {
		*to = append(*to, text...)
	}
}

// call is the index of the open item of a call; -1: there is none.
func (w *responsesStream) call(tool int) int {
	for i := len(w.items) - 1; i >= 0; i-- {
		if item := &w.items[i]; item.kind == itemCall && item.tool == tool && !item.ended {
			return i
		}
	}
	return -1
}

func (w *responsesStream) itemID(prefix string, index int) lit {
	id := append(lit(prefix), bytes.TrimPrefix(w.id, []byte("resp_"))...)
	return strconv.AppendInt(append(id, '_'), int64(index), 10)
}

func (w *responsesStream) start(out []byte, e *event) []byte {
	w.begun = true
	w.id, w.model, w.created = responsesHead(w.o, e)
	for _, kind := range [...]string{"response.created", "response.in_progress"} {
		out = append(w.event(out, kind), `,"response":`...)
		out = w.response(out, "in_progress", nil)
		out = w.shut(out)
	}
	return out
}

// responsesHead is what begins a response.
func responsesHead(o *answerContext, e *event) (id, model lit, created int64) {
	const prefix = "resp_"
	switch {
	case e.kind != evStart || len(e.id) == 0:
		id = literal(prefix + o.RequestID)
	case bytes.HasPrefix(e.id, []byte(prefix)):
		id = clone(e.id)
	default:
		id = append(lit(prefix), bytes.TrimPrefix(bytes.TrimPrefix(e.id, []byte("chatcmpl-")), []byte("msg_"))...)
	}
	if e.kind == evStart {
		model, created = clone(e.name), e.created
	}
	if o.Model != "" {
		model = literal(o.Model)
	}
	if created == 0 {
		created = o.Created
	}
	return id, model, created
}

// event begins an event, up to its sequence number.
func (w *responsesStream) event(out []byte, kind string) []byte {
	out = append(append(out, "event: "...), kind...)
	out = append(append(out, "\ndata: {\"type\":\""...), kind...)
	out = strconv.AppendInt(append(out, `","sequence_number":`...), int64(w.sequence), 10)
	w.sequence++
	return out
}

// ofItem begins an event of an item.
func (w *responsesStream) ofItem(out []byte, kind string, index int) []byte {
	out = appendText(w.event(out, kind), "item_id", w.items[index].id)
	return appendInt(append(out, `,"output_index":`...), index)
}

func (w *responsesStream) shut(out []byte) []byte { return append(out, "}\n\n"...) }

func (w *responsesStream) added(out []byte, index int) []byte {
	out = appendInt(append(w.event(out, "response.output_item.added"), `,"output_index":`...), index)
	out = appendItem(append(out, `,"item":`...), &w.items[index], "in_progress")
	return w.shut(out)
}

// open is the open item of a kind, begun if need be. An item of another kind is
// ended, but for calls, whose arguments may come in turns.
func (w *responsesStream) open(out []byte, kind itemKind) ([]byte, *outItem) {
	n := len(w.items) - 1
	if n >= 0 && w.items[n].kind == kind && !w.items[n].ended {
		return out, &w.items[n]
	}
	out = w.endOpen(out)
	prefix := "msg_"
	if kind == itemReasoning {
		prefix = "rs_"
	}
	w.items = append(w.items, outItem{kind: kind, id: w.itemID(prefix, n+1)})
	return w.added(out, n+1), &w.items[n+1]
}

// endOpen ends the last item if it is open and no call.
func (w *responsesStream) endOpen(out []byte) []byte {
	if n := len(w.items) - 1; n >= 0 && !w.items[n].ended && w.items[n].kind != itemCall {
		return w.endItem(out, n, "completed")
	}
	return out
}

// text writes a piece of text or of a refusal.
func (w *responsesStream) text(out []byte, e *event) []byte {
	refusal := e.kind == evRefusal
	out, item := w.open(out, itemMessage)
	index := len(w.items) - 1
	part := len(item.texts) - 1
	if part < 0 || item.texts[part].refusal != refusal {
		if part >= 0 {
			out = w.endText(out, index)
		}
		item.texts = append(item.texts, outText{refusal: refusal})
		part++
		out = w.ofItem(out, "response.content_part.added", index)
		out = appendInt(append(out, `,"content_index":`...), part)
		out = w.shut(appendOutText(append(out, `,"part":`...), &item.texts[part]))
	}
	w.keep(&item.texts[part].text, e.text)
	if w.kept += len(e.probs); w.kept <= w.o.MaxBody {
		item.texts[part].probs = joinProbs(item.texts[part].probs, e.probs)
	}
	if refusal {
		out = w.ofItem(out, "response.refusal.delta", index)
	} else {
		out = w.ofItem(out, "response.output_text.delta", index)
	}
	out = appendInt(append(out, `,"content_index":`...), part)
	out = appendText(out, "delta", e.text)
	if !refusal {
		out = append(appendLine(append(out, `,"logprobs":[`...), e.probs), ']')
	}
	return w.shut(out)
}

// image writes an image, which comes whole.
func (w *responsesStream) image(out []byte, e *event) []byte {
	out = w.endOpen(out)
	n := len(w.items)
	w.items = append(w.items, outItem{kind: itemImage, id: w.itemID("ig_", n), name: clone(e.name)})
	w.keep(&w.items[n].args, e.text)
	out = w.added(out, n)
	out = w.shut(w.ofItem(out, "response.image_generation_call.completed", n))
	return w.endItem(out, n, "completed")
}

// endText ends the last part of a message.
func (w *responsesStream) endText(out []byte, index int) []byte {
	item := &w.items[index]
	part := len(item.texts) - 1
	t := &item.texts[part]
	if t.refusal {
		out = w.ofItem(out, "response.refusal.done", index)
		out = appendInt(append(out, `,"content_index":`...), part)
		out = w.shut(appendText(out, "refusal", t.text))
	} else {
		out = w.ofItem(out, "response.output_text.done", index)
		out = appendInt(append(out, `,"content_index":`...), part)
		out = append(appendText(out, "text", t.text), `,"logprobs":[`...)
		out = w.shut(append(append(out, t.probs...), ']'))
	}
	out = w.ofItem(out, "response.content_part.done", index)
	out = appendInt(append(out, `,"content_index":`...), part)
	return w.shut(appendOutText(append(out, `,"part":`...), t))
}

func (w *responsesStream) beginSummary(out []byte, item *outItem) []byte {
	item.texts = append(item.texts, outText{})
	out = w.ofItem(out, "response.reasoning_summary_part.added", len(w.items)-1)
	return w.shut(append(out, `,"summary_index":0,"part":{"type":"summary_text","text":""}`...))
}

func (w *responsesStream) args(out []byte, index int, text lit) []byte {
	w.keep(&w.items[index].args, text)
	out = w.ofItem(out, "response.function_call_arguments.delta", index)
	return w.shut(appendText(out, "delta", text))
}

// endItem ends an item with all that it holds.
func (w *responsesStream) endItem(out []byte, index int, status string) []byte {
	item := &w.items[index]
	switch item.kind {
	case itemMessage:
		if len(item.texts) > 0 {
			out = w.endText(out, index)
		}
	case itemReasoning:
		if len(item.texts) > 0 {
			t := item.texts[0].text
			out = append(w.ofItem(out, "response.reasoning_summary_text.done", index), `,"summary_index":0`...)
			out = w.shut(appendText(out, "text", t))
			out = append(w.ofItem(out, "response.reasoning_summary_part.done", index), `,"summary_index":0,"part":{"type":"summary_text"`...)
			out = w.shut(append(appendText(out, "text", t), '}'))
		}
	case itemCall:
		if len(item.args) == 0 {
			out = w.args(out, index, lit("{}"))
		}
		out = appendText(w.ofItem(out, "response.function_call_arguments.done", index), "name", item.name)
		out = w.shut(appendText(out, "arguments", item.args))
	}
	item.ended = true
	out = appendInt(append(w.event(out, "response.output_item.done"), `,"output_index":`...), index)
	return w.shut(appendItem(append(out, `,"item":`...), item, status))
}

// endAll ends what is open. In an answer that was cut short, the last item is
// what was cut.
func (w *responsesStream) endAll(out []byte) []byte {
	for i := range w.items {
		status := "completed"
		if i == len(w.items)-1 {
			status = itemStatus(w.reason)
		}
		if !w.items[i].ended {
			out = w.endItem(out, i, status)
		}
	}
	return out
}

func (w *responsesStream) end(out []byte) []byte {
	out = w.endAll(out)
	status := responsesStatus(w.reason, w.items)
	out = append(w.event(out, "response."+status), `,"response":`...)
	return w.shut(w.response(out, status, nil))
}

// failed ends the stream with an error. What is open stays so.
func (w *responsesStream) failed(out []byte, err *Error) []byte {
	out = append(w.event(out, "response.failed"), `,"response":`...)
	return w.shut(w.response(out, "failed", err))
}

func (w *responsesStream) response(out []byte, status string, err *Error) []byte {
	r := outResponse{o: w.o, id: w.id, model: w.model, created: w.created, reason: w.reason, items: w.items}
	if status != "in_progress" {
		r.usage = w.usage
	}
	return r.appendTo(out, status, err)
}

// itemStatus is the status of the last item of an answer.
func itemStatus(f finish) string {
	if cutShort(f) {
		return "incomplete"
	}
	return "completed"
}

// responsesStatus is the status of a response that ended properly. With a refusal
// in so many words it is complete.
func responsesStatus(f finish, items []outItem) string {
	switch f {
	case finishLength, finishContext, finishFilter:
		return "incomplete"
	case finishRefusal:
		for i := range items {
			for j := range items[i].texts {
				if items[i].texts[j].refusal {
					return "completed"
				}
			}
		}
		return "incomplete"
	}
	return "completed"
}

// responsesWhole writes a whole answer.
type responsesWhole struct {
	o *answerContext
	g gathered
}

func newResponsesWhole(o *answerContext) answerWriter { return &responsesWhole{o: o} }

func (w *responsesWhole) write(out []byte, e *event) []byte {
	switch e.kind {
	case evError:
		return append(out, e.err.Body(OpResponses, w.o.RequestID)...)
	case evEnd:
		return w.end(out)
	}
	w.g.take(e)
	return out
}

func (w *responsesWhole) end(out []byte) []byte {
	g := &w.g
	r := outResponse{o: w.o, usage: g.usage}
	r.id, r.model, r.created = responsesHead(w.o, &event{kind: evStart, id: g.id, name: g.model, created: g.created})
	s := responsesStream{id: r.id} // for the ids of items
	if len(g.choices) > 0 {
		c := &g.choices[0]
		r.reason = c.reason
		for i := range c.blocks {
			b := &c.blocks[i]
			n := len(r.items)
			switch b.kind {
			case evText, evRefusal:
				if n == 0 || r.items[n-1].kind != itemMessage {
					r.items = append(r.items, outItem{kind: itemMessage, id: s.itemID("msg_", n)})
					n++
				}
				r.items[n-1].texts = append(r.items[n-1].texts, outText{b.kind == evRefusal, b.text, b.probs})
			case evReasoning:
				r.items = append(r.items, outItem{kind: itemReasoning, id: s.itemID("rs_", n), sign: b.sign, texts: []outText{{text: b.text}}})
			case evRedacted:
				r.items = append(r.items, outItem{kind: itemReasoning, id: s.itemID("rs_", n), sign: b.sign})
			case evMedia:
				r.items = append(r.items, outItem{kind: itemImage, id: s.itemID("ig_", n), name: b.name, args: b.text})
			case evToolStart:
				item := outItem{kind: itemCall, id: s.itemID("fc_", n), callID: b.id, name: b.name, sign: b.sign, args: b.text}
				if len(item.args) == 0 {
					item.args = lit("{}")
				}
				r.items = append(r.items, item)
			}
		}
	}
	return append(r.appendTo(out, responsesStatus(r.reason, r.items), nil), '\n')
}

// outResponse is a response object to be written.
type outResponse struct {
	o       *answerContext
	id      lit
	model   lit
	created int64
	reason  finish
	items   []outItem
	usage   Usage
}

func (r *outResponse) appendTo(b []byte, status string, err *Error) []byte {
	b = appendText(append(b, '{'), "id", r.id)
	b = append(b, `,"object":"response","created_at":`...)
	b = strconv.AppendInt(b, r.created, 10)
	b = appendText(b, "status", lit(status))
	b = append(b, `,"background":false,"error":`...)
	if err == nil {
		b = append(b, "null"...)
	} else {
		b = appendText(append(b, '{'), "code", literal(responsesCode(err)))
		b = append(appendText(b, "message", literal(err.Message)), '}')
	}
	b = append(b, `,"incomplete_details":`...)
	switch {
	case status != "incomplete":
		b = append(b, "null"...)
	case r.reason == finishFilter || r.reason == finishRefusal:
		b = append(b, `{"reason":"content_filter"}`...)
	default:
		b = append(b, `{"reason":"max_output_tokens"}`...)
	}
	b = appendText(b, "model", r.model)
	b = append(b, `,"output":[`...)
	if status != "in_progress" {
		for i := range r.items {
			item := "completed"
			if i == len(r.items)-1 && status != "failed" {
				item = itemStatus(r.reason)
			} else if !r.items[i].ended && status == "failed" {
				item = "incomplete"
			}
			b = appendItem(appendComma(b), &r.items[i], item)
		}
	}
	b = append(b, `],"usage":`...)
	if r.usage.Told() {
		b = appendResponsesUsage(b, &r.usage)
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"previous_response_id":null`...)
	if len(r.o.echo) > 0 {
		b = append(append(b, ','), r.o.echo...)
	}
	return append(b, '}')
}

// responsesCode is the code of an error in a response.
func responsesCode(err *Error) string {
	switch fault := err.fault(); {
	case fault == faultRate:
		return "rate_limit_exceeded"
	case err.Code != "" && err.Type != typeServer:
		return err.Code
	case fault == faultInvalid:
		return "invalid_prompt"
	}
	return "server_error"
}

// appendItem appends an item of the output.
func appendItem(b []byte, item *outItem, status string) []byte {
	switch item.kind {
	case itemReasoning:
		b = append(appendText(append(b, `{"type":"reasoning"`...), "id", item.id), `,"summary":[`...)
		if status != "in_progress" && len(item.texts) > 0 {
			b = append(appendText(append(b, `{"type":"summary_text"`...), "text", item.texts[0].text), '}')
		}
		b = append(b, ']')
		if len(item.sign) > 0 {
			b = appendText(b, "encrypted_content", item.sign)
		}
	case itemCall:
		b = appendText(append(b, `{"type":"function_call"`...), "id", item.id)
		b = appendText(appendText(b, "call_id", item.callID), "name", item.name)
		b = appendText(appendText(b, "arguments", item.args), "status", lit(status))
		if item.sign != nil {
			b = append(b, `,"extra_content":{"google":{`...)
			b = append(appendText(b, "thought_signature", item.sign), "}}"...)
		}
	case itemImage:
		b = appendText(appendText(append(b, `{"type":"image_generation_call"`...), "id", item.id), "status", lit(status))
		if status == "in_progress" {
			b = append(b, `,"result":null`...)
			break
		}
		b = appendText(b, "output_format", literal(strings.TrimPrefix(item.name.String(), "image/")))
		b = appendText(b, "result", item.args)
	default:
		b = appendText(append(b, `{"type":"message"`...), "id", item.id)
		b = append(appendText(b, "status", lit(status)), `,"role":"assistant","content":[`...)
		if status != "in_progress" {
			for i := range item.texts {
				b = appendOutText(appendComma(b), &item.texts[i])
			}
		}
		b = append(b, ']')
	}
	return append(b, '}')
}

func appendOutText(b []byte, t *outText) []byte {
	if t.refusal {
		return append(appendText(append(b, `{"type":"refusal"`...), "refusal", t.text), '}')
	}
	b = appendText(append(b, `{"type":"output_text"`...), "text", t.text)
	b = append(append(b, `,"annotations":[],"logprobs":[`...), t.probs...)
	return append(b, "]}"...)
}

func appendResponsesUsage(b []byte, u *Usage) []byte {
	b = appendInt(append(b, `{"input_tokens":`...), u.Prompt())
	b = appendInt(append(b, `,"input_tokens_details":{"cached_tokens":`...), u.CacheRead)
	if u.Written() > 0 {
		b = appendInt(append(b, `,"cache_write_tokens":`...), u.Written())
	}
	b = appendInt(append(b, `},"output_tokens":`...), u.Completion())
	b = appendInt(append(b, `,"output_tokens_details":{"reasoning_tokens":`...), u.Reasoning)
	b = appendInt(append(b, `},"total_tokens":`...), u.Prompt()+u.Completion())
	return append(b, '}')
}
