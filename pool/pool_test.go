// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/pool"
)

func addresses(p *pool.Pool) []string {
	var list []string
	for _, m := range p.Snapshot().Members {
		list = append(list, m.Address())
	}
	return list
}

func TestMembersKeepTheirIdentity(t *testing.T) {
	p := newPool(t, config.Pool{}, pool.Options{}, "b.example:80", "10.0.0.9:80", "[::1]:80")
	first := p.Snapshot()
	if diff := cmp.Diff([]string{"10.0.0.9:80", "[::1]:80", "b.example:80"}, addresses(p)); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	b := p.Lookup("b.example:80")
	p.SetMembers(members("B.example:80", "10.0.0.1:80", "10.0.0.1:80", "no port"))
	if p.Lookup("b.example:80") != b {
		t.Error("a member that stayed has another identity")
	}
	if diff := cmp.Diff([]string{"10.0.0.1:80", "b.example:80"}, addresses(p)); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
	if len(first.Members) != 3 || p.Snapshot().Version <= first.Version {
		t.Error("the earlier snapshot changed, or the version did not")
	}
	version := p.Snapshot().Version
	p.SetMembers(members("10.0.0.1:80", "b.example:80"))
	if p.Snapshot().Version != version {
		t.Error("the version moved though nothing changed")
	}
	p.SetMembers([]config.Member{{Address: "b.example:80", Labels: map[string]string{"role": "decode"}}, {Address: "10.0.0.1:80"}})
	if p.Snapshot().Version == version || b.Labels()["role"] != "decode" {
		t.Error("a changed label is not seen")
	}
}

// An empty list is an answer, unlike none, and unlike one that cannot be read.
func TestToldThatThereAreNone(t *testing.T) {
	source := func(from config.Members) *pool.Pool {
		p, err := pool.New(config.Pool{Name: "p", Members: from, Metrics: config.Metrics{Off: true}}, pool.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		return p
	}
	if !source(config.Members{Static: members("10.0.0.1:80")}).Told() {
		t.Error("static members are not known at once")
	}
	p := source(config.Members{})
	if p.Told() {
		t.Error("nobody has said anything yet")
	}
	p.SetMembers(members("no port"))
	if p.Told() {
		t.Error("nothing that was said was an address")
	}
	version := p.Snapshot().Version
	p.SetMembers(nil)
	if !p.Told() || p.Snapshot().Version != version {
		t.Errorf("told %v; the version went from %d to %d", p.Told(), version, p.Snapshot().Version)
	}

	file := filepath.Join(t.TempDir(), "members.yaml")
	if err := os.WriteFile(file, []byte("[]"), 0o600); err != nil {
		t.Fatal(err)
	}
	p = source(config.Members{File: file})
	if p.Told() {
		t.Error("the file has not been read yet")
	}
	p.Start(t.Context())
	if !p.Told() {
		t.Error("an empty file is an answer")
	}

	p = source(config.Members{File: file + "?"})
	p.Start(t.Context())
	if p.Told() {
		t.Error("a file that is missing is none")
	}
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		cfg  config.Pool
		want string
	}{
		{config.Pool{Members: config.Members{DNS: "a:1", File: "f"}}, "more than one"},
		{config.Pool{Members: config.Members{Static: members("10.0.0.1")}}, "members.static[0]: address"},
		{config.Pool{Members: config.Members{DNS: "a:http"}}, "members.dns: address"},
		{config.Pool{Protocol: "h3"}, `protocol: unknown protocol "h3"`},
		{config.Pool{Engine: "tgi"}, `engine: unknown engine "tgi"`},
		{config.Pool{Metrics: config.Metrics{Path: "metrics"}}, "metrics.path"},
		{config.Pool{Probe: &config.Probe{Path: "health"}}, "probe.path"},
		{config.Pool{Metrics: config.Metrics{Interval: -1}}, "negative"},
		{config.Pool{Ejection: config.Ejection{MaxPercent: 101}}, "maxPercent"},
		{config.Pool{Protocol: config.HTTPS, TLS: &config.ClientTLS{CA: "no-such-file"}}, "tls.ca"},
	} {
		c.cfg.Name = "p"
		_, err := pool.New(c.cfg, pool.Options{})
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "pool p: ") {
			t.Errorf("error %v, want one with %q", err, c.want)
		}
	}
}

