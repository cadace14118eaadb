// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// bedrockShape is the Converse API of AWS Bedrock.
type bedrockShape struct{}

func (bedrockShape) routes(p *Provider, mux *http.ServeMux) {
	p.handle(mux, "POST /model/{model}/converse", func(c *call) { c.converse(false) })
	p.handle(mux, "POST /model/{model}/converse-stream", func(c *call) { c.converse(true) })
	p.handle(mux, "POST /model/{model}/count-tokens", func(c *call) {
		var req struct {
			Input struct {
				Converse json.RawMessage `json:"converse"`
			} `json:"input"`
		}
		if err := json.Unmarshal(c.body, &req); err != nil || len(req.Input.Converse) == 0 {
			c.refuse(invalidField("input", "The provided request is not valid"))
			return
		}
		t, bad := readConverse(req.Input.Converse, c.r.PathValue("model"), &p.maker.secret)
		if bad != nil {
			c.refuse(bad)
		} else if c.resolve(t.model) {
			prompt, _ := t.render()
			c.reply(map[string]int{"inputTokens": prompt.count()})
		}
	})
}

func (bedrockShape) credential(p *Provider, r *http.Request, body []byte) (string, *problem) {
	v := r.Header.Get("Authorization")
	key, bearer := strings.CutPrefix(v, "Bearer ")
	switch {
	case bearer && (p.knows(key)):
		return key, nil
	case bearer:
		return key, &problem{class: "auth", code: "AccessDeniedException", message: "Authentication failed: Please make sure your API Key is valid."}
	case v == "" && len(p.cfg.AccessKeys)+len(p.cfg.Keys) > 0:
		return "", &problem{class: "auth", code: "MissingAuthenticationTokenException", message: "Missing Authentication Token"}
	case v != "" && len(p.cfg.AccessKeys) > 0:
		return p.verifySignature(r, body, time.Now())
	case v != "" && len(p.cfg.Keys) > 0:
		return "", &problem{class: "auth", code: "UnrecognizedClientException", message: "The security token included in the request is invalid."}
	}
	return "", nil
}

// exception is the name of an error.
func (e *problem) exception() (status int, name, message string) {
	switch e.class {
	case "auth":
		name = e.code
		if name == "" {
			name = "UnrecognizedClientException"
		}
		return 403, name, e.text("The security token included in the request is invalid.")
	case "billing", "quota":
		return 400, "ServiceQuotaExceededException", e.text("Your request exceeds the service quota for your account.")
	case "permission":
		return 403, "AccessDeniedException", e.text("You don't have access to the model with the specified model ID.")
	case "path":
		return 404, "UnknownOperationException", e.text("")
	case "model":
		return 404, "ResourceNotFoundException", e.text("Could not resolve the foundation model from the provided model identifier: " + e.model)
	case "timeout":
		return 408, "ModelTimeoutException", e.text("The model took too long to process your request.")
	case "tooLarge":
		return 413, "RequestEntityTooLargeException", e.text("The request is too large.")
	case "unprocessable":
		return 424, "ModelErrorException", e.text("The model could not process the request.")
	case "rate":
		return 429, "ThrottlingException", e.text("Too many requests, please wait before trying again.")
	case "server":
		return 500, "InternalServerException", e.text("The system encountered an unexpected error during processing. Try your request again.")
	case "unavailable":
		return 503, "ServiceUnavailableException", e.text("Bedrock is unable to process your request.")
	case "overloaded":
		return 503, "ServiceUnavailableException", e.text("Too many connections, please wait before trying again.")
	case "filter":
		return 400, "ValidationException", e.text("Output blocked by content filtering policy")
	case "context":
		return 400, "ValidationException", fmt.Sprintf("The model returned the following errors: Input is too long for requested model. (%d tokens, at most %d)", e.used+e.asked, e.most)
	}
	return 400, "ValidationException", e.text("The request is invalid.")
}

