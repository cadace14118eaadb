// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// geminiShape is Google's generateContent, under the paths of AI Studio and of
// Vertex.
type geminiShape struct{}

func (geminiShape) routes(p *Provider, mux *http.ServeMux) {
	p.handle(mux, "POST /token", (*call).googleToken)
	for _, prefix := range []string{"/v1beta", "/v1"} {
		p.handle(mux, "POST "+prefix+"/models/{call...}", func(c *call) { c.geminiCall(false) })
		p.handle(mux, "GET "+prefix+"/models/{model...}", func(c *call) {
			if c.resolve(c.r.PathValue("model")) {
				c.reply(geminiModel(p, c.r.PathValue("model")))
			}
		})
		p.handle(mux, "GET "+prefix+"/models", func(c *call) {
			all := []any{}
			for _, name := range p.cfg.Models {
				all = append(all, geminiModel(p, name))
			}
			c.reply(map[string]any{"models": all})
		})
		p.handle(mux, "POST "+prefix+"/projects/{project}/locations/{location}/publishers/google/models/{call...}",
			func(c *call) { c.geminiCall(true) })
	}
}

func geminiModel(p *Provider, name string) any {
	return map[string]any{
		"name": "models/" + name, "version": "001", "displayName": name,
		"inputTokenLimit": p.cfg.MaxModelLen, "outputTokenLimit": p.cfg.MaxModelLen,
		"supportedGenerationMethods": []string{"generateContent", "countTokens", "embedContent"},
	}
}

func (geminiShape) credential(p *Provider, r *http.Request, _ []byte) (string, *problem) {
	if r.URL.Path == "/token" {
		return "", nil // it carries its own proof
	}
	key := r.Header.Get("x-goog-api-key")
	if key == "" {
		key = r.URL.Query().Get("key")
	}
	if key == "" {
		var bearer bool
		key, bearer = strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if bearer && !p.knows(key) {
			return key, &problem{class: "auth", message: "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid authentication credential."}
		}
	}
	switch {
	case p.knows(key):
		return key, nil
	case key == "":
		return "", &problem{class: "permission", message: "Method doesn't allow unregistered callers (callers without established identity). Please use API Key or other form of API consumer identity to call this API."}
	}
	return key, &problem{class: "auth", code: "API_KEY_INVALID", message: "API key not valid. Please pass a valid API key."}
}

func (geminiShape) wording(_ http.Header, e *problem, id string) (int, any) {
	status, name, message := 400, "INVALID_ARGUMENT", e.text("Request contains an invalid argument.")
	var details []any
	switch e.class {
	case "auth":
		if e.code == "API_KEY_INVALID" { // a wrong key is 400 here
			details = append(details, map[string]string{
				"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": e.code, "domain": "googleapis.com",
			})
			break
		}
		status, name, message = 401, "UNAUTHENTICATED", e.text("Request had invalid authentication credentials.")
	case "billing":
		status, name, message = 403, "PERMISSION_DENIED", e.text("This API method requires billing to be enabled.")
	case "quota":
		status, name, message = 429, "RESOURCE_EXHAUSTED", e.text("You exceeded your current quota, please check your plan and billing details.")
		details = append(details, quotaFailure("GenerateRequestsPerDayPerProjectPerModel"))
	case "permission":
		status, name, message = 403, "PERMISSION_DENIED", e.text("The caller does not have permission")
	case "path":
		status, name, message = 404, "NOT_FOUND", e.text("Not Found")
	case "model":
		status, name, message = 404, "NOT_FOUND", e.text("models/"+e.model+" is not found for API version v1beta, or is not supported for generateContent. Call ListModels to see the list of available models and their supported methods.")
	case "timeout":
		status, name, message = 504, "DEADLINE_EXCEEDED", e.text("Deadline expired before operation could complete.")
	case "tooLarge":
		status, message = 413, e.text("Request payload size exceeds the limit: 20971520 bytes.")
	case "rate":
		status, name, message = 429, "RESOURCE_EXHAUSTED", e.text("Resource has been exhausted (e.g. check quota).")
		details = append(details, quotaFailure("GenerateRequestsPerMinutePerProjectPerModel"))
	case "server":
		status, name, message = 500, "INTERNAL", e.text("An internal error has occurred. Please retry or report in https://developers.generativeai.google/guide/troubleshooting")
	case "unavailable", "overloaded":
		status, name, message = 503, "UNAVAILABLE", e.text("The model is overloaded. Please try again later.")
	case "filter": // a refused prompt is no error
		return http.StatusOK, map[string]any{
			"promptFeedback": map[string]string{"blockReason": "PROHIBITED_CONTENT"},
			"usageMetadata":  map[string]int{"promptTokenCount": 9, "totalTokenCount": 9}, "responseId": id,
		}
	case "context":
		message = fmt.Sprintf("The input token count (%d) exceeds the maximum number of tokens allowed (%d).", e.used+e.asked, e.most)
	}
	if e.retry {
		details = append(details, map[string]string{
			"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": fmt.Sprintf("%gs", e.wait.Seconds()),
		})
	}
	if e.status != 0 {
		status = e.status
	}
	v := map[string]any{"code": status, "message": message, "status": name}
	if len(details) > 0 {
		v["details"] = details
	}
	return status, map[string]any{"error": v}
}

