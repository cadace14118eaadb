// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync"
)

// responsesRequest is what a request for a response says that matters here.
type responsesRequest struct {
	Model           string          `json:"model"`
	Input           responsesInput  `json:"input"`
	Instructions    string          `json:"instructions"`
	Previous        string          `json:"previous_response_id"`
	MaxOutputTokens *int            `json:"max_output_tokens"`
	Stream          bool            `json:"stream"`
	Store           *bool           `json:"store"`
	Tools           []responsesTool `json:"tools"`
	ToolChoice      json.RawMessage `json:"tool_choice"`
	CacheSalt       string          `json:"cache_salt"`
	Seed            *int64          `json:"seed"`
}

type responsesTool struct {
	Type string `json:"type"`
	function
}

// responsesInput is text or a list of items.
type responsesInput []chatMessage

func (in *responsesInput) UnmarshalJSON(raw []byte) error {
	*in = nil
	if raw[0] == '"' {
		var s string
		err := json.Unmarshal(raw, &s)
		*in = responsesInput{{Role: "user", Content: textContent{s}}}
		return err
	}
	var items []struct {
		Type      string      `json:"type"`
		Role      string      `json:"role"`
		Content   textContent `json:"content"`
		Name      string      `json:"name"`
		Arguments string      `json:"arguments"`
		Output    textContent `json:"output"`
	}
	if err := json.Unmarshal(raw, &items); err != nil {
		return err
	}
	for _, item := range items {
		m := chatMessage{Role: item.Role, Content: item.Content}
		switch item.Type {
		case "function_call":
			m.Role, m.Content = "assistant", textContent{item.Arguments, item.Name}
		case "function_call_output":
			m.Role, m.Content = "tool", item.Output
		case "", "message":
		default: // reasoning and hosted tools carry nothing that is modelled
			continue
		}
		*in = append(*in, m)
	}
	return nil
}

// storedResponses are the conversations that previous_response_id can name. A
// server knows its own only, so a follow-up must find the same server.
type storedResponses struct {
	mu    sync.Mutex
	byID  map[string][]chatMessage
	order []string
}

// mostStored bounds the store; the oldest goes first.
const mostStored = 256

func (s *storedResponses) get(id string) ([]chatMessage, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.byID[id]
	return m, ok
}

func (s *storedResponses) put(id string, messages []chatMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = map[string][]chatMessage{}
	}
	s.byID[id] = messages
	if s.order = append(s.order, id); len(s.order) > mostStored {
		delete(s.byID, s.order[0])
		s.order = s.order[1:]
	}
}

// parseResponses reads a request; history is the conversation so far and what
// it adds.
func parseResponses(body []byte, stored *storedResponses) (g *generation, history []chatMessage, keep bool, bad *apiError) {
	var req responsesRequest
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, nil, false, badJSON(err)
	}
	s := sampling{Model: req.Model, Stream: req.Stream, CacheSalt: req.CacheSalt, Seed: req.Seed}
	if g, bad = s.generation(req.MaxOutputTokens); bad != nil {
		return nil, nil, false, bad
	}
	if len(req.Input) == 0 {
		return nil, nil, false, invalid("input", "input is required")
	}
	if req.Previous != "" {
		previous, ok := stored.get(req.Previous)
		if !ok {
			e := invalid("previous_response_id", fmt.Sprintf("Previous response with id '%s' not found.", req.Previous))
			e.Status, e.Code = http.StatusNotFound, "previous_response_not_found"
			return nil, nil, false, e
		}
		history = append(history, previous...)
	}
	history = append(history, req.Input...)
	messages := history
	if req.Instructions != "" { // they hold for this response only
		messages = append([]chatMessage{{Role: "system", Content: textContent{req.Instructions}}}, history...)
	}
	functions := make([]function, len(req.Tools))
	for i, t := range req.Tools {
		functions[i] = t.function
	}
	g.prompts = []tokens{renderChat(messages, functions)}
	g.tool, bad = chooseTool(functions, req.ToolChoice, lastUserText(messages))
	return g, history, req.Store == nil || *req.Store, bad
}