func (bedrockShape) wording(h http.Header, e *problem, id string) (int, any) {
	status, name, message := e.exception()
	h.Set("x-amzn-RequestId", requestUUID(id))
	h.Set("x-amzn-ErrorType", name+":http://internal.amazon.com/coral/com.amazon.bedrock/")
	return status, map[string]string{"message": message}
}

func (bedrockShape) limited(http.Header, limitState) {} // Bedrock says nothing

func requestUUID(id string) string {
	a, b := HashText(0, id), HashText(1, id)
	return fmt.Sprintf("%08x-%04x-4%03x-a%03x-%012x", a>>32, a>>16&0xffff, a&0xfff, b>>52, b&0xffffffffffff)
}

func (c *call) converse(stream bool) {
	t, bad := readConverse(c.body, c.r.PathValue("model"), &c.p.maker.secret)
	if bad != nil {
		c.refuse(bad)
		return
	}
	t.stream = stream
	if !c.begin(t) {
		return
	}
	c.w.Header().Set("x-amzn-RequestId", requestUUID(c.id))
	w := &bedrockWire{c: c}
	if stream && !c.faults.wire("json") {
		w.o = c.eventStream()
		c.stream(w.o, w, true)
	} else if c.complete() {
		c.reply(w.whole())
	}
}

// bedrockWire words answers.
type bedrockWire struct {
	c *call
	o *frames
}

func (w *bedrockWire) stopReason() string {
	a := &w.c.answers[0]
	switch a.finish {
	case "length":
		return "max_tokens"
	case "calls":
		return "tool_use"
	case "filter", "refusal":
		return "content_filtered"
	case "odd":
		return "model_context_window_exceeded"
	}
	if a.stop != "" {
		return "stop_sequence"
	}
	return "end_turn"
}

type bedrockUsage struct {
	Input   int `json:"inputTokens"`
	Output  int `json:"outputTokens"`
	Total   int `json:"totalTokens"`
	Read    int `json:"cacheReadInputTokens"`
	Written int `json:"cacheWriteInputTokens"`
}

func newBedrockUsage(n counts) *bedrockUsage {
	return &bedrockUsage{
		Input: n.prompt - n.cached - n.written, Output: n.output, Total: n.prompt + n.output, Read: n.cached, Written: n.written,
	}
}

func (w *bedrockWire) metrics() map[string]int64 {
	return map[string]int64{"latencyMs": time.Since(w.c.arrival).Milliseconds()}
}

func (w *bedrockWire) whole() any {
	content := []any{}
	a := &w.c.answers[0]
	for i := range a.parts {
		p := &a.parts[i]
		switch p.kind {
		case "reasoning":
			content = append(content, map[string]any{"reasoningContent": map[string]any{
				"reasoningText": map[string]string{"text": p.text(), "signature": p.signature},
			}})
		case "call":
			content = append(content, map[string]any{"toolUse": map[string]any{
				"toolUseId": "tooluse_" + p.id, "name": p.name, "input": object(p.text()),
			}})
		default:
			content = append(content, map[string]string{"text": p.text()})
		}
	}
	v := map[string]any{
		"output":     map[string]any{"message": map[string]any{"role": "assistant", "content": content}},
		"stopReason": w.stopReason(), "metrics": w.metrics(),
	}
	if n, known := w.c.usage(); known {
		v["usage"] = newBedrockUsage(n)
	}
	return v
}

// emit writes one event; fields are followed by padding of varying length, as
// the service pads against the guessing of texts by their lengths.
func (w *bedrockWire) emit(kind string, fields map[string]any, output bool) {
	fields["p"] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[:(w.o.sent*7)%52]
	w.o.send(kind, fields, output)
}

func (w *bedrockWire) open() {
	w.emit("messageStart", map[string]any{"role": "assistant"}, false)
}

