// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/penstock/penstock/auth"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/usage"
)

func TestConditionFaults(t *testing.T) {
	for text, want := range map[string]string{
		"identity.tier == 'paid'":        "",
		"request.tokens < 8000":          "",
		"identity.teir == 'paid'":        "models[0].targets[0].when: is not a condition: line 1, column 9: undeclared reference to 'identity.teir'",
		"request.tokens < '8000'":        "models[0].targets[0].when: is not a condition: line 1, column 16: found no matching overload",
		"request.tokens":                 "models[0].targets[0].when: is not a condition: gives int, not true or false",
		"request.stream &&":              "models[0].targets[0].when: is not a condition: line 1, column 18: Syntax error",
		"[1,2,3].all(x, request.stream)": "",
	} {
		got := ""
		cfg := &config.Config{Models: []config.Model{{Name: "m", Targets: []config.Target{{Pool: "p", When: text}}}}}
		for _, p := range CheckConditions(cfg) {
			got += p.Path + ": " + p.What
		}
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, not %q", text, got, want)
		}
	}
}

func exchangeFor(tb testing.TB, body string) *exchange {
	tb.Helper()
	r := httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(body))
	r.Header.Set("X-Team", "a")
	req, fail := llm.Read(llm.OpChat, "application/json", []byte(body), llm.Limits{})
	if fail != nil {
		tb.Fatal(fail)
	}
	return &exchange{r: r, req: req, op: llm.OpChat, identity: &auth.Identity{Tenant: "t", Tier: "paid", Key: "k"}, listener: &listener{name: "l"}, account: account{record: &usage.Record{}}}
}

const conditionBody = `{"model":"m","stream":true,"max_tokens":5,"tools":[{"type":"function","function":{"name":"f"}}],"response_format":{"type":"json_object"},"messages":[{"role":"user","content":[{"type":"text","text":"what is this?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}`

func TestConditions(t *testing.T) {
	c, err := newCompiler()
	if err != nil {
		t.Fatal(err)
	}
	x := exchangeFor(t, conditionBody)
	for text, want := range map[string]bool{
		"": true,
		"identity.tenant == 't' && identity.tier == 'paid' && identity.key == 'k'":       true,
		"request.model == 'm' && request.operation == 'chat' && request.listener == 'l'": true,
		"request.stream && request.structured && !request.reasoning":                     true,
		"request.tools == 1 && request.images == 1 && request.maxTokens == 5":            true,
		"request.tokens > 200 && request.tokens < 400":                                   true,
		"request.class == '' && request.region == '' && request.user == ''":              true,
		"request.headers['x-team'] == 'a'":                                               true,
		"request.headers['x-none'] == 'a'":                                               false,
		"'authorization' in request.headers":                                             false,
	} {
		cond, err := c.compile(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if got, _ := cond.holds(&view{x: x}); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	costly, err := c.compile("[0,1,2,3,4,5,6,7,8,9].all(a, [0,1,2,3,4,5,6,7,8,9].all(b, [0,1,2,3,4,5,6,7,8,9].all(c, [0,1,2,3,4,5,6,7,8,9].all(d, a+b+c+d >= 0))))")
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := costly.holds(&view{x: x}); ok || err == nil {
		t.Error("a condition without a bound was evaluated to its end")
	}
}

func BenchmarkCondition(b *testing.B) {
	c, err := newCompiler()
	if err != nil {
		b.Fatal(err)
	}
	x := exchangeFor(b, conditionBody)
	for _, text := range []string{
		"identity.tier == 'paid'",
		"identity.tier == 'paid' && request.tokens < 8000 && request.stream",
		"'x-team' in request.headers && request.headers['x-team'] in ['a', 'b']",
	} {
		cond, err := c.compile(text)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(text, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if ok, err := cond.holds(&view{x: x}); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		})
	}
}
