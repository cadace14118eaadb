// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"mime"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/golden"
	"github.com/penstock/penstock/sim"
)

// TestProviderWire compares what goes over the wire. A case holds requests
// 1.request, 2.request … to one provider; "shape", "models", "quirks" and
// "faults" in its comment configure it.
func TestProviderWire(t *testing.T) {
	golden.Run(t, "testdata/provider/*.txtar", func(t *testing.T, c *golden.Case) map[string]string {
		cfg := sim.ProviderConfig{
			Name: "p", Shape: c.Flag("shape"), Models: strings.Fields(c.Flag("models")), Quirks: strings.Fields(c.Flag("quirks")),
			Keys: []string{"good"},
		}
		if f := c.Flag("faults"); f != "" {
			var err error
			if cfg.Faults, err = sim.ReadFaults(strings.NewReader(f)); err != nil {
				t.Fatal(err)
			}
		}
		_, addr, client := provide(t, cfg)
		got := map[string]string{}
		for i := 1; c.Has(fmt.Sprintf("%d.request", i)); i++ {
			got[fmt.Sprintf("%d.response", i)] = exchange(t, client, addr, c.File(t, fmt.Sprintf("%d.request", i)))
		}
		return got
	})
}

// exchange sends a request as text and returns the answer as text, without what
// changes from run to run.
func exchange(t *testing.T, client *http.Client, addr, text string) string {
	t.Helper()
	head, body, _ := strings.Cut(strings.TrimSpace(text), "\n\n")
	lines := strings.Split(head, "\n")
	method, path, _ := strings.Cut(strings.TrimSpace(lines[0]), " ")
	req, err := http.NewRequest(method, "http://"+addr+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Set(name, value)
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	fmt.Fprintln(&out, res.Status)
	for name := range res.Header {
		switch name {
		case "Date", "Content-Length", "X-Sim-Server", "Openai-Processing-Ms":
			res.Header.Del(name)
		}
	}
	_ = res.Header.Write(&out)
	fmt.Fprintln(&out)
	if res.Header.Get("Content-Type") == "application/vnd.amazon.eventstream" {
		frames, err := eventFrames(raw)
		if err != nil {
			t.Error(err)
		}
		for _, f := range frames {
			fmt.Fprintf(&out, "[%s %s%s] %s\n", f.headers[":message-type"], f.headers[":event-type"], f.headers[":exception-type"], f.payload)
		}
	} else {
		out.Write(raw)
	}
	s := strings.ReplaceAll(out.String(), "\r\n", "\n")
	s = regexp.MustCompile(`"created_at":"[^"]*"`).ReplaceAllString(s, `"created_at":"T"`)
	s = regexp.MustCompile(`"(created|created_at|latencyMs)":\d{2,}`).ReplaceAllString(s, `"$1":1`)
	return regexp.MustCompile(`"latencyMs":\d+`).ReplaceAllString(s, `"latencyMs":1`)
}

// eventFrame is a frame of AWS's event stream.
type eventFrame struct {
	headers map[string]string
	payload []byte
}

// eventFrames reads frames by the book.
func eventFrames(b []byte) (all []eventFrame, err error) {
	for len(b) > 0 {
		if len(b) < 16 {
			return all, errors.New("cut frame")
		}
		total, head := int(binary.BigEndian.Uint32(b)), int(binary.BigEndian.Uint32(b[4:]))
		switch {
		case crc32.ChecksumIEEE(b[:8]) != binary.BigEndian.Uint32(b[8:]):
			return all, errors.New("checksum of the prelude")
		case total > len(b) || head > total-16:
			return all, errors.New("cut frame")
		case crc32.ChecksumIEEE(b[:total-4]) != binary.BigEndian.Uint32(b[total-4:]):
			return all, errors.New("checksum of the message")
		}
		f := eventFrame{headers: map[string]string{}, payload: b[12+head : total-4]}
		for h := b[12 : 12+head]; len(h) > 0; {
			n := int(h[0])
			name := string(h[1 : 1+n])
			if h[1+n] != 7 {
				return all, fmt.Errorf("header %s of type %d", name, h[1+n])
			}
			size := int(binary.BigEndian.Uint16(h[2+n:]))
			f.headers[name] = string(h[4+n : 4+n+size])
			h = h[4+n+size:]
		}
		all = append(all, f)
		b = b[total:]
	}
	return all, nil
}

// events takes an answer apart into its JSON values: events, list items, frames
// or the one body. The name of an event is put in front of it.
func events(contentType string, b []byte) (all []map[string]any, err error) {
	kind, _, _ := mime.ParseMediaType(contentType)
	add := func(name string, data []byte) {
		if string(data) == "[DONE]" {
			all = append(all, map[string]any{"done": true})
			return
		}
		v := map[string]any{}
		if e := json.Unmarshal(data, &v); e != nil && err == nil {
			err = fmt.Errorf("event %q: %w", data, e)
		}
		if name != "" && v["type"] != name && kind == "text/event-stream" {
			err = fmt.Errorf("event %s has the type %v", name, v["type"])
		}
		if kind == "application/vnd.amazon.eventstream" {
			v = map[string]any{name: v}
		}
		all = append(all, v)
	}
	switch kind {
	case "text/event-stream":
		text := strings.ReplaceAll(string(b), "\r\n", "\n")
		if !strings.HasSuffix(text, "\n\n") {
			err = errors.New("the last event is cut")
		}
		for _, e := range strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n") {
			name := ""
			for _, line := range strings.Split(e, "\n") {
				if v, ok := strings.CutPrefix(line, "event: "); ok {
					name = v
				} else if v, ok := strings.CutPrefix(line, "data: "); ok {
					add(name, []byte(v))
				}
			}
		}
	case "application/vnd.amazon.eventstream":
		frames, e := eventFrames(b)
		err = e
		for _, f := range frames {
			name := f.headers[":event-type"]
			if f.headers[":message-type"] == "exception" {
				name = "exception " + f.headers[":exception-type"]
			}
			add(name, f.payload)
		}
	default:
		if bytes.HasPrefix(b, []byte("[")) {
			dec := json.NewDecoder(bytes.NewReader(b))
			_, err = dec.Token()
			for err == nil && dec.More() {
				var v map[string]any
				if err = dec.Decode(&v); err == nil {
					all = append(all, v)
				}
			}
			if err == nil {
				_, err = dec.Token()
			}
			return all, err
		}
		add("", b)
	}
	return all, err
}

