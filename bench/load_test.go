// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/bench"
)

const (
	content = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"
	finish  = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
	usage   = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":3}}}\n\n"
	failure = "data: {\"error\":{\"message\":\"the server died\"}}\n\n"
	done    = "data: [DONE]\n\n"
)

func TestStreamsAreJudged(t *testing.T) {
	for _, c := range []struct {
		name, stream string
		want         bench.Failure
		truthful     bool
		chunks       int
	}{
		{"whole", content + content + finish + usage + done, "", true, 2},
		{"without the last blank line", content + finish + "data: [DONE]", bench.FailCut, false, 1},
		{"comments and CR LF", ": hello\r\n" + strings.ReplaceAll(content+finish+done, "\n", "\r\n"), "", true, 1},
		{"error and end", content + failure, bench.FailStream, true, 1},
		{"error and [DONE]", content + failure + done, bench.FailFalseDone, false, 1},
		{"[DONE] without a finish reason", content + done, bench.FailFalseDone, false, 1},
		{"no [DONE]", content + finish, bench.FailCut, false, 1},
		{"cut in an event", content + content[:30], bench.FailCut, false, 1},
		{"empty", "", bench.FailCut, false, 0},
		{"not JSON", "data: oops\n\n" + done, bench.FailBody, false, 0},
		{"more after [DONE]", content + finish + done + content, bench.FailBody, false, 1},
		{"tool call", "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0}]}}]}\n\n" + finish + done, "", true, 1},
	} {
		for _, r := range []io.Reader{strings.NewReader(c.stream), iotest.OneByteReader(strings.NewReader(c.stream))} {
			x := bench.ReadStream(r.Read)
			if x.Failure != c.want || x.Chunks != c.chunks || x.Failure.Truthful() != c.truthful {
				t.Errorf("%s: %q with %d chunks (truthful %t), want %q with %d (%t)", c.name, x.Failure, x.Chunks, x.Failure.Truthful(), c.want, c.chunks, c.truthful)
			}
		}
	}
	x := bench.ReadStream(strings.NewReader(content + finish + usage + done).Read)
	if x.PromptTokens != 7 || x.OutputTokens != 2 || x.CachedTokens != 3 {
		t.Errorf("usage %d, %d, %d; want 7, 2, 3", x.PromptTokens, x.OutputTokens, x.CachedTokens)
	}
}

// FuzzStream: no stream makes the reader fail in a way of its own, and how the
// bytes are cut does not matter.
func FuzzStream(f *testing.F) {
	for _, s := range []string{content + finish + usage + done, content + failure, failure + done, "data:", "data: {}\n\ndata: [DONE]\n\n", "data: {\"choices\":[{\"delta\":null}],\"error\":null}\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		whole := bench.ReadStream(bytes.NewReader(b).Read)
		split := bench.ReadStream(iotest.OneByteReader(bytes.NewReader(b)).Read)
		if diff := cmp.Diff(whole, split); diff != "" {
			t.Error(diff)
		}
		if whole.Failure == "" && !bytes.Contains(b, []byte("[DONE]")) {
			t.Error("a stream without [DONE] is good")
		}
	})
}

