// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/proxy"
	"github.com/penstock/penstock/sim"
	"github.com/penstock/penstock/usage"
)

// priced is a gateway in front of a simulated provider whose tokens have prices,
// with a tenant of the given limits.
func priced(t *testing.T, limits string) (*limited, *sim.Provider) {
	own, url := simulated(t, sim.ProviderConfig{TTFT: 5 * time.Millisecond, ITL: time.Microsecond})
	return newLimited(t, fmt.Sprintf(`
providers: [{name: p, baseURL: "%s/v1", credentials: [{secret: sk-provider}]}]
models: [{name: gpt-sim, targets: [{provider: p}], retries: {attempts: 1}}]
prices: {version: test, table: [{provider: p, model: gpt-sim, rates: {input: 1, output: 10}}]}
tenants: [{name: acme, limits: %s, keys: [{name: ci, hash: "$KEY"}]}]
`, url, limits)), own
}

// B09: requests side by side do not all pass a budget that is enough for one. What
// all of them cost stays within it.
func TestB09SideBySide(t *testing.T) {
	g, _ := priced(t, "[{usd: 0.01, per: year}]")
	const body = `{"model":"gpt-sim","max_tokens":900,"messages":[{"role":"user","content":"hello"}]}`
	var all sync.WaitGroup
	var mu sync.Mutex
	passed, refused := 0, 0
	for range 40 {
		all.Go(func() {
			status, text, _, err := g.ask(context.Background(), body)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && status == 200:
				passed++
			case err == nil && status == 429 && strings.Contains(text, "budget_exceeded") && strings.Contains(text, "0.01 USD per year"):
				refused++
			default:
				t.Errorf("%d %s %v", status, text, err)
			}
		})
	}
	all.Wait()
	total := int64(0)
	for _, r := range g.records() {
		total += r.Cost.Pico
	}
	if passed == 0 || refused == 0 || total == 0 || total > 1e10 {
		t.Errorf("%d passed, %d were refused, at %d picodollars", passed, refused, total)
	}
	if s := g.use(t)[0]; s.Reserved != 0 || max(s.Used*1000-total, total-s.Used*1000) > 500*int64(passed) {
		t.Errorf("in use %+v, spent %d", s, total)
	}
}

