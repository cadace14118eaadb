// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

func askOpenAI(ctx context.Context, q *question) error {
	var body openai.ChatCompletionNewParams
	if err := json.Unmarshal(q.Body, &body); err != nil {
		return err
	}
	client := openai.NewClient(option.WithBaseURL(os.Getenv("GATEWAY_URL")), option.WithAPIKey(q.Key), option.WithMaxRetries(q.Retries))
	if q.Op == "create" {
		r, err := client.Chat.Completions.New(ctx, body)
		if err != nil {
			return err
		}
		return result(json.RawMessage(r.RawJSON()))
	}
	stream := client.Chat.Completions.NewStreaming(ctx, body)
	defer stream.Close()
	var all openai.ChatCompletionAccumulator
	for stream.Next() {
		c := stream.Current()
		if q.Op == "final" {
			all.AddChunk(c) // false for what Azure's filter says apart, which has no id
			continue
		}
		chunk(c.RawJSON())
		if q.Take && len(c.Choices) > 0 && c.Choices[0].Delta.Content != "" {
			break
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	if q.Op == "final" {
		return result(all.ChatCompletion)
	}
	return end()
}

func openAIError(err error) (*http.Response, string) {
	if e := (*openai.Error)(nil); errors.As(err, &e) {
		return e.Response, e.RawJSON()
	}
	return nil, ""
}
