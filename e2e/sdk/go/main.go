// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Command go runs the OpenAI client for Go against a gateway, a line per case.
// It is a module of its own, so that the client's dependencies stay out of the
// product.
//
// Environment: GATEWAY_URL (with /v1), ADMIN_URL (optional), MODEL. The cases
// are those of the Python and Node clients.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

func main() {
	t := &tester{
		client: openai.NewClient(option.WithBaseURL(os.Getenv("GATEWAY_URL")), option.WithAPIKey("unused"), option.WithMaxRetries(0)),
		model:  os.Getenv("MODEL"),
		admin:  os.Getenv("ADMIN_URL"),
	}
	failed := false
	for _, c := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"models", t.models}, {"chat", t.chat}, {"chat_stream", t.chatStream}, {"stream_usage", t.streamUsage},
		{"tools", t.tools}, {"tools_stream", t.toolsStream}, {"n2", t.n2}, {"completions", t.completions},
		{"embeddings", t.embeddings}, {"responses", t.responses}, {"responses_stream", t.responsesStream},
		{"not_found", t.notFound}, {"bad_request", t.badRequest}, {"too_large", t.tooLarge}, {"cancel", t.cancel},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		err := c.run(ctx)
		cancel()
		if err != nil {
			failed = true
			fmt.Printf("go %s FAILED %s\n", c.name, strings.ReplaceAll(err.Error(), "\n", " "))
			continue
		}
		fmt.Printf("go %s ok\n", c.name)
	}
	if failed {
		os.Exit(1)
	}
}

type tester struct {
	client       openai.Client
	model, admin string
}

// params is a chat of two messages with at most max tokens of answer.
func (t *tester) params(max int64) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:     t.model,
		MaxTokens: openai.Int(max),
		Messages: []openai.ChatCompletionMessageParamUnion{
			openai.SystemMessage("Be brief."), openai.UserMessage("Why is the sky blue? ☁️"),
		},
	}
}

func (t *tester) models(ctx context.Context) error {
	page, err := t.client.Models.List(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(page.Data, func(m openai.Model) bool { return m.ID == t.model }) {
		return errors.New("the model is not listed")
	}
	return nil
}

func (t *tester) chat(ctx context.Context) error {
	r, err := t.client.Chat.Completions.New(ctx, t.params(16))
	switch {
	case err != nil:
		return err
	case r.Model != t.model:
		return fmt.Errorf("model is %s", r.Model)
	case r.Choices[0].Message.Content == "":
		return errors.New("no content")
	case r.Usage.PromptTokens == 0 || r.Usage.CompletionTokens == 0:
		return errors.New("no usage")
	}
	return nil
}

func (t *tester) chatStream(ctx context.Context) error {
	stream := t.client.Chat.Completions.NewStreaming(ctx, t.params(16))
	defer stream.Close()
	text, finish := "", ""
	for stream.Next() {
		chunk := stream.Current()
		switch {
		case chunk.Model != t.model:
			return fmt.Errorf("model is %s", chunk.Model)
		case chunk.Usage.TotalTokens != 0:
			return errors.New("usage that nobody asked for")
		case len(chunk.Choices) != 1:
			return fmt.Errorf("%d choices in a chunk", len(chunk.Choices))
		}
		text += chunk.Choices[0].Delta.Content
		finish += chunk.Choices[0].FinishReason
	}
	if stream.Err() == nil && (text == "" || finish == "") {
		return fmt.Errorf("text %q, finish %q", text, finish)
	}
	return stream.Err()
}

func (t *tester) streamUsage(ctx context.Context) error {
	p := t.params(16)
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := t.client.Chat.Completions.NewStreaming(ctx, p)
	defer stream.Close()
	n := 0
	for stream.Next() {
		if c := stream.Current(); c.Usage.CompletionTokens > 0 {
			if n++; len(c.Choices) != 0 {
				return errors.New("the usage chunk has choices")
			}
		}
	}
	if stream.Err() == nil && n != 1 {
		return fmt.Errorf("%d usage chunks", n)
	}
	return stream.Err()
}

func (t *tester) toolParams() openai.ChatCompletionNewParams {
	p := t.params(64)
	p.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{
		Name:        "get_weather",
		Description: openai.String("Weather at a place"),
		Parameters: shared.FunctionParameters{
			"type": "object", "properties": map[string]any{"place": map[string]string{"type": "string"}}, "required": []string{"place"},
		},
	})}
	p.ToolChoice = openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("required")}
	return p
}