// B10: a budget that is configured is asked, whatever the path.
func TestB10EveryPathAsksTheBudget(t *testing.T) {
	g, _ := priced(t, "[{usd: 0.000001, per: year, oversize: debt}]")
	post := func(path, body string) (int, string) {
		req, _ := http.NewRequest(http.MethodPost, g.url+path, strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer sk-client-1")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(text)
	}
	const chat = `{"model":"gpt-sim","max_tokens":50,"messages":[{"role":"user","content":"hello"}]}`
	if status, text := post("/v1/chat/completions", chat); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	for path, body := range map[string]string{
		"/v1/chat/completions":                         chat,
		"/v1/messages":                                 chat,
		"/v1/responses":                                `{"model":"gpt-sim","input":"hello"}`,
		"/v1/completions":                              `{"model":"gpt-sim","prompt":"hello"}`,
		"/v1/embeddings":                               `{"model":"gpt-sim","input":"hello"}`,
		"/v1/images/generations":                       `{"model":"gpt-sim","prompt":"hello"}`,
		"/v1beta/models/gpt-sim:generateContent":       `{"contents":[{"parts":[{"text":"hello"}]}]}`,
		"/v1beta/models/gpt-sim:embedContent":          `{"content":{"parts":[{"text":"hello"}]}}`,
		"/v1/moderations":                              `{"model":"gpt-sim","input":"hello"}`,
		"/v1/chat/completions?a=b":                     strings.Replace(chat, "{", `{"stream":true,`, 1),
		"/v1beta/models/gpt-sim:streamGenerateContent": `{"contents":[{"parts":[{"text":"hello"}]}]}`,
	} {
		if status, text := post(path, body); status != 429 || !strings.Contains(text, "0.000001 USD per year") {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}

// B12: paths that are passed on unread have limits too: of requests, and of those
// under way.
func TestB12UnreadPathsHaveLimits(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"results":[]}`) }))
	defer server.Close()
	r := newRig(t, []*httptest.Server{server}, tenant("    limits: [{requests: 2, per: 24h}]\n"))
	for i, want := range []int{200, 200, 429, 429} {
		path := []string{"/v1/rerank", "/classify"}[i%2]
		if res, text := r.keyed(path, `{"model":"m","query":"q","documents":["a"]}`); res.StatusCode != want {
			t.Errorf("%s: %d %s", path, res.StatusCode, text)
		}
	}
}

// B13: the warning comes for that of several windows whose threshold was passed.
func TestB13TheRightWindowWarns(t *testing.T) {
	g, _ := priced(t, "[{requests: 100, per: 24h, soft: 0.5}, {requests: 4, per: 12h, soft: 0.5}, {requests: 1000, per: month, soft: 0.5}]")
	for _, want := range []string{"", "acme: 4 requests per 12h: 50% in use", "acme: 4 requests per 12h: 75% in use"} {
		status, text, header, err := g.ask(context.Background(), `{"model":"gpt-sim","max_tokens":5,"messages":[{"role":"user","content":"hello"}]}`)
		if err != nil || status != 200 || header.Get("X-Penstock-Limit-Warning") != want {
			t.Errorf("%d %s, warning %q, not %q", status, text, header.Get("X-Penstock-Limit-Warning"), want)
		}
	}
}

// B57: what was reserved for a request that is refused later is given back.
func TestB57RefusedLater(t *testing.T) {
	g, own := priced(t, "[{tokens: 1000, per: year}, {usd: 1, per: year}, {concurrency: 1}]")
	own.SetFaults(sim.Faults{Status: 400})
	for range 5 {
		if status, text, _, err := g.ask(context.Background(), `{"model":"gpt-sim","max_tokens":900,"messages":[{"role":"user","content":"hello"}]}`); err != nil || status != 400 {
			t.Fatalf("%d %s %v", status, text, err)
		}
	}
	for _, s := range g.use(t) {
		if s.Used != 0 || s.Reserved != 0 {
			t.Errorf("left: %+v", s)
		}
	}
}

// TestUseOfLimits: what is in use can be read, a part at a time, end users and
// credentials too.
func TestUseOfLimits(t *testing.T) {
	_, url := simulated(t, sim.ProviderConfig{TTFT: time.Millisecond, ITL: time.Microsecond})
	g := newLimited(t, fmt.Sprintf(`
providers: [{name: p, baseURL: "%s/v1", credentials: [{name: main, secret: sk-provider, limits: [{requests: 50, per: 24h}]}]}]
models: [{name: gpt-sim, targets: [{provider: p}]}]
tenants:
  - name: acme
    limits: [{requests: 10, per: 24h}]
    users: {from: ["header X-User", user], max: 2, limits: [{requests: 1, per: 24h}]}
    keys: [{name: ci, hash: "$KEY", limits: [{tokens: 5000, per: 24h, models: ["gpt-*"]}, {concurrency: 3}]}]
  - {name: acme2, limits: [{requests: 5, per: 24h}], keys: [{name: k, hash: "sha256:%064d"}]}
`, url, 1))
	ask := func(user string, want int) {
		t.Helper()
		body := fmt.Sprintf(`{"model":"gpt-sim","max_tokens":5,"user":%q,"messages":[{"role":"user","content":"hello"}]}`, user)
		if status, text, _, err := g.ask(context.Background(), body); err != nil || status != want {
			t.Errorf("%s: %d %s %v", user, status, text, err)
		}
	}
	ask("ann", 200)
	ask("ann", 429)
	ask("bob", 200)
	ask("", 200)      // no end user: the tenant's limits alone
	ask("carl", 200)  // there is no room for more: he and
	ask("doris", 429) // she share
	var names []string
	read := func(tenant string) {
		for after := ""; ; {
			states, next, err := g.server.Limits(context.Background(), tenant, after, 2)
			if err != nil {
				t.Fatal(err)
			}
			for i := range states {
				names = append(names, fmt.Sprintf("%s %d/%d", states[i].Limit, states[i].Used, states[i].Reserved))
			}
			if after = next; next == "" {
				return
			}
		}
	}
	read("")
	want := []string{
		"acme: 10 requests per 24h 4/0", "acme2: 5 requests per 24h 0/0", "acme:ci: 5000 tokens per 24h, models gpt-* ",
		"acme:ci: 3 requests at a time 0/0", "acme@: 1 requests per 24h 1/0", "acme@ann: 1 requests per 24h 1/0", "acme@bob: 1 requests per 24h 1/0",
		"provider p/main: 50 requests per 24h 4/0",
	}
	if len(names) != len(want) {
		t.Fatalf("%q", names)
	}
	for i := range want {
		if !strings.HasPrefix(names[i], want[i]) {
			t.Errorf("%q, not %q", names[i], want[i])
		}
	}
	names = nil
	if read("acme2"); len(names) != 1 {
		t.Errorf("of acme2: %q", names)
	}
}

// TestLimitsOfFallbacks: a limit that counts only some models counts what falls
// back to them, with what they have used. One without room is passed over like a
// target that is out; what then serves is counted as itself.
func TestLimitsOfFallbacks(t *testing.T) {
	down, a := simulated(t, sim.ProviderConfig{Name: "a", Models: []string{"small"}, TTFT: time.Millisecond, ITL: time.Microsecond})
	down.SetFaults(sim.Faults{Status: 500})
	_, b := simulated(t, sim.ProviderConfig{Name: "b", Models: []string{"large", "spare"}, TTFT: time.Millisecond, ITL: time.Microsecond})
	g := newLimited(t, fmt.Sprintf(`
providers:
  - {name: a, baseURL: "%s/v1", credentials: [{secret: sk-a}]}
  - {name: b, baseURL: "%s/v1", credentials: [{secret: sk-b}]}
models:
  - {name: small, targets: [{provider: a}], fallbacks: [{virtualModel: large}, {provider: b, model: spare}]}
  - {name: large, targets: [{provider: b}]}
prices: {version: test, table: [{provider: a, model: "*", rates: {input: 1, output: 1}}, {provider: b, model: large, rates: {input: 1, output: 10}}, {provider: b, model: spare, rates: {input: 1, output: 1}}]}
tenants:
  - name: acme
    limits:
      - {requests: 100, per: year, models: [small]}
      - {requests: 2, per: year, models: [large], soft: 0.5}
      - {usd: 1, per: year, models: [large]}
      - {requests: 1, per: year, models: [spare]}
      - {output: 100000, per: year, models: [large, "sp*"]}
      - {concurrency: 5, models: [large]}
      - {requests: 100, per: year, models: [other]}
    keys: [{name: ci, hash: "$KEY"}]
`, a, b))
	const body = `{"model":"small","max_tokens":20,"messages":[{"role":"user","content":"hello"}]}`
	for i, want := range []int{200, 200, 200, 502} {
		if status, text, header, err := g.ask(context.Background(), body); err != nil || status != want {
			t.Fatalf("request %d: %d %s %v", i, status, text, err)
		} else if i == 0 && header.Get("X-Penstock-Limit-Warning") != "acme: 2 requests per year, models large: 50% in use" {
			t.Errorf("request %d: %v", i, header)
		}
	}
	records, output, dollars := g.records(), int64(0), int64(0)
	for i, served := range []string{"b/large", "b/large", "b/spare", ""} {
		r := records[i]
		if served == "" {
			if r.Attempts == 0 || r.Limit != "" || len(r.Skipped) != 2 || r.Skipped[1].Reason != "the limit acme: 1 requests per year, models spare has no room" {
				t.Errorf("record %d: %+v", i, r)
			}
			continue
		}
		if last := r.Tries[len(r.Tries)-1]; last.Target != served || last.Error != "" {
			t.Errorf("record %d: %+v", i, r.Tries)
		}
		output += int64(r.Counts.Output)
		if served == "b/large" {
			dollars += r.Cost.Pico
		} else if len(r.Skipped) != 1 || r.Skipped[0] != (usage.Skipped{Target: "large", Reason: "the limit acme: 2 requests per year, models large has no room"}) {
			t.Errorf("record %d: skipped %+v", i, r.Skipped)
		}
	}
	want := []int64{4, 2, dollars / 1000, 1, output, 0, 0}
	for i, s := range g.use(t) {
		if s.Used != want[i] || s.Reserved != 0 {
			t.Errorf("%s: %+v, not %d", s.Limit, s, want[i])
		}
	}
	if dollars == 0 || output == 0 {
		t.Error("nothing was used")
	}
	// Who asks for the model itself is refused at once.
	if status, text, _, err := g.ask(context.Background(), strings.Replace(body, "small", "large", 1)); err != nil || status != 429 || !strings.Contains(text, "models large") {
		t.Errorf("%d %s %v", status, text, err)
	}
}

// TestLimitOfTheOnlyTarget: where a fallback is the first that could serve, and
// has no room, the client is told of its limit.
func TestLimitOfTheOnlyTarget(t *testing.T) {
	own, a := simulated(t, sim.ProviderConfig{Models: []string{"small", "large"}, TTFT: time.Millisecond, ITL: time.Microsecond})
	g := newLimited(t, fmt.Sprintf(`
providers: [{name: a, baseURL: "%s/v1", credentials: [{secret: sk-a}]}]
models:
  - {name: small, targets: [{provider: a, capabilities: {context: 10}}], fallbacks: [{virtualModel: large, on: [contextWindow]}]}
  - {name: large, targets: [{provider: a}]}
tenants: [{name: acme, limits: [{requests: 1, per: year, models: [large]}], keys: [{name: ci, hash: "$KEY"}]}]
`, a))
	body := fmt.Sprintf(`{"model":"small","max_tokens":5,"messages":[{"role":"user","content":"%s"}]}`, strings.Repeat("word ", 50))
	if status, text, _, err := g.ask(context.Background(), body); err != nil || status != 200 {
		t.Fatalf("%d %s %v", status, text, err)
	}
	status, text, header, err := g.ask(context.Background(), body)
	if err != nil || status != 429 || !strings.Contains(text, "acme: 1 requests per year, models large") || header.Get("Retry-After") == "" {
		t.Errorf("%d %s %v", status, text, header)
	}
	if last := g.records()[1]; last.Limit != "acme: 1 requests per year, models large" || last.Attempts != 0 || own.Stats().Completed != 1 {
		t.Errorf("record %+v", last)
	}
}

// TestPricesInForce: whoever asks for the prices gets the table that requests are
// reckoned by, which may be large, and not one made for the question.
func TestPricesInForce(t *testing.T) {
	if p := proxy.New(proxy.Options{}).Prices(); p != nil || p.List() != nil || p.Version() != "" {
		t.Errorf("without a configuration: %+v", p)
	}
	g, _ := priced(t, "[{usd: 1, per: year}]")
	if p := g.server.Prices(); p.Len() != 1 || p != g.server.Prices() {
		t.Errorf("%+v", p)
	}
}

// TestMalformedAnswersAreBounded: what is counted in an answer that is none has an
// estimate for its mark, and is no more than the request had let the server make.
func TestMalformedAnswersAreBounded(t *testing.T) {
	words := strings.Repeat("word ", 4000)
	for name, c := range map[string]struct {
		answer, max    string
		output         int
		source, failed string
	}{
		"cut":        {`{"choices":[{"index":0,"message":{"role":"assistant","content":"` + words, `"max_tokens":20,`, 20, "partial", "stream_broken"},
		"two":        {`{"choices":[{"index":0,"message":{"role":"assistant","content":"` + words, `"max_tokens":20,"n":2,`, 40, "partial", "stream_broken"},
		"no bound":   {`{"choices":[{"index":0,"message":{"role":"assistant","content":"` + words, ``, 5000, "partial", "stream_broken"},
		"odd":        {`{"choices":"` + words + `"}`, `"max_tokens":20,`, 20, "estimated", ""},
		"impossible": {`{"choices":[{"index":0,"message":{"role":"assistant","content":"` + words + `"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":-7}}`, `"max_tokens":20,`, 20, "estimated", ""},
		"reported":   {`{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":25}}`, `"max_tokens":20,`, 25, "reported", ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				io.WriteString(w, c.answer)
			}))
			defer server.Close()
			g := newLimited(t, fmt.Sprintf(`
providers: [{name: p, baseURL: "%s/v1", credentials: [{secret: sk-provider}]}]
models: [{name: gpt-sim, targets: [{provider: p}], retries: {attempts: 1}}]
prices: {version: test, table: [{provider: p, model: gpt-sim, rates: {input: 0, output: 10}}]}
tenants: [{name: acme, limits: [{output: 1000000, per: year}], keys: [{name: ci, hash: "$KEY"}]}]
`, server.URL))
			if _, _, _, err := g.ask(context.Background(), `{"model":"gpt-sim",`+c.max+`"messages":[{"role":"user","content":"hello"}]}`); err != nil {
				t.Fatal(err)
			}
			s := g.use(t)[0] // after the request has been settled
			for deadline := time.Now().Add(10 * time.Second); s.Reserved > 0 && time.Now().Before(deadline); s = g.use(t)[0] {
				time.Sleep(time.Millisecond)
			}
			for deadline := time.Now().Add(10 * time.Second); len(g.records()) == 0 && time.Now().Before(deadline); {
				time.Sleep(time.Millisecond)
			}
			last := g.records()[0].Tries[0]
			if last.Used == nil || last.Error != c.failed {
				t.Fatalf("%+v", last)
			}
			if u := last.Used; u.Counts.Output != c.output || u.Counts.Source.String() != c.source || u.Cost.Pico != int64(c.output)*10_000_000 || s.Used != int64(c.output) {
				t.Errorf("%+v; of the limit %+v", u, s)
			}
		})
	}
}

// TestImagesOneByOne: images that are billed each, as those of DALL·E are, are
// reserved for and paid for by their number; where the server tells tokens, these
// count.
func TestImagesOneByOne(t *testing.T) {
	answer := `{"created":1,"data":[{"url":"http://x/1"},{"url":"http://x/2"}]}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, answer)
	}))
	defer server.Close()
	g := newLimited(t, fmt.Sprintf(`
providers: [{name: p, baseURL: "%s/v1", credentials: [{secret: sk-provider}]}]
models: [{name: dall-e-3, targets: [{provider: p}], retries: {attempts: 1}}, {name: gpt-image-1, targets: [{provider: p}], retries: {attempts: 1}}]
prices: {version: test, table: [{provider: p, model: dall-e-3, rates: {perImage: 0.04}}, {provider: p, model: gpt-image-1, rates: {input: 5, output: 40}}]}
tenants: [{name: acme, limits: [{usd: 0.1, per: year}], keys: [{name: ci, hash: "$KEY"}]}]
`, server.URL))
	post := func(body string) (int, string) {
		t.Helper()
		req, _ := http.NewRequest(http.MethodPost, g.url+"/v1/images/generations", strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer sk-client-1")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(text)
	}
	record := func(i int) *usage.Record {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); len(g.records()) <= i && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		return g.records()[i]
	}
	if status, text := post(`{"model":"dall-e-3","prompt":"a cat","n":2}`); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	if r := record(0); r.Cost.String() != "0.08" || r.Counts != (usage.Counts{Images: 2, Source: llm.Estimated}) || g.use(t)[0].Used != 80_000_000 {
		t.Errorf("%+v %s", r.Counts, r.Cost)
	}
	if status, text := post(`{"model":"dall-e-3","prompt":"a cat"}`); status != 429 || !strings.Contains(text, "budget_exceeded") {
		t.Errorf("one more: %d %s", status, text)
	}
	record(1)
	answer = `{"created":1,"data":[{"b64_json":"AAAA"}],"usage":{"input_tokens":10,"output_tokens":100,"total_tokens":110}}`
	if status, text := post(`{"model":"gpt-image-1","prompt":"a cat"}`); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	if r := record(2); r.Cost.String() != "0.00405" || r.Counts.Images != 0 || r.Counts.Source != llm.Reported {
		t.Errorf("%+v %s", r.Counts, r.Cost)
	}
}

// TestStaleConnectionUsesNothing: a kept connection that turns out to be closed
// costs nothing and counts as nothing, at a pool and at a provider: the request is
// one, and has used what its answer says.
func TestStaleConnectionUsesNothing(t *testing.T) {
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if asked.Add(1) == 2 { // the second request, on the connection of the first
			c, _, _ := http.NewResponseController(w).Hijack()
			c.Close()
			return
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"id":"1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}}`)
	}))
	defer server.Close()
	check := func(t *testing.T, r *usage.Record) {
		t.Helper()
		for i, try := range r.Tries {
			if last := i == len(r.Tries)-1; (try.Used != nil) != last || last && try.Used.Counts.Prompt() != 10 {
				t.Errorf("attempt %d: %+v", i, try)
			}
		}
		if len(r.Tries) < 2 || r.Counts.Prompt() != 10 || r.Counts.Output != 5 || r.Counts.Source != llm.Reported {
			t.Errorf("%+v, %+v", r.Tries, r.Counts)
		}
	}
	const body = `{"model":"gpt-sim","max_tokens":20,"messages":[{"role":"user","content":"hello"}]}`
	t.Run("pool", func(t *testing.T) {
		r := newRig(t, []*httptest.Server{server}, tenant("    limits: [{tokens: 40, per: 240h}, {requests: 3, per: 240h}]\n"))
		for range 2 {
			if res, text := r.keyed("/v1/chat/completions", strings.Replace(body, "gpt-sim", "m", 1)); res.StatusCode != 200 {
				t.Fatalf("%d %s", res.StatusCode, text)
			}
		}
		r.mu.Lock()
		check(t, r.records[1])
		r.mu.Unlock()
		// Of 40 tokens 30 are used, and of three requests two.
		if res, text := r.keyed("/v1/chat/completions", `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`); res.StatusCode != 200 || res.Header.Get("X-Ratelimit-Remaining-Requests") != "0" {
			t.Errorf("%d %s %v", res.StatusCode, text, res.Header)
		}
	})
	asked.Store(0)
	t.Run("provider", func(t *testing.T) {
		g := newLimited(t, fmt.Sprintf(`
providers: [{name: p, baseURL: "%s/v1", credentials: [{secret: sk-provider}]}]
models: [{name: gpt-sim, targets: [{provider: p}]}]
tenants: [{name: acme, limits: [{tokens: 100000, per: year}, {requests: 100, per: year}, {concurrency: 3}], keys: [{name: ci, hash: "$KEY"}]}]
`, server.URL))
		for range 2 {
			if status, text, _, err := g.ask(context.Background(), body); err != nil || status != 200 {
				t.Fatalf("%d %s %v", status, text, err)
			}
		}
		for deadline := time.Now().Add(10 * time.Second); len(g.records()) < 2 && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		check(t, g.records()[1])
		if s := g.use(t); s[0].Used != 30 || s[1].Used != 2 || s[2].Used != 0 {
			t.Errorf("in use %+v", s)
		}
	})
}

