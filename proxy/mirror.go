// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/pool"
)

// mirror sends copies of a share of the requests to one more pool.
type mirror struct {
	target    *target
	share, of int
}

const (
	// maxMirrors bounds the copies under way: a pool that is slow to take them
	// gets fewer of them.
	maxMirrors = 256
	// mirrorTime is the longest that a copy may take, its answer included.
	mirrorTime = time.Minute
	// mirrorAnswer is how much of an answer is read so that its connection can
	// be used again.
	mirrorAnswer = 1 << 20
)

// mirror sends the copies that the rule asks for: at once where the body is in
// hand, else when it has passed. A body that is longer than is kept has none.
func (x *exchange) mirror(ru *rule) {
	for _, m := range ru.mirrors {
		if m.share < m.of && rand.IntN(m.of) >= m.share {
			continue
		}
		if !m.target.plain && administers(x.path) {
			continue // a copy would be carried out like the request itself
		}
		send := x.copyFor(m)
		if s := x.http.source; s != nil {
			s.keep = max(s.keep, replayBody)
			s.finish = append(s.finish, send)
		} else {
			send(x.body, len(x.body) <= replayBody)
		}
	}
}

// copyFor is a function that sends the copy. It must not wait, and takes nothing
// of the exchange with it.
func (x *exchange) copyFor(m *mirror) func(body []byte, whole bool) {
	s, l, tg := x.server, x.listener, m.target
	before := x.target
	x.target = tg
	r := &http.Request{
		Method: x.r.Method, Host: x.http.host, Header: x.requestHeader(),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	x.target = before
	x.rule.request.apply(r.Header)
	u := *x.r.URL
	u.Scheme, u.User, u.Path, u.RawPath, u.Fragment = tg.upstream.scheme, nil, decoded(x.http.path), x.http.path, ""
	r.URL = &u
	q := pickRequest(x.record.RequestID, tg.model, x.req, x.r, x.path)
	return func(body []byte, whole bool) {
		switch {
		case !whole:
			s.metrics.mirrored(tg.pool, "too_large")
		case s.mirrors.Add(1) > maxMirrors:
			s.mirrors.Add(-1)
			s.metrics.mirrored(tg.pool, "too_many")
		default:
			r.Body, r.ContentLength = http.NoBody, 0
			if len(body) > 0 {
				r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			}
			q.Body = func() []byte { return body }
			s.copies.Go(func() {
				defer s.mirrors.Add(-1)
				s.metrics.mirrored(tg.pool, tg.sendCopy(l.ctx, r, q))
			})
		}
	}
}

// sendCopy sends r to one endpoint and drops the answer. It says how it went.
func (tg *target) sendCopy(ctx context.Context, r *http.Request, q *epp.Request) string {
	ctx, cancel := context.WithTimeout(ctx, mirrorTime)
	defer cancel()
	m := (*pool.Member)(nil)
	if picker := tg.backend.Picker; picker != nil && !tg.plain {
		res, err := picker.Pick(ctx, q)
		if err != nil {
			return "no_endpoint"
		}
		defer res.Done(epp.Outcome{})
		for _, addr := range res.Endpoints {
			if m = tg.backend.Pool.Lookup(addr); m != nil {
				break
			}
		}
		applyEdits(r.Header, res.Header)
	} else if m = tg.inTurn(nil, pool.Returning); m != nil {
		charge := m.Charge(0, 0)
		defer charge.Release()
	}
	if m == nil {
		return "no_endpoint"
	}
	r.URL.Host = m.Address()
	res, err := tg.upstream.roundTrip(r.WithContext(ctx))
	if err != nil {
		return "failed"
	}
	defer res.Body.Close()
	io.CopyN(io.Discard, res.Body, mirrorAnswer)
	return "sent"
}
