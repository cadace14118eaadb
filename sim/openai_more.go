// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Endpoints of OpenAI's shape beside text, in small form.

// embeddings answers a request for embeddings.
func (c *call) embeddings() {
	var req struct {
		Model      string     `json:"model"`
		Input      promptList `json:"input"`
		Dimensions *int       `json:"dimensions"`
		Encoding   string     `json:"encoding_format"`
	}
	if _, err := fields(c.body, &req); err != nil {
		c.refuse(unreadable(err))
		return
	}
	n := defaultDimensions
	if req.Dimensions != nil {
		n = *req.Dimensions
	}
	switch {
	case len(req.Input) == 0 || len(req.Input) > 2048:
		c.refuse(coded("input", "", "Invalid 'input': between 1 and 2048 entries are expected."))
		return
	case n < 1 || n > 4096:
		c.refuse(coded("dimensions", "", "Invalid 'dimensions': between 1 and 4096 are expected."))
		return
	case req.Encoding != "" && req.Encoding != "float" && req.Encoding != "base64":
		c.refuse(coded("encoding_format", "invalid_value", "Invalid 'encoding_format': 'float' or 'base64' is expected."))
		return
	}
	if !c.measure(cmp.Or(c.deployment(), req.Model), req.Input...) {
		return
	}
	data := []any{}
	for i, p := range req.Input {
		v := vector(p, n)
		var embedding any = v
		if req.Encoding == "base64" {
			embedding = packed(v)
		}
		data = append(data, map[string]any{"object": "embedding", "index": i, "embedding": embedding})
	}
	c.reply(c.withUsage(map[string]any{"object": "list", "data": data, "model": c.model}, func(n counts) any {
		return map[string]int{"prompt_tokens": n.prompt, "total_tokens": n.prompt}
	}))
}

// measure begins a call that reads prompts and generates no text.
func (c *call) measure(model string, prompts ...tokens) bool {
	if model == "" {
		c.refuse(coded("model", "missing_required_parameter", "you must provide a model parameter"))
		return false
	}
	c.model = model
	if !c.resolve(model) {
		return false
	}
	c.counts = counts{}
	for _, p := range prompts {
		if p.count() > c.p.cfg.MaxModelLen {
			c.refuse(&problem{class: "context", used: p.count(), most: c.p.cfg.MaxModelLen})
			return false
		}
		c.counts.prompt += p.count()
	}
	if !c.admit(c.counts.prompt) {
		return false
	}
	c.start()
	return c.pause(c.p.cfg.TTFT)
}

// withUsage adds the usage to an answer, if there is one.
func (c *call) withUsage(v map[string]any, of func(counts) any) map[string]any {
	if n, known := c.usage(); known {
		v["usage"] = of(n)
	}
	return v
}

// pixel is the smallest PNG.
const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

func (c *call) images() {
	var req struct {
		Model    string `json:"model"`
		Prompt   string `json:"prompt"`
		N        *int   `json:"n"`
		Format   string `json:"response_format"`
		Stream   bool   `json:"stream"`
		Partials int    `json:"partial_images"`
	}
	if _, err := fields(c.body, &req); err != nil {
		c.refuse(unreadable(err))
		return
	}
	n := 1
	if req.N != nil {
		n = *req.N
	}
	switch {
	case req.Prompt == "":
		c.refuse(coded("prompt", "missing_required_parameter", "Missing required parameter: 'prompt'."))
		return
	case n < 1 || n > 10:
		c.refuse(coded("n", "integer_above_max_value", "Invalid 'n': between 1 and 10 are expected."))
		return
	}
	prompt := tokens(nil).segment(req.Prompt)
	if !c.measure(cmp.Or(c.deployment(), req.Model), prompt) {
		return
	}
	c.shown = imageTokens * n
	usage := func(u counts) any {
		return map[string]any{
			"input_tokens": u.prompt, "output_tokens": u.output, "total_tokens": u.prompt + u.output,
			"input_tokens_details": map[string]int{"text_tokens": u.prompt, "image_tokens": 0},
		}
	}
	if req.Stream {
		o := c.sse()
		o.start()
		for i := range req.Partials {
			o.send("image_generation.partial_image", map[string]any{
				"type": "image_generation.partial_image", "b64_json": pixel, "partial_image_index": i, "created_at": c.arrival.Unix(),
			}, true)
		}
		o.last()
		o.send("image_generation.completed", c.withUsage(map[string]any{
			"type": "image_generation.completed", "b64_json": pixel, "created_at": c.arrival.Unix(),
		}, usage), false)
		o.end()
		return
	}
	data := []any{}
	for i := range n {
		if req.Format == "url" {
			data = append(data, map[string]string{"url": fmt.Sprintf("http://%s/sim/images/%s-%d.png", c.r.Host, c.id, i)})
		} else {
			data = append(data, map[string]string{"b64_json": pixel})
		}
	}
	c.reply(c.withUsage(map[string]any{"created": c.arrival.Unix(), "data": data}, usage))
}