// reading is what a client makes of an answer.
type reading struct {
	text, thought, signature string
	calls                    []string // name and arguments
	finish, failure          string
	in, out, cached          float64
	usages                   int
	ended                    bool
}

// at follows names and numbers into a JSON value; nil if there is nothing.
func at(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return nil
			}
			v = l[p]
		}
	}
	return v
}

func str(v any, path ...any) string   { s, _ := at(v, path...).(string); return s }
func num(v any, path ...any) float64  { n, _ := at(v, path...).(float64); return n }
func list(v any, path ...any) []any   { l, _ := at(v, path...).([]any); return l }
func has(v any, path ...any) bool     { return at(v, path...) != nil }
func arguments(v any) string          { b, _ := json.Marshal(v); return string(b) }
func (r *reading) call(n string) bool { r.calls = append(r.calls, n); return true }

func (r *reading) argue(i int, text string) {
	if i >= 0 && i < len(r.calls) {
		r.calls[i] += text
	}
}

// speaker is a shape as a client speaks it.
type speaker struct {
	shape  string
	send   func(stream bool, text, more string) (path, body string) // more are members of the body
	header [2]string
	read   func(all []map[string]any) reading
}

func speakers() []speaker {
	return []speaker{
		{"openai", func(stream bool, text, more string) (string, string) {
			return "/v1/chat/completions", fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}],"stream":%v%s}`, text, stream, chatMore(stream, more))
		}, [2]string{"Authorization", "Bearer good"}, readChat},
		{"azure", func(stream bool, text, more string) (string, string) {
			return "/openai/deployments/m/chat/completions?api-version=2024-10-21",
				fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"stream":%v%s}`, text, stream, chatMore(stream, more))
		}, [2]string{"api-key", "good"}, readChat},
		{"responses", func(stream bool, text, more string) (string, string) {
			switch more {
			case "tools":
				more = `,"tools":[{"type":"function","name":"f","parameters":` + schema + `},{"type":"function","name":"g","parameters":{}}]`
			case "think":
				more = `,"reasoning":{"effort":"low","summary":"auto"},"include":["reasoning.encrypted_content"]`
			case "bound":
				more = `,"max_output_tokens":20`
			}
			return "/v1/responses", fmt.Sprintf(`{"model":"m","input":%q,"stream":%v%s}`, text, stream, more)
		}, [2]string{"Authorization", "Bearer good"}, readResponses},
		{"anthropic", func(stream bool, text, more string) (string, string) {
			most := 5000
			switch more {
			case "tools":
				more = `,"tools":[{"name":"f","input_schema":` + schema + `},{"name":"g","input_schema":{"type":"object"}}]`
			case "think":
				more = `,"thinking":{"type":"enabled","budget_tokens":1024}`
			case "bound":
				most, more = 20, ""
			}
			return "/v1/messages", fmt.Sprintf(`{"model":"m","max_tokens":%d,"messages":[{"role":"user","content":%q}],"stream":%v%s}`, most, text, stream, more)
		}, [2]string{"x-api-key", "good"}, readMessages},
		{"gemini", func(stream bool, text, more string) (string, string) {
			path := "/v1beta/models/m:generateContent"
			if stream {
				path = "/v1beta/models/m:streamGenerateContent?alt=sse"
			}
			return path, geminiBody(text, more)
		}, [2]string{"x-goog-api-key", "good"}, readGemini},
		{"gemini list", func(stream bool, text, more string) (string, string) {
			path := "/v1/projects/p/locations/l/publishers/google/models/m:generateContent"
			if stream {
				path = "/v1beta/models/m:streamGenerateContent"
			}
			return path, geminiBody(text, more)
		}, [2]string{"x-goog-api-key", "good"}, readGemini},
		{"bedrock", func(stream bool, text, more string) (string, string) {
			path := "/model/m/converse"
			if stream {
				path = "/model/m/converse-stream"
			}
			switch more {
			case "tools":
				more = `,"toolConfig":{"tools":[{"toolSpec":{"name":"f","inputSchema":{"json":` + schema + `}}},{"toolSpec":{"name":"g","inputSchema":{"json":{"type":"object"}}}}]}`
			case "think":
				more = `,"additionalModelRequestFields":{"thinking":{"type":"enabled","budget_tokens":1024}}`
			case "bound":
				more = `,"inferenceConfig":{"maxTokens":20}`
			}
			return path, fmt.Sprintf(`{"messages":[{"role":"user","content":[{"text":%q}]}]%s}`, text, more)
		}, [2]string{"Authorization", "Bearer good"}, readConverse},
	}
}

