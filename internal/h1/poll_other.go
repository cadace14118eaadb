// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package h1

import (
	"errors"
	"net"
	"time"
)

const canPoll = false

func (b *Body) poll([]byte, func([]byte) error) error { panic("h1: no poller") }

// unasked cannot be known: a request on a closed connection fails unanswered.
func (c *Conn) unasked() error { return nil }

// glance is not used: see Conn.Arrived.
type glance struct{ c *Conn }

func (glance) Read([]byte) (int, error) { return 0, errNothing }

// Unpolled exists elsewhere only.
type Unpolled struct{ net.Conn }

func (*Unpolled) Asleep() time.Duration { return 0 }

func Unpoll(net.Conn) (*Unpolled, error) { return nil, errors.ErrUnsupported }
