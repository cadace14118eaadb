// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"math/bits"
	"time"

	"github.com/penstock/penstock/config"
)

// slots is in how many steps a sliding window moves on: what was used counts for
// the window's length and at most one step longer.
const slots = 60

// counter is what is known of the use of one limit. The group's lock guards it.
type counter struct {
	used     int64 // in the window, reserved amounts included
	reserved int64 // of it, by requests that have not settled
	at       int64 // bucket: nanoseconds of the store's clock up to which it has flowed off
	window   int64 // calendar: beginning, in Unix seconds; sliding: number of the newest slot
	slots    []int64

	open   int // reservations that have not settled
	limit  *Limit
	amount int64 // that it counted with first
}

// instant is one moment by both clocks.
type instant struct {
	mono int64 // nanoseconds since the store began; never goes back
	wall time.Time
}

// roll brings the counter to the moment: what has flowed off, or left the window,
// is gone.
func (c *counter) roll(l *Limit, amount int64, now instant) {
	switch l.kind {
	case config.WindowBucket:
		elapsed := now.mono - c.at
		if c.used == 0 || elapsed <= 0 {
			c.at = max(c.at, now.mono)
			return
		}
		off := mulDiv(elapsed, amount, int64(l.length))
		if off >= c.used {
			c.used, c.at = 0, now.mono
			return
		}
		c.used -= off
		// The rest of the time counts later: no fraction of a unit is lost.
		c.at += ceilDiv(off, int64(l.length), amount)
	case config.WindowSliding:
		c.slide(now.mono / l.step())
	case config.WindowCalendar:
		start := l.periodAt(now.wall).start
		if start > c.window {
			c.used = 0
		}
		c.window = start // a clock that was set back does not give a budget anew
	}
}

// slide makes slot the newest.
func (c *counter) slide(slot int64) {
	if c.slots == nil {
		c.slots, c.window = make([]int64, slots+1), slot
		return
	}
	if slot-c.window > slots {
		clear(c.slots)
		c.used, c.window = 0, slot
	}
	for c.window < slot {
		c.window++
		oldest := &c.slots[c.window%(slots+1)]
		c.used -= *oldest
		*oldest = 0
	}
}

// step is the length of a slot.
func (l *Limit) step() int64 { return int64(l.length+slots-1) / slots }

// room says whether n more may be used, and if not, how long it takes until they
// may; never: no time would help. The counter has been rolled.
func (c *counter) room(l *Limit, amount, n int64, now instant) (wait time.Duration, ok bool) {
	switch {
	case n == 0 && l.unit != USD:
		return 0, true // what is not asked for is not refused
	case n == 0 && c.used >= amount:
		n = 1 // nobody knows what it will cost
	}
	if n > amount {
		if !l.debt {
			return never, false
		}
		if c.used == 0 {
			return 0, true
		}
		return c.until(l, amount, c.used, now), false
	}
	if over := c.used + n - amount; over > 0 {
		return c.until(l, amount, over, now), false
	}
	return 0, true
}

// never is the wait of what no time helps.
const never = time.Duration(-1)

// unknownWait is told where nobody knows: a place is free when some request ends.
const unknownWait = time.Second

// until is how long it takes until over is gone.
func (c *counter) until(l *Limit, amount, over int64, now instant) time.Duration {
	switch l.kind {
	case config.WindowBucket:
		if amount == 0 {
			return never
		}
		return time.Duration(ceilDiv(over, int64(l.length), amount) - (now.mono - c.at))
	case config.WindowSliding:
		sum := int64(0)
		for slot := c.window - slots; slot <= c.window; slot++ {
			if slot >= 0 {
				sum += c.slots[slot%(slots+1)]
			}
			if sum >= over {
				return time.Duration((slot+slots+1)*l.step() - now.mono)
			}
		}
		return l.length
	case config.WindowCalendar:
		return time.Unix(l.periodAt(now.wall).end, 0).Sub(now.wall)
	}
	return unknownWait
}

// add counts n, and says in which window.
func (c *counter) add(l *Limit, n int64) (window int64) {
	c.used = min(c.used+n, most)
	c.reserved = min(c.reserved+n, most)
	if l.kind == config.WindowSliding {
		c.slots[c.window%(slots+1)] += n
	}
	return c.window
}

// settle puts actual in the place of what was reserved in window. What belongs to
// a window that is over changes nothing any more.
func (c *counter) settle(l *Limit, reserved, actual, window int64) {
	c.reserved = max(c.reserved-reserved, 0)
	if l.unit == Concurrency {
		c.used = max(c.used-reserved, 0)
		return
	}
	change := actual - reserved
	switch l.kind {
	case config.WindowSliding:
		if c.window-window > slots {
			return
		}
		slot := &c.slots[window%(slots+1)]
		change = max(change, -*slot)
		*slot += change
	case config.WindowCalendar:
		if window != c.window {
			return
		}
	}
	c.used = min(max(c.used+change, 0), most)
}

// idle says that nothing would be lost with the counter.
func (c *counter) idle() bool { return c.used == 0 && c.reserved == 0 }

// reset is how long it takes until the limit is as if it were new.
func (c *counter) reset(l *Limit, amount int64, now instant) time.Duration {
	switch l.kind {
	case config.WindowCalendar:
		return c.until(l, amount, 0, now)
	case config.WindowBucket, config.WindowSliding:
		if c.used > 0 {
			return c.until(l, amount, c.used, now)
		}
	}
	return 0
}

// period is one period of a calendar, in Unix seconds.
type period struct{ previous, start, end, next int64 }

// periodAt is the period in which t is.
func (l *Limit) periodAt(t time.Time) *period {
	if p := l.period.Load(); p != nil && t.Unix() >= p.start && t.Unix() < p.end {
		return p
	}
	local := t.In(l.zone)
	p := &period{
		previous: l.begin(local, -1).Unix(), start: l.begin(local, 0).Unix(),
		end: l.begin(local, 1).Unix(), next: l.begin(local, 2).Unix(),
	}
	l.period.Store(p)
	return p
}

// begin is when the period begins that is n after the one of t. Minutes and hours
// go by the clock on the wall too, so that zones of half an hour have theirs.
func (l *Limit) begin(t time.Time, n int) time.Time {
	year, month, day := t.Date()
	date := func(y int, m time.Month, d int) time.Time { return time.Date(y, m, d, 0, 0, 0, 0, l.zone) }
	switch l.word {
	case "minute":
		return t.Truncate(time.Minute).Add(time.Duration(n) * time.Minute)
	case "hour":
		_, offset := t.Zone()
		past := (t.Unix() + int64(offset)) % 3600
		return time.Unix(t.Unix()-past, 0).Add(time.Duration(n) * time.Hour)
	case "week": // Monday
		return date(year, month, day-(int(t.Weekday())+6)%7+7*n)
	case "month":
		return date(year, month+time.Month(n), 1)
	case "year":
		return date(year+n, 1, 1)
	}
	return date(year, month, day+n)
}

// mulDiv is a*b/c without overflow in between, rounded down and at most most; all
// are positive.
func mulDiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return most
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(q, most))
}

// ceilDiv is a*b/c rounded up; at most 292 years, as durations are.
func ceilDiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return 1<<63 - 1
	}
	q, r := bits.Div64(hi, lo, uint64(c))
	if r > 0 {
		q++
	}
	return int64(min(q, 1<<63-1))
}
