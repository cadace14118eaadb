// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
)

// api is the OpenAI front of a simulated server. What it asks of what stands
// behind is a generator.
type api struct {
	name      string // in x-sim-server and in ids
	models    *models
	generator generator
	blockSize int
	maxLen    int // prompt and output tokens of one sequence
	seed      uint64
	faults    *faultBox
	ledger    *ledger
	nextID    atomic.Uint64
	stored    *storedResponses
	closing   chan struct{}
}

// mostBody bounds a request body.
const mostBody = 64 << 20

func (a *api) routes(mux *http.ServeMux) {
	a.handle(mux, "POST /v1/chat/completions", a.chat)
	a.handle(mux, "POST /v1/completions", a.completions)
	a.handle(mux, "POST /v1/responses", a.responses)
	a.handle(mux, "POST /v1/embeddings", a.embeddings)
	mux.HandleFunc("GET /v1/models", a.listModels)
	mux.HandleFunc("GET /v1/models/{id...}", a.getModel)
}

// handle registers an endpoint that faults befall.
func (a *api) handle(mux *http.ServeMux, pattern string, h func(http.ResponseWriter, *http.Request, Faults)) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if f := a.faults.deal("", ""); !f.before(w, r, a.closing) {
			h(w, r, f)
		}
	})
}

// models are the names that the server answers to.
type models struct {
	mu       sync.Mutex
	base     []string // the model and its aliases
	adapters []string
	created  int64
}

// resolve says which adapter serves a model name.
func (m *models) resolve(name string) (adapter string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.Contains(m.base, name) {
		return "", true
	}
	return name, slices.Contains(m.adapters, name)
}

func (m *models) list() (base, adapters []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.base, slices.Clone(m.adapters)
}

// load adds an adapter; false if it is there already.
func (m *models) load(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.Contains(m.adapters, name) || slices.Contains(m.base, name) {
		return false
	}
	m.adapters = append(m.adapters, name)
	return true
}

// unload takes an adapter away; false if it is not there.
func (m *models) unload(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.Index(m.adapters, name)
	if i < 0 {
		return false
	}
	m.adapters = slices.Delete(m.adapters, i, i+1)
	return true
}

// apiError is an error in OpenAI form.
type apiError struct {
	Status  int     `json:"-"`
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    any     `json:"code"` // the status, or a word in a provider's errors
}

func statusType(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "BadRequestError"
	case http.StatusUnauthorized:
		return "AuthenticationError"
	case http.StatusNotFound:
		return "NotFoundError"
	case http.StatusTooManyRequests:
		return "RateLimitError"
	case http.StatusServiceUnavailable:
		return "ServiceUnavailableError"
	}
	return "InternalServerError"
}

func invalid(param, message string) *apiError {
	return &apiError{Status: http.StatusBadRequest, Message: message, Type: "BadRequestError", Param: &param}
}

func badJSON(err error) *apiError {
	return &apiError{Status: http.StatusBadRequest, Message: "the body is not a valid request: " + err.Error(), Type: "BadRequestError"}
}

func writeError(w http.ResponseWriter, e *apiError) {
	if e.Code == nil {
		e.Code = e.Status
	}
	writeJSON(w, e.Status, map[string]any{"error": e})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(encode(v), '\n'))
}

// encode is JSON without HTML escapes and without a newline.
func encode(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("sim: encode %T: %v", v, err)) // only our own types come here
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// refuse writes an error.
func (a *api) refuse(w http.ResponseWriter, e *apiError) { writeError(w, e) }

// body reads the request.
func (a *api) body(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostBody))
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		a.refuse(w, &apiError{Status: http.StatusRequestEntityTooLarge, Message: "the body is too large", Type: "BadRequestError"})
		return nil, false
	}
	if err != nil {
		a.refuse(w, &apiError{Status: http.StatusBadRequest, Message: "the body could not be read", Type: "BadRequestError"})
	}
	return body, err == nil
}

// exchange is one request that generates: its job and what it writes to.
type exchange struct {
	api    *api
	w      http.ResponseWriter
	r      *http.Request
	g      *generation
	job    *job
	faults Faults
	events int // written to a stream
	err    error
}

