// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/penstock/penstock/admin"
	"github.com/penstock/penstock/config"
)

// consoleOptions are those of an admin interface with a console. Its traffic
// topic is of so many bytes.
func consoleOptions(t *testing.T, size int, users ...config.AdminUser) (admin.Options, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	o := apiOptions(t, users...)
	hostile := `<img src=x onerror="alert(1)">`
	o.Limits = func(context.Context, string, string, int) (admin.LimitPage, error) { return admin.LimitPage{}, nil }
	o.Console = &admin.Console{
		Metrics: admin.NewConsoleInstruments(reg),
		Now: func() admin.TrafficNow {
			// Each is another, so that each is told.
			return admin.TrafficNow{Errors: []admin.ErrorCount{{Class: time.Now().String(), Text: strings.Repeat("x", size)}}}
		},
		Traffic: func() []admin.TrafficPoint { return nil },
		Reloads: func() []admin.ReloadStatus { return nil }, HasLedger: func() bool { return false },
		Stream: func() admin.PickStream { return admin.PickStream{Picks: []admin.PickRow{{Model: hostile}}} },
		Search: func(q admin.RequestQuery) admin.RequestList {
			return admin.RequestList{Kept: q.N, Requests: []admin.RequestRow{{Model: hostile, Class: q.Slower.String()}}}
		},
		Record: func(id string) any {
			if id == "req-1" {
				return map[string]string{"requestId": id}
			}
			return nil
		},
		Play: func(w http.ResponseWriter, _ *http.Request, p admin.Play) { fmt.Fprintf(w, "%s %s", p.Path, p.Body) },
	}
	return o, reg
}

func user(role string) config.AdminUser {
	sum := sha256.Sum256([]byte("token of " + role))
	return config.AdminUser{Name: role, Role: role, Hash: "sha256:" + hex.EncodeToString(sum[:])}
}

func TestConsoleFiles(t *testing.T) {
	o, _ := consoleOptions(t, 0, user("viewer"))
	h := admin.Handler(o)
	for _, c := range []struct {
		target, kind, want string
	}{
		{"/console/", "text/html; charset=utf-8", `<script type="module" src="app.js">`},
		{"/console/app.js", "text/javascript; charset=utf-8", "import "},
		{"/console/pages/picks.js", "text/javascript; charset=utf-8", "import "},
		{"/console/style.css", "text/css; charset=utf-8", ":root"},
		{"/console/icon.svg", "image/svg+xml", "<svg"},
	} {
		w := do(h, "GET", c.target, "") // before anybody has signed in
		if w.Code != 200 || w.Header().Get("Content-Type") != c.kind || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: %d %s", c.target, w.Code, w.Header())
		}
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
			"X-Content-Type-Options":  "nosniff", "Referrer-Policy": "no-referrer",
		} {
			if got := w.Header().Get(name); got != want {
				t.Errorf("%s: %s is %q", c.target, name, got)
			}
		}
	}
	if w := do(h, "GET", "/", "", "Accept", "text/html,*/*"); w.Code != 303 || w.Header().Get("Location") != "/console/" {
		t.Errorf("a browser is led to %d %s", w.Code, w.Header().Get("Location"))
	}
	if w := do(h, "GET", "/", "", "Accept", "*/*", "Authorization", "Bearer token of viewer"); w.Code != 200 || !strings.Contains(w.Body.String(), "/console/events") {
		t.Errorf("curl gets %d %s", w.Code, w.Body)
	}
	if w := do(h, "GET", "/console/nothing.js", ""); w.Code != 404 {
		t.Errorf("a file that is not there: %d", w.Code)
	}
}

// signIn is the cookie of a user's session.
func signIn(t *testing.T, h http.Handler, token string) string {
	t.Helper()
	w := do(h, "POST", "/console/session", `{"token": "`+token+`"}`, "Content-Type", jsonType)
	set := w.Header().Get("Set-Cookie")
	if w.Code != 200 || !strings.Contains(set, "; HttpOnly") || !strings.Contains(set, "; SameSite=Strict") || strings.Contains(w.Body.String(), token) {
		t.Fatalf("sign in: %d %q %s", w.Code, set, w.Body)
	}
	cookie, _, _ := strings.Cut(set, ";")
	return cookie
}

