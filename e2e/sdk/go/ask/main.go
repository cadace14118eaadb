// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Command ask asks what with_others.py of the matrix tells it with OpenAI's
// client for Go, or with the argument anthropic with Anthropic's: a request per
// line of the input, answers as lines of JSON. GATEWAY_URL is the client's base
// URL.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"time"
)

type question struct {
	Op      string // create, stream, or final: a stream that the client gathers
	Key     string
	Retries int
	Take    bool // until there is text, then leave
	Body    json.RawMessage
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
	answer, failed := askOpenAI, openAIError // what an error has of the answer; nil: there was none
	if len(os.Args) > 1 && os.Args[1] == "anthropic" {
		answer, failed = askAnthropic, anthropicError
	}
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
			f := failure{Name: "Error", Message: err.Error(), Headers: map[string]string{}}
			if res, body := failed(err); res != nil {
				f.Status, f.Body = res.StatusCode, json.RawMessage(body)
				for name := range res.Header {
					f.Headers[name] = res.Header.Get(name)
				}
			}
			out.Encode(map[string]any{"error": f})
		}
	}
}

func result(v any) error { return out.Encode(map[string]any{"result": v}) }

func chunk(raw string) { out.Encode(map[string]any{"chunk": json.RawMessage(raw)}) }

func end() error { return out.Encode(map[string]any{"end": true}) }
