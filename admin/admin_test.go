// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/admin"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/llm"
)

func options() admin.Options {
	reg := prometheus.NewRegistry()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_test_total", Help: "A test."})
	c.Inc()
	reg.MustRegister(c)
	waiting := 3.0
	pick := &epp.Explanation{RequestID: "req-1", Pool: "llama", Picked: []string{"10.0.0.1:8000"}}
	return admin.Options{
		Address:  "127.0.0.1:9901",
		Registry: reg,
		Ready: func() admin.Readiness {
			return admin.Readiness{Ready: true, Version: "v1", Config: admin.ConfigStatus{
				File: "penstock.yaml", Loads: 2, Error: "penstock.yaml:3:5: pools[0].nmae: unknown key; did you mean name?",
			}}
		},
		Config: func() []byte { return []byte("listeners: []\n") },
		Pools: func() []admin.PoolStatus {
			return []admin.PoolStatus{
				{PoolSummary: admin.PoolSummary{Name: "llama", Members: 1, Ready: 1}, Status: []admin.MemberStatus{
					{Pool: "llama", Address: "10.0.0.1:8000", State: "ready", Share: 1, Metrics: &admin.MemberMetrics{Waiting: &waiting}},
				}},
				{PoolSummary: admin.PoolSummary{Name: "empty"}},
			}
		},
		Models: func() []admin.ModelStatus {
			return []admin.ModelStatus{{Name: "now", Alias: "chat"}, {Name: "chat", Alias: "chat-1"}, {Name: "chat-1"}, {Name: "other"}}
		},
		Targets: func() []admin.TargetHealth {
			return []admin.TargetHealth{{Model: "chat-1", Target: "one/up"}, {Model: "other", Target: "two/up"}}
		},
		Route: func(id string) *admin.RouteStatus {
			if id != "req-2" {
				return nil
			}
			return &admin.RouteStatus{RequestID: id, Asked: "chat", Status: 200, Tries: []admin.TryStatus{{Target: "one/up"}}}
		},
		Picks: func(pool string, n int) []*epp.Explanation {
			if pool == "empty" {
				return nil
			}
			return []*epp.Explanation{pick}[:min(n, 1)]
		},
		Find: func(id string) *epp.Explanation {
			if id == pick.RequestID {
				return pick
			}
			return nil
		},
		Explain: func(_ context.Context, r admin.DryRun) (*admin.Decision, *llm.Error) {
			if len(r.Body) == 0 {
				return nil, &llm.Error{Status: 400, Message: "model is missing", Param: "model"}
			}
			return &admin.Decision{Explanation: &epp.Explanation{DryRun: true, Model: r.Model + "@" + r.Path + "@" + r.Pool}, Route: &admin.RouteStatus{DryRun: true, Tenant: r.As}}, nil
		},
	}
}

func do(h http.Handler, method, target, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://127.0.0.1:9901"+target, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	transcribe(h, r, w, target, body)
	return w
}

