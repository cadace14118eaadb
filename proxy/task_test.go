// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/usage"
)

// TestTaskHeaders: a request says which task it is part of and how that went, in
// the header that the configuration names; what cannot be meant is refused before
// anybody is asked, and no server sees either header, however it is written.
func TestTaskHeaders(t *testing.T) {
	var seen http.Header
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header
		io.WriteString(w, `{"id":"1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}`)
	}))
	defer server.Close()
	const body = `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hello"}]}`
	standard := newRig(t, []*httptest.Server{server}, tenant(""))
	own := newRig(t, []*httptest.Server{server}, func(text string) string { return tenant("")(text) + "ledger: {taskHeader: x-job}\n" })
	long := strings.Repeat("a", 128)
	for _, c := range []struct {
		rig           *rig
		header        []string
		status        int
		task, outcome string
		says          string // of a refusal
	}{
		{standard, nil, 200, "", "", ""},
		{standard, []string{"x-penstock-task", "build-17"}, 200, "build-17", "", ""},
		{standard, []string{"X-Penstock-Task", "a.b:c/d+e=F_0", "X-Penstock-Task-Outcome", "success"}, 200, "a.b:c/d+e=F_0", "success", ""},
		{standard, []string{"X-Penstock-Task", long, "X-Penstock-Task-Outcome", "failure"}, 200, long, "failure", ""},
		{standard, []string{"X-Penstock-Task", long + "a"}, 400, "", "", "must be up to 128"},
		{standard, []string{"X-Penstock-Task", "a b"}, 400, "", "", "must be up to 128"},
		{standard, []string{"X-Penstock-Task", "ü"}, 400, "", "", "must be up to 128"},
		{standard, []string{"X-Penstock-Task", "a", "X-Penstock-Task-Outcome", "Success"}, 400, "", "", "must be success or failure"},
		{standard, []string{"X-Penstock-Task-Outcome", "success"}, 400, "", "", "does not name one"},
		{standard, []string{"X_Penstock_Task", "a", "X_Penstock_Task_Outcome", "success"}, 200, "", "", ""},
		{own, []string{"X-Job", "a", "X-Job-Outcome", "failure"}, 200, "a", "failure", ""},
		{own, []string{"X-Penstock-Task", "a b"}, 200, "", "", ""},
	} {
		seen = nil
		before := len(c.rig.sofar())
		res, text := c.rig.keyed("/v1/chat/completions", body, c.header...)
		if res.StatusCode != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%v: %d %s", c.header, res.StatusCode, text)
		}
		for deadline := time.Now().Add(10 * time.Second); len(c.rig.sofar()) == before && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		if c.status != 200 {
			if seen != nil || !strings.Contains(text, `"code":"invalid_task"`) {
				t.Errorf("%v: %s; the server had %v", c.header, text, seen)
			}
			continue
		}
		r := c.rig.sofar()[before]
		if r.Task != c.task || r.Outcome != c.outcome {
			t.Errorf("%v: task %q, outcome %q", c.header, r.Task, r.Outcome)
		}
		for name := range seen {
			if plain := strings.ReplaceAll(strings.ToLower(name), "_", "-"); c.rig == standard && strings.HasPrefix(plain, "x-penstock-task") || c.rig == own && strings.HasPrefix(plain, "x-job") {
				t.Errorf("%v: the server was sent %s", c.header, name)
			}
		}
	}
}

// sofar are the records that were made.
func (r *rig) sofar() []*usage.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.records)
}
