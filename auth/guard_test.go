// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/penstock/penstock/config"
)

func from(addr, key string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.RemoteAddr = addr
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	return r
}

func TestGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, _, secret := stock()
		reg, _, p, _ := stock()
		reg.Apply(nil, []StoredKey{{ID: "key_1", Tenant: "acme/search", Name: "ci", Secrets: []StoredSecret{{Digest: p.Digest(secret)}}}})
		d := New([]config.Tenant{{Name: "acme", Keys: []config.Key{{Name: "own", Hash: fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("weak")))}, {Name: "other", Hash: fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("other")))}}}}, reg)
		var out bytes.Buffer
		in := NewInstruments(nil, nil)
		g := NewGuard(5, slog.New(slog.NewTextHandler(&out, nil)), in)
		try := func(addr, key string) (status int, took time.Duration) {
			start := time.Now()
			_, fail := g.Identify(d, from(addr, key), false)
			if fail != nil {
				return fail.Status, time.Since(start)
			}
			return 200, time.Since(start)
		}
		for i := range 5 {
			if status, took := try("10.9.9.9:1", "wrong"); status != 401 || took != 0 {
				t.Fatalf("try %d: %d after %s", i, status, took)
			}
		}
		if status, took := try("10.9.9.9:2", NewSecret()); status != 429 || took != time.Second {
			t.Errorf("one too many: %d after %s", status, took)
		}
		_, fail := g.Identify(d, from("10.9.9.9:3", "wrong"), false)
		if fail == nil || fail.Header.Get("Retry-After") != "60" {
			t.Errorf("%+v", fail)
		}
		// Who has a key passes behind the same address: at once with a key of the
		// store's form, after the wait with another.
		if status, took := try("10.9.9.9:4", secret); status != 200 || took != 0 {
			t.Errorf("a good key: %d after %s", status, took)
		}
		if status, took := try("10.9.9.9:4", "weak"); status != 200 || took != time.Second {
			t.Errorf("a good key of another form: %d after %s", status, took)
		}
		// From then on it passes, whatever comes beside it: only there, and no other.
		if status, took := try("10.9.9.9:4", "weak"); status != 200 || took != 0 {
			t.Errorf("a key that was good before: %d after %s", status, took)
		}
		if status, took := try("10.9.9.9:4", "weal"); status != 429 || took != time.Second {
			t.Errorf("a wrong key of the same form: %d after %s", status, took)
		}
		if status, took := try("10.9.9.8:1", "weak"); status != 200 || took != 0 {
			t.Errorf("from another address: %d after %s", status, took)
		}
		if status, took := try("10.9.9.9:5", ""); status != 401 || took != time.Second {
			t.Errorf("without a key: %d after %s", status, took)
		}
		// Few wait at a time; the others are refused without being looked for.
		var wg sync.WaitGroup
		statuses, instant := map[int]int{}, 0
		var mu sync.Mutex
		for range 20 {
			wg.Go(func() {
				status, took := try("10.9.9.9:6", "other")
				mu.Lock()
				statuses[status]++
				if took == 0 {
					instant++
				}
				mu.Unlock()
			})
		}
		wg.Wait()
		if statuses[200] != guardPlaces || statuses[429] != 20-guardPlaces || instant != 20-guardPlaces {
			t.Errorf("of 20 at once: %v, %d at once", statuses, instant)
		}
		if n := strings.Count(out.String(), "\n"); n != 1 || strings.Contains(out.String(), "wrong\n") {
			t.Errorf("%d lines:\n%s", n, out.String())
		}
		if n := testutil.ToFloat64(in.failures.WithLabelValues("unknown")); n != 8 {
			t.Errorf("unknown: %v", n)
		}
		if n := testutil.ToFloat64(in.failures.WithLabelValues("throttled")); n != 20-guardPlaces {
			t.Errorf("throttled: %v", n)
		}
		time.Sleep(2 * time.Minute)
		if status, took := try("10.9.9.9:7", "wrong"); status != 401 || took != 0 {
			t.Errorf("two minutes later: %d after %s", status, took)
		}
	})
}

// TestGuardNetworks: the addresses of one /64 are one source.
func TestGuardNetworks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(nil)
		g := NewGuard(10, nil, nil)
		last := 0
		for i := range 12 {
			_, fail := g.Identify(d, from(fmt.Sprintf("[2001:db8::%x]:1", i), "wrong"), false)
			last = fail.Status
		}
		if last != 429 {
			t.Errorf("the twelfth address of a network: %d", last)
		}
		if _, fail := g.Identify(d, from("[2001:db8:0:1::1]:1", "wrong"), false); fail.Status != 401 {
			t.Errorf("another network: %d", fail.Status)
		}
		if _, fail := g.Identify(d, from("[::ffff:10.0.0.1]:1", "wrong"), false); fail.Status != 401 {
			t.Errorf("an IPv4 address: %d", fail.Status)
		}
	})
}

// TestGuardIsBounded floods it with addresses: it stays within its bound, and does
// not forget who insists.
func TestGuardIsBounded(t *testing.T) {
	g := NewGuard(5, nil, nil)
	d := New(nil)
	now := time.Now().Unix()
	insists := client(from("192.0.2.1:1", ""))
	for range 100 {
		g.count(insists, unknown, now)
	}
	for i := range 100_000 {
		a := client(from(fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255), ""))
		g.count(a, unknown, now)
	}
	total := 0
	for i := range g.shards {
		total += len(g.shards[i].sources)
	}
	if total > guardShards*guardEntries {
		t.Errorf("%d sources are kept", total)
	}
	if !g.over(insists, now) {
		t.Error("who insists is forgotten")
	}
	_ = d
}

// TestGuardLetsInWhoWasIn: a flood of wrong keys that takes every place behind an
// address keeps nobody out whose key was good from there, and one that is taken
// away is counted like any wrong one.
func TestGuardLetsInWhoWasIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New([]config.Tenant{{Name: "acme", Keys: []config.Key{{Name: "own", Hash: fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("weak")))}}}})
		g := NewGuard(5, nil, nil)
		if _, fail := g.Identify(d, from("10.9.9.9:1", "weak"), false); fail != nil {
			t.Fatal(fail)
		}
		for i := range 200 {
			go g.Identify(d, from("10.9.9.9:2", fmt.Sprint("wrong ", i)), false)
		}
		synctest.Wait() // every place is taken
		begin := time.Now()
		for range 100 {
			if _, fail := g.Identify(d, from("10.9.9.9:3", "weak"), false); fail != nil {
				t.Fatalf("%+v", fail)
			}
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("it took %s", took)
		}
		if _, fail := g.Identify(New(nil), from("10.9.9.9:3", "weak"), false); fail == nil || fail.Status != 429 {
			t.Errorf("a key that is gone: %+v", fail)
		}
		time.Sleep(2 * time.Second)
	})
}
