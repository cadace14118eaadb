// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The three ways to have a picker: in the gateway's process, in another
// process, and another process behind a real Envoy. All must do the same.

// member is a model server that tells what it was sent.
type member struct {
	*httptest.Server
	number  int
	waiting atomic.Int64 // on its metrics page
	down    atomic.Bool  // answers 503 to health checks
}

func newMember(t *testing.T, number int) *member {
	m := &member{number: number}
	m.Server = httptest.NewServer(m)
	t.Cleanup(m.Close)
	return m
}

func (m *member) address() string { return strings.TrimPrefix(m.URL, "http://") }

func (m *member) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/metrics":
		fmt.Fprintf(w, "vllm:num_requests_waiting %d\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n", m.waiting.Load())
		return
	case "/health":
		if m.down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	var q struct {
		Model  string `json:"model"`
		Stream bool   `json:"stream"`
	}
	json.Unmarshal(body, &q)
	w.Header().Set("X-Server", fmt.Sprint(m.number))
	w.Header().Set("X-Body", fmt.Sprintf("%d %x", len(body), sha256.Sum256(body)))
	w.Header().Set("X-Model", q.Model)
	w.Header().Set("X-Key", keyHash(r.Header.Get("Authorization")))
	usage := `"usage":{"prompt_tokens":11,"completion_tokens":3,"total_tokens":14}`
	if !q.Stream {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"1","object":"chat.completion","model":%q,"choices":[{"index":0,"message":{"role":"assistant","content":"one two three"},"finish_reason":"stop"}],%s}`, q.Model, usage)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, word := range []string{"one", " two", " three"} {
		fmt.Fprintf(w, "data: {\"id\":\"1\",\"object\":\"chat.completion.chunk\",\"model\":%q,\"choices\":[{\"index\":0,\"delta\":{\"content\":%q},\"finish_reason\":null}]}\n\n", q.Model, word)
		w.(http.Flusher).Flush()
		time.Sleep(time.Millisecond)
	}
	fmt.Fprintf(w, "data: {\"id\":\"1\",\"object\":\"chat.completion.chunk\",\"model\":%q,\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n", q.Model)
	fmt.Fprintf(w, "data: {\"id\":\"1\",\"object\":\"chat.completion.chunk\",\"model\":%q,\"choices\":[],%s}\n\ndata: [DONE]\n\n", q.Model, usage)
}

// keyHash is how a member tells which credential came, without saying it.
func keyHash(authorization string) string {
	if authorization == "" {
		return "none"
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(authorization)))[:16]
}

// program is a process that ends with the test.
type program struct {
	cmd *exec.Cmd
	log *lockedBuffer
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func start(t *testing.T, name string, args ...string) *program {
	t.Helper()
	p := &program{cmd: exec.Command(name, args...), log: &lockedBuffer{}}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stop)
	return p
}

func (p *program) stop() {
	if p.cmd.ProcessState == nil {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	}
}

// listening waits until the program accepts connections.
func (p *program) listening(t *testing.T, address string) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if c, err := net.DialTimeout("tcp", address, time.Second); err == nil {
			c.Close()
			return
		}
	}
	t.Fatalf("nothing listens at %s:\n%s", address, p.log)
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// way is one gateway with its picker.
type way struct {
	name    string
	url     string
	picker  *program // nil: in process
	restart func()   // the picker, after it was stopped
}

// picking is the profile of all three: prefix affinity with a load guard,
// members with more than 50 waiting requests are full, and what the gateway
// reports as served is told in a header of the answer.
const picking = `
pickers:
  - name: test
    config:
      plugins:
        - type: utilization-filter
          parameters: {conditions: [{metric: waiting-queue, maxValue: 50}]}
        - type: expected-cost-scorer
        - type: max-score-picker
        - type: destination-endpoint-served-verifier
`

func poolText(members []*member, picker string) string {
	var list []string
	for _, m := range members {
		list = append(list, fmt.Sprintf("%q", m.address()))
	}
	return fmt.Sprintf(`
admin: {address: "off"}
pools:
  - name: pool
    engine: vllm
    members: {static: [%s]}
    probe: {interval: 50ms, timeout: 50ms, failures: 1}
    metrics: {interval: 20ms}
    picker: %s
models:
  - {name: base, targets: [{pool: pool}]}
  - {name: adapter-1, targets: [{pool: pool}]}
  - {name: renamed, targets: [{pool: pool, model: other}]}
