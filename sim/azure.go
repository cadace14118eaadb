// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

var apiVersion = regexp.MustCompile(`^20[0-9]{2}-[0-9]{2}-[0-9]{2}(-preview)?$`)

// firstUsageVersion is the first api-version that knows stream_options.
const firstUsageVersion = "2024-09-01"

// azureShape is Azure's OpenAI: deployments in the path with an api-version, or
// the paths of OpenAI under /openai/v1.
type azureShape struct{}

func (azureShape) routes(p *Provider, mux *http.ServeMux) {
	openaiRoutes(p, mux, "/openai/v1")
	for path, h := range map[string]func(*call){
		"chat/completions": (*call).chat, "completions": (*call).completions, "embeddings": (*call).embeddings,
		"images/generations": (*call).images, "audio/speech": (*call).speech, "audio/transcriptions": (*call).transcriptions,
		"audio/translations": (*call).transcriptions,
	} {
		p.handle(mux, "POST /openai/deployments/{deployment}/"+path, func(c *call) { c.versioned(h) })
	}
	p.handle(mux, "POST /openai/responses", func(c *call) { c.versioned((*call).responses) })
}

// versioned serves a path that needs an api-version.
func (c *call) versioned(h func(*call)) {
	v := c.r.URL.Query().Get("api-version")
	switch {
	case v == "":
		c.refuse(&problem{class: "path", code: "404", message: "Resource not found"})
	case !apiVersion.MatchString(v):
		c.refuse(&problem{class: "invalid", code: "BadRequest", message: "API version not supported"})
	case v < firstUsageVersion && strings.Contains(string(c.body), `"stream_options"`):
		c.refuse(coded("stream_options", "", "Unrecognized request argument supplied: stream_options"))
	default:
		h(c)
	}
}

func (azureShape) credential(p *Provider, r *http.Request, _ []byte) (string, *problem) {
	key := r.Header.Get("api-key")
	if key == "" {
		key, _ = strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	}
	if !p.knows(key) {
		return key, &problem{class: "auth"}
	}
	return key, nil
}

func (azureShape) wording(h http.Header, e *problem, id string) (int, any) {
	h.Set("apim-request-id", requestUUID(id))
	h.Set("x-request-id", requestUUID(id+"x"))
	h.Set("x-ms-region", "Sim Region")
	plain := func(status int, code, general string) (int, any) {
		return status, map[string]any{"error": map[string]string{"code": code, "message": e.text(general)}}
	}
	switch e.class {
	case "auth":
		return plain(401, "401", "Access denied due to invalid subscription key or wrong API endpoint. Make sure to provide a valid key for an active subscription and use a correct regional API endpoint for your resource.")
	case "permission":
		return plain(403, "403", "Access denied due to Virtual Network/Firewall rules.")
	case "path":
		return plain(404, "404", "Resource not found")
	case "model":
		return plain(404, "DeploymentNotFound", "The API deployment for this resource does not exist. If you created the deployment within the last 5 minutes, please wait a moment and try again.")
	case "rate", "quota":
		seconds := int(e.wait.Seconds())
		text := fmt.Sprintf("Requests to the ChatCompletions_Create Operation under Azure OpenAI API version 2024-10-21 have exceeded call rate limit of your current OpenAI S0 pricing tier. Please retry after %d seconds.", max(1, seconds))
		return plain(429, "429", text)
	case "timeout":
		return plain(408, "408", "The operation was timeout.")
	case "unavailable", "overloaded":
		return plain(503, "503", "The service is temporarily unable to process your request. Please try again later.")
	case "server":
		return plain(500, "InternalServerError", "The server had an error processing your request. Sorry about that!")
	case "filter":
		return 400, map[string]any{"error": map[string]any{
			"message": e.text("The response was filtered due to the prompt triggering Azure OpenAI's content management policy. Please modify your prompt and retry."),
			"type":    nil, "param": "prompt", "code": "content_filter", "status": 400,
			"innererror": map[string]any{"code": "ResponsibleAIPolicyViolation", "content_filter_result": filterResults(true)},
		}}
	}
	status, body := openaiError(e)
	return status, map[string]any{"error": body}
}

func (azureShape) limited(h http.Header, l limitState) {
	if l.requests > 0 {
		h.Set("x-ratelimit-remaining-requests", strconv.Itoa(l.requestsLeft))
		h.Set("x-ratelimit-limit-requests", strconv.Itoa(l.requests))
	}
	if l.tokens > 0 {
		h.Set("x-ratelimit-remaining-tokens", strconv.Itoa(l.tokensLeft))
		h.Set("x-ratelimit-limit-tokens", strconv.Itoa(l.tokens))
	}
}

// filterResults are what the filters of content found.
func filterResults(filtered bool) map[string]any {
	severity := "safe"
	if filtered {
		severity = "high"
	}
	return map[string]any{
		"hate":      map[string]any{"filtered": filtered, "severity": severity},
		"self_harm": map[string]any{"filtered": false, "severity": "safe"},
		"sexual":    map[string]any{"filtered": false, "severity": "safe"},
		"violence":  map[string]any{"filtered": false, "severity": "safe"},
	}
}

func promptFilters() []any {
	return []any{map[string]any{"prompt_index": 0, "content_filter_results": filterResults(false)}}
}

// asyncFilter is a chunk of the asynchronous filter: no id, no model, no delta.
func asyncFilter(tokens int) any {
	return map[string]any{
		"id": "", "object": "", "created": 0, "model": "", "choices": []any{map[string]any{
			"index": 0, "finish_reason": nil, "content_filter_results": filterResults(false),
			"content_filter_offsets": map[string]int{"check_offset": 44, "start_offset": 44, "end_offset": 44 + 4*tokens},
		}},
	}
}