func TestDefaultsAreFilledIn(t *testing.T) {
	cfg := newPool(t, config.Pool{Engine: config.TRTLLM, Probe: &config.Probe{}}, pool.Options{}).Config()
	if cfg.Metrics.Path != "/prometheus/metrics" || cfg.Protocol != config.HTTP || cfg.Metrics.MaxCPU != 0.15 ||
		cfg.Ejection.Failures != 3 || cfg.Probe.Path != "/health" {
		t.Errorf("config in force: %+v, probe %+v", cfg, cfg.Probe)
	}
}

func TestPrepareChangesNothingUntilCommit(t *testing.T) {
	p := newPool(t, config.Pool{Metrics: config.Metrics{Off: true}}, pool.Options{}, "10.0.0.1:80", "10.0.0.2:80")
	p.Start(t.Context())
	stays := p.Lookup("10.0.0.2:80")
	charge := stays.Charge(1, 1)
	if _, err := p.Prepare(config.Pool{Name: "p", Protocol: "h3"}); err == nil {
		t.Fatal("a bad configuration is prepared")
	}
	commit, err := p.Prepare(config.Pool{Name: "p", Metrics: config.Metrics{Off: true}, Ejection: config.Ejection{Failures: 1},
		Members: config.Members{Static: members("10.0.0.2:80", "10.0.0.3:80")}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"10.0.0.1:80", "10.0.0.2:80"}, addresses(p)); diff != "" {
		t.Errorf("members before commit (-want +got):\n%s", diff)
	}
	commit()
	if diff := cmp.Diff([]string{"10.0.0.2:80", "10.0.0.3:80"}, addresses(p)); diff != "" {
		t.Errorf("members after commit (-want +got):\n%s", diff)
	}
	if p.Lookup("10.0.0.2:80") != stays || stays.Load().Requests != 1 {
		t.Error("a member that stayed lost its identity or its load")
	}
	charge.Release()
	stays.Report(pool.Reset)
	wantState(t, stays, pool.Ejected) // by the new bound
	p.Close()
	commit, err = p.Prepare(p.Config())
	if err != nil {
		t.Fatal(err)
	}
	commit() // of a closed pool: starts nothing
}

// What is due goes to workers in batches of 16, but members that are slow or
// have no connection go alone.
func TestScrapeBatches(t *testing.T) {
	for _, c := range []struct {
		turns string // p: prompt, s: slow, n: no connection
		want  string
	}{
		{"", ""},
		{"p", "p"},
		{"ppp", "ppp"},
		{"psnp", "s n pp"},
		{strings.Repeat("p", 17), strings.Repeat("p", 16) + " p"},
		{"s" + strings.Repeat("p", 16), "s " + strings.Repeat("p", 16)},
	} {
		if got := pool.Batches(c.turns, true); got != c.want {
			t.Errorf("%s: %s, want %s", c.turns, got, c.want)
		}
	}
	if got := pool.Batches("ppsn", false); got != "p p s n" {
		t.Errorf("jobs without a beginning: %s", got)
	}
}

// Members of a batch are not held up by one that hangs: each is read when its
// answer comes, the last one however long it takes.
func TestBatchIsReadAsAnswersCome(t *testing.T) {
	p := newPool(t, config.Pool{}, pool.Options{}, "a:1", "b:1", "c:1", "d:1")
	looks := map[string]int{}
	order := p.BatchOrder(func(m *pool.Member) bool {
		looks[m.Address()]++
		return m.Address() != "a:1" && looks[m.Address()] > map[string]int{"c:1": 1}[m.Address()]
	})
	if got := strings.Join(order, ", "); got != "begin a:1, begin b:1, begin c:1, begin d:1, b:1, d:1, c:1, a:1" {
		t.Error(got)
	}
}

func TestScrapeIntervalStretchesWithThePool(t *testing.T) {
	var addrs []string
	for i := range 400 {
		addrs = append(addrs, fmt.Sprintf("10.0.%d.%d:80", i/200, i%200))
	}
	p := newPool(t, config.Pool{}, pool.Options{}, addrs...)
	for _, c := range []struct{ cost, want int64 }{{0, 133}, {45, 133}, {150, 400}, {1500, 4000}} {
		p.SetScrapeCost(time.Duration(c.cost) * time.Microsecond)
		if got := p.ScrapeInterval().Milliseconds(); got != c.want {
			t.Errorf("400 members at %d µs: interval %d ms, want %d", c.cost, got, c.want)
		}
	}
}