const schema = `{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a","b"]}`

func chatMore(stream bool, more string) string {
	switch more {
	case "tools":
		more = `,"tools":[{"type":"function","function":{"name":"f","parameters":` + schema + `}},{"type":"function","function":{"name":"g"}}]`
	case "think":
		more = `,"reasoning_effort":"low"`
	case "bound":
		more = `,"max_tokens":20`
	}
	if stream {
		more += `,"stream_options":{"include_usage":true}`
	}
	return more
}

func geminiBody(text, more string) string {
	switch more {
	case "tools":
		more = `,"tools":[{"functionDeclarations":[{"name":"f","parameters":` + schema + `},{"name":"g"}]}]`
	case "think":
		more = `,"generationConfig":{"thinkingConfig":{"thinkingBudget":100,"includeThoughts":true}}`
	case "bound":
		more = `,"generationConfig":{"maxOutputTokens":20}`
	}
	return fmt.Sprintf(`{"contents":[{"role":"user","parts":[{"text":%q}]}]%s}`, text, more)
}

func readChat(all []map[string]any) (r reading) {
	for _, e := range all {
		r.ended = r.ended || e["done"] == true || e["object"] == "chat.completion"
		r.failure += str(e, "error", "message")
		if has(e, "usage") {
			r.in, r.out, r.cached = num(e, "usage", "prompt_tokens"), num(e, "usage", "completion_tokens"), num(e, "usage", "prompt_tokens_details", "cached_tokens")
			r.usages++
		}
		for _, kind := range []string{"delta", "message"} {
			d := at(e, "choices", 0, kind)
			r.text += str(d, "content") + str(d, "refusal")
			r.thought += str(d, "reasoning_content")
			for k, c := range list(d, "tool_calls") {
				i := k
				if kind == "delta" {
					i = int(num(c, "index"))
				}
				if id := str(c, "id"); id != "" {
					r.call(str(c, "function", "name"))
				}
				r.argue(i, str(c, "function", "arguments"))
			}
		}
		r.finish += str(e, "choices", 0, "finish_reason")
	}
	return r
}