// response is the answer, at its beginning, at its end and in between.
type response struct {
	ID                string             `json:"id"`
	Object            string             `json:"object"`
	CreatedAt         int64              `json:"created_at"`
	Status            string             `json:"status"`
	Error             *apiError          `json:"error"`
	IncompleteDetails *map[string]string `json:"incomplete_details"`
	Model             string             `json:"model"`
	Output            []*responseItem    `json:"output"`
	Usage             *responseUsage     `json:"usage"`
	MaxOutputTokens   *int               `json:"max_output_tokens"`
	ParallelToolCalls bool               `json:"parallel_tool_calls"`
	ToolChoice        string             `json:"tool_choice"`
	Tools             []struct{}         `json:"tools"`
}

// responseItem is a message or a function call.
type responseItem struct {
	ID        string         `json:"id"`
	Type      string         `json:"type"`
	Status    string         `json:"status"`
	Role      string         `json:"role,omitempty"`
	Content   []responsePart `json:"content,omitzero"`
	CallID    string         `json:"call_id,omitempty"`
	Name      string         `json:"name,omitempty"`
	Arguments *string        `json:"arguments,omitempty"`
}

type responsePart struct {
	Type        string     `json:"type"`
	Text        string     `json:"text"`
	Annotations []struct{} `json:"annotations"`
}