func (c *call) moderations() {
	var req struct {
		Model string          `json:"model"`
		Input json.RawMessage `json:"input"`
	}
	if _, err := fields(c.body, &req); err != nil {
		c.refuse(unreadable(err))
		return
	}
	var inputs stringList
	if len(req.Input) == 0 {
		c.refuse(coded("input", "missing_required_parameter", "Missing required parameter: 'input'."))
		return
	}
	if inputs.UnmarshalJSON(req.Input) != nil { // parts count as one
		inputs = stringList{string(req.Input)}
	}
	c.model = cmp.Or(req.Model, c.p.cfg.Models[0])
	if !c.measure(c.model, tokens(nil).segment(string(req.Input))) {
		return
	}
	results := []any{}
	for _, text := range inputs {
		flagged := strings.Contains(text, "violence")
		categories, scores := map[string]bool{}, map[string]float64{}
		for _, name := range []string{"harassment", "harassment/threatening", "hate", "hate/threatening", "illicit", "illicit/violent", "self-harm", "self-harm/intent", "self-harm/instructions", "sexual", "sexual/minors", "violence", "violence/graphic"} {
			categories[name], scores[name] = flagged && name == "violence", 0.01
		}
		if flagged {
			scores["violence"] = 0.99
		}
		results = append(results, map[string]any{
			"flagged": flagged, "categories": categories, "category_scores": scores, "category_applied_input_types": map[string][]string{},
		})
	}
	c.reply(map[string]any{"id": "modr-" + c.id, "model": c.model, "results": results})
}

// rerank answers in the form of Jina and vLLM.
func (c *call) rerank() {
	req, bad := readRerank(c.body, "return_documents")
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
		if req.Return == nil || *req.Return {
			v["document"] = map[string]string{"text": req.texts[r.index]}
		}
		results = append(results, v)
	}
	c.reply(c.withUsage(map[string]any{"id": "rerank-" + c.id, "model": c.model, "results": results}, func(n counts) any {
		return map[string]int{"prompt_tokens": n.prompt, "total_tokens": n.prompt}
	}))
}

type rerankRequest struct {
	Model     string            `json:"model"`
	Query     string            `json:"query"`
	Documents []json.RawMessage `json:"documents"`
	TopN      *int              `json:"top_n"`
	Return    *bool             `json:"return_documents"`
	MaxTokens *int              `json:"max_tokens_per_doc"`
	texts     []string
}

type ranked struct {
	index int
	score float64
}

// readRerank reads a request; more are the names beside those of Cohere.
func readRerank(body []byte, more ...string) (*rerankRequest, *problem) {
	req := &rerankRequest{}
	names, err := fields(body, req)
	if err != nil {
		return nil, unreadable(err)
	}
	known := append(more, "model", "query", "documents", "top_n", "max_tokens_per_doc", "priority")
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, coded(name, "unknown_parameter", "unknown field: parameter '%s' is not a valid field", name)
		}
	}
	for i, raw := range req.Documents {
		var text string
		var object struct {
			Text string `json:"text"`
		}
		if json.Unmarshal(raw, &text) != nil {
			if len(more) == 0 || json.Unmarshal(raw, &object) != nil {
				return nil, coded("documents", "invalid_type", "invalid type: parameter 'documents[%d]' is not a string", i)
			}
			text = object.Text
		}
		req.texts = append(req.texts, text)
	}
	switch {
	case req.Query == "":
		return nil, coded("query", "missing_required_parameter", "invalid request: query must not be empty")
	case len(req.texts) == 0 || len(req.texts) > 10_000:
		return nil, coded("documents", "missing_required_parameter", "invalid request: list of documents must not be empty")
	case req.TopN != nil && *req.TopN < 1:
		return nil, coded("top_n", "invalid_value", "invalid request: top_n must be at least 1")
	}
	return req, nil
}

func (r *rerankRequest) ranked() []ranked {
	all := make([]ranked, len(r.texts))
	for i, d := range r.texts {
		all[i] = ranked{i, relevance(r.Query, d)}
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return cmp.Compare(b.score, a.score) })
	if r.TopN != nil {
		all = all[:min(*r.TopN, len(all))]
	}
	return all
}

