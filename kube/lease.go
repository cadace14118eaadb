// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Election is a Lease that one of several processes holds at a time.
//
// Whoever holds it renews it; the others take it when it was not renewed for
// Duration by their own clock: clocks of different machines are never compared.
// A holder that cannot renew stops to lead before anybody else may take over,
// unless Keep says otherwise.
type Election struct {
	Namespace, Name string
	Identity        string        // of this process, unlike any other's
	Duration        time.Duration // default 6s: how long a lease is good without being renewed
	// Keep lets a holder that cannot reach the API server lead on until it sees
	// that another one does. It is for work that two may do for a while: an
	// outage of the API server then stops nothing.
	Keep bool
	Log  *slog.Logger // nil: none
	// Changed is called with every change, never twice at a time.
	Changed func(leads bool)
}

// Elect takes part until ctx ends, and then gives the lease back, so that the
// next one need not wait.
func (c *Cluster) Elect(ctx context.Context, e Election) error {
	client, err := c.client(coordinationv1.SchemeGroupVersion)
	if err != nil {
		return err
	}
	if e.Log == nil {
		e.Log = slog.New(slog.DiscardHandler)
	}
	e.Duration = cmp.Or(e.Duration, 6*time.Second)
	v := &candidate{Election: e, client: client}
	for {
		v.try(ctx)
		pause := e.Duration / 4
		pause += time.Duration(rand.Int64N(int64(pause/5) + 1)) // so that candidates do not try as one
		select {
		case <-ctx.Done():
			v.release()
			return nil
		case <-time.After(pause):
		}
	}
}

// candidate is the state of one Elect.
type candidate struct {
	Election
	client rest.Interface

	leads   bool
	renewed time.Time // when the last renewal of ours was sent
	failing bool      // the log says so

	seen   string    // holder and time of renewal as they were seen last
	seenAt time.Time // by our clock
}

// try renews or takes the lease, within a quarter of its duration.
func (v *candidate) try(parent context.Context) {
	ctx, cancel := context.WithTimeout(parent, v.Duration/4)
	defer cancel()
	sent := time.Now()
	held, err := v.hold(ctx)
	switch {
	case parent.Err() != nil:
		return
	case err == nil && held:
		v.renewed = sent
		v.lead(true)
	case err == nil, apierrors.IsConflict(err), apierrors.IsAlreadyExists(err): // another one was faster
		v.lead(false)
	case !v.Keep && time.Since(v.renewed) > v.Duration*2/5: // the next try could end after the lease: 0.4 + 0.3 + 0.25
		v.lead(false)
	}
	failed := err != nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err)
	if failed && !v.failing {
		v.Log.Error("election", "lease", v.Name, "error", explainAPI(err, "use", leases(), v.Namespace))
	}
	v.failing = failed
}

func leases() listed {
	return listed{coordinationv1.SchemeGroupVersion, "leases", "Lease"}
}

// hold says whether the lease is ours now.
func (v *candidate) hold(ctx context.Context) (bool, error) {
	lease := &coordinationv1.Lease{}
	err := v.client.Get().Namespace(v.Namespace).Resource("leases").Name(v.Name).Do(ctx).Into(lease)
	if apierrors.IsNotFound(err) {
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v.Namespace, Name: v.Name}}
		v.claim(lease)
		return true, v.client.Post().Namespace(v.Namespace).Resource("leases").Body(lease).Do(ctx).Error()
	}
	if err != nil {
		return false, err
	}
	holder := deref(lease.Spec.HolderIdentity, "")
	if holder != "" && holder != v.Identity && !v.expired(lease, holder) {
		return false, nil
	}
	v.claim(lease)
	return true, v.client.Put().Namespace(v.Namespace).Resource("leases").Name(v.Name).Body(lease).Do(ctx).Error()
}

// expired says that a lease of another was not renewed for as long as it says
// that it is good, since we saw it first.
func (v *candidate) expired(lease *coordinationv1.Lease, holder string) bool {
	now := holder
	if t := lease.Spec.RenewTime; t != nil {
		now += t.String()
	}
	if now != v.seen {
		v.seen, v.seenAt = now, time.Now()
	}
	good := max(time.Duration(deref(lease.Spec.LeaseDurationSeconds, 0))*time.Second, v.Duration)
	return time.Since(v.seenAt) > good
}

func (v *candidate) claim(lease *coordinationv1.Lease) {
	now := metav1.NowMicro()
	spec := &lease.Spec
	if deref(spec.HolderIdentity, "") != v.Identity {
		spec.AcquireTime = &now
		spec.LeaseTransitions = new(deref(spec.LeaseTransitions, 0) + 1)
	}
	spec.HolderIdentity, spec.RenewTime = &v.Identity, &now
	spec.LeaseDurationSeconds = new(int32(max(1, (v.Duration+time.Second-1)/time.Second)))
}

func (v *candidate) lead(leads bool) {
	if leads == v.leads {
		return
	}
	v.leads = leads
	v.Log.Info("election", "lease", v.Name, "leads", leads)
	v.Changed(leads)
}

// release gives the lease back if it is ours.
func (v *candidate) release() {
	if !v.leads {
		return
	}
	v.lead(false)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	lease := &coordinationv1.Lease{}
	if v.client.Get().Namespace(v.Namespace).Resource("leases").Name(v.Name).Do(ctx).Into(lease) != nil || deref(lease.Spec.HolderIdentity, "") != v.Identity {
		return
	}
	lease.Spec.HolderIdentity, lease.Spec.AcquireTime = nil, nil
	if err := v.client.Put().Namespace(v.Namespace).Resource("leases").Name(v.Name).Body(lease).Do(ctx).Error(); err != nil {
		v.Log.Warn("the lease was not given back; it ends by itself", "lease", v.Name, "error", err)
	}
}
