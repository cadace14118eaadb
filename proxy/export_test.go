// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net"
	"net/http"

	"github.com/penstock/penstock/config"
)

// Matcher is the compiled HTTP routes of a configuration without pools.
type Matcher struct{ table *table }

// NewMatcher compiles cfg.
func NewMatcher(cfg *config.Config) (*Matcher, error) {
	t, err := New(Options{}).buildTable(cfg, nil, nil, map[upstreamKey]*upstream{})
	return &Matcher{t}, err
}

// Find is the place of the match that takes r in the order of the
// configuration, -1 if none does; ok is false where the path is ambiguous.
func (m *Matcher) Find(listener string, r *http.Request) (place int, ok bool) {
	host := hostName(r.Host)
	sec, found := m.table.sites[listener].hosts.find(host)
	if !found {
		return -1, true
	}
	w, ok := readPath(r.URL)
	if !ok {
		return -1, false
	}
	found1, found2 := sec.http.find(host, w.match, r), (*match)(nil)
	if w.other != "" {
		if found2 = sec.http.find(host, w.other, r); found2 != found1 {
			return -1, false
		}
	}
	if found1 == nil {
		return -1, true
	}
	return found1.order, true
}

const MostFrame = mostFrame

func UsesFrames(w http.ResponseWriter, r *http.Request, status int) bool {
	return framesFor(w, r, status) != nil
}

// Patient is c as a listener hands it to its server.
func Patient(c net.Conn) net.Conn { return &patient{Conn: c} }
