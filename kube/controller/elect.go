// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"time"

	"github.com/penstock/penstock/kube"
)

// Of the Lease by which replicas agree on who leads: a leader that cannot renew
// it gives up after two fifths of leaseDuration, one that dies is succeeded
// after leaseDuration, and one that ends is succeeded at the next try.
const (
	leaseName     = "penstock-controller"
	leaseDuration = 15 * time.Second
)

// elect calls lead with a context that ends with this replica's leading, and
// after that again, until ctx ends.
func (c *Controller) elect(ctx context.Context, lead func(context.Context)) error {
	if !c.o.Elect {
		lead(ctx)
		return nil
	}
	var end func()
	return c.api.found.Elect(ctx, kube.Election{
		Namespace: c.o.Namespace, Name: leaseName, Identity: c.o.Identity, Duration: c.o.Lease, Log: c.log,
		Changed: func(leads bool) {
			if !leads {
				end()
				return
			}
			term, cancel := context.WithCancel(ctx)
			over := make(chan struct{})
			go func() {
				defer close(over)
				lead(term)
			}()
			// Whoever leads next must find this one silent.
			end = func() { cancel(); <-over }
		},
	})
}
