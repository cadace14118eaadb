// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The two shapes in which a gateway can have a pool: direct, with its own picker
// in process, and fronted, as a provider that is another gateway (a real Envoy
// with penstock epp) before the same members.

// shapes is one gateway that has the members in both shapes.
type shapes struct {
	way
	records string
	picker  *program // of the fronted one
}

const (
	searchKey  = "sk-search-1" // for every model
	narrowKey  = "sk-search-2" // for the direct one
	frontedKey = "sk-fronted"  // the gateway's own at the front
)

func startShapes(t *testing.T, members []*member) *shapes {
	t.Helper()
	envoy := envoyBinary(t)
	if envoy == "" {
		t.Fatal("without Envoy there is nothing to compare; e2e/envoy/install.sh fetches one")
	}
	penstock := filepath.Join(binDir, "penstock")
	ports, err := freePorts(4)
	if err != nil {
		t.Fatal(err)
	}
	at := func(i int) string { return "127.0.0.1:" + ports[i] }
	s := &shapes{records: filepath.Join(t.TempDir(), "records.jsonl")}
	s.name, s.url = "gateway", "http://"+at(0)
	s.picker = start(t, penstock, "epp", "--metrics-port", "0", "-c", file(t, "epp.yaml", picking+poolText(members, "{profile: test}")+
		fmt.Sprintf("pickerListeners: [{pool: pool, address: %q, health: \"off\"}]\n", at(1))))
	s.picker.listening(t, at(1))
	front := start(t, envoy, "-c", file(t, "envoy.yaml", envoyText(t, members, at(2), at(3), at(1), false)), "--base-id", fmt.Sprint(time.Now().UnixNano()%100000), "-l", "warning", "--concurrency", "1")
	front.listening(t, at(2))

	pools, _, _ := strings.Cut(poolText(members, "{profile: test}"), "models:")
	gateway := start(t, penstock, "run", "-c", file(t, "gateway.yaml", picking+pools+fmt.Sprintf(`
listeners: [{name: l, address: %q}]
tenants:
  - name: search
    keys:
      - {name: all, hash: "sha256:%x"}
      - {name: narrow, hash: "sha256:%x", models: [direct, current]}
providers:
  - {name: front, baseURL: "http://%s/v1", credentials: [{secret: %s}]}
models:
  - {name: direct, targets: [{pool: pool, model: base}]}
  - {name: fronted, targets: [{provider: front, model: base}]}
  - {name: current, alias: direct}
  - {name: next, alias: fronted}
  - {name: careful, targets: [{provider: front, model: base}], fallbacks: [{virtualModel: direct}]}
records: {path: %q}
`, at(0), sha256.Sum256([]byte(searchKey)), sha256.Sum256([]byte(narrowKey)), at(2), frontedKey, s.records)))
	gateway.listening(t, at(0))
	return s
}

// ask posts body with a key; "" for none.
func (s *shapes) ask(t *testing.T, key, body string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest("POST", s.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
	return res, string(text)
}

// told is what the records say of a request that matters here.
type told struct {
	RequestID  string `json:"requestId"`
	Tenant     string `json:"tenant"`
	Key        string `json:"key"`
	ModelAsked string `json:"modelAsked"`
	ModelUsed  string `json:"modelUsed"`
	Alias      string `json:"alias"`
	Pool       string `json:"pool"`
	Provider   string `json:"provider"`
	Fallback   string `json:"fallback"`
	Tokens     struct {
		Input, Output int
		Source        string
	} `json:"tokens"`
}

// record waits for the record of an answer.
func (s *shapes) record(t *testing.T, res *http.Response) told {
	t.Helper()
	id := res.Header.Get("X-Request-Id")
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		f, err := os.Open(s.records)
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			var r told
			if json.Unmarshal(lines.Bytes(), &r) == nil && r.RequestID == id {
				f.Close()
				return r
			}
		}
		f.Close()
	}
	t.Fatalf("there is no record of the request %q", id)
	return told{}
}

