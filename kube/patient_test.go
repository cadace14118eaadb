// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// A server that is away is asked until it is back, however often that fails;
// what it says of a request is passed on.
func TestPatient(t *testing.T) {
	notFound := apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "")
	for _, c := range []struct {
		errs  []error // one after the other
		want  error
		tries int
	}{
		{[]error{syscall.ECONNREFUSED, apierrors.NewServiceUnavailable("starting"), context.DeadlineExceeded, nil}, nil, 4},
		{[]error{notFound}, notFound, 1},
		{[]error{syscall.ECONNREFUSED, notFound}, notFound, 2},
		{[]error{apierrors.NewResourceExpired("too old")}, apierrors.NewResourceExpired("too old"), 1},
	} {
		tries, failed := 0, 0
		next := func() error { tries++; return c.errs[tries-1] }
		lw := Patient(&cache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
				return &corev1.PodList{}, next()
			},
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
				return watch.NewFake(), next()
			},
		}, func(error) { failed++ })
		_, err := lw.ListWithContext(t.Context(), metav1.ListOptions{})
		if tries != c.tries || failed != c.tries-1 || (err == nil) != (c.want == nil) || err != nil && err.Error() != c.want.Error() {
			t.Errorf("list, %v: %v after %d tries, %d told of; want %v after %d", c.errs, err, tries, failed, c.want, c.tries)
		}
		tries, failed = 0, 0
		_, err = lw.WatchWithContext(t.Context(), metav1.ListOptions{})
		if tries != c.tries || failed != c.tries-1 || (err == nil) != (c.want == nil) {
			t.Errorf("watch, %v: %v after %d tries, %d told of; want %v after %d", c.errs, err, tries, failed, c.want, c.tries)
		}
	}
	// Who asks may give up.
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	lw := Patient(&cache.ListWatch{ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
		return nil, syscall.ECONNREFUSED
	}}, func(error) {})
	if _, err := lw.ListWithContext(ctx, metav1.ListOptions{}); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("given up: %v", err)
	}
}
