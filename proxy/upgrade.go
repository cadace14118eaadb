// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/pool"
	"golang.org/x/net/http/httpguts"
)

// upgrades says that the client asks for another protocol on this connection
// (RFC 9110 §7.8). An offer of h2c is not such a request: it may be ignored.
func (x *exchange) upgrades() bool {
	u := x.r.Header["Upgrade"]
	return len(u) > 0 && x.r.ProtoMajor == 1 && !strings.EqualFold(u[0], "h2c") &&
		httpguts.HeaderValuesContainsToken(x.r.Header["Connection"], "upgrade")
}

// upgrade passes the handshake to a member of the model named in the query and
// then bytes in both directions until one side ends. Such a connection is one
// attempt; nothing of it is read.
func (x *exchange) upgrade() *llm.Error {
	name := x.r.URL.Query().Get("model")
	if name == "" {
		return llm.InvalidRequest("model", "an upgraded connection names its model in the query: ?model=NAME")
	}
	x.req = &llm.Request{Op: llm.OpOther, Model: name, Stream: true, N: 1}
	if fail := x.resolve(name); fail != nil {
		return fail
	}
	if x.target.provider != nil {
		return llm.UpgradeRefused(x.r.Header.Get("Upgrade"))
	}
	if fail := x.reserve(); fail != nil {
		return fail
	}
	return x.handOver()
}

// handOver passes the handshake to a member of the target and then bytes. On an
// HTTP route a connection that cannot be made is followed by one to the next.
func (x *exchange) handOver() *llm.Error {
	var tried []string
	for n := 1; ; n++ {
		m, fail := x.next(tried)
		if fail != nil {
			return fail
		}
		x.record.Attempts = n
		f, fail := x.shakeHands(m)
		if f == nil {
			return fail
		}
		if f.blame {
			m.Report(f.outcome)
		}
		if x.rule == nil || f.reached || !f.retry || !x.mayRetry(false) {
			return f.reply
		}
		tried = append(tried, m.Address())
	}
}

// maxRefusal is the longest answer to a handshake that is passed on.
const maxRefusal = 16 << 20

// shakeHands passes the handshake to m, and then bytes. A failure says that no
// answer came.
func (x *exchange) shakeHands(m *pool.Member) (*failure, *llm.Error) {
	a := x.begins(m)
	defer a.close()
	out := a.outbound()
	out.Body, out.ContentLength = http.NoBody, 0
	out.Header.Set("Connection", "Upgrade")
	out.Header.Set("Upgrade", x.r.Header.Get("Upgrade"))
	res, err := a.roundTrip(out)
	if err != nil {
		return a.failed(err), nil
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusSwitchingProtocols && !validStatus(res.StatusCode) {
		return a.invalid(), nil
	}
	x.record.Served, x.record.Status = m.Address(), res.StatusCode
	back, ok := res.Body.(io.ReadWriteCloser)
	if res.StatusCode != http.StatusSwitchingProtocols || !ok {
		x.writeDeadline(time.Now())
		x.sendHead(res)
		n, err := io.CopyN(x.w, res.Body, maxRefusal)
		x.record.BytesOut = n
		x.broken = err != io.EOF // there was more, or it broke off
		return nil, nil
	}
	a.phase.stop()
	responseHeader(x.w.Header(), res.Header, x.target.plain)
	x.w.Header().Set("Connection", "Upgrade")
	x.w.Header().Set("Upgrade", res.Header.Get("Upgrade"))
	x.w.WriteHeader(res.StatusCode)
	conn, rw, err := x.ctl.Hijack()
	x.sent = true
	if err != nil {
		return nil, llm.Internal("the connection cannot be taken over")
	}
	defer conn.Close()
	rw.Flush()
	conn.SetDeadline(time.Time{})
	x.record.BytesOut = x.tunnel(conn, rw, back)
	return nil, nil
}

// tunnel carries bytes both ways until one side ends, until nothing came from
// either for as long as an idle connection is kept (limits.keepAlive), until
// the model's total time is over, or until the listener is cut. It returns the
// bytes sent to the client, and leaves nothing running.
func (x *exchange) tunnel(client net.Conn, buffered io.Reader, server io.ReadWriteCloser) (toClient int64) {
	var moved atomic.Int64 // bytes either way: standing still means idle
	var n int64
	var copies sync.WaitGroup
	ended := make(chan struct{})
	end := sync.OnceFunc(func() { client.Close(); server.Close(); close(ended) })
	copies.Go(func() { defer end(); io.Copy(server, counting{buffered, &moved}) })
	copies.Go(func() { defer end(); n, _ = io.Copy(client, counting{server, &moved}) })
	idle := time.NewTicker(x.table.cfg.Limits.KeepAlive.D())
	defer idle.Stop()
	total := time.NewTimer(x.left())
	defer total.Stop()
	for last := int64(-1); ; {
		select {
		case <-ended:
		case <-x.listener.ctx.Done():
		case <-total.C:
		case <-idle.C:
			if now := moved.Load(); now != last {
				last = now
				continue
			}
		}
		end()
		copies.Wait()
		return n
	}
}

// counting counts what is read through it.
type counting struct {
	io.Reader
	n *atomic.Int64
}

func (c counting) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}
