// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
)

// What Google's models do besides generating: count tokens, and embed.

// geminiCount takes contents, or a whole request inside the body; Vertex takes what
// counts of one as the body.
func (c *call) geminiCount(model string, vertex bool) {
	body := c.body
	if vertex {
		var known struct {
			Contents          json.RawMessage `json:"contents"`
			SystemInstruction json.RawMessage `json:"systemInstruction"`
			Tools             json.RawMessage `json:"tools"`
			Config            json.RawMessage `json:"generationConfig"`
		}
		if bad := strictly(camelNames(body, 0), &known); bad != nil {
			c.refuse(bad)
			return
		}
	} else {
		var req struct {
			Contents json.RawMessage `json:"contents"`
			Inner    *struct {
				geminiRequest
			} `json:"generateContentRequest"`
		}
		var raw struct {
			Inner json.RawMessage `json:"generateContentRequest"`
		}
		names := camelNames(body, 0)
		bad := strictly(names, &req)
		switch {
		case bad != nil:
		case req.Inner != nil && len(req.Contents) > 0:
			bad = argument("contents and generateContentRequest cannot both be set.")
		case req.Inner != nil && req.Inner.Model != "models/"+model:
			bad = argument("* GenerateContentRequest.model: unexpected model name format\n")
		}
		if bad != nil {
			c.refuse(bad)
			return
		}
		if json.Unmarshal(names, &raw) == nil && req.Inner != nil {
			body = raw.Inner
		}
	}
	t, _, bad := readGemini(body, model, &c.p.maker.secret)
	if bad != nil {
		c.refuse(bad)
		return
	}
	if c.resolve(model) {
		prompt, _ := t.render()
		c.reply(map[string]any{
			"totalTokens":         prompt.count(),
			"promptTokensDetails": []any{map[string]any{"modality": "TEXT", "tokenCount": prompt.count()}},
		})
	}
}

func (c *call) geminiEmbed(model string, batch bool) {
	type request struct {
		Model      string        `json:"model"`
		Content    geminiContent `json:"content"`
		TaskType   string        `json:"taskType"`
		Title      string        `json:"title"`
		Dimensions int           `json:"outputDimensionality"`
	}
	var one request
	var all struct {
		Requests []request `json:"requests"`
	}
	into := any(&one)
	if batch {
		into = &all
	}
	if bad := strictly(camelNames(c.body, 0), into); bad != nil {
		c.refuse(bad)
		return
	}
	if !c.resolve(model) {
		return
	}
	if !batch {
		all.Requests = []request{one}
	}
	var texts []tokens
	for i, r := range all.Requests {
		var t tokens
		for _, p := range r.Content.Parts {
			if p.Text != nil {
				t = t.segment(*p.Text)
			}
		}
		switch {
		case t.count() == 0:
			c.refuse(argument("* EmbedContentRequest.content: content is not specified\n"))
			return
		case r.Model != "models/"+model && (batch || r.Model != ""):
			c.refuse(argument("* BatchEmbedContentsRequest.requests[%d].model: unexpected model name format\n", i))
			return
		}
		texts = append(texts, t)
	}
	if len(texts) == 0 {
		c.refuse(argument("* BatchEmbedContentsRequest.requests: requests is not specified\n"))
		return
	}
	out := []any{}
	if !c.embed(texts) {
		return
	}
	for i, t := range texts {
		out = append(out, map[string]any{"values": vector(t, geminiDimensions(all.Requests[i].Dimensions))})
	}
	if batch {
		c.reply(map[string]any{"embeddings": out})
		return
	}
	c.reply(map[string]any{"embedding": out[0]})
}

// embed takes the time of computing texts.
func (c *call) embed(texts []tokens) bool {
	c.start()
	for _, t := range texts {
		c.counts.prompt += t.count()
	}
	return c.pause(c.p.cfg.TTFT)
}

func geminiDimensions(n int) int {
	if n > 0 {
		return min(n, 4096)
	}
	return defaultDimensions
}

// vertexEmbed is predict with a model that embeds.
func (c *call) vertexEmbed(model string) {
	var req struct {
		Instances []struct {
			Content  string `json:"content"`
			TaskType string `json:"task_type"`
			Title    string `json:"title"`
		} `json:"instances"`
		Parameters struct {
			Truncate   *bool `json:"autoTruncate"`
			Dimensions int   `json:"outputDimensionality"`
		} `json:"parameters"`
	}
	if bad := strictly(c.body, &req); bad != nil {
		c.refuse(bad)
		return
	}
	if !c.resolve(model) {
		return
	}
	var texts []tokens
	characters := 0
	for i, in := range req.Instances {
		if in.Content == "" {
			c.refuse(argument("The text content of instance %d is empty.", i))
			return
		}
		texts = append(texts, tokens(nil).segment(in.Content))
		characters += len([]rune(in.Content))
	}
	if len(texts) == 0 {
		c.refuse(argument("Empty instances."))
		return
	}
	if !c.embed(texts) {
		return
	}
	out := []any{}
	for _, t := range texts {
		out = append(out, map[string]any{"embeddings": map[string]any{
			"values":     vector(t, geminiDimensions(req.Parameters.Dimensions)),
			"statistics": map[string]any{"truncated": false, "token_count": t.count()},
		}})
	}
	c.reply(map[string]any{"predictions": out, "metadata": map[string]int{"billableCharacterCount": characters}})
}
