// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"sync"
	"time"
)

// generator makes the tokens of a job appear over time: the engine of a
// [Server].
type generator interface {
	// start queues the job or says why not; tokens then appear by themselves.
	start(j *job) error
	// abort ends a job; nothing if it has ended.
	abort(j *job)
}

// job is the work of one HTTP request: one choice or several.
type job struct {
	choices []*choice
	notify  chan struct{} // has a place for one; filled when something changed
	mu      sync.Mutex    // guards progress of the choices and err
	err     error
	arrival time.Time
}

// choice is one sequence.
type choice struct {
	job     *job
	request *Request
	out     output
	leader  *choice // whose computed prompt this one waits for; nil: none

	// Guarded by job.mu.
	progress progress
	// Owned by the generator.
	last time.Time // of the newest token
}

// progress is what is known of a choice at one moment.
type progress struct {
	tokens  int
	cached  int
	first   time.Time
	done    bool
	aborted bool
}

func newJob() *job {
	return &job{notify: make(chan struct{}, 1), arrival: time.Now()}
}

// update changes the progress of a choice and wakes the request.
func (c *choice) update(change func(p *progress)) {
	c.job.mu.Lock()
	change(&c.progress)
	c.job.mu.Unlock()
	c.job.wake()
}

func (c *choice) now() progress {
	c.job.mu.Lock()
	defer c.job.mu.Unlock()
	return c.progress
}

func (j *job) wake() {
	select {
	case j.notify <- struct{}{}:
	default:
	}
}

// fail ends the job with an error.
func (j *job) fail(err error) {
	j.mu.Lock()
	if j.err == nil {
		j.err = err
	}
	j.mu.Unlock()
	j.wake()
}

// wait blocks until something may have changed.
func (j *job) wait(ctx context.Context) error {
	select {
	case <-j.notify:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err
}

// finish blocks until every choice is done.
func (j *job) finish(ctx context.Context) error {
	for !j.done() {
		if err := j.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (j *job) done() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, c := range j.choices {
		if !c.progress.done {
			return false
		}
	}
	return true
}

// counts are the tokens of a job so far. Choices of one prompt share it: it
// counts once, as the leader saw it.
type counts struct{ prompt, cached, written, output, reasoning int }

func (j *job) counts() (n counts) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, c := range j.choices {
		if c.leader == nil {
			n.prompt += c.request.PromptTokens
			n.cached += c.progress.cached
		}
		n.output += c.progress.tokens
	}
	return n
}
