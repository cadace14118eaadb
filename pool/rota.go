// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// rota runs a job for each member at a jittered interval. One goroutine waits
// for what is due; a bounded number of workers, started as needed, do the jobs
// and put their turn back. A member has at most one job at a time.
//
// The one goroutine wakes at most sixteen times per interval, so that many
// members do not mean many timers.
type rota struct {
	pool     *Pool
	interval func() time.Duration
	workers  int // at most
	// job does one turn and returns when the next one is due.
	job func(ctx context.Context, t *turn, w *worker) time.Duration

	mu      sync.Mutex
	queue   turnQueue // idle turns by due
	turns   map[*Member]*turn
	version uint64
}

// turn is the standing of one member in a rota. The fields but due and gone
// belong to the job.
type turn struct {
	member *Member
	due    time.Time // under rota.mu
	gone   bool      // under rota.mu

	conn     clientConn // nil: none
	request  *http.Request
	failures int // in a row
	scanner  *scanner
}

func (t *turn) closeConn() {
	if t.conn != nil {
		t.conn.Close()
		t.conn = nil
	}
}

// worker is the memory that one goroutine uses again from job to job.
type worker struct{ page []byte }

// run works until ctx ends, then closes every connection. It returns when no
// worker is left.
func (r *rota) run(ctx context.Context) {
	r.turns = map[*Member]*turn{}
	jobs := make(chan *turn)
	var workers sync.WaitGroup
	started := 0
	dispatch := func(t *turn) bool {
		select {
		case jobs <- t:
			return true
		default:
		}
		if started < r.workers {
			started++
			workers.Go(func() { r.work(ctx, jobs, t) })
			return true
		}
		select {
		case jobs <- t:
			return true
		case <-ctx.Done():
			return false
		}
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for running := true; running; {
		select {
		case <-ctx.Done():
			running = false
			continue
		case <-timer.C:
		}
		due, wait := r.collect(time.Now())
		for _, t := range due {
			if running = running && dispatch(t); !running {
				break
			}
		}
		timer.Reset(wait)
	}
	close(jobs)
	workers.Wait()
	for _, t := range r.turns {
		t.closeConn()
	}
}

func (r *rota) work(ctx context.Context, jobs <-chan *turn, t *turn) {
	w := &worker{}
	for ok := true; ok; t, ok = <-jobs {
		var delay time.Duration
		if ctx.Err() == nil {
			delay = r.job(ctx, t, w)
		}
		r.mu.Lock()
		if t.gone {
			t.closeConn()
		} else {
			t.due = time.Now().Add(jitter(delay))
			heap.Push(&r.queue, t)
		}
		r.mu.Unlock()
	}
}

// collect takes out the turns that are due and says how long to wait.
func (r *rota) collect(now time.Time) (due []*turn, wait time.Duration) {
	interval := r.interval()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.syncLocked(now, interval)
	for len(r.queue) > 0 && !r.queue[0].due.After(now) {
		due = append(due, heap.Pop(&r.queue).(*turn))
	}
	// While every turn is with a worker, and to see new members, it looks
	// again after a part of the interval.
	tick := max(interval/16, time.Millisecond)
	wait = min(interval, 250*time.Millisecond)
	if len(r.queue) > 0 {
		wait = min(wait, r.queue[0].due.Sub(now))
	}
	return due, max(wait, tick)
}

// syncLocked follows the membership. New members get their first turn within
// one interval, the first of all at once.
func (r *rota) syncLocked(now time.Time, interval time.Duration) {
	s := r.pool.Snapshot()
	if s.Version == r.version {
		return
	}
	r.version = s.Version
	for _, m := range s.Members {
		if r.turns[m] == nil {
			t := &turn{member: m, due: now}
			if len(r.turns) > 0 {
				t.due = now.Add(time.Duration(rand.Int64N(int64(interval) + 1)))
			}
			r.turns[m] = t
			heap.Push(&r.queue, t)
		}
	}
	for m, t := range r.turns {
		if s.byAddress[m.address] == m {
			continue
		}
		delete(r.turns, m)
		t.gone = true
		for i, queued := range r.queue {
			if queued == t {
				heap.Remove(&r.queue, i)
				t.closeConn()
				break
			}
		}
	}
}

// turnQueue is a heap by due.
type turnQueue []*turn

func (q turnQueue) Len() int           { return len(q) }
func (q turnQueue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q turnQueue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *turnQueue) Push(t any)        { *q = append(*q, t.(*turn)) }

func (q *turnQueue) Pop() any {
	old := *q
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return t
}
