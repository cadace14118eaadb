// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package h1

const canPoll = false

func (b *Body) poll([]byte, func([]byte) error) error { panic("h1: no poller") }

// unasked cannot be known: a request on a closed connection fails unanswered.
func (c *Conn) unasked() error { return nil }

// glance never sees anything: the answer has to be waited for.
type glance struct{ c *Conn }

func (glance) Read([]byte) (int, error) { return 0, errNothing }
