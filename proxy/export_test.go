// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net"
	"net/http"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/usage"
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

// AfterLostComment sends a client of w one event, then a comment that it has idle
// to take, then another event, and returns the errors of the three.
func AfterLostComment(w http.ResponseWriter, r *http.Request, idle time.Duration, event []byte) (first, comment, second error) {
	x := &exchange{w: w, r: r, ctl: http.NewResponseController(w), account: account{record: &usage.Record{Status: http.StatusOK}}}
	x.table = &table{cfg: &config.Config{Limits: config.Limits{WriteIdle: config.Duration(idle)}}}
	x.ping = &pinger{x: x, timer: time.NewTimer(time.Hour)}
	x.sent = true
	y := &relay{x: x, a: &answer{res: &http.Response{ContentLength: -1}}, flush: true, tap: llm.NewTap(llm.TapOptions{Op: llm.OpChat, Stream: true})}
	write := func() error {
		y.now = time.Now()
		return y.write(event)
	}
	first = write()
	x.ping.fire()
	return first, x.ping.lost(), write()
}

// Patient is c as a listener hands it to its server.
func Patient(c net.Conn) net.Conn { return &patient{Conn: c} }