func (w *bedrockWire) delta(k int, delta map[string]any, output bool) {
	w.emit("contentBlockDelta", map[string]any{"contentBlockIndex": k, "delta": delta}, output)
}

func (w *bedrockWire) part(_, k int, p *part, on bool) {
	switch {
	case on && p.kind == "call":
		w.emit("contentBlockStart", map[string]any{"contentBlockIndex": k, "start": map[string]any{
			"toolUse": map[string]string{"toolUseId": "tooluse_" + p.id, "name": p.name},
		}}, true)
	case on:
	default:
		if p.kind == "reasoning" {
			w.delta(k, map[string]any{"reasoningContent": map[string]string{"signature": p.signature}}, false)
		}
		w.emit("contentBlockStop", map[string]any{"contentBlockIndex": k}, false)
	}
}

func (w *bedrockWire) piece(_, k int, p *part, text string) {
	switch p.kind {
	case "reasoning":
		w.delta(k, map[string]any{"reasoningContent": map[string]string{"text": text}}, true)
	case "call":
		w.delta(k, map[string]any{"toolUse": map[string]string{"input": text}}, true)
	default:
		w.delta(k, map[string]any{"text": text}, true)
	}
	if n, known := w.c.usage(); known && w.c.faults.Usage == "every" {
		w.emit("metadata", map[string]any{"usage": newBedrockUsage(n), "metrics": w.metrics()}, false)
	}
}

func (w *bedrockWire) close(n counts, known bool) {
	w.emit("messageStop", map[string]any{"stopReason": w.stopReason()}, false)
	if w.c.faults.wire("noEnd") {
		return
	}
	v := map[string]any{"metrics": w.metrics()}
	if known {
		v["usage"] = newBedrockUsage(n)
	}
	w.emit("metadata", v, false)
}

func (w *bedrockWire) fail(e *problem) {
	_, name, message := e.exception()
	if e.class == "unprocessable" {
		name = "ModelStreamErrorException"
	}
	name = strings.ToLower(name[:1]) + name[1:]
	w.o.raw(exceptionOf(name, encode(map[string]string{"message": message})))
}

// converseRequest is what a request says that matters here.
type converseRequest struct {
	Messages []struct {
		Role    string          `json:"role"`
		Content []converseBlock `json:"content"`
	} `json:"messages"`
	System          []converseBlock `json:"system"`
	InferenceConfig struct {
		MaxTokens     *int     `json:"maxTokens"`
		Temperature   *float64 `json:"temperature"`
		StopSequences []string `json:"stopSequences"`
	} `json:"inferenceConfig"`
	ToolConfig *struct {
		Tools []struct {
			Spec *struct {
				Name        string `json:"name"`
				InputSchema struct {
					JSON json.RawMessage `json:"json"`
				} `json:"inputSchema"`
			} `json:"toolSpec"`
			CachePoint *struct{} `json:"cachePoint"`
		} `json:"tools"`
		ToolChoice *struct {
			Auto *struct{} `json:"auto"`
			Any  *struct{} `json:"any"`
			Tool *struct {
				Name string `json:"name"`
			} `json:"tool"`
		} `json:"toolChoice"`
	} `json:"toolConfig"`
	Additional struct {
		Thinking struct {
			Type string `json:"type"`
		} `json:"thinking"`
	} `json:"additionalModelRequestFields"`
	OutputConfig struct {
		TextFormat struct {
			Structure struct {
				JSONSchema struct {
					Schema string `json:"schema"`
				} `json:"jsonSchema"`
			} `json:"structure"`
		} `json:"textFormat"`
	} `json:"outputConfig"`
}

var converseFields = []string{
	"messages", "system", "inferenceConfig", "toolConfig", "guardrailConfig", "additionalModelRequestFields",
	"promptVariables", "additionalModelResponseFieldPaths", "requestMetadata", "performanceConfig", "serviceTier", "outputConfig",
}