func called(name, arguments string) error {
	if name != "get_weather" || !json.Valid([]byte(arguments)) {
		return fmt.Errorf("called %s(%s)", name, arguments)
	}
	return nil
}

func (t *tester) tools(ctx context.Context) error {
	r, err := t.client.Chat.Completions.New(ctx, t.toolParams())
	if err != nil {
		return err
	}
	if len(r.Choices[0].Message.ToolCalls) == 0 {
		return errors.New("no tool call")
	}
	f := r.Choices[0].Message.ToolCalls[0].Function
	return called(f.Name, f.Arguments)
}

func (t *tester) toolsStream(ctx context.Context) error {
	stream := t.client.Chat.Completions.NewStreaming(ctx, t.toolParams())
	defer stream.Close()
	name, arguments := "", ""
	for stream.Next() {
		for _, c := range stream.Current().Choices {
			for _, call := range c.Delta.ToolCalls {
				name += call.Function.Name
				arguments += call.Function.Arguments
			}
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	return called(name, arguments)
}

func (t *tester) n2(ctx context.Context) error {
	p := t.params(8)
	p.N = openai.Int(2)
	r, err := t.client.Chat.Completions.New(ctx, p)
	if err != nil {
		return err
	}
	if len(r.Choices) != 2 || r.Choices[0].Index+r.Choices[1].Index != 1 {
		return fmt.Errorf("%d choices", len(r.Choices))
	}
	stream := t.client.Chat.Completions.NewStreaming(ctx, p)
	defer stream.Close()
	seen := map[int64]bool{}
	for stream.Next() {
		for _, c := range stream.Current().Choices {
			seen[c.Index] = true
		}
	}
	if stream.Err() == nil && (len(seen) != 2 || !seen[0] || !seen[1]) {
		return fmt.Errorf("streamed choices %v", seen)
	}
	return stream.Err()
}

func (t *tester) completions(ctx context.Context) error {
	p := openai.CompletionNewParams{
		Model:     openai.CompletionNewParamsModel(t.model),
		Prompt:    openai.CompletionNewParamsPromptUnion{OfString: openai.String("Once upon a time")},
		MaxTokens: openai.Int(8),
	}
	r, err := t.client.Completions.New(ctx, p)
	if err != nil {
		return err
	}
	if r.Choices[0].Text == "" || r.Usage.CompletionTokens == 0 {
		return errors.New("no text or usage")
	}
	stream := t.client.Completions.NewStreaming(ctx, p)
	defer stream.Close()
	text := ""
	for stream.Next() {
		text += stream.Current().Choices[0].Text
	}
	if stream.Err() == nil && text == "" {
		return errors.New("no streamed text")
	}
	return stream.Err()
}

func (t *tester) embeddings(ctx context.Context) error {
	r, err := t.client.Embeddings.New(ctx, openai.EmbeddingNewParams{
		Model: t.model,
		Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"one", "two"}},
	})
	if err != nil {
		return err
	}
	if len(r.Data) != 2 || len(r.Data[0].Embedding) == 0 || r.Usage.PromptTokens == 0 {
		return fmt.Errorf("%d embeddings, usage %v", len(r.Data), r.Usage.PromptTokens)
	}
	return nil
}

