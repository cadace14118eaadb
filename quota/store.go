// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"time"
)

// Store keeps the counts of limits. An error says that the store could not be
// asked; whether it has done what it was asked for is then not known, and a
// reservation is to be withdrawn by settling it.
type Store interface {
	// Reserve takes of every limit of r what r asks for, or of none: then the
	// refusal says why. All limits of one r are of one group. One that is taken
	// again is taken whether there is room or not, if it is not there.
	Reserve(ctx context.Context, r *Reservation) (*Refusal, error)
	// Settle puts what was used in the place of what was reserved. It may be called
	// again after an error, and then counts once. It marks s if the store has lost
	// the reservation.
	Settle(ctx context.Context, s *Settlement) error
	// Renew extends the leases of reservations, and gives those that are not there
	// any more.
	Renew(ctx context.Context, rs []Lease) (gone []Lease, err error)
	// Usage tells of limits how much of them is in use, in their order.
	Usage(ctx context.Context, group string, limits []*Limit) ([]State, error)
	// Close lets go of what the store holds.
	Close() error
}

// State is the use of one limit.
type State struct {
	Limit    *Limit
	Used     int64         // in the window, what is reserved included; may be above the limit
	Reserved int64         // of it, by requests under way
	Reset    time.Duration // until the limit is as if it were new; 0: it is, or nobody knows
}

// Percent is how much of the limit is in use, rounded down.
func (s *State) Percent() int64 {
	if s.Limit.amount == 0 {
		return 100
	}
	return mulDiv(s.Used, 100, s.Limit.amount)
}

// Left is how much may still be used.
func (s *State) Left() int64 { return max(s.Limit.amount-s.Used, 0) }

// Refusal is why a request may not begin.
type Refusal struct {
	Limit  *Limit
	Needed int64 // of the limit
	Left   int64
	// Wait is how long it takes until the request fits, if nothing else comes: the
	// longest of all limits that refuse. Never with TooLarge.
	Wait     time.Duration
	TooLarge bool // larger than the whole limit
	Away     bool // the store cannot be asked
}

// entry is one limit of a reservation.
type entry struct {
	limit   *Limit
	amount  int64         // that is reserved
	window  int64         // in which, see counter.add
	used    int64         // of the limit, with it
	reset   time.Duration // until the limit is as if it were new
	over    bool          // a shadow limit would have refused
	counter *counter      // of a memory store
}

// inline is how many limits a reservation has room for without an allocation.
const inline = 12

// Reservation is what a request, or one attempt, has taken of the limits on its
// path. The zero value holds nothing. It belongs to one goroutine and must not be
// copied once it was used.
type Reservation struct {
	keeper  *keeper // nil: nothing is reserved
	local   bool    // by the share, while the store was away
	retake  bool    // it was taken before
	group   string
	id      uint64 // within the limiter
	entries []entry
	room    [inline]entry
	end     Settlement // so that it needs no memory of its own
	actual  [inline]int64
}

// Active says that something is reserved.
func (r *Reservation) Active() bool { return r.keeper != nil }

// Settlement is the end of a reservation.
type Settlement struct {
	group   string
	id      uint64
	entries []entry
	actual  []int64 // by entry
	again   bool    // an earlier try may have come through
	undo    bool    // it is not known whether there is a reservation
	charge  bool    // there is none: what was used while the store was away
	lost    bool    // there was one, and the store has lost it
}

// Lease is a reservation that is still in use.
type Lease struct {
	group   string
	id      uint64
	since   time.Time // made, or renewed
	entries []entry   // of the reservation: they change when it is settled
}