// begin resolves the model, checks the length and queues the job. It answers
// the request and returns nil if it cannot be served; else the caller must
// call end.
func (a *api) begin(w http.ResponseWriter, r *http.Request, f Faults, g *generation, idPrefix string) *exchange {
	adapter, ok := a.models.resolve(g.model)
	if !ok {
		param := "model"
		a.refuse(w, &apiError{
			Status: http.StatusNotFound, Type: "NotFoundError", Param: &param,
			Message: fmt.Sprintf("The model `%s` does not exist.", g.model),
		})
		return nil
	}
	g.adapter = adapter
	if len(g.prompts)*g.n > mostChoices {
		a.refuse(w, invalid("n", fmt.Sprintf("more than %d choices", mostChoices)))
		return nil
	}
	j := newJob()
	for i, p := range g.prompts {
		if e := a.choices(j, g, p, i); e != nil {
			a.refuse(w, e)
			return nil
		}
	}
	n := a.nextID.Add(1)
	g.id = fmt.Sprintf("%s-%s-%08x", idPrefix, a.name, n)
	g.created = j.arrival.Unix()
	if err := a.generator.start(j); err != nil {
		status := http.StatusBadRequest
		switch {
		case errors.Is(err, ErrQueueFull):
			status = http.StatusTooManyRequests
			w.Header().Set("Retry-After", "1")
		case errors.Is(err, errClosed):
			status = http.StatusServiceUnavailable
		}
		a.refuse(w, &apiError{Status: status, Message: err.Error(), Type: statusType(status)})
		return nil
	}
	a.ledger.begin()
	return &exchange{api: a, w: w, r: r, g: g, job: j, faults: f}
}

// choices adds the sequences of one prompt to the job.
func (a *api) choices(j *job, g *generation, p tokens, index int) *apiError {
	if p.count() == 0 {
		return invalid("prompt", "the prompt is empty")
	}
	b := g.bounds
	asked := p.count() + 1
	if g.bounded {
		asked = p.count() + b.most
	}
	if asked > a.maxLen {
		param := "messages"
		return &apiError{
			Status: http.StatusBadRequest, Type: "BadRequestError", Param: &param, Code: "context_length_exceeded",
			Message: fmt.Sprintf("This model's maximum context length is %d tokens. However, you requested %d tokens (%d in the messages, %d in the completion).",
				a.maxLen, asked, p.count(), asked-p.count()),
		}
	}
	b.most = min(b.most, a.maxLen-p.count())
	b.least = min(b.least, b.most)
	seed := a.seed
	if g.seed != nil {
		seed = mix(uint64(*g.seed))
	}
	seed ^= HashText(0, []byte(p))
	var leader *choice
	for k := range g.n {
		out := a.compose(g, mix(seed+uint64(k)), b)
		all := p[:len(p):len(p)].segment(out.text(len(out.pieces)))
		c := &choice{job: j, out: out, leader: leader, request: &Request{
			Blocks: all.chain(g.salt, a.blockSize), PromptTokens: p.count(), OutputTokens: len(out.pieces),
			Adapter: g.adapter, Seed: mix(seed + uint64(index*g.n+k)),
		}}
		j.choices = append(j.choices, c)
		if k == 0 {
			leader = c
		}
	}
	return nil
}

func (a *api) compose(g *generation, seed uint64, b bounds) output {
	if g.tool == nil {
		return compose(seed, b)
	}
	pieces := split(g.tool.arguments)
	if len(pieces) > b.most {
		return output{pieces: pieces[:b.most], finish: "length"}
	}
	return output{pieces: pieces, finish: "tool_calls"}
}

// end settles the exchange: what is unfinished is aborted, and the ledger gets
// its record. Deferred by whoever called begin.
func (x *exchange) end() {
	x.api.generator.abort(x.job)
	rec := x.job.record(x.g, x.err)
	rec.Path, rec.RequestID = x.r.URL.Path, x.r.Header.Get("x-request-id")
	lost := errors.Is(x.err, errRestarted) || errors.Is(x.err, errClosed)
	rec.Aborted = !lost && (rec.Aborted || x.r.Context().Err() != nil || errors.Is(x.err, errCut))
	x.api.ledger.end(rec)
}

// wait blocks until the job may have gone on; false when it will not, because
// it failed or the client left.
func (x *exchange) wait() bool {
	x.err = x.job.wait(x.r.Context())
	return x.err == nil
}