func (t *tester) responseParams() responses.ResponseNewParams {
	return responses.ResponseNewParams{
		Model:           t.model,
		Input:           responses.ResponseNewParamsInputUnion{OfString: openai.String("Why is the sky blue?")},
		MaxOutputTokens: openai.Int(16),
	}
}

func (t *tester) responses(ctx context.Context) error {
	r, err := t.client.Responses.New(ctx, t.responseParams())
	if err != nil {
		return err
	}
	if r.OutputText() == "" || r.Usage.OutputTokens == 0 {
		return errors.New("no text or usage")
	}
	return nil
}

func (t *tester) responsesStream(ctx context.Context) error {
	stream := t.client.Responses.NewStreaming(ctx, t.responseParams())
	defer stream.Close()
	text, first, last := "", "", ""
	for stream.Next() {
		e := stream.Current()
		if first == "" {
			first = e.Type
		}
		last = e.Type
		if e.Type == "response.output_text.delta" {
			text += e.Delta
		}
	}
	if stream.Err() == nil && (text == "" || first != "response.created" || last != "response.completed" && last != "response.incomplete") {
		return fmt.Errorf("text %q, events from %s to %s", text, first, last)
	}
	return stream.Err()
}

// refused sends p and expects the status.
func (t *tester) refused(ctx context.Context, status int, p openai.ChatCompletionNewParams, o ...option.RequestOption) (*openai.Error, error) {
	_, err := t.client.Chat.Completions.New(ctx, p, o...)
	var e *openai.Error
	if !errors.As(err, &e) {
		return nil, fmt.Errorf("not refused as it should be: %v", err)
	}
	if e.StatusCode != status || e.Message == "" {
		return nil, fmt.Errorf("status %d, message %q", e.StatusCode, e.Message)
	}
	if e.Response.Header.Get("x-request-id") == "" {
		return nil, errors.New("no request id")
	}
	return e, nil
}

func (t *tester) notFound(ctx context.Context) error {
	p := t.params(8)
	p.Model = "no-such-model"
	e, err := t.refused(ctx, http.StatusNotFound, p)
	if err == nil && e.Code != "model_not_found" {
		return fmt.Errorf("code %q", e.Code)
	}
	return err
}

func (t *tester) badRequest(ctx context.Context) error {
	e, err := t.refused(ctx, http.StatusBadRequest, t.params(8), option.WithJSONSet("kv_transfer_params", map[string]string{"remote_host": "x"}))
	if err == nil && !strings.Contains(e.Message+e.Param, "kv_transfer_params") {
		return fmt.Errorf("message %q", e.Message)
	}
	return err
}

func (t *tester) tooLarge(ctx context.Context) error {
	p := t.params(8)
	p.Messages = []openai.ChatCompletionMessageParamUnion{openai.UserMessage(strings.Repeat("x", 2<<20))}
	_, err := t.refused(ctx, http.StatusRequestEntityTooLarge, p)
	return err
}

func (t *tester) cancel(ctx context.Context) error {
	inner, cancel := context.WithCancel(ctx)
	// Twenty seconds of answer: it cannot have ended by itself when it is looked for.
	stream := t.client.Chat.Completions.NewStreaming(inner, t.params(20000), option.WithJSONSet("ignore_eos", true))
	for range 3 {
		if !stream.Next() {
			cancel()
			return fmt.Errorf("the stream ended early: %w", stream.Err())
		}
	}
	cancel()
	stream.Close()
	if t.admin == "" {
		return nil
	}
	flying := int64(0)
	for range 100 {
		res, err := http.Get(t.admin + "/pools")
		if err != nil {
			return err
		}
		var pools []struct{ Requests int64 }
		err = json.NewDecoder(res.Body).Decode(&pools)
		res.Body.Close()
		if err != nil {
			return err
		}
		flying = 0
		for _, p := range pools {
			flying += p.Requests
		}
		if flying == 0 {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("%d requests in flight 10 s after the client left", flying)
}
