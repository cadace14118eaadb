// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
)

var fromHere = netip.MustParseAddr("10.1.2.3")

// stock is a registry with some keys under a tenant of the configuration.
func stock() (*Registry, *Directory, *Peppers, string) {
	p := NewPeppers("a pepper of sixteen", nil)
	r := NewRegistry()
	r.SetPeppers(p)
	d := New([]config.Tenant{{Name: "acme", Tier: "paid", Models: []string{"chat*"}, Regions: []string{"eu", "us"}, Deny: []string{"chat-hr"}}}, r)
	secret := NewSecret()
	r.Apply([]StoredTenant{{Path: "acme/search", Spec: TenantSpec{Regions: []string{"eu"}, Sources: []string{"10.0.0.0/8"}, Limits: []config.Limit{{Requests: 5, Per: "1m"}}}}},
		[]StoredKey{{ID: "key_1", Tenant: "acme/search", Name: "ci", Secrets: []StoredSecret{{Digest: p.Digest(secret)}}}})
	return r, d, p, secret
}

func TestStoredKey(t *testing.T) {
	r, d, p, secret := stock()
	now := time.Now().Unix()
	id, why := d.find(secret, fromHere, now)
	if why != ok {
		t.Fatal(why)
	}
	if id.Tenant != "acme/search" || id.Key != "ci" || id.Tier != "paid" || id.ID != "key_1" || !slices.Equal(id.Regions, []string{"eu"}) {
		t.Errorf("%+v", id)
	}
	var names []string
	for _, n := range id.Nodes {
		names = append(names, n.Name)
	}
	if !slices.Equal(names, []string{"acme", "acme/search", "acme/search:ci"}) || id.Nodes[1].Limits[0].Requests != 5 {
		t.Error(names)
	}
	for model, want := range map[string]bool{"chat": true, "chat-hr": false, "gpt": false} {
		if id.Allows(model) != want {
			t.Errorf("%s: %v", model, !want)
		}
	}
	if again, _ := d.find(secret, fromHere, now); again != id {
		t.Error("the identity is made again for each request")
	}
	if _, why := d.find(secret, netip.MustParseAddr("192.0.2.1"), now); why != foreign {
		t.Errorf("from elsewhere: %q", why)
	}
	if _, why := d.find(NewSecret(), fromHere, now); why != unknown {
		t.Errorf("another's: %q", why)
	}
	if _, why := d.find(secret[:40]+"!", fromHere, now); why != mistyped {
		t.Errorf("mistyped: %q", why)
	}

	set := func(k StoredKey) {
		k.ID, k.Tenant, k.Name = "key_1", "acme/search", "ci"
		if k.Secrets == nil {
			k.Secrets = []StoredSecret{{Digest: p.Digest(secret)}}
		}
		r.Apply(nil, []StoredKey{k})
	}
	for _, c := range []struct {
		name string
		key  StoredKey
		want reason
	}{
		{"disabled", StoredKey{Spec: KeySpec{Disabled: true}}, disabled},
		{"expired", StoredKey{Spec: KeySpec{Expires: "2020-01-01"}}, expired},
		{"early", StoredKey{Spec: KeySpec{NotBefore: "2999-01-01"}}, tooEarly},
		{"a secret whose grace is over", StoredKey{Secrets: []StoredSecret{{Digest: p.Digest(secret), Until: now}}}, expired},
		{"a secret in its grace", StoredKey{Secrets: []StoredSecret{{Digest: p.Digest(NewSecret())}, {Digest: p.Digest(secret), Until: now + 1}}}, ok},
		{"rotated away", StoredKey{Secrets: []StoredSecret{{Digest: p.Digest(NewSecret())}}}, unknown},
		{"back", StoredKey{}, ok},
		{"gone", StoredKey{Gone: true}, unknown},
		{"gone twice", StoredKey{Gone: true}, unknown},
		{"made again", StoredKey{}, ok},
	} {
		set(c.key)
		if _, why := d.find(secret, fromHere, now); why != c.want {
			t.Errorf("%s: %q, not %q", c.name, why, c.want)
		}
	}

	r.Apply([]StoredTenant{{Path: "acme/search", Spec: TenantSpec{Models: []string{"chat-a"}}}}, nil)
	if id, _ := d.find(secret, fromHere, now); id.Allows("chat") || !id.Allows("chat-a") {
		t.Error("a change of the tenant does not reach its keys")
	}
	r.Apply([]StoredTenant{{Path: "acme/search", Gone: true}}, nil)
	if _, why := d.find(secret, fromHere, now); why != disabled {
		t.Errorf("without its tenant: %q", why)
	}
	r.Apply([]StoredTenant{{Path: "acme/search"}}, nil)
	if _, why := New([]config.Tenant{{Name: "other"}}, r).find(secret, fromHere, now); why != disabled {
		t.Errorf("without the organisation: %q", why)
	}
	r.Believe(time.Unix(now-1, 0))
	if _, why := d.find(secret, fromHere, now); why != stale || why.refusal().Status != http.StatusServiceUnavailable {
		t.Errorf("with a stale store: %q", why)
	}
	r.Believe(time.Time{})
	r.Retain(map[string]bool{}, map[string]bool{})
	if r.Len() != 0 || r.node("acme/search") != nil {
		t.Error("what the store does not have stays")
	}
}

// TestOlderPepper: secrets made under one that was current are known until it is
// taken out.
func TestOlderPepper(t *testing.T) {
	r, d, _, secret := stock()
	now := time.Now().Unix()
	r.SetPeppers(NewPeppers("the newer pepper 1", []config.Secret{"a pepper of sixteen"}))
	if _, why := d.find(secret, fromHere, now); why != ok {
		t.Error(why)
	}
	r.SetPeppers(NewPeppers("the newer pepper 1", nil))
	if _, why := d.find(secret, fromHere, now); why != unknown {
		t.Error(why)
	}
}

