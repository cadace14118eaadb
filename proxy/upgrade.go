// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/penstock/penstock/llm"
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
	if fail := x.resolve(name); fail != nil && x.model == nil {
		return fail
	}
	m, fail := x.next(nil)
	if fail != nil {
		return fail
	}
	a := x.begins(m)
	defer a.close()
	out := a.outbound()
	out.Body, out.ContentLength = http.NoBody, 0
	out.Header.Set("Connection", "Upgrade")
	out.Header.Set("Upgrade", x.r.Header.Get("Upgrade"))
	x.record.Attempts = 1
	res, err := a.roundTrip(out)
	if err != nil {
		f := a.classify(err)
		if f.blame {
			m.Report(f.outcome)
		}
		return f.reply
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusSwitchingProtocols && !validStatus(res.StatusCode) {
		f := a.invalid()
		m.Report(f.outcome)
		return f.reply
	}
	x.record.Served, x.record.Status = m.Address(), res.StatusCode
	back, ok := res.Body.(io.ReadWriteCloser)
	if res.StatusCode != http.StatusSwitchingProtocols || !ok {
		x.writeDeadline(time.Now())
		x.sendHead(res)
		n, _ := io.CopyN(x.w, res.Body, 1<<20)
		x.record.BytesOut = n
		return nil
	}
	a.phase.stop()
	responseHeader(x.w.Header(), res.Header)
	x.w.Header().Set("Connection", "Upgrade")
	x.w.Header().Set("Upgrade", res.Header.Get("Upgrade"))
	x.w.WriteHeader(res.StatusCode)
	conn, rw, err := x.ctl.Hijack()
	x.sent = true
	if err != nil {
		return llm.Internal("the connection cannot be taken over")
	}
	defer conn.Close()
	rw.Flush()
	conn.SetDeadline(time.Time{})
	ended := make(chan struct{}, 2)
	go func() { io.Copy(back, rw); back.Close(); ended <- struct{}{} }()
	go func() { n, _ := io.Copy(conn, back); x.record.BytesOut = n; conn.Close(); ended <- struct{}{} }()
	select {
	case <-ended:
	case <-x.listener.ctx.Done():
	}
	conn.Close()
	back.Close()
	<-ended
	return nil
}