// transcribe writes an exchange of the API with its document to a file, for
// e2e/openapi.
func transcribe(h http.Handler, r *http.Request, w *httptest.ResponseRecorder, target, body string) {
	file := os.Getenv("PENSTOCK_ADMIN_TRANSCRIPT")
	if file == "" || !strings.HasPrefix(target, "/api/v1/") {
		return
	}
	asks := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:9901/api/openapi.json", nil)
	asks.Header["Authorization"] = r.Header["Authorization"]
	doc := httptest.NewRecorder()
	if h.ServeHTTP(doc, asks); doc.Code != http.StatusOK {
		return // to whom the document is not shown the API is not either
	}
	line, err := json.Marshal(map[string]any{
		"document": doc.Body.String(), "method": r.Method, "target": target, "body": body, "header": r.Header,
		"status": w.Code, "answerHeader": w.Header(), "answer": w.Body.String(),
	})
	if err != nil {
		panic(err)
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	if _, err := f.Write(append(line, '\n')); err != nil {
		panic(err)
	}
	f.Close()
}

func TestAdminAnswers(t *testing.T) {
	h := admin.Handler(options())
	for _, c := range []struct {
		method, target, body string
		status               int
		want                 string // part of the answer
	}{
		{"GET", "/healthz", "", 200, "ok\n"},
		{"GET", "/readyz", "", 200, "ok\nthe newest configuration is refused, and an older one stays:\npenstock.yaml:3:5: pools[0].nmae: unknown key; did you mean name?\n"},
		{"GET", "/readyz?verbose", "", 200, `"error": "penstock.yaml:3:5: pools[0].nmae: unknown key; did you mean name?"`},
		{"GET", "/metrics", "", 200, "penstock_test_total 1"},
		{"GET", "/config", "", 200, "listeners: []\n"},
		{"GET", "/pools", "", 200, `"memberStatus": []`},
		{"GET", "/members?pool=llama", "", 200, `"kvUsage": null`},
		{"GET", "/pickers?pool=llama", "", 200, "[]\n"},
		{"GET", "/models", "", 200, `"targets": []`},
		{"GET", "/picks?n=1", "", 200, `"requestId": "req-1"`},
		{"GET", "/picks/req-1", "", 200, `"requestId": "req-1"`},
		{"GET", "/picks/req-2", "", 200, "{\n  \"route\": {\n    \"requestId\": \"req-2\""},
		{"GET", "/targets?model=now", "", 200, "[\n  {\n    \"model\": \"chat-1\""},
		{"GET", "/targets", "", 200, `"target": "two/up"`},
		{"POST", "/explain?model=m&pool=llama", "{}", 200, `"model": "m@/v1/chat/completions@llama"`},
		{"HEAD", "/healthz", "", 200, ""},
		{"POST", "/explain?as=shop/web", "{}", 200, `"tenant": "shop/web"`},
		{"GET", "/", "", 200, "POST  /explain"},
		{"GET", "/debug/pprof/goroutine?debug=1", "", 200, "goroutine profile:"},
	} {
		w := do(h, c.method, c.target, c.body)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s %s: %d %s\nwant %d with %q", c.method, c.target, w.Code, w.Body, c.status, c.want)
		}
		if cc := w.Header().Get("Cache-Control"); cc != "no-store" || w.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s %s: headers %v", c.method, c.target, w.Header())
		}
	}
}

func TestAdminRefusals(t *testing.T) {
	h := admin.Handler(options())
	for _, c := range []struct {
		method, target, body string
		status               int
		message, hint        string
	}{
		{"GET", "/nothing", "", 404, "no such path: /nothing", "GET / lists the paths"},
		{"POST", "/config", "", 405, "POST is not served here", "use GET"},
		{"GET", "/explain", "", 405, "GET is not served here", "use POST"},
		{"GET", "/members?pool=x", "", 404, `there is no pool "x"`, "pools: llama, empty"},
		{"GET", "/picks?pool=x", "", 404, `there is no pool "x"`, "pools: llama, empty"},
		{"GET", "/picks?n=0", "", 400, `n is "0"`, "a number from 1 to 1000"},
		{"GET", "/picks?n=1001", "", 400, `n is "1001"`, "a number from 1 to 1000"},
		{"GET", "/picks?n=all", "", 400, `n is "all"`, "a number from 1 to 1000"},
		{"GET", "/picks/req-3", "", 404, `nothing is kept of request "req-3"`, "one that was refused before a target was chosen has no decision, and only the newest are kept; its record (records.path) has the rest"},
		{"GET", "/targets?model=x", "", 404, `there is no model "x"`, "models: now, chat, chat-1, other"},
		{"POST", "/explain?pool=x", "{}", 404, `there is no pool "x"`, "pools: llama, empty"},
		{"POST", "/explain", "", 400, "model is missing", ""},
		{"POST", "/explain", strings.Repeat(" ", 32<<20+1), 413, "the body is larger than 33554432 bytes", ""},
	} {
		w := do(h, c.method, c.target, c.body)
		var f admin.Failure
		if err := json.Unmarshal(w.Body.Bytes(), &f); err != nil {
			t.Errorf("%s %s: %v: %s", c.method, c.target, err, w.Body)
		}
		if diff := cmp.Diff([]any{c.status, c.message, c.hint}, []any{w.Code, f.Error.Message, f.Error.Hint}); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", c.method, c.target, diff)
		}
	}
}