func readResponses(all []map[string]any) (r reading) {
	for _, e := range all {
		switch str(e, "type") {
		case "response.output_text.delta", "response.refusal.delta":
			r.text += str(e, "delta")
		case "response.reasoning_summary_text.delta":
			r.thought += str(e, "delta")
		case "response.output_item.done":
			if str(e, "item", "type") == "function_call" {
				r.call(str(e, "item", "name") + str(e, "item", "arguments"))
			}
			r.signature += str(e, "item", "encrypted_content")
		case "error":
			r.failure += str(e, "message")
		case "response.completed", "response.incomplete":
			r.finish = str(e, "response", "status") + str(e, "response", "incomplete_details", "reason")
			r.in, r.out = num(e, "response", "usage", "input_tokens"), num(e, "response", "usage", "output_tokens")
			r.ended = true
			if has(e, "response", "usage") {
				r.usages++
			}
		case "":
			r.failure += str(e, "error", "message")
			r.finish, r.ended = str(e, "status")+str(e, "incomplete_details", "reason"), has(e, "status")
			r.in, r.out = num(e, "usage", "input_tokens"), num(e, "usage", "output_tokens")
			if has(e, "usage") {
				r.usages++
			}
			for _, item := range list(e, "output") {
				r.text += str(item, "content", 0, "text") + str(item, "content", 0, "refusal")
				r.thought += str(item, "summary", 0, "text")
				r.signature += str(item, "encrypted_content")
				if str(item, "type") == "function_call" {
					r.call(str(item, "name") + str(item, "arguments"))
				}
			}
		}
	}
	return r
}

func readMessages(all []map[string]any) (r reading) {
	usage := func(u any) {
		if u != nil {
			r.usages++
			r.in = num(u, "input_tokens") + num(u, "cache_read_input_tokens") + num(u, "cache_creation_input_tokens")
			r.out, r.cached = num(u, "output_tokens"), num(u, "cache_read_input_tokens")
		}
	}
	for _, e := range all {
		switch str(e, "type") {
		case "message_start":
			usage(at(e, "message", "usage"))
			r.usages = 0
		case "content_block_start":
			if str(e, "content_block", "type") == "tool_use" {
				r.call(str(e, "content_block", "name"))
			}
		case "content_block_delta":
			r.text += str(e, "delta", "text")
			r.thought += str(e, "delta", "thinking")
			r.signature += str(e, "delta", "signature")
			r.argue(len(r.calls)-1, str(e, "delta", "partial_json"))
		case "message_delta":
			usage(at(e, "usage"))
			r.finish += str(e, "delta", "stop_reason")
		case "message_stop":
			r.ended = true
		case "error":
			r.failure += str(e, "error", "message")
		case "message":
			r.ended, r.finish = true, str(e, "stop_reason")
			usage(at(e, "usage"))
			for _, b := range list(e, "content") {
				r.text += str(b, "text")
				r.thought += str(b, "thinking")
				r.signature += str(b, "signature")
				if str(b, "type") == "tool_use" {
					text := arguments(at(b, "input"))
					if text == "{}" {
						text = ""
					}
					r.call(str(b, "name") + text)
				}
			}
		}
	}
	return r
}

func readGemini(all []map[string]any) (r reading) {
	for _, e := range all {
		r.failure += str(e, "error", "message")
		if has(e, "usageMetadata") {
			r.usages++
			r.in, r.cached = num(e, "usageMetadata", "promptTokenCount"), num(e, "usageMetadata", "cachedContentTokenCount")
			r.out = num(e, "usageMetadata", "candidatesTokenCount") + num(e, "usageMetadata", "thoughtsTokenCount")
		}
		for _, p := range list(e, "candidates", 0, "content", "parts") {
			if at(p, "thought") == true {
				r.thought += str(p, "text")
			} else {
				r.text += str(p, "text")
			}
			if has(p, "functionCall") {
				r.call(str(p, "functionCall", "name") + arguments(at(p, "functionCall", "args")))
			}
		}
		r.finish += str(e, "candidates", 0, "finishReason")
	}
	r.ended = r.finish != ""
	return r
}

func readConverse(all []map[string]any) (r reading) {
	usage := func(u any) {
		if u != nil {
			r.usages++
			r.in = num(u, "inputTokens") + num(u, "cacheReadInputTokens") + num(u, "cacheWriteInputTokens")
			r.out, r.cached = num(u, "outputTokens"), num(u, "cacheReadInputTokens")
		}
	}
	for _, e := range all {
		for name := range e {
			if strings.HasPrefix(name, "exception ") {
				r.failure += str(e, name, "message")
			}
		}
		r.failure += str(e, "message")
		if name := str(e, "contentBlockStart", "start", "toolUse", "name"); name != "" {
			r.call(name)
		}
		d := at(e, "contentBlockDelta", "delta")
		r.text += str(d, "text")
		r.thought += str(d, "reasoningContent", "text")
		r.signature += str(d, "reasoningContent", "signature")
		r.argue(len(r.calls)-1, str(d, "toolUse", "input"))
		r.finish += str(e, "messageStop", "stopReason") + str(e, "stopReason")
		usage(at(e, "metadata", "usage"))
		usage(at(e, "usage"))
		r.ended = r.ended || has(e, "metadata") || has(e, "output")
		for _, b := range list(e, "output", "message", "content") {
			r.text += str(b, "text")
			r.thought += str(b, "reasoningContent", "reasoningText", "text")
			r.signature += str(b, "reasoningContent", "reasoningText", "signature")
			if has(b, "toolUse") {
				r.call(str(b, "toolUse", "name") + arguments(at(b, "toolUse", "input")))
			}
		}
	}
	return r
}

