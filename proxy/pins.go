// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"container/list"
	"net/http"
	"slices"
	"sync"

	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/provider"
)

// pins know who has made a response of the Responses API, which he alone can
// continue. They are the gateway's own and bounded: a gateway that has begun
// anew, or another replica, knows none of them.
type pins struct {
	mu    sync.Mutex
	byID  map[string]*list.Element // of *pin
	order list.List                // the newest first
}

// pin is a response and its maker.
type pin struct {
	id     string
	tenant string
	target string // label
	where  string // the account
}

// maxPins bounds the responses that are known, a hundred bytes each.
const maxPins = 100_000

func (p *pins) put(made pin) {
	id := made.id
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.byID[id]; e != nil {
		p.order.MoveToFront(e)
		return
	}
	if p.byID == nil {
		p.byID = map[string]*list.Element{}
	}
	p.byID[id] = p.order.PushFront(&made)
	if p.order.Len() > maxPins {
		last := p.order.Back()
		delete(p.byID, last.Value.(*pin).id)
		p.order.Remove(last)
	}
}

func (p *pins) of(id string) *pin {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.byID[id]
	if e == nil {
		return nil
	}
	p.order.MoveToFront(e)
	return e.Value.(*pin)
}

// remember notes who made the response that begins with raw.
func (x *exchange) remember(a *answer) {
	if x.op != llm.OpResponses || x.translation != nil || a.res.StatusCode >= 300 {
		return
	}
	id := responseID(a.raw)
	if id == "" && a.gather {
		id = responseID(a.out) // of raw there is just the first piece
	}
	if id != "" {
		x.server.pins.put(pin{id: id, tenant: x.identity.Tenant, target: x.target.label, where: a.by()})
	}
}

// by is the name of the account that answers, "" for a pool.
func (a *attempt) by() string {
	if a.credential == nil {
		return ""
	}
	return a.credential.Name()
}

// maxResponseID bounds an id, in bytes.
const maxResponseID = 128

// responseID is the id of the response in the first bytes of an answer.
func responseID(raw []byte) string {
	for _, mark := range [...]string{`"id":"resp_`, `"id": "resp_`} {
		if i := bytes.Index(raw, []byte(mark)); i >= 0 {
			id := raw[i+len(mark)-len("resp_"):]
			if end := bytes.IndexByte(id, '"'); end > 0 && end <= maxResponseID {
				return string(id[:end])
			}
		}
	}
	return ""
}

// continues keeps a request that goes on from a response to whoever made that.
// It says no, with the error, if that is not known and could be several.
func (x *exchange) continues() *llm.Error {
	id := x.req.PreviousResponse
	if x.op != llm.OpResponses || id == "" {
		return nil
	}
	p := &x.plan
	maker := x.server.pins.of(id)
	if maker == nil || maker.tenant != x.identity.Tenant { // what another tenant has made is nobody's
		if maker == nil && len(p.next) == 1 && len(p.chain) == 0 && p.next[0].accounts < 2 {
			return nil // there is nobody else who could have made it
		}
		return &llm.Error{
			Status: http.StatusBadRequest, Type: "invalid_request_error", Code: "previous_response_not_found", Param: "previous_response_id",
			Message: "it is not known here who made the response " + id + ", and only its maker can continue it",
		}
	}
	for _, tg := range p.next {
		if tg.label == maker.target {
			p.next, p.chain, p.account = []*target{tg}, nil, maker.where
			return nil
		}
	}
	return &llm.Error{
		Status: http.StatusBadRequest, Type: "invalid_request_error", Code: "previous_response_not_found", Param: "previous_response_id",
		Message: "the response " + id + " was made by " + maker.target + ", which does not serve this request any more",
	}
}

// seal is the mark of an account at a provider: the same at every gateway of the
// configuration, and nothing that tells its name.
func seal(p *provider.Provider, account string) string { return llm.Seal(p.Name() + "\x00" + account) }

// sealing marks encrypted reasoning in an answer with the account that alone can
// read it, where others may be asked in the next turn.
func (a *answer) sealing(r llm.Reader) llm.Reader {
	x := a.x
	if a.credential == nil || x.dialect != llm.DialectResponses || !x.model.several || a.res.StatusCode >= 300 {
		return r
	}
	a.res.Header.Del("Content-Length")
	return llm.Sealing(r, seal(x.target.provider, a.credential.Name()), x.record.RequestID)
}

// prefer puts the target first whose account has made the newest reasoning that
// comes back with a request. While it is out others are asked, without that
// reasoning: it only helps.
func (x *exchange) prefer() {
	p := &x.plan
	if p.sealed = x.req.Sealed(); p.sealed == "" {
		return
	}
	i := slices.IndexFunc(p.next, func(tg *target) bool { return tg.seals[p.sealed] != "" })
	if i > 0 && !p.next[i].out(x) {
		maker := p.next[i]
		copy(p.next[1:], p.next[:i])
		p.next[0] = maker
	}
}
