// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/penstock/penstock/auth"
	"github.com/penstock/penstock/config"
)

func digest(key string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(key))) }

func directory() *auth.Directory {
	return auth.New([]config.Tenant{
		{Name: "search", Tier: "paid", Regions: []string{"eu"}, Keys: []config.Key{
			{Name: "ci", Hash: digest("sk-one"), Models: []string{"chat-*", "embed"}},
			{Name: "prod", Hash: digest("sk-two"), Tier: "gold"},
		}},
	})
}

func TestIdentify(t *testing.T) {
	d := directory()
	for _, c := range []struct {
		name, header, value, query string
		want                       string // key and tier; "": refused
	}{
		{name: "bearer", header: "Authorization", value: "Bearer sk-one", want: "ci paid"},
		{name: "bearer in lower case", header: "Authorization", value: "bearer sk-two", want: "prod gold"},
		{name: "Anthropic's header", header: "x-api-key", value: "sk-two", want: "prod gold"},
		{name: "Azure's header", header: "api-key", value: "sk-two", want: "prod gold"},
		{name: "Google's header", header: "x-goog-api-key", value: "sk-two", want: "prod gold"},
		{name: "Google's query", query: "?key=sk-two", want: "prod gold"},
		{name: "none"},
		{name: "wrong", header: "Authorization", value: "Bearer sk-three"},
		{name: "the digest", header: "Authorization", value: "Bearer " + digest("sk-one")},
		{name: "another scheme", header: "Authorization", value: "Basic sk-one"},
	} {
		r := httptest.NewRequest(http.MethodPost, "/v1/messages"+c.query, nil)
		if c.header != "" {
			r.Header.Set(c.header, c.value)
		}
		got := ""
		id, fail := d.Identify(r)
		if fail == nil {
			got = id.Key + " " + id.Tier
		} else if fail.Status != http.StatusUnauthorized {
			t.Errorf("%s: status %d", c.name, fail.Status)
		}
		if got != c.want {
			t.Errorf("%s: %q, not %q", c.name, got, c.want)
		}
	}
}

func TestAllows(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header.Set("Authorization", "Bearer sk-one")
	id, fail := directory().Identify(r)
	if fail != nil {
		t.Fatal(fail)
	}
	for model, want := range map[string]bool{"chat-default": true, "chat-": true, "chat": false, "embed": true, "embed-2": false, "": false} {
		if got := id.Allows(model); got != want {
			t.Errorf("%q: %v", model, got)
		}
	}
	if !(&auth.Identity{}).Allows("anything") {
		t.Error("anybody may ask for every model")
	}
}

func BenchmarkIdentify(b *testing.B) {
	d, r := directory(), httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header.Set("Authorization", "Bearer sk-one")
	b.ReportAllocs()
	for b.Loop() {
		if _, fail := d.Identify(r); fail != nil {
			b.Fatal(fail)
		}
	}
}