// TestDirectAndFronted sends the same requests to the same members in both
// shapes: the members must see the same bodies, the client the same answers, the
// records the same usage.
func TestDirectAndFronted(t *testing.T) {
	s := startShapes(t, newMembers(t))
	withUsage := strings.Replace(chatOf("MODEL", "hello", true), `"stream":true`, `"stream":true,"stream_options":{"include_usage":true}`, 1)
	for _, c := range []struct{ name, body string }{
		{"short", chatOf("MODEL", "hello", false)},
		{"stream", chatOf("MODEL", "hello", true)},
		{"stream with usage", withUsage},
		{"1 MB", chatOf("MODEL", strings.Repeat("word ", 200_000), false)},
		{"odd spelling", "{ \"messages\" : [ {\"content\":\"h\\u00e9\",\"role\":\"user\"} ] ,\n\"max_tokens\":7,\"model\":\"MODEL\"}"},
	} {
		var bodies, answers []string
		for _, model := range []string{"direct", "fronted", "current", "next"} {
			shape := map[string]string{"current": "direct", "next": "fronted"}[model]
			if shape == "" {
				shape = model
			}
			res, text := s.until(t, searchKey, strings.Replace(c.body, "MODEL", model, 1), 200)
			bodies = append(bodies, res.Header.Get("X-Body"))
			answers = append(answers, strings.ReplaceAll(text, fmt.Sprintf(`"model":%q`, model), `"model":"MODEL"`))
			if n := strings.Count(text, `"model":`); n == 0 || n != strings.Count(text, fmt.Sprintf(`"model":%q`, model)) {
				t.Errorf("%s, %s: the answer names another model: %s", c.name, model, text)
			}
			if got := res.Header.Get("X-Model"); got != "base" {
				t.Errorf("%s, %s: the member was asked for %q", c.name, model, got)
			}
			want := told{RequestID: res.Header.Get("X-Request-Id"), Tenant: "search", Key: "all", ModelAsked: model, ModelUsed: "base", Pool: "pool"}
			if key := "none"; shape == "fronted" {
				want.Pool, want.Provider = "", "front"
				if got := res.Header.Get("X-Key"); got != keyHash("Bearer "+frontedKey) {
					t.Errorf("%s, %s: the front was not sent the gateway's own key", c.name, model)
				}
			} else if got := res.Header.Get("X-Key"); got != key {
				t.Errorf("%s, %s: a key came to the member", c.name, model)
			}
			if shape != model {
				want.Alias = shape
			}
			want.Tokens.Input, want.Tokens.Output, want.Tokens.Source = 11, 3, "reported"
			if got := s.record(t, res); got != want {
				t.Errorf("%s, %s: the record says %+v, want %+v", c.name, model, got, want)
			}
		}
		for i := range bodies {
			if bodies[i] == "" || bodies[i] != bodies[0] {
				t.Errorf("%s: the members were sent %q", c.name, bodies)
			}
			if answers[i] != answers[0] {
				t.Errorf("%s: the answers differ: %q", c.name, answers)
			}
		}
	}
	for _, c := range []struct {
		key, model string
		want       int
	}{
		{"", "direct", 401}, {"sk-wrong", "fronted", 401}, {narrowKey, "direct", 200}, {narrowKey, "current", 200},
		{narrowKey, "fronted", 404}, {narrowKey, "next", 404},
	} {
		if res, text := s.ask(t, c.key, chatOf(c.model, "hello", false)); res.StatusCode != c.want {
			t.Errorf("key %q, model %s: %d %s, want %d", c.key, c.model, res.StatusCode, text, c.want)
		}
	}
}

// until asks until the status is want: probes and metrics take a moment at first.
func (s *shapes) until(t *testing.T, key, body string, want int) (*http.Response, string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		res, text := s.ask(t, key, body)
		if res.StatusCode == want {
			return res, text
		}
		if time.Now().After(end) {
			t.Fatalf("status %d, want %d: %s", res.StatusCode, want, text)
		}
	}
}

// TestFrontedFails takes the picker behind the front away: what can be served
// directly is, with the usage right, and what cannot fails.
func TestFrontedFails(t *testing.T) {
	s := startShapes(t, newMembers(t))
	s.until(t, searchKey, chatOf("direct", "hello", false), 200)
	res, _ := s.until(t, searchKey, chatOf("careful", "hello", false), 200)
	if got := s.record(t, res); got.Provider != "front" || got.Fallback != "" {
		t.Errorf("while the front works: %+v", got)
	}
	s.picker.stop()
	for _, stream := range []bool{false, true} {
		res, text := s.ask(t, searchKey, chatOf("careful", "hello", stream))
		if res.StatusCode != 200 || !strings.Contains(text, "two") || !strings.Contains(text, `"model":"careful"`) {
			t.Fatalf("stream %v: %d %s", stream, res.StatusCode, text)
		}
		if got := res.Header.Get("X-Penstock-Fallback"); !strings.HasPrefix(got, "general: ") {
			t.Errorf("stream %v: x-penstock-fallback is %q", stream, got)
		}
		got := s.record(t, res)
		if got.Pool != "pool" || got.Provider != "" || got.Fallback == "" || got.Tokens.Input != 11 || got.Tokens.Output != 3 || got.Tokens.Source != "reported" {
			t.Errorf("stream %v: the record says %+v", stream, got)
		}
	}
	if res, text := s.ask(t, searchKey, chatOf("fronted", "hello", false)); res.StatusCode < 500 || res.Header.Get("X-Should-Retry") != "false" {
		t.Errorf("without a fallback: %d %v %s", res.StatusCode, res.Header, text)
	}
	if res, text := s.ask(t, searchKey, chatOf("direct", "hello", false)); res.StatusCode != 200 {
		t.Errorf("direct: %d %s", res.StatusCode, text)
	}
}
