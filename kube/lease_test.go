// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/kube"
	"github.com/penstock/penstock/kube/kubetest"
)

// elector takes part in an election.
type elector struct {
	changes chan bool
	stop    func()
}

func elect(t *testing.T, s *kubetest.Server, identity string, leading *atomic.Int32, keep bool) *elector {
	t.Helper()
	c, err := kube.Connect(s.Kubeconfig("models"), "", "penstock-test")
	if err != nil {
		t.Fatal(err)
	}
	e := &elector{changes: make(chan bool, 100)}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		c.Elect(ctx, kube.Election{Namespace: "models", Name: "llama-epp", Identity: identity, Duration: 600 * time.Millisecond, Keep: keep, Changed: func(leads bool) {
			add := int32(-1)
			if leads {
				add = 1
			}
			if n := leading.Add(add); n > 1 {
				t.Errorf("%d lead at a time", n)
			}
			e.changes <- leads
		}})
	})
	e.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(e.stop)
	return e
}

func (e *elector) wait(t *testing.T, want bool) {
	t.Helper()
	select {
	case got := <-e.changes:
		if got != want {
			t.Fatalf("leads: %v, want %v", got, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("leads does not become %v", want)
	}
}

func TestElection(t *testing.T) {
	s := kubetest.New(t)
	var leading atomic.Int32
	a := elect(t, s, "a", &leading, false)
	a.wait(t, true)
	b := elect(t, s, "b", &leading, false)
	c := elect(t, s, "c", &leading, false)
	a.stop() // which gives the lease back
	a.wait(t, false)
	var next *elector
	select {
	case <-b.changes:
		next = b
	case <-c.changes:
		next = c
	case <-time.After(20 * time.Second):
		t.Fatal("nobody leads after the first has gone")
	}
	// A leader that is cut off stops before it could be replaced, and is again
	// one of several when it is back.
	s.Refuse(func(call kubetest.Call) int {
		if call.Resource == "leases" {
			return 500
		}
		return 0
	})
	next.wait(t, false)
	s.Refuse(nil)
	select {
	case <-b.changes:
	case <-c.changes:
	case <-time.After(20 * time.Second):
		t.Fatal("nobody leads after the outage")
	}
	for _, call := range s.Calls() {
		if !kube.Grants(kube.PickerAccess(true), call.Group, call.Resource, call.Verb) {
			t.Errorf("%v is called and not granted", call)
		}
	}
	for _, verb := range []string{"get", "create", "update"} {
		if !strings.Contains(callVerbs(s), " "+verb) {
			t.Errorf("%s is granted and not called", verb)
		}
	}
}

// Where two may lead for a while an outage changes nothing.
func TestElectionKeeps(t *testing.T) {
	s := kubetest.New(t)
	var leading atomic.Int32
	a := elect(t, s, "a", &leading, true)
	a.wait(t, true)
	s.Refuse(func(kubetest.Call) int { return 500 })
	select {
	case <-a.changes:
		t.Error("the leader gives up")
	case <-time.After(1500 * time.Millisecond): // more than twice the lease
	}
	s.Refuse(nil)
}

func callVerbs(s *kubetest.Server) (verbs string) {
	for _, c := range s.Calls() {
		verbs += " " + c.Verb
	}
	return verbs
}
