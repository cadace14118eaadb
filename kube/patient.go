// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Bounds of the wait between two tries to reach an API server that is away.
const (
	firstPatience = 100 * time.Millisecond
	mostPatience  = 2 * time.Second
)

// Patient asks again by itself while the API server cannot be reached. The
// client library does so too, but waits ever longer, up to a minute: so long
// would nothing that has changed be heard of once the server is back. failed
// hears of every failed try.
func Patient(lw *cache.ListWatch, failed func(error)) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return patiently(ctx, failed, func() (runtime.Object, error) { return lw.ListWithContext(ctx, o) })
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return patiently(ctx, failed, func() (watch.Interface, error) { return lw.WatchWithContext(ctx, o) })
		},
	}
}

func patiently[T any](ctx context.Context, failed func(error), ask func() (T, error)) (T, error) {
	for wait := firstPatience; ; wait = min(2*wait, mostPatience) {
		out, err := ask()
		if err == nil || ctx.Err() != nil || !away(err) {
			return out, err
		}
		failed(err)
		select {
		case <-ctx.Done():
			return out, err
		case <-time.After(wait/2 + rand.N(wait)): // not all kinds and replicas at once
		}
	}
}

// away says that the API server was not reached, or says itself that it is not
// there yet. All else it has said of the request, which is the library's to
// understand.
func away(err error) bool {
	if status := apierrors.APIStatus(nil); !errors.As(err, &status) {
		return true
	}
	return apierrors.IsServiceUnavailable(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err)
}