func quotaFailure(id string) any {
	return map[string]any{
		"@type":      "type.googleapis.com/google.rpc.QuotaFailure",
		"violations": []any{map[string]string{"quotaId": id}},
	}
}

func (geminiShape) limited(http.Header, limitState) {} // Google says nothing

// geminiCall does what the path names after the colon; vertex: it is one of Vertex.
func (c *call) geminiCall(vertex bool) {
	model, method, _ := strings.Cut(c.r.PathValue("call"), ":")
	switch method {
	case "generateContent", "streamGenerateContent":
		stream := method == "streamGenerateContent"
		c.listed = stream && c.r.URL.Query().Get("alt") != "sse"
		t, thoughts, bad := readGemini(c.body, model, &c.p.maker.secret)
		if bad != nil {
			c.refuse(bad)
			return
		}
		t.stream = stream
		if !c.begin(t) {
			return
		}
		w := &geminiWire{c: c, thoughts: thoughts}
		switch {
		case stream && !c.faults.wire("json"):
			w.o = c.sse()
			w.o.header = "text/event-stream"
			w.o.frame = func(_ string, data []byte) []byte {
				return fmt.Appendf(nil, "data: %s\r\n\r\n", data)
			}
			if c.listed {
				w.o = c.jsonList()
			}
			c.stream(w.o, w, false)
		case c.complete():
			c.reply(w.whole())
		}
	case "countTokens":
		c.geminiCount(model, vertex)
	case "embedContent", "batchEmbedContents":
		if vertex { // there it is predict, for the models that embed and nothing else
			c.refuse(&problem{class: "model", model: model})
			return
		}
		c.geminiEmbed(model, method == "batchEmbedContents")
	case "predict":
		if !vertex {
			c.refuse(&problem{class: "path"})
			return
		}
		c.vertexEmbed(model)
	default:
		c.refuse(&problem{class: "path"})
	}
}

// jsonList is a stream as a list in JSON.
func (c *call) jsonList() *frames {
	first := true
	return &frames{
		c: c, header: "application/json; charset=UTF-8", w: c.w, done: map[string]bool{}, tail: "]",
		frame: func(_ string, data []byte) []byte {
			lead := ",\r\n"
			if first {
				lead, first = "[", false
			}
			return append([]byte(lead), data...)
		},
		broken: func(string) []byte { return []byte(`,{"broken": [`) },
	}
}

// geminiWire words answers.
type geminiWire struct {
	c        *call
	o        *frames
	thoughts bool // are shown
}

type geminiUsage struct {
	Prompt     int   `json:"promptTokenCount"`
	Cached     int   `json:"cachedContentTokenCount,omitzero"`
	Candidates int   `json:"candidatesTokenCount,omitzero"`
	Thoughts   int   `json:"thoughtsTokenCount,omitzero"`
	Total      int   `json:"totalTokenCount"`
	Details    []any `json:"promptTokensDetails,omitempty"`
}

type geminiAnswer struct {
	Candidates   []any        `json:"candidates,omitempty"`
	Usage        *geminiUsage `json:"usageMetadata,omitempty"`
	ModelVersion string       `json:"modelVersion"`
	ResponseID   string       `json:"responseId"`
}

