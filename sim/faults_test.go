// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/sim"
)

func (r *rig) faults(json string) {
	r.t.Helper()
	if res, text := r.do("POST", "/sim/faults", json); res.StatusCode != 200 {
		r.t.Fatalf("POST /sim/faults: %s %s", res.Status, text)
	}
}

// stream sends a streamed chat request and returns what came and how it ended.
func (r *rig) stream() (string, error) {
	r.t.Helper()
	res, err := r.client.Post(r.url+"/v1/chat/completions", "application/json",
		strings.NewReader(chat("x", 10, `,"stream":true,"stream_options":{"include_usage":true}`)))
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return string(text), err
}

func TestFaultRefuse(t *testing.T) {
	r := start(t, sim.Config{Preset: fast()})
	r.do("GET", "/health", "")
	r.faults(`{"refuse":"1s"}`)
	if _, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial while refusing: %v", err)
	}
	if !eventually(func() bool {
		res, err := r.client.Get(r.url + "/health")
		if err != nil {
			return false
		}
		res.Body.Close()
		return true
	}) {
		t.Error("it does not come back")
	}
}

func TestFaultRefuseFromTheStart(t *testing.T) {
	r := start(t, sim.Config{Preset: fast(), Faults: sim.Faults{Refuse: sim.Duration(time.Hour)}})
	if _, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial: %v", err)
	}
}

func TestFaultCrash(t *testing.T) {
	r := start(t, sim.Config{Preset: slow(), StartupDelay: 500 * time.Millisecond})
	if !eventually(func() bool { res, _ := r.do("GET", "/health", ""); return res.StatusCode == 200 }) {
		t.Fatal("never ready")
	}
	res, err := r.client.Post(r.url+"/v1/chat/completions", "application/json", strings.NewReader(chat("x", 4000, `,"stream":true`)))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	_, _ = bufio.NewReader(res.Body).ReadString('\n')
	if err := r.server.SetFaults(sim.Faults{Crash: sim.Duration(50 * time.Millisecond)}); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("a stream ended cleanly in a crash: %s", text)
	}
	status := 0
	eventually(func() bool {
		res, err := r.client.Get(r.url + "/health")
		if err != nil {
			return false
		}
		res.Body.Close()
		status = res.StatusCode
		return true
	})
	if status != http.StatusServiceUnavailable {
		t.Errorf("first answer after the crash: %d, want 503 while loading", status)
	}
	if g := r.server.Gauges(); g.Running != 0 || g.PromptTokens != 0 {
		t.Errorf("the engine survived: %+v", g)
	}
}

// TestEngineLoss takes the engine away under running answers whose connections
// stay: they must end with an error, and a stream never as if it were whole.
func TestEngineLoss(t *testing.T) {
	tests := []struct{ name, path, body, want string }{
		{"chat stream", "/v1/chat/completions", chat("x", 500, `,"stream":true`), `data: {"error":{"message":"engine restarted"`},
		{"chat", "/v1/chat/completions", chat("x", 500, ""), `{"error":{"message":"engine restarted"`},
		{"responses stream", "/v1/responses", `{"model":"sim-model","input":"x","stream":true}`, "event: response.failed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := sim.New(sim.Config{Preset: slow()})
				defer s.Close(t.Context())
				w := httptest.NewRecorder()
				done := make(chan struct{})
				go func() {
					defer close(done)
					s.Handler().ServeHTTP(w, httptest.NewRequest("POST", tt.path, strings.NewReader(tt.body)))
				}()
				time.Sleep(110 * time.Millisecond) // five steps
				if err := s.SetFaults(sim.Faults{Crash: 1}); err != nil {
					t.Fatal(err)
				}
				<-done
				text := w.Body.String()
				if !strings.Contains(text, tt.want) || strings.Contains(text, "[DONE]") || strings.Contains(text, "response.completed") {
					t.Errorf("%d %s", w.Code, text)
				}
				if st := s.Stats(); st.InFlight != 0 || st.Failed != 1 {
					t.Errorf("%+v", st)
				}
				// The engine works again.
				w = httptest.NewRecorder()
				s.Handler().ServeHTTP(w, httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(chat("x", 2, ""))))
				if w.Code != 200 {
					t.Errorf("afterwards: %d %s", w.Code, w.Body)
				}
			})
		})
	}
}

func TestFaultHang(t *testing.T) {
	r := start(t, sim.Config{Preset: fast(), Faults: sim.Faults{Hang: true}})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "GET", r.url+"/health", nil)
	if _, err := r.client.Do(req); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("health while hanging: %v", err)
	}
	r.faults(`{}`)
	if res, _ := r.do("GET", "/health", ""); res.StatusCode != 200 {
		t.Errorf("health afterwards: %s", res.Status)
	}
}