`, strings.Join(list, ", "), picker)
}

// startWays starts the three. failOpen is for those whose picker may fail.
func startWays(t *testing.T, members []*member, profile string, failOpen bool) []*way {
	t.Helper()
	penstock := filepath.Join(binDir, "penstock")
	ports, err := freePorts(5)
	if err != nil {
		t.Fatal(err)
	}
	at := func(i int) string { return "127.0.0.1:" + ports[i] }
	listener := func(i int) string {
		return fmt.Sprintf("listeners: [{name: l, address: %q, anonymous: true}]\n", at(i))
	}
	mode := "FailClose"
	if failOpen {
		mode = "FailOpen"
	}
	inProcess := start(t, penstock, "run", "-c", file(t, "in.yaml", listener(0)+picking+poolText(members, "{profile: "+profile+"}")))
	eppFile := file(t, "epp.yaml", picking+poolText(members, "{profile: "+profile+"}")+fmt.Sprintf("pickerListeners: [{pool: pool, address: %q, health: \"off\"}]\n", at(1)))
	epp := &way{}
	startPicker := func() *program {
		p := start(t, penstock, "epp", "-c", eppFile, "--metrics-port", "0")
		p.listening(t, at(1))
		return p
	}
	epp.picker = startPicker()
	// The gateway of the remote picker leaves the renaming to it.
	remote := start(t, penstock, "run", "-c", file(t, "remote.yaml", listener(2)+
		strings.Replace(poolText(members, fmt.Sprintf("{remote: {address: %q, tls: {insecureSkipVerify: true}, failureMode: %s, health: {interval: 100ms, timeout: 100ms}}}", at(1), mode)), ", model: other", "", 1)))
	ways := []*way{
		{name: "in process", url: "http://" + at(0)},
		{name: "remote picker", url: "http://" + at(2), picker: epp.picker},
	}
	for i, p := range []*program{inProcess, remote} {
		p.listening(t, at([]int{0, 2}[i]))
	}
	if envoy := envoyBinary(t); envoy != "" {
		p := start(t, envoy, "-c", file(t, "envoy.yaml", envoyText(t, members, at(3), at(4), at(1), failOpen)), "--base-id", fmt.Sprint(time.Now().UnixNano()%100000), "-l", "warning", "--concurrency", "1")
		p.listening(t, at(3))
		ways = append(ways, &way{name: "Envoy", url: "http://" + at(3), picker: epp.picker})
	}
	for _, w := range ways[1:] {
		w.restart = func() {
			p := startPicker()
			for _, w := range ways[1:] {
				w.picker = p
			}
		}
	}
	return ways
}

// envoyBinary is where make test-envoy has put it; "" skips aloud.
func envoyBinary(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("ENVOY"); path != "" {
		return path
	}
	found, _ := filepath.Glob("../.cache/envoy/*/bin/envoy")
	if len(found) > 0 {
		path, err := filepath.Abs(found[len(found)-1])
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("there is no Envoy; e2e/envoy/install.sh fetches one")
	}
	t.Log("*** THERE IS NO ENVOY: ITS PART OF THIS TEST DOES NOT RUN; e2e/envoy/install.sh fetches one ***")
	return ""
}

// envoyText is the example with other addresses.
func envoyText(t *testing.T, members []*member, listen, admin, picker string, failOpen bool) string {
	t.Helper()
	text, err := os.ReadFile("../examples/envoy/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s := string(text)
	swap := func(old, new string) {
		t.Helper()
		if strings.Count(s, old) != 1 {
			t.Fatalf("examples/envoy/envoy.yaml has %q %d times, want once", old, strings.Count(s, old))
		}
		s = strings.Replace(s, old, new, 1)
	}
	socket := func(address string) string {
		host, port, _ := net.SplitHostPort(address)
		return fmt.Sprintf("{address: %s, port_value: %s}", host, port)
	}
	swap("{address: 127.0.0.1, port_value: 10000}", socket(listen))
	swap("{address: 127.0.0.1, port_value: 10001}", socket(admin))
	swap("{address: 127.0.0.1, port_value: 9002}", socket(picker))
	for i, m := range members {
		swap(fmt.Sprintf("{address: 127.0.0.1, port_value: %d}", 8000+i), socket(m.address()))
	}
	if failOpen {
		swap("failure_mode_allow: false", "failure_mode_allow: true")
	}
	return s
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}

func (w *way) post(t *testing.T, body string) (*http.Response, string) {
	t.Helper()
	res, err := client.Post(w.url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatalf("%s: %v", w.name, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Errorf("%s: %v", w.name, err)
	}
	return res, string(text)
}

// until posts body until the status is want.
func (w *way) until(t *testing.T, body string, want int) (*http.Response, string) {
	t.Helper()
	var res *http.Response
	var text string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if res, text = w.post(t, body); res.StatusCode == want {
			return res, text
		}
	}
	t.Fatalf("%s: status %d, want %d: %s", w.name, res.StatusCode, want, text)
	return nil, ""
}

func newMembers(t *testing.T) []*member {
	var members []*member
	for i := range 4 {
		members = append(members, newMember(t, i))
	}
	return members
}

func chatOf(model, content string, stream bool) string {
	text, _ := json.Marshal(content)
	return fmt.Sprintf(`{"model":%q,"stream":%v,"messages":[{"role":"user","content":%s}]}`, model, stream, text)
}

// TestSameBodiesAndUsage sends the same requests through all three.
func TestSameBodiesAndUsage(t *testing.T) {
	members := newMembers(t)
	ways := startWays(t, members, "test", false)
	withUsage := strings.Replace(chatOf("base", "hello", true), `"stream":true`, `"stream":true,"stream_options":{"include_usage":true}`, 1)
	for _, c := range []struct {
		name, body string
		same       bool // the server must see the client's very bytes
	}{
		{"short", chatOf("base", "hello", false), true},
		{"stream with usage", withUsage, true},
		{"adapter", chatOf("adapter-1", "hello", false), true},
		{"1 MB", chatOf("base", strings.Repeat("word ", 200_000), false), true},
		{"20 MB", chatOf("base", strings.Repeat("word ", 4_000_000), false), true},
		{"odd spelling", "{ \"messages\" : [ {\"content\":\"h\\u00e9\",\"role\":\"user\"} ] ,\n\"model\":\"base\"}", true},
	} {
		first := ""
		for _, w := range ways {
			res, text := w.until(t, c.body, 200)
			if first == "" {
				first = text
			}
			if text != first {
				t.Errorf("%s, %s: another answer than the first: %s; first: %s", c.name, w.name, text, first)
			}
			if !strings.Contains(text, `"completion_tokens":3`) {
				t.Errorf("%s, %s: no usage: %s", c.name, w.name, text)
			}
			want := fmt.Sprintf("%d %x", len(c.body), sha256.Sum256([]byte(c.body)))
			if got := res.Header.Get("X-Body"); got != want {
				t.Errorf("%s, %s: the server was sent %s, want %s", c.name, w.name, got, want)
			}
			if server, served := res.Header.Get("X-Server"), res.Header.Get("X-Conformance-Test-Served-Endpoint"); w.name != "in process" && served != members[server[0]-'0'].address() {
				t.Errorf("%s, %s: server %s answered, %q was reported to the picker", c.name, w.name, server, served)
			}
		}
	}
}

// TestRenamedModel asks for a model that the picker knows under another name:
// the servers get theirs, the client reads its own.
func TestRenamedModel(t *testing.T) {
	for _, w := range startWays(t, newMembers(t), "test", false) {
		for _, stream := range []bool{false, true} {
			res, text := w.until(t, chatOf("renamed", "hello", stream), 200)
			if got := res.Header.Get("X-Model"); got != "other" {
				t.Errorf("%s: the server was asked for %q", w.name, got)
			}
			if n := strings.Count(text, `"model":"renamed"`); n == 0 || n != strings.Count(text, `"model":`) {
				t.Errorf("%s, stream %v: the answer names another model: %s", w.name, stream, text)
			}
		}
	}
}

// TestRefusals holds the three to the same refusals: 429 when every member is
// full, 503 when none is ready, 400 for a body that nobody can read.
func TestRefusals(t *testing.T) {
	members := newMembers(t)
	ways := startWays(t, members, "test", true) // a refusal is none of a failure's business
	hello := chatOf("base", "hello", false)
	for _, w := range ways {
		w.until(t, hello, 200)
		if res, text := w.post(t, `{"model":"base","messages":[}`); res.StatusCode != 400 || !strings.Contains(text, "invalid_request_error") {
			t.Errorf("%s: %d %s", w.name, res.StatusCode, text)
		}
	}
	for _, w := range ways { // the type of curl -d, without a header
		res, err := client.Post(w.url+"/v1/chat/completions", "application/x-www-form-urlencoded", strings.NewReader(hello))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 415 || !strings.Contains(string(text), "send application/json") {
			t.Errorf("%s: a form: %d %s", w.name, res.StatusCode, text)
		}
	}
	for _, m := range members {
		m.waiting.Store(1000)
	}
	for _, w := range ways {
		if res, text := w.until(t, hello, 429); res.Header.Get("Retry-After") == "" || !strings.Contains(text, "rate_limit_error") {
			t.Errorf("%s: %v %s", w.name, res.Header, text)
		}
	}
	for _, m := range members {
		m.waiting.Store(0)
		m.down.Store(true)
	}
	for _, w := range ways {
		if res, text := w.until(t, hello, 503); res.Header.Get("Retry-After") == "" || !strings.Contains(text, "error") {
			t.Errorf("%s: %v %s", w.name, res.Header, text)
		}
	}
	for _, m := range members {
		m.down.Store(false)
	}
	for _, w := range ways {
		w.until(t, hello, 200)
	}
}

// TestPickerGone takes the picker away before a request.
func TestPickerGone(t *testing.T) {
	for _, failOpen := range []bool{true, false} {
		t.Run(fmt.Sprint("FailOpen ", failOpen), func(t *testing.T) {
			members := newMembers(t)
			ways := startWays(t, members, "test", failOpen)
			for _, w := range ways {
				w.until(t, chatOf("base", "hello", false), 200)
			}
			ways[1].picker.stop()
			for _, w := range ways[1:] {
				if w.name == "Envoy" && failOpen {
					// Envoy does not keep what it has sent to a picker: in full duplex it
					// fails open for requests without a body only.
					res, err := client.Get(w.url + "/v1/models")
					if err != nil {
						t.Fatal(err)
					}
					res.Body.Close()
					if res.StatusCode != 200 || res.Header.Get("X-Server") == "" {
						t.Errorf("%s, no body: %d", w.name, res.StatusCode)
					}
					continue
				}
				for _, size := range []int{1, 20_000} {
					body := chatOf("base", strings.Repeat("word ", size), false)
					res, text := w.post(t, body)
					if failOpen {
						if want := fmt.Sprintf("%d %x", len(body), sha256.Sum256([]byte(body))); res.StatusCode != 200 || res.Header.Get("X-Body") != want {
							t.Errorf("%s, %d words: %d %.100s", w.name, size, res.StatusCode, text)
						}
					} else if res.StatusCode < 500 || res.StatusCode > 504 {
						t.Errorf("%s, %d words: %d %.100s", w.name, size, res.StatusCode, text)
					}
				}
			}
			ways[1].restart()
			for _, w := range ways {
				w.until(t, chatOf("base", "hello", false), 200)
			}
		})
	}
}

// TestAffinityThroughEnvoy sends 1,000 requests with eight shared prefixes to
// simulated servers, and reads in their own counters that the prefixes were
// found in their caches.
func TestAffinityThroughEnvoy(t *testing.T) {
	penstock := filepath.Join(binDir, "penstock")
	ports, err := freePorts(8)
	if err != nil {
		t.Fatal(err)
	}
	var members []*member
	for i := range 4 {
		sim := start(t, penstock, "sim", "--port", ports[i], "--model", "base", "--kv-blocks", "500", "--speedup", "20")
		sim.listening(t, "127.0.0.1:"+ports[i])
		m := &member{Server: &httptest.Server{URL: "http://127.0.0.1:" + ports[i]}, number: i}
		members = append(members, m)
	}
	hits := func() (hit, asked float64) {
		for _, m := range members {
			res, err := http.Get(m.URL + "/metrics")
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(res.Body)
			res.Body.Close()
			for line := range strings.Lines(string(text)) {
				name, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
				var n float64
				fmt.Sscan(value, &n)
				switch {
				case strings.HasPrefix(name, "vllm:prefix_cache_hits_total"):
					hit += n
				case strings.HasPrefix(name, "vllm:prefix_cache_queries_total"):
					asked += n
				}
			}
		}
		return hit, asked
	}
	ways := startWays(t, members, "default", false)
	w := ways[len(ways)-1]
	if w.name != "Envoy" {
		t.Skip("without Envoy there is nothing to show here") // envoyBinary has said so, and fails in CI
	}
	prefixes := make([]string, 8)
	for i := range prefixes {
		prefixes[i] = strings.Repeat(fmt.Sprintf("rule %d says so. ", i), 400)
	}
	var load sync.WaitGroup
	next := make(chan int)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for range 8 {
		load.Go(func() {
			for i := range next {
				body := fmt.Sprintf(`{"model":"base","max_tokens":2,"messages":[{"role":"system","content":%q},{"role":"user","content":"question %d"}]}`, prefixes[i%8], i)
				q, _ := http.NewRequestWithContext(ctx, "POST", w.url+"/v1/chat/completions", strings.NewReader(body))
				q.Header.Set("Content-Type", "application/json")
				res, err := client.Do(q)
				if err != nil {
					t.Error(err)
					return
				}
				text, _ := io.ReadAll(res.Body)
				res.Body.Close()
				if res.StatusCode != 200 {
					t.Errorf("%d %s", res.StatusCode, text)
					return
				}
			}
		})
	}
	for i := range 1000 {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	load.Wait()
	hit, asked := hits()
	t.Logf("%.0f of %.0f prompt tokens were in the servers' caches", hit, asked)
	// A server's cache holds about three of the eight prefixes: spread evenly,
	// requests would find theirs in three cases of eight.
	if asked == 0 || hit/asked < 0.9 {
		t.Errorf("%.0f of %.0f prompt tokens were cached, want nine in ten", hit, asked)
	}
}
