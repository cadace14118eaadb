// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/internal/golden"
	"github.com/penstock/penstock/sim"
)

func TestMain(m *testing.M) {
	before := runtime.NumGoroutine()
	code := m.Run()
	fuzzing := flag.Lookup("test.fuzz").Value.String() != "" // keeps goroutines of its own
	if code == 0 && !fuzzing && !eventually(func() bool { return runtime.NumGoroutine() <= before }) {
		buf := make([]byte, 1<<20)
		fmt.Fprintf(os.Stderr, "goroutines left:\n%s", buf[:runtime.Stack(buf, true)])
		code = 1
	}
	os.Exit(code)
}

// eventually waits for something that must come true soon.
func eventually(ok func() bool) bool {
	for range 1000 {
		if ok() {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return ok()
}

// fast is Tiny without time: steps of 20 µs and a little.
func fast() sim.Preset {
	p := sim.Tiny()
	p.A, p.B, p.C, p.D, p.E, p.LoRALoad = 20*time.Microsecond, 0, 0, 0, 0, 0
	return p
}

// slow has steps of 20 ms, so that a test can act between them.
func slow() sim.Preset {
	p := fast()
	p.A = 20 * time.Millisecond
	return p
}

// rig is a server that listens, and a client of its own.
type rig struct {
	t      *testing.T
	server *sim.Server
	url    string
	client *http.Client
}

func start(t *testing.T, cfg sim.Config) *rig {
	t.Helper()
	s := sim.New(cfg)
	addr, err := s.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{MaxResponseHeaderBytes: 1 << 16}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		transport.CloseIdleConnections()
		if err := s.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return &rig{t, s, "http://" + addr, &http.Client{Transport: transport, Timeout: 30 * time.Second}}
}

// do sends a request and returns status, header and body.
func (r *rig) do(method, path, body string) (*http.Response, string) {
	r.t.Helper()
	req, err := http.NewRequest(method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := r.client.Do(req)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	return res, string(text)
}

// chat is a request for one chat answer of n tokens.
func chat(prompt string, n int, more string) string {
	return fmt.Sprintf(`{"model":"sim-model","messages":[{"role":"user","content":%q}],"max_tokens":%d,"ignore_eos":true%s}`, prompt, n, more)
}

var created = regexp.MustCompile(`"created(_at)?":\d+`)

// TestServerTranscripts sends requests one after the other; a line "METHOD
// path" begins one, what follows up to the next is its body.
func TestServerTranscripts(t *testing.T) {
	golden.Run(t, "testdata/http/*.txtar", func(t *testing.T, c *golden.Case) map[string]string {
		cfg := sim.Config{Preset: fast(), Engine: c.Flag("engine"), MetricNames: c.Flag("names"), MaxModelLen: 4096}
		if c.Flag("adapters") != "" {
			cfg.Adapters = strings.Split(c.Flag("adapters"), ",")
		}
		if f := c.Flag("faults"); f != "" {
			if err := json.Unmarshal([]byte(f), &cfg.Faults); err != nil {
				t.Fatal(err)
			}
		}
		r := start(t, cfg)
		var out strings.Builder
		method, path, body := "", "", ""
		send := func() {
			if method != "" {
				res, text := r.do(method, path, body)
				fmt.Fprintf(&out, "%s %s\n%s %s\n%s\n", method, path, res.Status, res.Header.Get("Content-Type"), mask(text))
			}
		}
		for line := range strings.Lines(c.File(t, "requests")) {
			if m, p, ok := strings.Cut(strings.TrimSpace(line), " /"); ok && (m == "GET" || m == "POST") {
				send()
				method, path, body = m, "/"+p, ""
			} else {
				body += line
			}
		}
		send()
		return map[string]string{"answers": out.String()}
	})
}

// timed matches the samples whose value depends on the clock.
var timed = regexp.MustCompile(`(?m)^(\S*(?:_bucket|_sum|_created|_start_time_seconds|lora_requests_info|gen_throughput)(?:\{[^}]*\})?) \S+$`)

func mask(text string) string {
	text = created.ReplaceAllString(text, `"created$1":0`)
	return timed.ReplaceAllString(text, "$1 T")
}

func TestFollowUpFindsTheAnswerInTheCache(t *testing.T) {
	r := start(t, sim.Config{Preset: fast()})
	question := strings.Repeat("question ", 30)
	_, text := r.do("POST", "/v1/chat/completions", chat(question, 100, ""))
	var answer struct {
		Choices []struct{ Message struct{ Content string } }
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	turn := func(more string) (prompt, cached int) {
		body := fmt.Sprintf(`{"model":"sim-model","max_tokens":4,"messages":[{"role":"user","content":%q},{"role":"assistant","content":%q},{"role":"user","content":"and?"}]%s}`,
			question, answer.Choices[0].Message.Content, more)
		_, text := r.do("POST", "/v1/chat/completions", body)
		var u struct {
			Usage struct {
				Prompt  int `json:"prompt_tokens"`
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err := json.Unmarshal([]byte(text), &u); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		return u.Usage.Prompt, u.Usage.Details.Cached
	}
	// Another salt shares nothing, so ask with it first.
	if _, cached := turn(`,"cache_salt":"other"`); cached != 0 {
		t.Errorf("%d tokens cached under another salt", cached)
	}
	if prompt, cached := turn(""); cached < prompt-16-8 || cached%16 != 0 {
		t.Errorf("%d of %d tokens cached, want all but the last block and the new question", cached, prompt)
	}
}

func TestDisconnectAborts(t *testing.T) {
	for _, when := range []string{"prefill", "decode", "whole answer"} {
		t.Run(when, func(t *testing.T) {
			p := slow()
			if when == "prefill" {
				p.MaxBatchedTokens = 16
			}
			r := start(t, sim.Config{Preset: p})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			body := chat(strings.Repeat("x", 8000), 4000, fmt.Sprintf(`,"stream":%v`, when != "whole answer"))
			req, _ := http.NewRequestWithContext(ctx, "POST", r.url+"/v1/chat/completions", strings.NewReader(body))
			if when == "decode" {
				res, err := r.client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				if line, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: {") {
					t.Fatalf("first line %q, %v", line, err)
				}
				cancel()
			} else {
				done := make(chan struct{})
				go func() {
					defer close(done)
					if res, err := r.client.Do(req); err == nil {
						res.Body.Close()
					}
				}()
				if !eventually(func() bool { return r.server.Gauges().Running == 1 }) {
					t.Fatal("never ran")
				}
				cancel()
				<-done
			}
			if !eventually(func() bool { g := r.server.Gauges(); return g.Running == 0 && g.KVUsage == 0 }) {
				t.Errorf("still running: %+v", r.server.Gauges())
			}
			if !eventually(func() bool { s := r.server.Stats(); return s.InFlight == 0 && s.Aborted == 1 }) {
				t.Errorf("stats: %+v", r.server.Stats())
			}
			if n := r.server.Stats().OutputTokens; n >= 4000 {
				t.Errorf("%d output tokens of an aborted request", n)
			}
		})
	}
}

func TestChoicesShareThePrompt(t *testing.T) {
	r := start(t, sim.Config{Preset: fast()})
	r.do("POST", "/v1/chat/completions", chat(strings.Repeat("shared ", 200), 8, `,"n":4`))
	g := r.server.Gauges()
	if g.FinishedSequences != 4 || g.PrefixHits < 3*300 {
		t.Errorf("%d sequences, %d tokens found in the cache; want 4, and 3 prompts of about 350", g.FinishedSequences, g.PrefixHits)
	}
	s := r.server.Stats()
	if s.PromptTokens > 400 || s.OutputTokens != 32 || s.CachedTokens != 0 {
		t.Errorf("the prompt counts once: %+v", s)
	}
}

func TestChoicesStream(t *testing.T) {
	r := start(t, sim.Config{Preset: fast()})
	_, text := r.do("POST", "/v1/chat/completions", chat("x", 5, `,"n":3,"stream":true,"stream_options":{"include_usage":true}`))
	for i := range 3 {
		if n := strings.Count(text, fmt.Sprintf(`"index":%d,`, i)); n != 1+5+1 {
			t.Errorf("%d chunks of choice %d, want 7", n, i)
		}
	}
	if !strings.Contains(text, `"completion_tokens":15`) {
		t.Errorf("usage: %s", text)
	}
}

// TestServerTime runs a server in virtual time, where every step takes exactly
// what the preset says.
func TestServerTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sim.New(sim.Config{Preset: sim.Qwen32B(), Speedup: 10})
		defer s.Close(t.Context())
		begin := time.Now()
		prompt := strings.Repeat("four", 10_000-6) // and 6 tokens of the template
		req := httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(chat(prompt, 1, "")))
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, req)
		if !strings.Contains(w.Body.String(), `"prompt_tokens":10000,"completion_tokens":1,`) {
			t.Fatal(w.Body)
		}
		if took := time.Since(begin).Round(100 * time.Microsecond); took != 65_300*time.Microsecond {
			t.Errorf("10,000 cold tokens at ten times the speed took %v, want 65.3ms", took)
		}
	})
}

func TestAdapters(t *testing.T) {
	r := start(t, sim.Config{Preset: slow(), Adapters: []string{"sql", "math"}})
	body := strings.Replace(chat("x", 4000, `,"stream":true`), "sim-model", "sql", 1)
	res, err := r.client.Post(r.url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if line, _ := bufio.NewReader(res.Body).ReadString('\n'); !strings.Contains(line, `"model":"sql"`) {
		t.Errorf("first chunk %s", line)
	}
	_, text := r.do("GET", "/metrics", "")
	if !strings.Contains(text, `vllm:lora_requests_info{max_lora="2",running_lora_adapters="sql",waiting_lora_adapters=""} 1`) {
		t.Errorf("no series of the running adapter in %s", text)
	}
}

func TestQueueBound(t *testing.T) {
	p := slow()
	p.MaxSequences, p.MaxWaiting = 1, 1
	r := start(t, sim.Config{Preset: p})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	for i := range 2 {
		go func() {
			defer func() { done <- struct{}{} }()
			req, _ := http.NewRequestWithContext(ctx, "POST", r.url+"/v1/chat/completions", strings.NewReader(chat("x", 2000, "")))
			if res, err := r.client.Do(req); err == nil {
				res.Body.Close()
			}
		}()
		if !eventually(func() bool { g := r.server.Gauges(); return g.Running == 1 && g.Waiting == i }) {
			t.Fatalf("gauges %+v", r.server.Gauges())
		}
	}
	res, text := r.do("POST", "/v1/chat/completions", chat("x", 1, ""))
	if res.StatusCode != http.StatusTooManyRequests || res.Header.Get("Retry-After") == "" {
		t.Errorf("third request: %s %s", res.Status, text)
	}
	cancel()
	<-done
	<-done
}

func TestSleep(t *testing.T) {
	r := start(t, sim.Config{Preset: fast()})
	r.do("POST", "/sleep", "")
	if _, text := r.do("GET", "/is_sleeping", ""); text != `{"is_sleeping":true}`+"\n" {
		t.Error(text)
	}
	answered := make(chan string, 1)
	go func() {
		res, err := http.Post(r.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"sim-model","prompt":"x"}`))
		if err != nil {
			answered <- err.Error()
			return
		}
		res.Body.Close()
		answered <- res.Status
	}()
	if !eventually(func() bool { return r.server.Stats().InFlight == 1 }) {
		t.Fatal("the request did not come")
	}
	select {
	case status := <-answered:
		t.Fatalf("answered in its sleep: %s", status)
	case <-time.After(20 * time.Millisecond):
	}
	r.do("POST", "/wake_up", "")
	if status := <-answered; status != "200 OK" {
		t.Error(status)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestStartupDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sim.New(sim.Config{Preset: fast(), StartupDelay: 30 * time.Second})
		defer s.Close(t.Context())
		get := func(path string) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			return w
		}
		time.Sleep(29 * time.Second)
		for _, path := range []string{"/health", "/metrics", "/v1/models"} {
			if w := get(path); w.Code != 503 || w.Header().Get("Retry-After") != "2" {
				t.Errorf("%s while loading: %d, retry after %s", path, w.Code, w.Header().Get("Retry-After"))
			}
		}
		if w := get("/sim/stats"); w.Code != 200 {
			t.Errorf("/sim/stats while loading: %d", w.Code)
		}
		time.Sleep(time.Second)
		if w := get("/health"); w.Code != 200 {
			t.Errorf("/health afterwards: %d", w.Code)
		}
	})
}

func TestTranscription(t *testing.T) {
	r := start(t, sim.Config{Preset: fast()})
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	file, _ := form.CreateFormFile("file", "a.wav")
	_, _ = file.Write(make([]byte, 64_000))
	_ = form.WriteField("model", "sim-model") // after the file
	_ = form.Close()
	res, err := r.client.Post(r.url+"/v1/audio/transcriptions", form.FormDataContentType(), &body)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var got struct {
		Text  string
		Usage struct {
			Type    string
			Seconds float64
		}
	}
	if err := json.NewDecoder(res.Body).Decode(&got); err != nil || got.Text == "" || got.Usage.Type != "duration" || got.Usage.Seconds != 2 {
		t.Errorf("%s %+v %v", res.Status, got, err)
	}
}

func TestHTTP2(t *testing.T) {
	r := start(t, sim.Config{Preset: fast()})
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	r.client = &http.Client{Transport: transport}
	res, text := r.do("POST", "/v1/chat/completions", chat("hello", 5, `,"stream":true`))
	if res.ProtoMajor != 2 || strings.Count(text, "data: ") != 8 || !strings.HasSuffix(text, "data: [DONE]\n\n") {
		t.Errorf("%s: %s", res.Proto, text)
	}
}

func TestMetricsPagePadding(t *testing.T) {
	r := start(t, sim.Config{Preset: fast(), PadMetrics: 64})
	_, text := r.do("GET", "/metrics", "")
	if n := len(text); n > 64<<10 || n < 63<<10 {
		t.Errorf("page of %d bytes, want about 64 KB", n)
	}
	if !strings.Contains(text, `vllm:kv_cache_usage_perc{engine="0",model_name="sim-model"} 0.0`) {
		t.Error("the padded page lacks its gauges")
	}
}

// TestManyIdleServers holds that an idle server costs one goroutine and no
// processor time worth speaking of.
func TestManyIdleServers(t *testing.T) {
	before := runtime.NumGoroutine()
	servers := make([]*sim.Server, 64)
	for i := range servers {
		servers[i] = sim.New(sim.Config{Preset: sim.Qwen32B()})
	}
	if n := runtime.NumGoroutine() - before; n > len(servers) {
		t.Errorf("%d goroutines for %d servers", n, len(servers))
	}
	var start, end syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &start)
	time.Sleep(200 * time.Millisecond)
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &end)
	if used := time.Duration(end.Utime.Nano() - start.Utime.Nano()); used > 100*time.Millisecond {
		t.Errorf("idle servers used %v of 200ms", used)
	}
	for _, s := range servers {
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestCloseCutsAfterTheDeadline(t *testing.T) {
	s := sim.New(sim.Config{Preset: slow()})
	addr, err := s.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Post("http://"+addr+"/v1/chat/completions", "application/json", strings.NewReader(chat("x", 4000, `,"stream":true`)))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close: %v", err)
	}
	if text, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("the cut stream ended cleanly: %s", text)
	}
}

func TestStatsPage(t *testing.T) {
	r := start(t, sim.Config{Preset: fast()})
	for range 3 {
		r.do("POST", "/v1/completions", `{"model":"sim-model","prompt":"abcdefgh","max_tokens":3,"ignore_eos":true}`)
	}
	r.do("POST", "/v1/completions", `{"model":"nobody","prompt":"abcdefgh"}`)
	if !eventually(func() bool { return r.server.Stats().InFlight == 0 }) {
		t.Fatal("still in flight")
	}
	_, text := r.do("GET", "/sim/stats?last=1", "")
	var got sim.Stats
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	for i := range got.Records {
		got.Records[i].TTFT, got.Records[i].Total = 0, 0
	}
	want := sim.Stats{
		Requests: 3, Completed: 3, PromptTokens: 6, OutputTokens: 9,
		Paths:   map[string]int64{"/v1/completions": 4},
		Records: []sim.Record{{Path: "/v1/completions", Model: "sim-model", Choices: 1, PromptTokens: 2, OutputTokens: 3}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestConfigCheck(t *testing.T) {
	tests := []struct {
		cfg  sim.Config
		want string
	}{
		{sim.Config{}, ""},
		{sim.Config{Engine: "tgi"}, "engine"},
		{sim.Config{MetricNames: "newest"}, "metric names"},
		{sim.Config{Speedup: -1}, "speedup"},
		{sim.Config{Faults: sim.Faults{Rate: 2}}, "rate"},
		{sim.Config{Faults: sim.Faults{Status: 200}}, "status"},
		{sim.Config{Faults: sim.Faults{Usage: "some"}}, "usage"},
		{sim.Config{Faults: sim.Faults{Endless: "body"}}, "endless"},
	}
	for _, tt := range tests {
		err := tt.cfg.Check()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.cfg, err, tt.want)
		}
	}
}

// BenchmarkStream is a whole streamed answer of 100 tokens, client included.
func BenchmarkStream(b *testing.B) {
	s := sim.New(sim.Config{Preset: fast()})
	addr, err := s.Listen("127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close(context.Background())
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	b.ReportAllocs()
	for b.Loop() {
		res, err := client.Post("http://"+addr+"/v1/chat/completions", "application/json", strings.NewReader(chat("x", 100, `,"stream":true`)))
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
}

func TestSpeedupIsANumber(t *testing.T) {
	for _, v := range []float64{-1, math.NaN(), math.Inf(1), math.Inf(-1)} {
		if err := (&sim.Config{Speedup: v}).Check(); err == nil {
			t.Errorf("%v is accepted", v)
		}
	}
}