func TestFaultCut(t *testing.T) {
	r := start(t, sim.Config{Preset: fast()})
	r.faults(`{"cutAfter":3}`)
	text, err := r.stream()
	if err == nil || strings.Count(text, "data: ") > 3 || strings.Contains(text, "[DONE]") {
		t.Errorf("cut stream: %v after %q", err, text)
	}
	if _, err := r.client.Post(r.url+"/v1/chat/completions", "application/json", strings.NewReader(chat("x", 2, ""))); err == nil {
		t.Error("a cut answer came through")
	}
	if !eventually(func() bool { return r.server.Stats().Aborted == 2 }) {
		t.Errorf("%+v", r.server.Stats())
	}
}

func TestFaultAnswers(t *testing.T) {
	tests := []struct {
		faults string
		check  func(text string, err error) bool
	}{
		{`{"garbage":true}`, func(text string, _ error) bool { return strings.Contains(text, "\xff\xfe\x00") }},
		{`{"usage":"missing"}`, func(text string, _ error) bool {
			return !strings.Contains(text, "prompt_tokens") && strings.HasSuffix(text, "[DONE]\n\n")
		}},
		{`{"usage":"zero"}`, func(text string, _ error) bool { return strings.Contains(text, `"total_tokens":0`) }},
		{`{"usage":"negative"}`, func(text string, _ error) bool { return strings.Contains(text, `"completion_tokens":-10`) }},
		{`{"usage":"huge"}`, func(text string, _ error) bool { return strings.Contains(text, `"prompt_tokens":9007199254740992`) }},
		{`{"endless":"headers"}`, func(_ string, err error) bool { return err != nil && strings.Contains(err.Error(), "headers exceeded") }},
		{`{"status":503,"retryAfter":7}`, func(text string, _ error) bool { return strings.Contains(text, `"code":503`) }},
	}
	r := start(t, sim.Config{Preset: fast()})
	for _, tt := range tests {
		r.faults(tt.faults)
		if text, err := r.stream(); !tt.check(text, err) {
			t.Errorf("%s: %v, %q", tt.faults, err, text)
		}
	}
}

func TestFaultEndlessStream(t *testing.T) {
	r := start(t, sim.Config{Preset: fast()})
	for _, kind := range []string{"events", "line"} {
		r.faults(fmt.Sprintf(`{"endless":%q}`, kind))
		res, err := r.client.Post(r.url+"/v1/chat/completions", "application/json", strings.NewReader(chat("x", 1, "")))
		if err != nil {
			t.Fatal(err)
		}
		const much = 4 << 20
		text, err := io.ReadAll(io.LimitReader(res.Body, much))
		res.Body.Close()
		if err != nil || len(text) != much || (strings.Count(string(text), "\n") == 0) != (kind == "line") {
			t.Errorf("%s: %d bytes, %v", kind, len(text), err)
		}
	}
}

func TestFaultEarly(t *testing.T) {
	r := start(t, sim.Config{Preset: fast(), Faults: sim.Faults{Early: true}})
	body, upload := io.Pipe()
	defer upload.Close()
	req, _ := http.NewRequest("POST", r.url+"/v1/chat/completions", body)
	res, err := r.client.Do(req) // the body is never written
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != 200 {
		t.Errorf("%s", res.Status)
	}
}

func TestFaultRate(t *testing.T) {
	count := func() (failed string) {
		r := start(t, sim.Config{Preset: fast(), Seed: 7, Faults: sim.Faults{Status: 500, Rate: 0.3}})
		for range 100 {
			res, _ := r.do("POST", "/v1/completions", `{"model":"sim-model","prompt":"x","max_tokens":1}`)
			failed += map[bool]string{true: ".", false: "x"}[res.StatusCode == 200]
		}
		return failed
	}
	first := count()
	if n := strings.Count(first, "x"); n < 15 || n > 45 {
		t.Errorf("%d of 100 failed at rate 0.3", n)
	}
	if second := count(); second != first {
		t.Errorf("same seed, different requests fail:\n%s\n%s", first, second)
	}
}

func TestFaultSlow(t *testing.T) {
	p := fast()
	p.A = 2 * time.Millisecond
	r := start(t, sim.Config{Preset: p, Faults: sim.Faults{Slow: 20}})
	begin := time.Now()
	r.do("POST", "/v1/chat/completions", chat("x", 3, ""))
	if took := time.Since(begin); took < 100*time.Millisecond {
		t.Errorf("3 steps of 40 ms took %v", took)
	}
}

func TestFaultsRefuseNonsense(t *testing.T) {
	r := start(t, sim.Config{Preset: fast()})
	for _, body := range []string{``, `{"hung":true}`, `{"rate":7}`, `{"refuse":"soon"}`, `{"slow":-1}`} {
		if res, text := r.do("POST", "/sim/faults", body); res.StatusCode != 400 {
			t.Errorf("%q: %s %s", body, res.Status, text)
		}
	}
	if _, text := r.do("GET", "/sim/faults", ""); text != "{}\n" {
		t.Errorf("faults after refused ones: %s", text)
	}
}