func (w *geminiWire) answer(candidates ...any) *geminiAnswer {
	v := &geminiAnswer{Candidates: candidates, ModelVersion: w.c.served(), ResponseID: w.c.id}
	if n, known := w.c.usage(); known {
		v.Usage = &geminiUsage{
			Prompt: n.prompt, Cached: n.cached, Candidates: n.output - n.reasoning, Thoughts: n.reasoning, Total: n.prompt + n.output,
			Details: []any{map[string]any{"modality": "TEXT", "tokenCount": n.prompt}},
		}
	}
	return v
}

type geminiCandidate struct {
	Content struct {
		Parts []any  `json:"parts,omitempty"`
		Role  string `json:"role,omitempty"`
	} `json:"content"`
	FinishReason string `json:"finishReason,omitempty"`
	Index        int    `json:"index"`
	Safety       []any  `json:"safetyRatings,omitempty"`
}

func newCandidate(i int, finish string, parts ...any) *geminiCandidate {
	v := &geminiCandidate{FinishReason: finish, Index: i}
	v.Content.Parts, v.Content.Role = parts, "model"
	if finish == "SAFETY" {
		v.Safety = []any{map[string]any{"category": "HARM_CATEGORY_DANGEROUS_CONTENT", "probability": "HIGH", "blocked": true}}
	}
	return v
}

func geminiFinish(a *answer) string {
	switch a.finish {
	case "length":
		return "MAX_TOKENS"
	case "filter":
		return "SAFETY"
	case "odd":
		return "OTHER"
	}
	return "STOP"
}

func geminiPart(p *part, text string) any {
	switch p.kind {
	case "reasoning":
		return map[string]any{"text": text, "thought": true}
	case "call":
		v := map[string]any{"functionCall": map[string]any{"id": "call_" + p.id, "name": p.name, "args": object(text)}}
		if p.signature != "" {
			v["thoughtSignature"] = p.signature
		}
		return v
	}
	return map[string]any{"text": text}
}

func (w *geminiWire) whole() any {
	var all []any
	for i := range w.c.answers {
		a := &w.c.answers[i]
		var parts []any
		for k := range a.parts {
			p := &a.parts[k]
			if p.kind == "reasoning" && !w.thoughts || p.kind == "call" && a.finish == "length" {
				continue
			}
			parts = append(parts, geminiPart(p, p.text()))
		}
		all = append(all, newCandidate(i, geminiFinish(a), parts...))
	}
	return w.answer(all...)
}

func (w *geminiWire) open() {}

func (w *geminiWire) part(i, _ int, p *part, on bool) {
	if p.kind == "call" && !on && json.Valid([]byte(p.text())) { // calls come whole
		w.o.send("", w.answer(newCandidate(i, "", geminiPart(p, p.text()))), true)
	}
}

func (w *geminiWire) piece(i, _ int, p *part, text string) {
	if p.kind == "call" || p.kind == "reasoning" && !w.thoughts {
		return
	}
	w.o.send("", w.answer(newCandidate(i, "", geminiPart(p, text))), true)
}

func (w *geminiWire) close(counts, bool) {
	for i := range w.c.answers {
		a := &w.c.answers[i]
		var parts []any
		if a.finish != "odd" {
			parts = append(parts, map[string]string{"text": ""})
		}
		w.o.send("", w.answer(newCandidate(i, geminiFinish(a), parts...)), false)
	}
}

func (w *geminiWire) fail(e *problem) {
	_, body := geminiShape{}.wording(http.Header{}, e, w.c.id)
	w.o.raw(w.o.frame("", encode(body)))
	w.o.raw([]byte(w.o.tail))
}

// strictly decodes JSON and refuses what v does not know.
func strictly(body []byte, v any) *problem {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	err := dec.Decode(v)
	if err == nil {
		return nil
	}
	message := err.Error()
	if name, ok := strings.CutPrefix(message, "json: unknown field "); ok {
		message = "Unknown name " + name + ": Cannot find field."
	}
	return &problem{class: "invalid", message: "Invalid JSON payload received. " + message}
}
