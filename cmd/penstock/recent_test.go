// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/usage"
)

// TestRecentIsBounded: so many requests, the newest of an id, and no text of
// anybody else's without a bound.
func TestRecentIsBounded(t *testing.T) {
	n := &recent{}
	record := func(id, model, fault string) {
		n.note(&usage.Record{RequestID: id, ModelAsked: model, Error: fault, Routing: usage.Routing{Tries: []usage.Attempt{{Target: "one/up"}}}})
	}
	long := strings.Repeat("é", recentText)
	record("long", long, "")
	record("fault", "m", "x"+long)
	n.note(&usage.Record{RequestID: "list"}) // no target was to be chosen
	record("twice", "old", "")
	record("twice", "new", "")
	if r := n.find("fault"); r == nil || len(r.Error) > recentText || !strings.HasSuffix(r.Error, "é") {
		t.Errorf("fault: %v", r)
	}
	if r := n.find("twice"); r == nil || r.ModelAsked != "new" {
		t.Errorf("twice: %v", r)
	}
	for _, id := range []string{"long", "list"} {
		if n.find(id) != nil {
			t.Errorf("%s is kept", id)
		}
	}
	for i := range recentRequests {
		record(strconv.Itoa(i), "m", "")
	}
	if n.find("twice") != nil || n.find("0") == nil || n.find(strconv.Itoa(recentRequests-1)) == nil {
		t.Errorf("not the newest %d are kept", recentRequests)
	}
}
