// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"golang.org/x/net/http/httpguts"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/llm"
)

// fields are the headers of one direction.
type fields struct {
	header    http.Header // canonical names, no pseudo headers
	method    string
	target    string // :path, with its query
	authority string
	status    int
	op        llm.Op
	model     string // as the servers know it
}

// get is the first value of a header; name in canonical form.
func (f *fields) get(name string) string {
	if v := f.header[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// path is the request's path without its query. Gateways that rewrite a path
// before they ask, or send no pseudo headers, say elsewhere what it was.
func (f *fields) path() string {
	p := cmp.Or(f.target, f.get("X-Original-Path"), f.get("X-Forwarded-Path"))
	if i := strings.IndexByte(p, '?'); i >= 0 {
		p = p[:i]
	}
	return p
}

// fieldOverhead is what a header counts besides its bytes (RFC 9113 §6.5.2).
const fieldOverhead = 32

// readFields reads headers as a gateway sends them: names in any case, values
// raw or as text. Of more than limit bytes only pseudo headers and the request's
// id are read, and fits is false.
func readFields(m *corev3.HeaderMap, limit int) (f fields, fits bool) {
	list := m.GetHeaders()
	size := 0
	for _, h := range list {
		size += len(h.GetKey()) + max(len(h.GetRawValue()), len(h.GetValue())) + fieldOverhead
	}
	fits = size <= limit
	f.header = make(http.Header, min(len(list), 64))
	values := make([]string, min(len(list), limit/fieldOverhead))
	// The values that are read are parts of one string.
	var text strings.Builder
	if fits {
		text.Grow(size - fieldOverhead*len(list))
	}
	for _, h := range list {
		name := h.GetKey()
		if name == "" || !fits && name[0] != ':' && !strings.EqualFold(name, "x-request-id") {
			continue
		}
		value := h.GetValue()
		if raw := h.GetRawValue(); len(raw) > 0 {
			at := text.Len()
			text.Write(raw)
			value = text.String()[at:]
		}
		if name[0] == ':' {
			f.pseudo(strings.ToLower(name), value)
			continue
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		if name == "Status" { // a gateway's name for :status
			f.pseudo(":status", value)
		}
		if old := f.header[name]; old != nil || len(values) == 0 {
			f.header[name] = append(old, value)
			continue
		}
		values[0] = value
		f.header[name], values = values[:1:1], values[1:]
	}
	f.authority = cmp.Or(f.authority, f.get("Host"))
	return f, fits
}

func (f *fields) pseudo(name, value string) {
	switch name {
	case ":method":
		f.method = value
	case ":path":
		f.target = value
	case ":authority":
		f.authority = value
	case ":status":
		if n, err := strconv.Atoi(value); err == nil && f.status == 0 {
			f.status = n
		}
	}
}

// requestID keeps the gateway's id when it is plain and short, else makes one.
func requestID(asked string) (id string, made bool) {
	plain := asked != "" && len(asked) <= 128
	for i := 0; i < len(asked) && plain; i++ {
		c := asked[i]
		plain = c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.IndexByte("-_.:/+=", c) >= 0
	}
	if plain {
		return asked, false
	}
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:]), true
}

// mutation collects edits of headers. Those that belong to the hop, to framing
// or to the protocol are left out: a gateway that carried them out would break
// its message, one that does not might refuse the answer.
type mutation struct {
	edits extprocv3.HeaderMutation
}

// proto is the edits for a message; nil: there are none.
func (m *mutation) proto() *extprocv3.HeaderMutation {
	if len(m.edits.SetHeaders) == 0 && len(m.edits.RemoveHeaders) == 0 {
		return nil
	}
	return &m.edits
}

// apply adds a picker's edits.
func (m *mutation) apply(e epp.HeaderEdits) {
	for _, name := range e.Remove {
		m.remove(name)
	}
	for _, h := range e.Set {
		m.add(h.Name, h.Value, h.Append)
	}
}

func (m *mutation) set(name, value string) { m.add(name, value, false) }

func (m *mutation) add(name, value string, appends bool) {
	if refusal(name) == "" && httpguts.ValidHeaderFieldValue(value) {
		m.put(strings.ToLower(name), value, appends)
	}
}

func (m *mutation) remove(name string) {
	if refusal(name) == "" {
		m.edits.RemoveHeaders = append(m.edits.RemoveHeaders, strings.ToLower(name))
	}
}

// length sets content-length, which is nobody else's to set.
func (m *mutation) length(n int) { m.put("content-length", strconv.Itoa(n), false) }

// noLength takes it away.
func (m *mutation) noLength() {
	m.edits.RemoveHeaders = append(m.edits.RemoveHeaders, "content-length")
}

// put adds a header. What replaces says so by its action, what is added by the
// older field: gateways disagree on what the action's zero means.
func (m *mutation) put(name, value string, appends bool) {
	o := &struct {
		option corev3.HeaderValueOption
		header corev3.HeaderValue
	}{}
	o.header.Key, o.header.RawValue = name, []byte(value)
	o.option.Header = &o.header
	if appends {
		//lint:ignore SA1019 the old form is what some gateways read
		o.option.Append = wrapperspb.Bool(true)
	} else {
		o.option.AppendAction = corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD
	}
	m.edits.SetHeaders = append(m.edits.SetHeaders, &o.option)
}

// headAnswer is an answer to headers with all that is around it, one
// allocation. Who makes one fills edits, and seals it before it is sent.
type headAnswer struct {
	message  extprocv3.ProcessingResponse
	request  extprocv3.ProcessingResponse_RequestHeaders
	response extprocv3.ProcessingResponse_ResponseHeaders
	headers  extprocv3.HeadersResponse
	common   extprocv3.CommonResponse
	edits    mutation
}

// seal makes the message of the answer.
func (a *headAnswer) seal(ofRequest bool) *extprocv3.ProcessingResponse {
	a.common.HeaderMutation = a.edits.proto()
	a.headers.Response = &a.common
	if ofRequest {
		a.request.RequestHeaders = &a.headers
		a.message.Response = &a.request
	} else {
		a.response.ResponseHeaders = &a.headers
		a.message.Response = &a.response
	}
	return &a.message
}

// streamedMessage is a chunk of a body with all that is around it, one
// allocation.
type streamedMessage struct {
	message  extprocv3.ProcessingResponse
	request  extprocv3.ProcessingResponse_RequestBody
	response extprocv3.ProcessingResponse_ResponseBody
	body     extprocv3.BodyResponse
	common   extprocv3.CommonResponse
	mutation extprocv3.BodyMutation
	kind     extprocv3.BodyMutation_StreamedResponse
	part     extprocv3.StreamedBodyResponse
}

// streamedAnswer is one chunk in full duplex.
func streamedAnswer(ofRequest bool, part []byte, end bool) *extprocv3.ProcessingResponse {
	m := &streamedMessage{}
	m.part.Body, m.part.EndOfStream = part, end
	m.kind.StreamedResponse = &m.part
	m.mutation.Mutation = &m.kind
	m.common.BodyMutation = &m.mutation
	m.body.Response = &m.common
	if ofRequest {
		m.request.RequestBody = &m.body
		m.message.Response = &m.request
	} else {
		m.response.ResponseBody = &m.body
		m.message.Response = &m.response
	}
	return &m.message
}

// bodyAnswer answers one body message where each has an answer of its own.
func bodyAnswer(ofRequest bool, common *extprocv3.CommonResponse) *extprocv3.ProcessingResponse {
	body := &extprocv3.BodyResponse{Response: common}
	if ofRequest {
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: body}}
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: body}}
}

func trailersAnswer(ofRequest bool) *extprocv3.ProcessingResponse {
	t := &extprocv3.TrailersResponse{}
	if ofRequest {
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: t}}
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: t}}
}