// heard is an answer as it came.
type heard struct {
	reading
	status int
	header http.Header
	body   []byte
	err    error // of the transport or of reading
}

// say sends a request of a speaker.
func (s *speaker) say(t *testing.T, client *http.Client, addr string, stream bool, text, more string) heard {
	t.Helper()
	path, body := s.send(stream, text, more)
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+addr+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("anthropic-version", "2023-06-01")
	req.Header.Set(s.header[0], s.header[1])
	res, err := client.Do(req)
	if err != nil {
		return heard{err: err}
	}
	defer res.Body.Close()
	h := heard{status: res.StatusCode, header: res.Header}
	h.body, h.err = io.ReadAll(res.Body)
	all, err := events(res.Header.Get("Content-Type"), h.body)
	if h.err == nil {
		h.err = err
	}
	h.reading = s.read(all)
	return h
}

// provider starts a provider that the speaker can talk to.
func (s *speaker) provider(t *testing.T, f sim.Faults) (*sim.Provider, string, *http.Client) {
	shape, _, _ := strings.Cut(s.shape, " ")
	if shape == "responses" {
		shape = "openai"
	}
	p, addr, client := provide(t, sim.ProviderConfig{Name: "p", Shape: shape, Models: []string{"m"}, Keys: []string{"good"}, Faults: f})
	client.Timeout = 20 * time.Second
	return p, addr, client
}

// TestProviderStreamIsWhole holds that an answer says the same whole and as a
// stream, in every shape, and that its usage is the provider's own count.
func TestProviderStreamIsWhole(t *testing.T) {
	for _, s := range speakers() {
		t.Run(s.shape, func(t *testing.T) {
			p, addr, client := s.provider(t, sim.Faults{})
			for _, q := range []struct{ text, more string }{
				{"say: Grüße 👋, «wörld»", ""}, {"hello", "bound"}, {"use tools", "tools"}, {"call f", "tools"}, {"hello", "think"}, {"please refuse", ""},
			} {
				whole, stream := s.say(t, client, addr, false, q.text, q.more), s.say(t, client, addr, true, q.text, q.more)
				if whole.status != 200 || stream.status != 200 || whole.err != nil || stream.err != nil || !whole.ended || !stream.ended {
					t.Fatalf("%s: %d %v %s, %d %v %s", q.text, whole.status, whole.err, whole.body, stream.status, stream.err, stream.body)
				}
				w, st := whole.reading, stream.reading
				w.usages, st.usages = 0, 0
				if s.shape == "responses" { // of another response, hence another id
					w.signature, st.signature = "", ""
				}
				if fmt.Sprintf("%+v", w) != fmt.Sprintf("%+v", st) {
					t.Errorf("%s %s\nwhole  %+v\nstream %+v", q.text, q.more, w, st)
				}
				if q.text == "say: Grüße 👋, «wörld»" && w.text != "Grüße 👋, «wörld»" || q.more == "bound" && w.out != 20 {
					t.Errorf("%s: %+v", q.text, w)
				}
				if n := map[string]int{"use tools": 2, "call f": 1}[q.text]; len(w.calls) != n || n > 0 && w.calls[0] != `f{"a":7,"b":"kot mel"}` {
					t.Errorf("%s: %q", q.text, w.calls)
				}
				if q.more == "think" && w.thought == "" && s.shape != "openai" && s.shape != "azure" {
					t.Errorf("no thoughts: %+v", w)
				}
				records := p.Stats().Records
				if rec := records[len(records)-1]; float64(rec.PromptTokens) != st.in || float64(rec.OutputTokens) != st.out {
					t.Errorf("%s: recorded %+v, told %v and %v", q.text, rec, st.in, st.out)
				}
			}
		})
	}
}
