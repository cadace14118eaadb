// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Command ask asks what with_others.py of the matrix tells it with OpenAI's
// client for Go: a request per line of the input, answers as lines of JSON.
// GATEWAY_URL has /v1 at its end.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

type question struct {
	Op      string
	Key     string
	Retries int
	Take    bool // until there is text, then leave
	Body    openai.ChatCompletionNewParams
}

type failure struct {
	Name    string            `json:"name"`
	Status  int               `json:"status"`
	Body    json.RawMessage   `json:"body"`
	Headers map[string]string `json:"headers"`
	Message string            `json:"message"`
}

var out = json.NewEncoder(os.Stdout)

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		var q question
		err := json.Unmarshal(in.Bytes(), &q)
		if err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			err = answer(ctx, &q)
			cancel()
		}
		if err != nil {
			out.Encode(map[string]any{"error": failed(err)})
		}
	}
}

func answer(ctx context.Context, q *question) error {
	client := openai.NewClient(option.WithBaseURL(os.Getenv("GATEWAY_URL")), option.WithAPIKey(q.Key), option.WithMaxRetries(q.Retries))
	if q.Op == "create" {
		r, err := client.Chat.Completions.New(ctx, q.Body)
		if err != nil {
			return err
		}
		return out.Encode(map[string]any{"result": json.RawMessage(r.RawJSON())})
	}
	stream := client.Chat.Completions.NewStreaming(ctx, q.Body)
	defer stream.Close()
	var all openai.ChatCompletionAccumulator
	for stream.Next() {
		c := stream.Current()
		if q.Op == "final" {
			all.AddChunk(c) // false for what Azure's filter says apart, which has no id
			continue
		}
		out.Encode(map[string]any{"chunk": json.RawMessage(c.RawJSON())})
		if q.Take && len(c.Choices) > 0 && c.Choices[0].Delta.Content != "" {
			break
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	if q.Op == "final" {
		return out.Encode(map[string]any{"result": all.ChatCompletion})
	}
	return out.Encode(map[string]any{"end": true})
}

func failed(err error) failure {
	f := failure{Name: "Error", Message: err.Error(), Headers: map[string]string{}}
	if e := (*openai.Error)(nil); errors.As(err, &e) && e.Response != nil {
		f.Status, f.Body = e.StatusCode, json.RawMessage(e.RawJSON())
		for name := range e.Response.Header {
			f.Headers[name] = e.Response.Header.Get(name)
		}
	}
	return f
}