func TestLastUse(t *testing.T) {
	r, d, _, secret := stock()
	for _, c := range []struct {
		at   int64
		want map[string]int64
	}{
		{1000, map[string]int64{"key_1": 1000}},
		{1059, map[string]int64{}},
		{1060, map[string]int64{"key_1": 1060}},
	} {
		if _, why := d.find(secret, fromHere, c.at); why != ok {
			t.Fatal(why)
		}
		if got := r.Used(); len(got) != len(c.want) || got["key_1"] != c.want["key_1"] {
			t.Errorf("at %d: %v", c.at, got)
		}
	}
}

// TestRegistryUnderChange reads while keys come and go: a key that stays is known
// at every moment.
func TestRegistryUnderChange(t *testing.T) {
	r, d, p, secret := stock()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, why := d.find(secret, fromHere, time.Now().Unix()); why != ok {
					t.Error(why)
					return
				}
			}
		})
	}
	for i := range 500 {
		id := fmt.Sprintf("key_%d", 2+i%50)
		r.Apply([]StoredTenant{{Path: "acme/search"}}, []StoredKey{{ID: id, Tenant: "acme/search", Name: id, Gone: i%3 == 0, Secrets: []StoredSecret{{Digest: p.Digest(NewSecret())}}}})
	}
	close(stop)
	wg.Wait()
}

func TestIdentifyAllocations(t *testing.T) {
	_, d, _, secret := stock()
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.RemoteAddr = "10.1.2.3:999"
	r.Header.Set("Authorization", "Bearer "+secret)
	if _, fail := d.Identify(r); fail != nil {
		t.Fatal(fail)
	}
	if n := testing.AllocsPerRun(100, func() { d.Identify(r) }); n > 0 && !raced {
		t.Errorf("%v allocations for a key that is known", n)
	}
}

// BenchmarkIdentify1M looks up keys of a million, each with its tenants above it: a
// thousand that are in use, whose memory the processor's caches hold, and 65,536 in
// turn, of which they hold none. MiB is what the million takes, made identities
// included.
func BenchmarkIdentify1M(b *testing.B) {
	const total, sample = 1_000_000, 1 << 16
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	p := NewPeppers("a pepper of sixteen", nil)
	r := NewRegistry()
	r.SetPeppers(p)
	d := New([]config.Tenant{{Name: "acme"}}, r)
	var tenants []StoredTenant
	for i := range 1000 {
		tenants = append(tenants, StoredTenant{Path: fmt.Sprintf("acme/team-%d", i)})
	}
	r.Apply(tenants, nil)
	secrets := make([]string, 0, sample)
	for done := 0; done < total; {
		var page []StoredKey
		for range 5000 {
			k := StoredKey{ID: NewID("key_"), Tenant: tenants[done%1000].Path, Name: fmt.Sprintf("key-%d", done)}
			var digest Digest
			if len(secrets) < sample && done%15 == 0 {
				s := NewSecret()
				secrets = append(secrets, s)
				digest = p.Digest(s)
			} else { // drawn at random, as digests are
				binary.LittleEndian.PutUint64(digest[:], uint64(done)*0x9E3779B97F4A7C15)
				copy(digest[8:], k.ID)
			}
			k.Secrets = []StoredSecret{{Digest: digest}}
			page = append(page, k)
			done++
		}
		r.Apply(nil, page)
	}
	now := time.Now().Unix()
	for _, s := range secrets {
		if _, why := d.find(s, fromHere, now); why != ok {
			b.Fatal(why)
		}
	}
	r.Used()
	runtime.GC()
	runtime.ReadMemStats(&after)
	for _, inUse := range []int{1000, sample} {
		b.Run(fmt.Sprintf("inUse=%d", inUse), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, why := d.find(secrets[(i*40503)%inUse], fromHere, now); why != ok {
					b.Fatal(why)
				}
			}
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB")
		})
	}
	runtime.KeepAlive(r)
}

// BenchmarkApply is one change among a million keys.
func BenchmarkApply(b *testing.B) {
	r := NewRegistry()
	r.SetPeppers(NewPeppers("a pepper of sixteen", nil))
	var page []StoredKey
	for i := range 1_000_000 {
		var digest Digest
		binary.LittleEndian.PutUint64(digest[:], uint64(i)*0x9E3779B97F4A7C15)
		page = append(page, StoredKey{ID: fmt.Sprintf("key_%d", i), Tenant: "acme", Name: "n", Secrets: []StoredSecret{{Digest: digest}}})
	}
	r.Apply(nil, page)
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; b.Loop(); i++ {
		k := page[i%len(page)]
		k.Spec.Disabled = i%2 == 0
		r.Apply(nil, []StoredKey{k})
	}
}

func TestNodesAreThoseOfTenantsWithoutKeysToo(t *testing.T) {
	r := NewRegistry()
	r.Apply([]StoredTenant{{Path: "acme/stored"}, {Path: "hidden"}}, nil)
	d := New([]config.Tenant{{Name: "acme"}, {Name: "hidden", Keys: []config.Key{{Name: "k", Hash: "sha256:" + strings.Repeat("0", 64)}}}}, r)
	var got []string
	d.Nodes(func(n *Node) { got = append(got, n.Name) })
	slices.Sort(got)
	if want := []string{"acme", "acme/stored", "hidden", "hidden:k"}; !slices.Equal(got, want) {
		t.Errorf("nodes %q, want %q", got, want)
	}
}