type responseUsage struct {
	InputTokens        int `json:"input_tokens"`
	InputTokensDetails struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	OutputTokens        int `json:"output_tokens"`
	OutputTokensDetails struct {
		ReasoningTokens int `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	TotalTokens int `json:"total_tokens"`
}

func (a *api) responses(w http.ResponseWriter, r *http.Request, f Faults) {
	body, ok := a.body(w, r)
	if !ok {
		return
	}
	g, history, keep, bad := parseResponses(body, a.stored)
	if bad != nil {
		a.refuse(w, bad)
		return
	}
	x := a.begin(w, r, f, g, "resp")
	if x == nil {
		return
	}
	defer x.end()
	v := &responder{exchange: x, item: newItem(g)}
	switch {
	case g.stream:
		v.stream()
	case x.complete():
		x.answer(v.final())
	}
	if x.err == nil && keep {
		said := textContent{x.job.choices[0].out.text(math.MaxInt)}
		if g.tool != nil {
			said = append(said, g.tool.name)
		}
		a.stored.put(g.id, append(history, chatMessage{Role: "assistant", Content: said}))
	}
}

func newItem(g *generation) responseItem {
	if g.tool != nil {
		return responseItem{
			ID: "fc_" + g.id, Type: "function_call", Status: "in_progress", CallID: callID(g, 0),
			Name: g.tool.name, Arguments: new(string),
		}
	}
	return responseItem{ID: "msg_" + g.id, Type: "message", Status: "in_progress", Role: "assistant", Content: []responsePart{}}
}

// responder words one response.
type responder struct {
	*exchange
	item     responseItem
	sequence int
	text     string
}

func (v *responder) response(status string) *response {
	r := &response{
		ID: v.g.id, Object: "response", CreatedAt: v.g.created, Status: status, Model: v.g.model,
		Output: []*responseItem{}, ParallelToolCalls: true, ToolChoice: "auto", Tools: []struct{}{},
	}
	if v.g.bounded {
		r.MaxOutputTokens = &v.g.bounds.most
	}
	return r
}

// final is the response after the last token.
func (v *responder) final() *response {
	out := v.job.choices[0].out
	r := v.response("completed")
	item := v.finished(out.text(len(out.pieces)))
	if out.finish == "length" {
		r.Status = "incomplete"
		r.IncompleteDetails = &map[string]string{"reason": "max_output_tokens"}
	}
	r.Output = append(r.Output, &item)
	if u := v.usage(); u != nil {
		r.Usage = &responseUsage{InputTokens: u.PromptTokens, OutputTokens: u.CompletionTokens, TotalTokens: u.TotalTokens}
		r.Usage.InputTokensDetails.CachedTokens = u.PromptTokensDetails.CachedTokens
	}
	return r
}

func (v *responder) finished(text string) responseItem {
	item := v.item
	item.Status = "completed"
	if v.job.choices[0].out.finish == "length" {
		item.Status = "incomplete"
	}
	if v.g.tool != nil {
		item.Arguments = &text
	} else {
		item.Content = []responsePart{newPart(text)}
	}
	return item
}

func newPart(text string) responsePart {
	return responsePart{Type: "output_text", Text: text, Annotations: []struct{}{}}
}

// emit writes one typed event; fields come after type and sequence number.
func (v *responder) emit(kind string, fields any) bool {
	head := fmt.Sprintf(`{"type":%q,"sequence_number":%d,`, kind, v.sequence)
	v.sequence++
	return v.event(kind, append([]byte(head), encode(fields)[1:]...))
}

// Fields of the events.
type (
	responseEvent struct {
		Response *response `json:"response"`
	}
	itemEvent struct {
		OutputIndex int          `json:"output_index"`
		Item        responseItem `json:"item"`
	}
	partEvent struct {
		ItemID       string       `json:"item_id"`
		OutputIndex  int          `json:"output_index"`
		ContentIndex int          `json:"content_index"`
		Part         responsePart `json:"part"`
	}
	textEvent struct {
		ItemID       string  `json:"item_id"`
		OutputIndex  int     `json:"output_index"`
		ContentIndex *int    `json:"content_index,omitempty"`
		Delta        *string `json:"delta,omitempty"`
		Text         *string `json:"text,omitempty"`
		Arguments    *string `json:"arguments,omitempty"`
	}
)

// stream writes the events in their order: created, in_progress, the item with
// its part and its deltas, the same backwards as done, and the end, which alone
// has the usage. There is no [DONE].
func (v *responder) stream() {
	v.startStream()
	if !v.emit("response.created", responseEvent{v.response("in_progress")}) ||
		!v.emit("response.in_progress", responseEvent{v.response("in_progress")}) {
		return
	}
	c := v.job.choices[0]
	for sent, done := 0, false; !done; {
		if !v.wait() {
			v.fail()
			return
		}
		p := c.now()
		for ; sent < p.tokens; sent++ {
			if sent == 0 && !v.open() {
				return
			}
			if text := c.out.pieces[sent]; text != "" && !v.delta(text) {
				return
			}
		}
		done = p.done
	}
	if !v.close() {
		return
	}
	end := v.final()
	v.emit("response."+end.Status, responseEvent{end})
}

func (v *responder) open() bool {
	if !v.emit("response.output_item.added", itemEvent{Item: v.item}) {
		return false
	}
	return v.g.tool != nil || v.emit("response.content_part.added", partEvent{ItemID: v.item.ID, Part: newPart("")})
}

func (v *responder) delta(text string) bool {
	v.text += text
	ev := textEvent{ItemID: v.item.ID, Delta: &text}
	if v.g.tool != nil {
		return v.emit("response.function_call_arguments.delta", ev)
	}
	ev.ContentIndex = new(int)
	return v.emit("response.output_text.delta", ev)
}

func (v *responder) close() bool {
	ev := textEvent{ItemID: v.item.ID}
	if v.g.tool != nil {
		ev.Arguments = &v.text
		return v.emit("response.function_call_arguments.done", ev) &&
			v.emit("response.output_item.done", itemEvent{Item: v.finished(v.text)})
	}
	ev.ContentIndex, ev.Text = new(int), &v.text
	return v.emit("response.output_text.done", ev) &&
		v.emit("response.content_part.done", partEvent{ItemID: v.item.ID, Part: newPart(v.text)}) &&
		v.emit("response.output_item.done", itemEvent{Item: v.finished(v.text)})
}

// fail ends the stream of a response that will not come to its end.
func (v *responder) fail() {
	if v.r.Context().Err() != nil || errors.Is(v.err, errCut) {
		return
	}
	r := v.response("failed")
	r.Error = &apiError{Message: v.err.Error(), Code: "server_error"}
	v.emit("response.failed", responseEvent{r})
}