func TestConsoleRoles(t *testing.T) {
	o, _ := consoleOptions(t, 0, user("viewer"), user("operator"), user("admin"))
	h := admin.Handler(o)
	play := `{"path": "/v1/chat/completions", "body": {"a": 1}}`
	for _, c := range []struct {
		method, target, body             string
		nobody, viewer, operator, admin_ int
	}{
		{"GET", "/console/session", "", 200, 200, 200, 200},
		{"GET", "/console/traffic", "", 401, 200, 200, 200},
		{"GET", "/console/requests", "", 401, 200, 200, 200},
		{"GET", "/console/requests/req-1", "", 401, 200, 200, 200},
		{"GET", "/pools", "", 401, 200, 200, 200},
		{"POST", "/console/play", play, 401, 403, 200, 200},
		{"POST", "/api/v1/keys?dryRun=true", `{"tenant": "acme", "name": "x"}`, 401, 403, 201, 201},
		{"GET", "/api/v1/audit", "", 401, 403, 403, 200},
	} {
		for who, want := range map[string]int{"": c.nobody, "viewer": c.viewer, "operator": c.operator, "admin": c.admin_} {
			header := []string{"Content-Type", jsonType, "Sec-Fetch-Site", "same-origin"}
			if who != "" {
				header = append(header, "Cookie", signIn(t, h, "token of "+who))
			}
			if w := do(h, c.method, c.target, c.body, header...); w.Code != want {
				t.Errorf("%s %s as %q: %d, want %d: %s", c.method, c.target, who, w.Code, want, w.Body)
			}
		}
	}
}

// TestConsoleForgery: what a page of another origin can have a browser send
// changes nothing, although the cookie should come along.
func TestConsoleForgery(t *testing.T) {
	o, _ := consoleOptions(t, 0, user("admin"))
	h := admin.Handler(o)
	cookie := signIn(t, h, "token of admin")
	const key = `{"tenant": "acme", "name": "x"}`
	for _, c := range []struct {
		what   string
		header []string
		status int
	}{
		{"its own page", []string{"Sec-Fetch-Site", "same-origin"}, 201},
		{"its own page in an old browser", []string{"Origin", "http://127.0.0.1:9901"}, 201},
		{"another page", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"another port of this machine", []string{"Sec-Fetch-Site", "same-site", "Origin", "http://127.0.0.1:8080"}, 403},
		{"another page in an old browser", []string{"Origin", "https://example.org"}, 403},
		{"a browser that does not say", nil, 403},
		{"a name that leads here", []string{"Sec-Fetch-Site", "same-origin", "Host", "rebound.example.org"}, 403},
	} {
		for _, target := range []string{"/api/v1/keys?dryRun=true", "/console/play"} {
			body, want := key, c.status
			if target == "/console/play" {
				body = `{"path": "/v1/chat/completions", "body": {}}`
				want = map[int]int{201: 200, 403: 403}[c.status]
			}
			w := do(h, "POST", target, body, append([]string{"Content-Type", jsonType, "Cookie", cookie}, c.header...)...)
			if w.Code != want {
				t.Errorf("%s from %s: %d, want %d", target, c.what, w.Code, want)
			}
		}
	}
	if w := do(h, "DELETE", "/console/session", "", "Cookie", cookie, "Sec-Fetch-Site", "cross-site"); w.Code != 403 {
		t.Errorf("another page signs out: %d", w.Code)
	}
	// A token in the header is no browser's doing.
	if w := do(h, "POST", "/api/v1/keys?dryRun=true", key, "Content-Type", jsonType, "Authorization", "Bearer token of admin"); w.Code != 201 {
		t.Errorf("curl: %d", w.Code)
	}
}