// B10: each kind of limit is asked, in each kind of window, and says what is over.
func TestB10EveryKindOfLimitRefuses(t *testing.T) {
	const body = `{"model":"gpt-sim","max_tokens":50,"messages":[{"role":"user","content":"hello"}]}`
	for _, c := range []struct {
		limit, code, says string
		first             int // status of the first request; the second is refused
	}{
		{"requests: 1, per: year", "rate_limit_exceeded", "acme: 1 requests per year", 200},
		{"requests: 1, per: 24h", "rate_limit_exceeded", "acme: 1 requests per 24h", 200},
		{"requests: 1, per: 24h, window: sliding", "rate_limit_exceeded", "acme: 1 requests per 24h", 200},
		{"input: 9, per: 24h", "rate_limit_exceeded", "acme: 9 input tokens per 24h", 200},
		{"output: 51, per: 24h", "rate_limit_exceeded", "acme: 51 output tokens per 24h", 200},
		{"tokens: 60, per: year", "rate_limit_exceeded", "acme: 60 tokens per year", 200},
		{"weighted: 400, per: year, weights: {input: 1, output: 7}", "rate_limit_exceeded", "acme: 400 weighted tokens per year", 200},
		{"usd: 0.00052, per: month", "budget_exceeded", "acme: 0.00052 USD per month", 200},
		{"tokens: 49, per: 1m", "request_exceeds_limit", "acme: 49 tokens per 1m", 400},
		{"usd: 0.0001, per: month", "request_exceeds_limit", "acme: 0.0001 USD per month", 400},
	} {
		t.Run(c.limit, func(t *testing.T) {
			g, own := priced(t, "[{"+c.limit+"}]")
			status, text, _, err := g.ask(context.Background(), body)
			if err != nil || status != c.first {
				t.Fatalf("the first: %d %s %v", status, text, err)
			}
			for range 20 { // what the first has not used is free again
				if status != 200 {
					break
				}
				status, text, _, err = g.ask(context.Background(), body)
			}
			if err != nil || status == 200 || status != 429 && c.first == 200 || !strings.Contains(text, c.says) || !strings.Contains(text, c.code) {
				t.Errorf("%d %s %v", status, text, err)
			}
			if served := own.Stats().Completed; c.first != 200 && served != 0 {
				t.Errorf("the provider was asked %d times", served)
			}
		})
	}
	t.Run("concurrency", func(t *testing.T) {
		g, own := priced(t, "[{concurrency: 1}]")
		own.SetFaults(sim.Faults{Hang: true})
		ctx, leave := context.WithCancel(context.Background())
		done := make(chan bool)
		go func() {
			g.ask(ctx, body)
			close(done)
		}()
		for deadline := time.Now().Add(10 * time.Second); g.use(t)[0].Used == 0 && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		if status, text, _, err := g.ask(context.Background(), body); err != nil || status != 429 || !strings.Contains(text, "acme: 1 requests at a time") {
			t.Errorf("%d %s %v", status, text, err)
		}
		leave()
		<-done
	})
}
