// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"net/http"
	"strings"
)

// cohereShape is Cohere's rerank.
type cohereShape struct{}

func (cohereShape) routes(p *Provider, mux *http.ServeMux) {
	p.handle(mux, "POST /v2/rerank", func(c *call) { c.cohereRerank() })
	p.handle(mux, "POST /v1/rerank", func(c *call) { c.cohereRerank("return_documents", "rank_fields", "max_chunks_per_doc") })
	p.handle(mux, "GET /v1/models", func(c *call) {
		all := []any{}
		for _, name := range p.cfg.Models {
			all = append(all, map[string]any{"name": name, "endpoints": []string{"rerank"}, "context_length": p.cfg.MaxModelLen})
		}
		c.reply(map[string]any{"models": all})
	})
}

func (cohereShape) credential(p *Provider, r *http.Request, body []byte) (string, *problem) {
	key, bad := openaiShape{}.credential(p, r, body)
	if bad != nil {
		bad = &problem{class: "auth", message: "invalid api token"}
	}
	return key, bad
}

func (cohereShape) wording(_ http.Header, e *problem, id string) (int, any) {
	status, body := openaiError(e)
	message := body.Message
	switch e.class {
	case "model":
		message = e.text(fmt.Sprintf("model '%s' not found, make sure the correct model ID was used and that you have access to the model.", e.model))
	case "rate":
		message = e.text("You are using a Trial key, which is limited to 10 API calls / minute.")
	case "context":
		message = fmt.Sprintf("too many tokens: total number of tokens cannot exceed %d - received %d.", e.most, e.used+e.asked)
	}
	return status, map[string]string{"id": id, "message": message}
}

func (cohereShape) limited(h http.Header, l limitState) {
	if l.requests > 0 {
		h.Set("X-Trial-Endpoint-Call-Limit", fmt.Sprint(l.requests))
		h.Set("X-Trial-Endpoint-Call-Remaining", fmt.Sprint(l.requestsLeft))
	}
}

func (c *call) cohereRerank(more ...string) {
	req, bad := readRerank(c.body, more...)
	if bad != nil {
		c.refuse(bad)
		return
	}
	if !c.measure(req.Model, pairs(req.Query, req.texts)...) {
		return
	}
	results := []any{}
	for _, r := range req.ranked() {
		v := map[string]any{"index": r.index, "relevance_score": r.score}
		if len(more) > 0 && req.Return != nil && *req.Return {
			v["document"] = map[string]string{"text": req.texts[r.index]}
		}
		results = append(results, v)
	}
	meta := map[string]any{"api_version": map[string]string{"version": strings.Trim(c.r.URL.Path[:3], "/v")}}
	if n, known := c.usage(); known {
		meta["billed_units"] = map[string]int{"search_units": (len(req.texts) + 99) / 100}
		meta["tokens"] = map[string]int{"input_tokens": n.prompt}
	}
	c.reply(map[string]any{"id": requestUUID(c.id), "results": results, "meta": meta})
}