// complete waits for the whole answer; false if there will be none, and then
// the client has been told.
func (x *exchange) complete() bool {
	x.err = x.job.finish(x.r.Context())
	if x.err == nil {
		return true
	}
	if !errors.Is(x.err, context.Canceled) {
		x.api.refuse(x.w, &apiError{Status: http.StatusInternalServerError, Message: x.err.Error(), Type: "InternalServerError"})
	}
	return false
}

// answer writes a whole answer, or what a fault makes of it.
func (x *exchange) answer(v any) {
	switch {
	case x.faults.CutAfter > 0:
		x.err = errCut
		cut(x.w)
	case x.faults.Garbage:
		x.w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(x.w, garbage)
	default:
		writeJSON(x.w, http.StatusOK, v)
	}
}

// errCut is in the record of a request whose answer a fault has cut.
var errCut = errors.New("answer cut by a fault")

// usage is the usage of the job so far, as the faults have it; nil for none.
func (x *exchange) usage() *usage { return x.faults.falsify(newUsage(x.job.counts())) }

// usageAt is the usage when the client has seen so many tokens.
func (x *exchange) usageAt(output int) *usage {
	n := x.job.counts()
	n.output = output
	return x.faults.falsify(newUsage(n))
}

// usage is the usage of chat and completions.
type usage struct {
	PromptTokens        int `json:"prompt_tokens"`
	CompletionTokens    int `json:"completion_tokens"`
	TotalTokens         int `json:"total_tokens"`
	PromptTokensDetails struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func newUsage(n counts) *usage {
	u := &usage{PromptTokens: n.prompt, CompletionTokens: n.output, TotalTokens: n.prompt + n.output}
	u.PromptTokensDetails.CachedTokens = n.cached
	return u
}

// startStream writes the header of an event stream.
func (x *exchange) startStream() {
	h := x.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	x.w.WriteHeader(http.StatusOK)
}

// event writes one server-sent event and flushes it; name may be "". It may
// not return: a fault cuts the connection.
func (x *exchange) event(name string, data []byte) bool {
	if x.faults.CutAfter > 0 && x.events >= x.faults.CutAfter {
		x.err = errCut
		cut(x.w)
	}
	if x.faults.Garbage && x.events == 1 {
		data = []byte(garbage)
	}
	x.events++
	var b bytes.Buffer
	if name != "" {
		b.WriteString("event: " + name + "\n")
	}
	b.WriteString("data: ")
	b.Write(data)
	b.WriteString("\n\n")
	if _, err := x.w.Write(b.Bytes()); err != nil {
		x.err = err
		return false
	}
	if err := http.NewResponseController(x.w).Flush(); err != nil {
		x.err = err
		return false
	}
	return true
}

type model struct {
	ID      string  `json:"id"`
	Object  string  `json:"object"`
	Created int64   `json:"created"`
	OwnedBy string  `json:"owned_by"`
	Root    string  `json:"root,omitempty"`
	Parent  *string `json:"parent,omitempty"`
	MaxLen  int     `json:"max_model_len,omitempty"`
}

func (a *api) allModels() []model {
	base, adapters := a.models.list()
	var all []model
	for _, name := range base {
		all = append(all, model{ID: name, Object: "model", Created: a.models.created, OwnedBy: "sim", Root: base[0], MaxLen: a.maxLen})
	}
	for _, name := range adapters {
		all = append(all, model{ID: name, Object: "model", Created: a.models.created, OwnedBy: "sim", Root: name, Parent: &base[0]})
	}
	return all
}

func (a *api) listModels(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": a.allModels()})
}

func (a *api) getModel(w http.ResponseWriter, r *http.Request) {
	for _, m := range a.allModels() {
		if m.ID == r.PathValue("id") {
			writeJSON(w, http.StatusOK, m)
			return
		}
	}
	param := "model"
	a.refuse(w, &apiError{Status: http.StatusNotFound, Type: "NotFoundError", Param: &param,
		Message: fmt.Sprintf("The model `%s` does not exist.", r.PathValue("id"))})
}

// gate stands before the handlers: it counts the request, names the server and
// keeps it if the server hangs.
func (a *api) gate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Sim-Server", a.name)
		if isControl(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		a.ledger.path(r.URL.Path)
		if a.faults.get().Hang {
			a.hang(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hang keeps a request until its client leaves or the server closes. The body
// is read, or a client that leaves would not be noticed.
func (a *api) hang(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, mostBody))
	select {
	case <-r.Context().Done():
	case <-a.closing:
	}
	panic(http.ErrAbortHandler)
}