func TestUnreadySaysWhy(t *testing.T) {
	o := options()
	o.Ready = func() admin.Readiness { return admin.Readiness{Reason: "draining", Draining: true} }
	for name, h := range map[string]http.Handler{"admin": admin.Handler(o), "ops": admin.Ops(o)} {
		if w := do(h, "GET", "/readyz", ""); w.Code != 503 || w.Body.String() != "not ready: draining\n" {
			t.Errorf("%s /readyz: %d %s", name, w.Code, w.Body)
		}
		var got admin.Readiness
		w := do(h, "GET", "/readyz?verbose", "")
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 503 || !got.Draining || got.Pools == nil {
			t.Errorf("%s /readyz?verbose: %d %v %s", name, w.Code, err, w.Body)
		}
	}
}

func TestOpsServesHealthAndMetricsOnly(t *testing.T) {
	h := admin.Ops(options())
	for target, status := range map[string]int{
		"/healthz": 200, "/readyz": 200, "/metrics": 200,
		"/config": 404, "/pools": 404, "/members": 404, "/pickers": 404, "/picks": 404, "/models": 404, "/explain": 404, "/debug/pprof/": 404, "/": 404,
	} {
		if w := do(h, "GET", target, "", "Host", "gateway.example.org"); w.Code != status {
			t.Errorf("GET %s: %d, want %d", target, w.Code, status)
		}
	}
}

func TestForeignNamesAndPagesAreRefused(t *testing.T) {
	loopback := admin.Handler(options())
	remote := options()
	remote.Address = "10.0.0.7:9901"
	for _, c := range []struct {
		h      http.Handler
		host   string
		status int
	}{
		{loopback, "127.0.0.1:9901", 200},
		{loopback, "127.0.0.1:1234", 200}, // a forwarded port
		{loopback, "LocalHost:9901", 200},
		{loopback, "[::1]:9901", 200},
		{loopback, "[::1]", 200},
		{loopback, "127.0.0.1.evil.example", 403},
		{loopback, "evil.example:9901", 403},
		{loopback, "10.0.0.7:9901", 403},
		{loopback, "0.0.0.0:9901", 403},
		{loopback, "", 403},
		{admin.Handler(remote), "gateway.example.org", 200},
	} {
		if w := do(c.h, "GET", "/config", "", "Host", c.host); w.Code != c.status {
			t.Errorf("Host %q: %d, want %d", c.host, w.Code, c.status)
		}
	}
	if w := do(loopback, "POST", "/explain", "{}", "Origin", "http://evil.example"); w.Code != 403 {
		t.Errorf("a post from another origin: %d, want 403", w.Code)
	}
	if w := do(loopback, "POST", "/explain", "{}", "Sec-Fetch-Site", "cross-site"); w.Code != 403 {
		t.Errorf("a cross-site post: %d, want 403", w.Code)
	}
}

func TestNothingIsShownOfWhatIsNotThere(t *testing.T) {
	h := admin.Handler(admin.Options{Address: "localhost:9901"})
	for _, target := range []string{"/readyz", "/metrics", "/config", "/pools", "/members", "/pickers", "/models", "/picks", "/picks/x", "/explain"} {
		if w := do(h, "GET", target, ""); w.Code != 404 {
			t.Errorf("GET %s: %d, want 404", target, w.Code)
		}
	}
}

// TestOverASocket asks a real listener, whose Host header holds the bound port.
func TestOverASocket(t *testing.T) {
	srv := httptest.NewServer(admin.Handler(options()))
	defer srv.Close()
	client := &http.Client{Timeout: 10 * time.Second}
	res, err := client.Get(srv.URL + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, _ := io.ReadAll(res.Body); string(text) != "ok\n" {
		t.Errorf("GET /healthz: %s %q", res.Status, text)
	}
}
