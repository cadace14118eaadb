// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
)

func askAnthropic(ctx context.Context, q *question) error {
	var body anthropic.MessageNewParams
	if err := json.Unmarshal(q.Body, &body); err != nil {
		return err
	}
	client := anthropic.NewClient(option.WithBaseURL(os.Getenv("GATEWAY_URL")), option.WithAPIKey(q.Key), option.WithMaxRetries(q.Retries))
	if q.Op == "create" {
		r, err := client.Messages.New(ctx, body)
		if err != nil {
			return err
		}
		return result(json.RawMessage(r.RawJSON()))
	}
	stream := client.Messages.NewStreaming(ctx, body)
	defer stream.Close()
	var all anthropic.Message
	for stream.Next() {
		e := stream.Current()
		if q.Op == "final" {
			if err := all.Accumulate(e); err != nil {
				return err
			}
			continue
		}
		chunk(e.RawJSON())
		if q.Take && e.Type == "content_block_delta" && e.Delta.Text != "" {
			break
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	if q.Op == "final" {
		return result(gathered(&all))
	}
	return end()
}

// gathered is m as an answer that came whole.
func gathered(m *anthropic.Message) map[string]any {
	content := []json.RawMessage{}
	for _, block := range m.Content {
		content = append(content, json.RawMessage(block.RawJSON()))
	}
	u := m.Usage
	return map[string]any{
		"id": m.ID, "type": "message", "role": "assistant", "model": m.Model, "content": content,
		"stop_reason": m.StopReason, "stop_sequence": m.StopSequence,
		"usage": map[string]any{
			"input_tokens": u.InputTokens, "output_tokens": u.OutputTokens,
			"cache_read_input_tokens": u.CacheReadInputTokens, "cache_creation_input_tokens": u.CacheCreationInputTokens,
		},
	}
}

func anthropicError(err error) (*http.Response, string) {
	if e := (*anthropic.Error)(nil); errors.As(err, &e) {
		return e.Response, e.RawJSON()
	}
	return nil, ""
}
