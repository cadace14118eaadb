// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/sim"
)

// ask sends a chat request to a provider and returns the answer.
func ask(t *testing.T, client *http.Client, addr, key, body string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest("POST", "http://"+addr+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(text)
}

func provide(t *testing.T, cfg sim.ProviderConfig) (*sim.Provider, string, *http.Client) {
	t.Helper()
	cfg.TTFT, cfg.ITL = time.Millisecond, 10*time.Microsecond
	p := sim.NewProvider(cfg)
	addr, err := p.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return p, addr, &http.Client{Transport: transport}
}

const hello = `{"model":"gpt-sim","messages":[{"role":"user","content":"hello"}],"max_tokens":20,"ignore_eos":true}`

func TestProviderKeys(t *testing.T) {
	_, addr, client := provide(t, sim.ProviderConfig{Keys: []string{"good"}})
	if res, text := ask(t, client, addr, "bad", hello); res.StatusCode != 401 || !strings.Contains(text, `"code":"invalid_api_key"`) {
		t.Errorf("bad key: %s %s", res.Status, text)
	}
	res, text := ask(t, client, addr, "good", hello)
	if res.StatusCode != 200 || !strings.Contains(text, `"completion_tokens":20`) || res.Header.Get("X-Request-Id") == "" {
		t.Errorf("good key: %s %v %s", res.Status, res.Header, text)
	}
	res, text = ask(t, client, addr, "good", strings.Replace(hello, "gpt-sim", "gpt-none", 1))
	if res.StatusCode != 404 || !strings.Contains(text, `"code":"model_not_found"`) {
		t.Errorf("unknown model: %s %s", res.Status, text)
	}
}

func TestProviderLimits(t *testing.T) {
	_, addr, client := provide(t, sim.ProviderConfig{RequestsPerMinute: 2, TokensPerMinute: 1000})
	res, _ := ask(t, client, addr, "a", hello)
	if got := res.Header.Get("x-ratelimit-remaining-requests"); res.StatusCode != 200 || got != "1" {
		t.Errorf("first: %s, remaining %q", res.Status, got)
	}
	if got := res.Header.Get("x-ratelimit-remaining-tokens"); got != "972" { // 8 of the prompt, 20 of the output
		t.Errorf("remaining tokens %q", got)
	}
	ask(t, client, addr, "a", hello)
	res, text := ask(t, client, addr, "a", hello)
	if res.StatusCode != 429 || res.Header.Get("Retry-After") == "" || !strings.Contains(text, `"type":"requests"`) {
		t.Errorf("third: %s %v %s", res.Status, res.Header, text)
	}
	res, text = ask(t, client, addr, "b", strings.Replace(hello, `:20`, `:2000`, 1))
	if res.StatusCode != 429 || !strings.Contains(text, `"type":"tokens"`) {
		t.Errorf("too many tokens: %s %s", res.Status, text)
	}
}

func TestProviderStreams(t *testing.T) {
	p, addr, client := provide(t, sim.ProviderConfig{})
	res, text := ask(t, client, addr, "", strings.Replace(hello, `{`, `{"stream":true,"n":2,`, 1))
	if res.StatusCode != 200 || strings.Count(text, "data: ") != 2*(1+20+1)+1 || !strings.HasSuffix(text, "data: [DONE]\n\n") {
		t.Errorf("%s %s", res.Status, text)
	}
	if s := p.Stats(); s.Completed != 1 || s.OutputTokens != 40 || s.CachedTokens != 0 {
		t.Errorf("%+v", s)
	}
}

func TestProviderAbort(t *testing.T) {
	p, addr, client := provide(t, sim.ProviderConfig{Faults: sim.Faults{Slow: 1000}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+addr+"/v1/chat/completions", strings.NewReader(hello))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if res, err := client.Do(req); err == nil {
			res.Body.Close()
		}
	}()
	if !eventually(func() bool { return p.Stats().InFlight == 1 }) {
		t.Fatal("the request did not come")
	}
	cancel()
	<-done
	if !eventually(func() bool { s := p.Stats(); return s.InFlight == 0 && s.Aborted == 1 }) {
		t.Errorf("%+v", p.Stats())
	}
}
