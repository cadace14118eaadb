// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/pool"
)

// zone is a resolver whose one name changes.
type zone struct {
	mu    sync.Mutex
	host  string // last asked for
	addrs []netip.Addr
	err   error
	asked int
}

func (z *zone) set(err error, addrs ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.err, z.addrs = err, nil
	for _, a := range addrs {
		z.addrs = append(z.addrs, netip.MustParseAddr(a))
	}
}

func (z *zone) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.host = host
	z.asked++
	return z.addrs, z.err
}

// logText is a log to look at afterwards.
type logText struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logText) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), s)
}

func (l *logText) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func TestDNSKeepsTheLastGoodSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z, log := &zone{}, &logText{}
		z.set(nil, "10.0.0.2", "2001:db8::1", "::ffff:10.0.0.1")
		p, err := pool.New(config.Pool{Name: "p", Metrics: config.Metrics{Off: true}, Members: config.Members{DNS: "vllm.gpu:8000"}},
			pool.Options{Resolver: z, Log: log.logger()})
		if err != nil {
			t.Fatal(err)
		}
		p.Start(t.Context())
		all := []string{"10.0.0.1:8000", "10.0.0.2:8000", "[2001:db8::1]:8000"}
		if diff := cmp.Diff(all, addresses(p)); diff != "" {
			t.Fatalf("members when Start returns (-want +got):\n%s", diff)
		}
		if z.host != "vllm.gpu" {
			t.Errorf("asked for %q", z.host)
		}
		stays := p.Lookup("10.0.0.1:8000")
		steps := []struct {
			err   error
			addrs []string
			want  []string
			ok    bool
		}{
			{errors.New("no such host"), nil, all, false},
			{errors.New("server misbehaving"), nil, all, false},
			{nil, nil, all, false}, // an empty answer
			{nil, []string{"10.0.0.1", "10.0.0.3"}, []string{"10.0.0.1:8000", "10.0.0.3:8000"}, true},
		}
		for i, s := range steps {
			z.set(s.err, s.addrs...)
			time.Sleep(30 * time.Second)
			synctest.Wait()
			if diff := cmp.Diff(s.want, addresses(p)); diff != "" {
				t.Errorf("step %d: members (-want +got):\n%s", i, diff)
			}
			d := p.Status().Discovery
			if d.OK != s.ok || (d.LastError == "") != s.ok || d.Source != "dns" {
				t.Errorf("step %d: status %+v, want ok %v", i, d, s.ok)
			}
		}
		if p.Lookup("10.0.0.1:8000") != stays {
			t.Error("a member that stayed has another identity")
		}
		if n := log.count("discovery fails"); n != 1 {
			t.Errorf("%d log lines for one time of failure", n)
		}
		if n := log.count("discovery works again"); n != 1 {
			t.Errorf("%d log lines for its end", n)
		}
		p.Close()
	})
}

func TestDNSThatNeverAnsweredIsAskedSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := &zone{err: errors.New("no such host")}
		p, err := pool.New(config.Pool{Name: "p", Metrics: config.Metrics{Off: true},
			Members: config.Members{DNS: "vllm.gpu:8000", Refresh: config.Duration(time.Minute)}}, pool.Options{Resolver: z})
		if err != nil {
			t.Fatal(err)
		}
		p.Start(t.Context())
		if d := p.Status().Discovery; d.OK || d.LastError != "no such host" || len(addresses(p)) != 0 {
			t.Errorf("after a failed first discovery: %+v", d)
		}
		z.set(nil, "10.0.0.1")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]string{"10.0.0.1:8000"}, addresses(p)); diff != "" {
			t.Errorf("members (-want +got):\n%s", diff)
		}
		p.Close()
	})
}

func TestNewSourceKeepsOldMembersUntilItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := &zone{err: errors.New("no such host")}
		off := config.Metrics{Off: true}
		p, err := pool.New(config.Pool{Name: "p", Metrics: off, Members: config.Members{Static: members("10.0.0.1:80")}}, pool.Options{Resolver: z})
		if err != nil {
			t.Fatal(err)
		}
		p.Start(t.Context())
		commit, err := p.Prepare(config.Pool{Name: "p", Metrics: off, Members: config.Members{DNS: "vllm.gpu:80"}})
		if err != nil {
			t.Fatal(err)
		}
		commit()
		synctest.Wait()
		if diff := cmp.Diff([]string{"10.0.0.1:80"}, addresses(p)); diff != "" {
			t.Errorf("members while the new source fails (-want +got):\n%s", diff)
		}
		z.set(nil, "10.0.0.7")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]string{"10.0.0.7:80"}, addresses(p)); diff != "" {
			t.Errorf("members when it answers (-want +got):\n%s", diff)
		}
		p.Close()
	})
}

func TestMembersFileIsWatched(t *testing.T) {
	path := filepath.Join(t.TempDir(), "members.yaml")
	write := func(text string) {
		t.Helper()
		// By renaming, as editors and mounted volumes do.
		if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write("- 10.0.0.1:80\n")
	p, err := pool.New(config.Pool{Name: "p", Metrics: config.Metrics{Off: true}, Members: config.Members{File: path}}, pool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.Start(t.Context())
	if diff := cmp.Diff([]string{"10.0.0.1:80"}, addresses(p)); diff != "" {
		t.Fatalf("members when Start returns (-want +got):\n%s", diff)
	}
	first := p.Lookup("10.0.0.1:80")
	write("- {address: \"10.0.0.1:80\", labels: {role: decode}}\n- 10.0.0.2:80\n")
	eventually(t, "the new list counts", func() bool { return p.Lookup("10.0.0.2:80") != nil })
	if p.Lookup("10.0.0.1:80") != first || first.Labels()["role"] != "decode" {
		t.Error("a member that stayed has another identity or no label")
	}
	write("- 10.0.0.3\n")
	eventually(t, "the bad file is reported", func() bool { return !p.Status().Discovery.OK })
	if d := p.Status().Discovery; len(addresses(p)) != 2 || !strings.Contains(d.LastError, "line 1") {
		t.Errorf("after a bad file: %v, %+v", addresses(p), d)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write("[]\n")
	eventually(t, "the empty list counts", func() bool { return len(addresses(p)) == 0 && p.Status().Discovery.OK })
}