// serverThat answers by the model asked for.
func serverThat(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Model string }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		switch body.Model {
		case "good":
			io.WriteString(w, content+content+finish+usage+done)
		case "plain":
			io.WriteString(w, "{\"choices\":[{\"message\":{}}],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":4}}")
		case "busy":
			http.Error(w, "busy", http.StatusServiceUnavailable)
		case "silent":
			<-r.Context().Done()
		case "short":
			w.Header().Set("Content-Length", "1000")
			io.WriteString(w, "{\"choices\":[")
		case "dead":
			panic(http.ErrAbortHandler)
		case "endless":
			for r.Context().Err() == nil {
				io.WriteString(w, content)
				http.NewResponseController(w).Flush()
				time.Sleep(time.Millisecond)
			}
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func TestLoadCountsByKind(t *testing.T) {
	s := serverThat(t)
	w := short(t, "4-unique", 10*time.Second)
	for _, c := range []struct {
		model  string
		stream bool
		want   map[bench.Failure]int
	}{
		{"good", true, map[bench.Failure]int{}},
		{"plain", false, map[bench.Failure]int{}},
		{"good", false, map[bench.Failure]int{bench.FailBody: 20}},
		{"busy", true, map[bench.Failure]int{"http-503": 20}},
		{"silent", true, map[bench.Failure]int{bench.FailTimeout: 20}},
		{"short", false, map[bench.Failure]int{bench.FailCut: 20}},
		{"dead", true, map[bench.Failure]int{bench.FailReset: 20}},
	} {
		l := bench.Load{URL: s.URL, Model: c.model, Stream: c.stream, Workload: w, Seed: 1, Concurrency: 4, Requests: 20, FirstByte: 20 * time.Second}
		if c.model == "silent" {
			l.FirstByte = 200 * time.Millisecond // the only one that is meant to run out of it
		}
		r := l.Do(context.Background())
		if diff := cmp.Diff(c.want, r.Failures); diff != "" || r.Requests != 20 {
			t.Errorf("%s: %d requests, example %q, failures:\n%s", c.model, r.Requests, r.Example, diff)
		}
		if c.model == "good" && c.stream && (r.CachedTokens != 60 || r.OutputTokens != 40 || r.Succeeded != 20) {
			t.Errorf("good: %d cached, %d output tokens, %d succeeded", r.CachedTokens, r.OutputTokens, r.Succeeded)
		}
	}
	l := bench.Load{URL: "http://" + closedAddress(t), Model: "good", Workload: w, Concurrency: 2, Requests: 4}
	if r := l.Do(context.Background()); r.Failures[bench.FailConnect] != 4 {
		t.Errorf("nobody there: %v", r.Failures)
	}
}

func closedAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestOpenLoopKeepsTime(t *testing.T) {
	s := serverThat(t)
	l := bench.Load{URL: s.URL, Model: "good", Stream: true, Workload: short(t, "4-unique", 10*time.Second), Seed: 1, Rate: 200, Duration: 500 * time.Millisecond}
	r := l.Do(context.Background())
	// 100 on average; the bound is far from chance and from a machine's pace.
	if r.Requests < 20 || r.Requests > 160 {
		t.Errorf("%d requests in half a second at 200/s", r.Requests)
	}
}

func TestBodies(t *testing.T) {
	turn := bench.Turn{System: 1, Prompt: bench.Prompt{{ID: 1, Tokens: 2}, {ID: 2, Tokens: 1}, {ID: 3, Tokens: 1}, {ID: 4, Tokens: 1}}}
	var chat struct {
		Model    string
		Messages []struct{ Role, Content string }
		Max      int  `json:"max_tokens"`
		Stream   bool `json:"stream"`
	}
	if err := json.Unmarshal(bench.ChatBody(&turn, "m\"odel", 9, true), &chat); err != nil {
		t.Fatal(err)
	}
	var got []string
	whole := ""
	for _, m := range chat.Messages {
		got = append(got, fmt.Sprintf("%s %d", m.Role, len(m.Content)))
		whole += m.Content
	}
	if diff := cmp.Diff([]string{"system 8", "user 4", "assistant 4", "user 4"}, got); diff != "" {
		t.Error(diff)
	}
	if chat.Model != "m\"odel" || chat.Max != 9 || !chat.Stream {
		t.Errorf("model %q, max_tokens %d, stream %t", chat.Model, chat.Max, chat.Stream)
	}
	var completion struct{ Prompt string }
	if err := json.Unmarshal(bench.CompletionBody(turn.Prompt, "m", 9, false), &completion); err != nil {
		t.Fatal(err)
	}
	if completion.Prompt != whole {
		t.Errorf("the prompt is %q in one form and %q in the other", completion.Prompt, whole)
	}
}

func TestStreamsAreHeld(t *testing.T) {
	s := serverThat(t)
	open := 0
	x := bench.Streams{URL: s.URL, Model: "endless", N: 20, Ramp: 5, Steady: func(n int) { open = n }}
	r, err := x.Do(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if open != 20 || r.Opened != 20 || r.Held != 20 || len(r.Failures) != 0 {
		t.Errorf("steady with %d, opened %d, held %d, failures %v %s", open, r.Opened, r.Held, r.Failures, r.Example)
	}
	x.Model = "good"
	if r, err = x.Do(context.Background()); err != nil || r.Finished != 20 || r.Held != 0 {
		t.Errorf("short streams: finished %d, held %d, %v", r.Finished, r.Held, err)
	}
}