func TestConsoleSessionEnds(t *testing.T) {
	viewer := user("viewer")
	users := []config.AdminUser{viewer}
	o, _ := consoleOptions(t, 0)
	o.Users = func() []config.AdminUser { return users }
	h := admin.Handler(o)
	status := func(cookie string) int { return do(h, "GET", "/pools", "", "Cookie", cookie).Code }

	out := signIn(t, h, "token of viewer")
	if do(h, "DELETE", "/console/session", "", "Cookie", out, "Sec-Fetch-Site", "same-origin"); status(out) != 401 {
		t.Error("signed out, and still in")
	}

	first := signIn(t, h, "token of viewer")
	for range 16 { // as many as one user may have
		signIn(t, h, "token of viewer")
	}
	if status(first) != 401 {
		t.Error("the oldest of too many sessions is not ended")
	}

	other := signIn(t, h, "token of viewer")
	users = []config.AdminUser{{Name: "viewer", Role: "admin", Hash: viewer.Hash}}
	if w := do(h, "GET", "/console/session", "", "Cookie", other); !strings.Contains(w.Body.String(), `"role": "admin"`) {
		t.Errorf("a change of the role does not count at once: %s", w.Body)
	}
	users = []config.AdminUser{{Name: "viewer", Role: "viewer", Hash: user("another").Hash}}
	if status(other) != 401 {
		t.Error("a session outlives the token")
	}
	users = []config.AdminUser{viewer}
	if status(other) != 401 {
		t.Error("a session that was ended is back with the token")
	}
	if status("penstock_console=guessed") != 401 {
		t.Error("a guessed session is let in")
	}
}

// TestWrongTokensAreSlowed: the eleventh of a minute waits, by whatever way.
func TestWrongTokensAreSlowed(t *testing.T) {
	o, reg := consoleOptions(t, 0, user("viewer"))
	h := admin.Handler(o)
	for i := range 10 {
		var w *httptest.ResponseRecorder
		if i%2 == 0 {
			w = do(h, "GET", "/pools", "", "Authorization", "Bearer wrong")
		} else {
			w = do(h, "POST", "/console/session", `{"token": "wrong"}`)
		}
		if w.Code != 401 {
			t.Fatalf("wrong token: %d", w.Code)
		}
	}
	if w := do(h, "POST", "/console/session", `{"token": "wrong"}`); w.Code != 429 || w.Header().Get("Retry-After") == "" {
		t.Errorf("one too many: %d", w.Code)
	}
	if w := do(h, "GET", "/pools", "", "Authorization", "Bearer wrong"); w.Code != 429 {
		t.Errorf("one too many in the header: %d", w.Code)
	}
	signIn(t, h, "token of viewer") // late, and all the same
	if n, err := testutil.GatherAndCount(reg, "penstock_console_sign_ins_total"); err != nil || n != 3 {
		t.Errorf("%d results are counted: ok, wrong and throttled are to be (%v)", n, err)
	}
}

func TestConsoleAnswers(t *testing.T) {
	o, _ := consoleOptions(t, 0)
	h := admin.Handler(o)
	for _, c := range []struct {
		method, target, body string
		status               int
		want                 string
	}{
		{"GET", "/console/requests", "", 200, `"kept": 100`},
		{"GET", "/console/requests?slower=1.5s&n=7", "", 200, `"errorClass": "1.5s"`},
		{"GET", "/console/requests?slower=fast", "", 400, "a time such as"},
		{"GET", "/console/requests?n=501", "", 400, "from 1 to 500"},
		{"GET", "/console/requests?model=" + strings.Repeat("x", 257), "", 400, "too long"},
		{"GET", "/console/requests/req-1", "", 200, `"requestId": "req-1"`},
		{"GET", "/console/requests/none", "", 404, "only the newest are kept"},
		{"GET", "/console/session", "", 200, `"name": "this machine"`},
		{"GET", "/console/events?topics=pools,secrets", "", 400, `there is no topic \"secrets\"`},
		{"GET", "/console/play", "", 405, "use POST"},
		{"POST", "/console/play", `{"path": "/v1/chat/completions", "body": {"x": 1}}`, 200, `/v1/chat/completions {"x": 1}`},
		{"POST", "/console/play", `{"path": "/metrics"}`, 400, "a path of a model API"},
		{"POST", "/console/play", `{"path": "/v1/x", "url": "http://example.org"}`, 400, "unknown field"},
		{"POST", "/console/play", `{"path": "/v1/x", "body": "` + strings.Repeat("x", 1<<20) + `"}`, 413, "larger than"},
		{"POST", "/console/session", `{"token": "` + strings.Repeat("x", 9<<10) + `"}`, 400, "cannot be read"},
	} {
		w := do(h, c.method, c.target, c.body, "Sec-Fetch-Site", "same-origin")
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s %s: %d %s\nwant %d with %s", c.method, c.target, w.Code, w.Body, c.status, c.want)
		}
		if w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s may be read as another type", c.target)
		}
	}
}

