// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// rota runs a job for each member at a jittered interval. One goroutine waits
// for what is due; a bounded number of workers, started as needed, do the jobs
// and put their turn back. A member has at most one job at a time.
//
// The one goroutine wakes at most eight times per interval, so that many
// members do not mean many timers, and hands what is due to workers in batches:
// a worker begins all jobs of a batch before it does the first, and does them as
// their answers come.
type rota struct {
	pool     *Pool
	interval func() time.Duration
	workers  int // at most
	// begin starts a turn whose answer will take a while; nil: nothing to start.
	begin func(ctx context.Context, t *turn)
	// ready says whether the answer has come; it goes with begin.
	ready func(t *turn) bool
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

	conn     clientConn    // nil: none
	failures int           // in a row
	slow     bool          // others should not wait for it
	shared   bool          // others wait in the same batch
	waited   time.Duration // from begin to the job
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
	jobs := make(chan []*turn)
	var workers sync.WaitGroup
	started := 0
	dispatch := func(batch []*turn) bool {
		select {
		case jobs <- batch:
			return true
		default:
		}
		if started < r.workers {
			started++
			workers.Go(func() { r.work(ctx, jobs, batch) })
			return true
		}
		select {
		case jobs <- batch:
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
		for _, batch := range r.batches(due) {
			if running = running && dispatch(batch); !running {
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

// maxBatch bounds how many answers a worker waits for at once.
const maxBatch = 16

// A worker looks for the answers to a batch after naps that get longer while
// nothing comes: a look in vain costs a system call per member.
const (
	shortNap = 2 * time.Millisecond
	longNap  = 16 * time.Millisecond
)

// batches splits what is due among workers. Where a job has a beginning, those
// that answer at once go together; a slow one goes alone, so that no other
// waits for it.
func (r *rota) batches(due []*turn) [][]*turn {
	size := 1
	if r.begin != nil {
		size = maxBatch
	}
	var list [][]*turn
	var prompt []*turn
	for i, t := range due {
		if t.slow || t.conn == nil {
			list = append(list, due[i:i+1:i+1])
			continue
		}
		if prompt = append(prompt, t); len(prompt) == size {
			list, prompt = append(list, prompt), nil
		}
	}
	if len(prompt) > 0 {
		list = append(list, prompt)
	}
	return list
}

func (r *rota) work(ctx context.Context, jobs <-chan []*turn, batch []*turn) {
	w := &worker{}
	for ok := true; ok; batch, ok = <-jobs {
		if r.begin != nil && ctx.Err() == nil {
			for _, t := range batch {
				t.shared = len(batch) > 1
				r.begin(ctx, t)
			}
		}
		began, nap := time.Now(), shortNap
		for len(batch) > 0 {
			looks := r.ready != nil && len(batch) > 1 && ctx.Err() == nil
			if looks {
				time.Sleep(nap)
			}
			late := batch[:0]
			for _, t := range batch {
				if looks && !r.ready(t) {
					late = append(late, t)
					continue
				}
				t.waited = time.Since(began)
				r.do(ctx, t, w)
			}
			if len(late) == len(batch) {
				nap = min(2*nap, longNap)
			}
			batch = late
		}
	}
}

// do does the job of t and puts it back.
func (r *rota) do(ctx context.Context, t *turn, w *worker) {
	var delay time.Duration
	if ctx.Err() == nil {
		delay = r.job(ctx, t, w)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.gone {
		t.closeConn()
		return
	}
	t.due = time.Now().Add(jitter(delay))
	heap.Push(&r.queue, t)
}

// collect takes out the turns that are due and says how long to wait.
func (r *rota) collect(now time.Time) (due []*turn, wait time.Duration) {
	interval := r.interval()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.syncLocked(now, interval)
	// While every turn is with a worker, and to see new members, it looks
	// again after a part of the interval. What is due before the middle of that
	// part is due now: turns are early as often as they are late.
	tick := max(interval/8, time.Millisecond)
	for len(r.queue) > 0 && r.queue[0].due.Before(now.Add(tick/2)) {
		due = append(due, heap.Pop(&r.queue).(*turn))
	}
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
