// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"sync"
	"time"
)

// Errors of the jobs that an engine has lost.
var (
	errRestarted = errors.New("engine restarted")
	errClosed    = errors.New("engine closed")
)

// driver runs an Engine in real time: one goroutine that sleeps while there is
// nothing to do and between the steps otherwise.
type driver struct {
	speedup float64
	meters  *meters

	mu     sync.Mutex // guards all below
	engine *Engine
	live   map[uint64]*choice
	nextID uint64
	slow   float64
	asleep bool
	closed bool
	gauges Gauges // after the last step that has ended
	epoch  int    // counts restarts

	wake    chan struct{}
	quit    chan struct{}
	stopped chan struct{}
}

// catchUp is how late a step may begin and still count from the end of the
// step before: late timers then do not add up, and a stall of the machine does
// not lead to a burst of steps.
const catchUp = 100 * time.Millisecond

func newDriver(p Preset, speedup float64, m *meters) *driver {
	d := &driver{
		speedup: speedup, meters: m, engine: NewEngine(p), live: map[uint64]*choice{}, slow: 1,
		wake: make(chan struct{}, 1), quit: make(chan struct{}), stopped: make(chan struct{}),
	}
	go d.run()
	return d
}

// close ends the goroutine and fails the jobs that are left.
func (d *driver) close() {
	close(d.quit)
	<-d.stopped
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.lose(errClosed)
}

func (d *driver) start(j *job) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosed
	}
	for _, c := range j.choices {
		d.nextID++
		c.request.ID = d.nextID
		if err := d.engine.Check(c.request); err != nil {
			return err
		}
	}
	for _, c := range j.choices {
		if c.leader == nil {
			d.enqueue(c)
		}
	}
	d.poke()
	return nil
}

// enqueue passes the bound of the queue by: it was checked for the job.
func (d *driver) enqueue(c *choice) {
	d.live[c.request.ID] = c
	d.engine.enqueue(c.request)
}

func (d *driver) abort(j *job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range j.choices {
		if c.now().done {
			continue
		}
		if d.live[c.request.ID] == c {
			d.engine.Abort(c.request.ID)
			delete(d.live, c.request.ID)
		}
		d.meters.finished("abort")
		c.update(func(p *progress) { p.done, p.aborted = true, true })
	}
	d.poke()
}

// restart empties the engine; its jobs end with an error.
func (d *driver) restart() { d.lose(errRestarted) }

func (d *driver) lose(why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.engine.Reset()
	d.gauges = Gauges{}
	d.epoch++
	for id, c := range d.live {
		delete(d.live, id)
		c.job.fail(why)
	}
}

func (d *driver) setSlow(factor float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.slow = factor
}

// setAsleep stops or goes on with the steps; requests queue meanwhile.
func (d *driver) setAsleep(asleep bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asleep = asleep
	d.poke()
}

func (d *driver) isAsleep() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asleep
}

func (d *driver) observed() Gauges {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.gauges
}

func (d *driver) poke() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

func (d *driver) run() {
	defer close(d.stopped)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	origin := time.Now()
	var ended time.Time // of the step before, if this one follows it at once
	for {
		d.mu.Lock()
		if d.asleep || d.engine.Idle() {
			d.mu.Unlock()
			ended = time.Time{}
			select {
			case <-d.wake:
				continue
			case <-d.quit:
				return
			}
		}
		begin := time.Now()
		if begin.Sub(ended) < catchUp {
			begin = ended
		}
		now := time.Duration(float64(begin.Sub(origin)) * d.speedup)
		end, events := d.engine.Step(now)
		gauges, epoch := d.engine.Gauges(), d.epoch
		ended = begin.Add(time.Duration(float64(end-now) * d.slow / d.speedup))
		d.mu.Unlock()

		timer.Reset(time.Until(ended))
		select {
		case <-timer.C:
		case <-d.quit:
			return
		}
		d.deliver(events, gauges, epoch)
	}
}

// deliver tells the requests what the step that has just ended did.
func (d *driver) deliver(events []Event, g Gauges, epoch int) {
	at := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if epoch != d.epoch {
		return // the engine was restarted during the step
	}
	d.gauges = g
	for _, ev := range events {
		c := d.live[ev.ID]
		if c == nil || ev.Kind == Preempted {
			continue
		}
		if ev.Tokens == 1 {
			d.meters.firstToken(at.Sub(c.job.arrival))
			d.follow(c)
		} else {
			d.meters.token(at.Sub(c.last))
		}
		c.last = at
		if ev.Kind == Finished {
			delete(d.live, ev.ID)
			d.meters.finished(c.out.finish)
			d.meters.total(at.Sub(c.job.arrival))
		}
		c.update(func(p *progress) {
			p.tokens = ev.Tokens
			if ev.Tokens == 1 {
				p.first, p.cached = at, ev.Cached
			}
			p.done = ev.Kind == Finished
		})
	}
}

// follow queues the choices that share the prompt of c, now that it is computed.
func (d *driver) follow(c *choice) {
	for _, other := range c.job.choices {
		if other.leader == c {
			d.enqueue(other)
		}
	}
}
