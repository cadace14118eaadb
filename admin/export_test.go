// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"net/http"
	"time"
)

// HandlerWithin is Handler whose consoles must take what they are sent in so short
// a time.
func HandlerWithin(o Options, write time.Duration) http.Handler {
	s := newServer(o)
	s.console()
	s.live.write = write
	return s.handler()
}
