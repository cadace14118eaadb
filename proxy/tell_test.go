// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/quota"
)

// The headers of each kind are found by the names that the libraries read, whatever
// their case.
func TestLimitHeaders(t *testing.T) {
	for _, c := range []struct {
		limit     config.Limit
		anthropic bool
		prefix    string
		suffix    string
	}{
		{config.Limit{Requests: 1000, Per: "1m"}, false, "x-ratelimit-", "-requests"},
		{config.Limit{Tokens: 1000, Per: "1m"}, false, "x-ratelimit-", "-tokens"},
		{config.Limit{Input: 1000, Per: "1m"}, false, "x-ratelimit-", "-tokens"},
		{config.Limit{Requests: 1000, Per: "1m"}, true, "anthropic-ratelimit-requests-", ""},
		{config.Limit{Weighted: 1000, Per: "1m"}, true, "anthropic-ratelimit-tokens-", ""},
		{config.Limit{Input: 1000, Per: "1m"}, true, "anthropic-ratelimit-input-tokens-", ""},
		{config.Limit{Output: 1000, Per: "1m"}, true, "anthropic-ratelimit-output-tokens-", ""},
	} {
		s := quota.State{Limit: quota.NewNode("acme", []config.Limit{c.limit}).Limits()[0], Used: 300, Reset: 1500*time.Millisecond + 1}
		h := http.Header{}
		tellLimit(h, c.anthropic, s)
		name := func(what string) string { return c.prefix + what + c.suffix }
		reset := h.Get(name("reset"))
		if at, err := time.Parse(time.RFC3339, reset); c.anthropic && (err != nil || time.Until(at) > 3*time.Second || time.Until(at) < -time.Minute) || !c.anthropic && reset != "1.501s" {
			t.Errorf("%s is %q", name("reset"), reset)
		}
		if len(h) != 3 || h.Get(name("limit")) != "1000" || h.Get(name("remaining")) != "700" {
			t.Errorf("%s: %v", name("…"), h)
		}
		if n := testing.AllocsPerRun(100, func() { tellLimit(h, c.anthropic, s) }); n > 3 {
			t.Errorf("%s: %.0f allocations", name("…"), n)
		}
	}
	h := http.Header{}
	tellLimit(h, false, quota.State{Limit: quota.NewNode("acme", []config.Limit{{USD: 1, Per: "month"}}).Limits()[0]})
	if len(h) > 0 {
		t.Errorf("money is told: %v", h)
	}
}