func validation(format string, args ...any) *problem {
	return &problem{class: "invalid", message: fmt.Sprintf(format, args...)}
}

// defaultBedrockTokens is the bound of an output when the client gave none.
const defaultBedrockTokens = 4096

// readConverse reads a request as strictly as the service does.
func readConverse(body []byte, model string, secret *sealer) (*turn, *problem) {
	var req converseRequest
	names, err := fields(body, &req)
	if err != nil {
		return nil, validation("The provided request is not valid: %v", err)
	}
	for _, name := range names {
		if !slices.Contains(converseFields, name) {
			return nil, validation("The provided request is not valid: #: extraneous key [%s] is not permitted", name)
		}
	}
	t := &turn{model: model, marked: true, n: 1}
	t.bounds.stop = req.InferenceConfig.StopSequences
	t.bounds.most = defaultBedrockTokens
	if most := req.InferenceConfig.MaxTokens; most != nil {
		if *most < 1 {
			return nil, validation("1 validation error detected: Value '%d' at 'inferenceConfig.maxTokens' failed to satisfy constraint: Member must have value greater than or equal to 1", *most)
		}
		t.bounds.most = *most
	}
	t.bounded = true
	if k := req.InferenceConfig.Temperature; k != nil && (*k < 0 || *k > 1) {
		return nil, validation("1 validation error detected: Value '%v' at 'inferenceConfig.temperature' failed to satisfy constraint: Member must have value less than or equal to 1", *k)
	}
	t.thinking = req.Additional.Thinking.Type == "enabled" || req.Additional.Thinking.Type == "adaptive"
	if s := req.OutputConfig.TextFormat.Structure.JSONSchema.Schema; s != "" {
		t.schema = json.RawMessage(s)
	}
	if bad := req.tools(t); bad != nil {
		return nil, bad
	}
	if len(req.System) > 0 {
		m, bad := converseMessage("system", "system", req.System, secret)
		if bad != nil {
			return nil, bad
		}
		t.messages = append(t.messages, m)
	}
	return t, req.conversation(t, secret)
}

func (req *converseRequest) tools(t *turn) *problem {
	k := req.ToolConfig
	if k == nil {
		return nil
	}
	if len(k.Tools) == 0 {
		return validation("1 validation error detected: Value '[]' at 'toolConfig.tools' failed to satisfy constraint: Member must have length greater than or equal to 1")
	}
	for i, tool := range k.Tools {
		switch {
		case tool.CachePoint != nil && len(t.tools) > 0:
			t.tools[len(t.tools)-1].mark = true
		case tool.Spec == nil:
			return validation("The provided request is not valid: toolConfig.tools.%d: no member of the union is set", i)
		case !toolName.MatchString(tool.Spec.Name):
			return validation("1 validation error detected: Value '%s' at 'toolConfig.tools.%d.member.toolSpec.name' failed to satisfy constraint: Member must satisfy regular expression pattern: [a-zA-Z0-9_-]+", tool.Spec.Name, i+1)
		case len(tool.Spec.InputSchema.JSON) == 0 || tool.Spec.InputSchema.JSON[0] != '{':
			return validation("The value at toolConfig.tools.%d.toolSpec.inputSchema.json is empty or no object.", i)
		default:
			t.tools = append(t.tools, function{Name: tool.Spec.Name, Parameters: tool.Spec.InputSchema.JSON})
		}
	}
	if c := k.ToolChoice; c != nil {
		switch {
		case c.Any != nil:
			t.choice = "required"
		case c.Tool != nil:
			t.choice = "=" + c.Tool.Name
			if !slices.ContainsFunc(t.tools, func(f function) bool { return f.Name == c.Tool.Name }) {
				return validation("The toolChoice names a tool that is not in toolConfig.tools: %s", c.Tool.Name)
			}
		case c.Auto == nil:
			return validation("The provided request is not valid: toolConfig.toolChoice: no member of the union is set")
		}
	}
	return nil
}