func (c *call) speech() {
	var req struct {
		Model        string `json:"model"`
		Input        string `json:"input"`
		Voice        any    `json:"voice"`
		Format       string `json:"response_format"`
		StreamFormat string `json:"stream_format"`
	}
	if _, err := fields(c.body, &req); err != nil {
		c.refuse(unreadable(err))
		return
	}
	if req.Input == "" || req.Voice == nil {
		c.refuse(coded("input", "missing_required_parameter", "Missing required parameter: 'input' or 'voice'."))
		return
	}
	if !c.measure(cmp.Or(c.deployment(), req.Model), tokens(nil).segment(req.Input)) {
		return
	}
	c.shown = 8 * c.counts.prompt
	sound := make([]byte, 64*c.counts.prompt)
	for i := range sound {
		sound[i] = byte(mix(uint64(i)))
	}
	if req.StreamFormat == "sse" {
		o := c.sse()
		o.start()
		for part := range slices.Chunk(sound, 1024) {
			o.send("", map[string]string{"type": "speech.audio.delta", "audio": base64.StdEncoding.EncodeToString(part)}, true)
		}
		o.last()
		o.send("", c.withUsage(map[string]any{"type": "speech.audio.done"}, func(n counts) any {
			return map[string]int{"input_tokens": n.prompt, "output_tokens": n.output, "total_tokens": n.prompt + n.output}
		}), false)
		o.end()
		return
	}
	kind := map[string]string{"": "audio/mpeg", "mp3": "audio/mpeg", "opus": "audio/opus", "aac": "audio/aac", "flac": "audio/flac", "wav": "audio/wav", "pcm": "audio/pcm"}[req.Format]
	if kind == "" {
		c.refuse(coded("response_format", "invalid_value", "Invalid value: '%s'.", req.Format))
		return
	}
	c.w.Header().Set("Content-Type", kind)
	c.replyBody(sound)
}

// transcriptions answers transcriptions and translations of audio.
func (c *call) transcriptions() {
	form, err := readForm(strings.NewReader(string(c.body)), c.r.Header.Get("Content-Type"))
	switch {
	case err != nil:
		c.refuse(coded("", "", "Could not parse multipart form: %v", err))
		return
	case form.size == 0:
		c.refuse(coded("file", "missing_required_parameter", "Missing required parameter: 'file'."))
		return
	}
	model := cmp.Or(c.deployment(), form.fields["model"])
	if model == "" {
		c.refuse(coded("model", "missing_required_parameter", "you must provide a model parameter"))
		return
	}
	t := &turn{model: model, n: 1, bounded: true, stream: form.fields["stream"] == "true"}
	t.bounds.most = max(1, min(448, int(form.size/8000)))
	t.prompts = []tokens{tokens(nil).segment(fmt.Sprintf("<|audio %d|>", form.size))}
	if !c.begin(t) {
		return
	}
	c.openaiHeaders()
	usage := func(n counts) any {
		if t.stream || strings.Contains(model, "4o") {
			return map[string]any{"type": "tokens", "input_tokens": n.prompt, "output_tokens": n.output, "total_tokens": n.prompt + n.output,
				"input_token_details": map[string]int{"text_tokens": 0, "audio_tokens": n.prompt}}
		}
		return map[string]any{"type": "duration", "seconds": math.Ceil(float64(form.size) * secondsPerByte)}
	}
	if t.stream && !c.faults.wire("json") {
		w := &transcriptWire{c: c, o: c.sse(), usage: usage}
		c.stream(w.o, w, false)
		return
	}
	if !c.complete() {
		return
	}
	text := c.answers[0].parts[0].text()
	switch form.fields["response_format"] {
	case "text", "srt", "vtt":
		c.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		c.replyBody([]byte(text + "\n"))
		return
	}
	c.reply(c.withUsage(map[string]any{"text": text}, usage))
}

// transcriptWire words a transcription.
type transcriptWire struct {
	c     *call
	o     *frames
	usage func(counts) any
}

func (w *transcriptWire) open() {}

func (w *transcriptWire) part(int, int, *part, bool) {}

func (w *transcriptWire) piece(_, _ int, _ *part, text string) {
	w.o.send("", map[string]string{"type": "transcript.text.delta", "delta": text}, true)
}

func (w *transcriptWire) close(counts, bool) {
	w.o.send("", w.c.withUsage(map[string]any{"type": "transcript.text.done", "text": w.c.answers[0].parts[0].text()}, w.usage), false)
}

func (w *transcriptWire) fail(e *problem) {
	_, body := openaiError(e)
	w.o.raw(w.o.frame("", encode(map[string]any{"error": body})))
}
