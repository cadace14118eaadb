// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Election is a Lease by which replicas agree on who leads. A leader that ends
// gives it up, and the next takes it within Retry; one that dies is succeeded
// after Life.
type Election struct {
	Name  string        // of the Lease. Default penstock-controller
	Life  time.Duration // default 10s
	Renew time.Duration // how long a leader tries before it gives up; default 7s
	Retry time.Duration // default 1s
}

// elect calls lead with a context that ends with this replica's leading, and
// after that again, until ctx ends.
func (c *Controller) elect(ctx context.Context, lead func(context.Context)) error {
	e := c.o.Election
	if e == nil {
		lead(ctx)
		return nil
	}
	set := func(d *time.Duration, otherwise time.Duration) time.Duration {
		if *d <= 0 {
			return otherwise
		}
		return *d
	}
	name := e.Name
	if name == "" {
		name = "penstock-controller"
	}
	config := rest.CopyConfig(c.api.config)
	// A client of its own: a lease must not wait behind a thousand statuses.
	client, err := coordination.NewForConfig(config)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		// The elector calls in a goroutine that it does not wait for.
		ended := make(chan struct{})
		var mu sync.Mutex
		var began, over bool
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: c.o.Namespace, Name: name},
				Client:     client,
				LockConfig: resourcelock.ResourceLockConfig{Identity: c.o.Identity},
			},
			LeaseDuration:   set(&e.Life, 10*time.Second),
			RenewDeadline:   set(&e.Renew, 7*time.Second),
			RetryPeriod:     set(&e.Retry, time.Second),
			ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) {
					defer close(ended)
					mu.Lock()
					began = !over
					mu.Unlock()
					if began {
						lead(ctx)
					}
				},
				OnStoppedLeading: func() {},
				OnNewLeader: func(who string) {
					c.log.Info("leader", "identity", who, "self", who == c.o.Identity)
				},
			},
		})
		if err != nil {
			return err
		}
		elector.Run(ctx)
		mu.Lock()
		over = true
		wait := began
		mu.Unlock()
		if wait {
			<-ended
		}
		if !sleep(ctx, 100*time.Millisecond) {
			return nil
		}
	}
	return nil
}
