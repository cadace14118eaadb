// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package quota_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/quota"
)

// enter reserves, and fails the test where the answer is not the one expected.
func enter(t *testing.T, l *quota.Limiter, path []*quota.Node, a quota.Amounts, want bool) (*quota.Reservation, *quota.Refusal) {
	t.Helper()
	r := &quota.Reservation{}
	f := l.Reserve(context.Background(), r, path, [2]string{"m", "m"}, &a)
	if (f == nil) != want {
		t.Fatalf("%+v: refusal %+v", a, f)
	}
	return r, f
}

func tokens(in, out int64) quota.Amounts { return quota.Amounts{Requests: 1, Input: in, Output: out} }

// example is the worked example: 200,000 tokens a minute, prompts of 32,000 and
// answers of at most 8,000. pass lets time pass.
func example(t *testing.T, l *quota.Limiter, node string, pass func(time.Duration)) {
	path := []*quota.Node{quota.NewNode(node, []config.Limit{{Tokens: 200_000, Per: "1m"}})}
	var open []*quota.Reservation
	for range 5 {
		r, _ := enter(t, l, path, tokens(32_000, 8_000), true)
		open = append(open, r)
	}
	_, f := enter(t, l, path, tokens(32_000, 8_000), false)
	if f.Wait > 12*time.Second || f.Wait < 11*time.Second || f.TooLarge || f.Left > 4_000 {
		t.Fatalf("the sixth is refused with %+v", f)
	}
	open[0].Settle(&quota.Amounts{Requests: 1, Input: 32_000, Output: 500})
	seventh, _ := enter(t, l, path, tokens(6_000, 1_000), true)
	_, f = enter(t, l, path, tokens(32_000, 8_000), false)
	pass(f.Wait)
	eighth, _ := enter(t, l, path, tokens(32_000, 8_000), true) // what Retry-After says is true
	for _, r := range append(open[1:], seventh, eighth) {
		r.Settle(&quota.Amounts{})
	}
	states, err := l.Usage(context.Background(), node, path)
	if err != nil || states[0].Reserved != 0 {
		t.Fatalf("at the end %+v, %v", states, err)
	}
}

func TestWorkedExample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		example(t, quota.NewLimiter(quota.Options{}), "acme", time.Sleep)
	})
}
