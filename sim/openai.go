// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// openaiShape is OpenAI's API.
type openaiShape struct{}

func (openaiShape) routes(p *Provider, mux *http.ServeMux) { openaiRoutes(p, mux, "/v1") }

// openaiRoutes registers the endpoints under a prefix.
func openaiRoutes(p *Provider, mux *http.ServeMux, prefix string) {
	for path, h := range map[string]func(*call){
		"/chat/completions": (*call).chat, "/completions": (*call).completions, "/embeddings": (*call).embeddings,
		"/images/generations": (*call).images, "/moderations": (*call).moderations, "/rerank": (*call).rerank,
		"/audio/speech": (*call).speech, "/audio/transcriptions": (*call).transcriptions, "/audio/translations": (*call).transcriptions,
		"/responses": (*call).responses, "/responses/input_tokens": (*call).inputTokens,
	} {
		p.handle(mux, "POST "+prefix+path, h)
	}
	p.handle(mux, "GET "+prefix+"/responses/{response}", func(c *call) { c.storedResponse(false) })
	p.handle(mux, "DELETE "+prefix+"/responses/{response}", func(c *call) { c.storedResponse(true) })
	p.handle(mux, "GET "+prefix+"/models", func(c *call) {
		all := []any{}
		for _, name := range p.cfg.Models {
			all = append(all, openaiModel(p, name))
		}
		c.openaiHeaders()
		c.reply(map[string]any{"object": "list", "data": all})
	})
	p.handle(mux, "GET "+prefix+"/models/{id...}", func(c *call) {
		if name := c.r.PathValue("id"); c.resolve(name) {
			c.reply(openaiModel(p, name))
		}
	})
}

func openaiModel(p *Provider, name string) any {
	return model{ID: name, Object: "model", Created: p.created, OwnedBy: "sim"}
}

func (openaiShape) credential(p *Provider, r *http.Request, _ []byte) (string, *problem) {
	v := r.Header.Get("Authorization")
	key, bearer := strings.CutPrefix(v, "Bearer ")
	switch {
	case p.knows(key):
		return key, nil
	case !bearer:
		return "", &problem{class: "auth", code: "none", message: "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY)."}
	}
	return key, &problem{class: "auth"}
}

// openaiError is the error object.
func openaiError(e *problem) (status int, body apiError) {
	status, body = 400, apiError{Message: e.text("The request is invalid."), Type: "invalid_request_error"}
	if e.param != "" {
		body.Param = &e.param
	}
	if e.code != "" {
		body.Code = e.code
	}
	word := func(s int, kind string, code any, general string) {
		status, body.Type, body.Code, body.Message = s, kind, code, e.text(general)
		if e.code != "" {
			body.Code = e.code
		}
	}
	const invalid = "invalid_request_error"
	switch e.class {
	case "auth":
		word(401, invalid, "invalid_api_key", "Incorrect API key provided. You can find your API key at https://platform.openai.com/account/api-keys.")
		if e.code == "none" {
			body.Code = nil
		}
	case "billing":
		word(402, "billing_error", "insufficient_balance", "Insufficient Balance")
	case "quota":
		word(429, "insufficient_quota", "insufficient_quota", "You exceeded your current quota, please check your plan and billing details.")
	case "permission":
		word(403, invalid, "unsupported_country_region_territory", "Country, region, or territory not supported")
	case "path":
		word(404, invalid, nil, "Invalid URL")
	case "model":
		word(404, invalid, "model_not_found", fmt.Sprintf("The model `%s` does not exist or you do not have access to it.", e.model))
	case "timeout":
		word(408, "timeout", "timeout", "Request timed out.")
	case "tooLarge":
		word(413, invalid, "request_too_large", "The request is too large.")
	case "unprocessable":
		word(422, invalid, "unprocessable", "The request could not be processed.")
	case "rate":
		if e.over == "" {
			e.over = "requests"
		}
		word(429, e.over, "rate_limit_exceeded", "Rate limit reached for requests")
	case "server":
		word(500, "server_error", nil, "The server had an error while processing your request. Sorry about that!")
	case "unavailable", "overloaded":
		word(503, "server_error", "server_overloaded", "That model is currently overloaded with other requests. You can retry your request.")
	case "filter":
		word(400, invalid, "content_policy_violation", "Your request was rejected as a result of our safety system.")
	case "context":
		param := "messages"
		word(400, invalid, "context_length_exceeded", fmt.Sprintf(
			"This model's maximum context length is %d tokens. However, you requested %d tokens (%d in the messages, %d in the completion). Please reduce the length of the messages or completion.",
			e.most, e.used+e.asked, e.used, e.asked))
		body.Param = &param
	}
	return status, body
}

func (openaiShape) wording(h http.Header, e *problem, id string) (int, any) {
	h.Set("x-request-id", "req_"+id)
	if e.code == "extra_forbidden" { // as servers in Python word it
		return 422, map[string]any{"detail": []any{map[string]any{
			"type": "extra_forbidden", "loc": []string{"body", e.param}, "msg": "Extra inputs are not permitted",
		}}}
	}
	status, body := openaiError(e)
	return status, map[string]any{"error": body}
}

func (openaiShape) limited(h http.Header, l limitState) {
	set := func(what string, limit, left int) {
		if limit > 0 {
			h.Set("x-ratelimit-limit-"+what, strconv.Itoa(limit))
			h.Set("x-ratelimit-remaining-"+what, strconv.Itoa(left))
			h.Set("x-ratelimit-reset-"+what, l.reset.String())
		}
	}
	set("requests", l.requests, l.requestsLeft)
	set("tokens", l.tokens, l.tokensLeft)
}

// openaiHeaders are on every answer.
func (c *call) openaiHeaders() {
	h := c.w.Header()
	if _, ok := c.p.shape.(azureShape); ok {
		h.Set("apim-request-id", requestUUID(c.id))
		h.Set("x-ms-region", "Sim Region")
		h.Set("azureml-model-session", "sim")
		return
	}
	h.Set("x-request-id", "req_"+c.id)
	h.Set("openai-version", "2020-10-01")
	h.Set("openai-organization", "org-"+c.p.cfg.Name)
	h.Set("openai-processing-ms", strconv.FormatInt(time.Since(c.arrival).Milliseconds(), 10))
}

// chat answers a chat completion.
func (c *call) chat() {
	t, bad := c.p.readChat(c.body, c.deployment())
	if bad != nil {
		c.refuse(bad)
		return
	}
	c.completeWith(t, chatWords{})
}

// deployment is the model that a path of Azure names, "" elsewhere.
func (c *call) deployment() string { return c.r.PathValue("deployment") }

func (c *call) completions() {
	t, echo, bad := c.p.readCompletion(c.body, c.deployment())
	if bad != nil {
		c.refuse(bad)
		return
	}
	c.completeWith(t, textWords{echo})
}

// completeWith answers a request for completions in either wording.
func (c *call) completeWith(t *turn, words completionWords) {
	if !c.begin(t) {
		return
	}
	c.openaiHeaders()
	w := &completionWire{c: c, words: words}
	if t.stream && !c.faults.wire("json") {
		w.o = c.sse()
		c.stream(w.o, w, false)
	} else if c.complete() {
		c.reply(w.whole())
	}
}