// events reads the names and data of a stream.
func events(t *testing.T, r *http.Response, n int) (names []string, data map[string]string) {
	t.Helper()
	data = map[string]string{}
	lines := bufio.NewScanner(r.Body)
	lines.Buffer(nil, 64<<20)
	for len(names) < n && lines.Scan() {
		if name, is := strings.CutPrefix(lines.Text(), "event: "); is {
			names = append(names, name)
		} else if text, is := strings.CutPrefix(lines.Text(), "data: "); is {
			data[names[len(names)-1]] = text
		}
	}
	return names, data
}

func TestLive(t *testing.T) {
	o, reg := consoleOptions(t, 10)
	o.Address = ""
	srv := httptest.NewServer(admin.Handler(o))
	defer srv.Close()
	r, err := http.Get(srv.URL + "/console/events?topics=picks,overview,picks")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	names, data := events(t, r, 5)
	// The picks stay as they are, and are told once.
	if got := strings.Join(names, " "); got != "tick overview picks tick overview" {
		t.Errorf("events: %s", got)
	}
	if strings.ContainsAny(data["picks"], "<>") {
		t.Errorf("a hostile name is not escaped: %s", data["picks"])
	}
	if n, _ := testutil.GatherAndCount(reg, "penstock_console_clients"); n != 1 {
		t.Error("clients are not counted")
	}
}

// TestSlowConsole: one that reads nothing is let go, and holds up no other.
func TestSlowConsole(t *testing.T) {
	o, reg := consoleOptions(t, 8<<20)
	o.Address = ""
	srv := httptest.NewServer(admin.HandlerWithin(o, 100*time.Millisecond))
	defer srv.Close()
	slow, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	fmt.Fprintf(slow, "GET /console/events?topics=overview HTTP/1.1\r\nHost: x\r\n\r\n")
	r, err := http.Get(srv.URL + "/console/events?topics=picks")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	for dropped := ""; !strings.Contains(dropped, `penstock_console_clients_dropped_total{reason="slow"} 1`); {
		if names, _ := events(t, r, 1); len(names) != 1 {
			t.Fatalf("the other console ended; counted: %s", dropped)
		}
		dropped = do(admin.Ops(admin.Options{Registry: reg}), "GET", "/metrics", "").Body.String()
	}
}

// TestConsolesAreBounded: one more than there is room for is told so.
func TestConsolesAreBounded(t *testing.T) {
	o, reg := consoleOptions(t, 0)
	o.Address = ""
	srv := httptest.NewServer(admin.Handler(o))
	defer srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i := range 65 {
		req, _ := http.NewRequestWithContext(ctx, "GET", srv.URL+"/console/events?topics=picks", nil)
		r, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if want := map[bool]int{true: 200, false: 503}[i < 64]; r.StatusCode != want {
			t.Fatalf("console %d: %d, want %d", i+1, r.StatusCode, want)
		}
	}
	if n, _ := testutil.GatherAndCount(reg, "penstock_console_clients_dropped_total"); n != 1 {
		t.Error("the one that found no room is not counted")
	}
}
