// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// Names of the protocol (proposal 004 §3).
const (
	// HeaderEndpoint carries the endpoints, best first, to the gateway; the
	// same key in the namespace envoy.lb does too.
	HeaderEndpoint = "x-gateway-destination-endpoint"
	keyServed      = "x-gateway-destination-endpoint-served"
	keySubset      = "x-gateway-destination-endpoint-subset"

	namespaceLB     = "envoy.lb"
	namespaceSubset = "envoy.lb.subset_hint"

	// keyAnswers is a header of the picker's side of a stream, not of the
	// protocol but within its rules: with the value answersObserved the picker
	// says that it will edit nothing of the answer. The gateway then marks its
	// messages about the answer as of observability mode, which wait for no
	// reply and get none; pickers and gateways that do not know of it are not
	// concerned.
	keyAnswers      = "penstock-answers"
	answersObserved = "observed"

	serviceName = "envoy.service.ext_proc.v3.ExternalProcessor"
)

// maxChunk is how much of a body one message carries, in bytes: some gateways
// and proxies in between take 64 KiB with everything else in a message.
const maxChunk = 62000

// chunks cuts a body into messages; last is said with the last data, and once
// with no data if there is none. It stops when yield says no.
func chunks(body []byte, yield func(part []byte, last bool) bool) {
	for {
		n := min(len(body), maxChunk)
		last := n == len(body)
		if !yield(body[:n:n], last) || last {
			return
		}
		body = body[n:]
	}
}

// headerMap turns fields into their form on the wire: names in lower case,
// values as raw bytes, pseudo fields (name and value in turn) first.
func headerMap(h http.Header, pseudo ...string) *corev3.HeaderMap {
	n, named, valued := len(pseudo)/2, 0, 0
	for i, s := range pseudo {
		valued += i % 2 * len(s)
	}
	for name, values := range h {
		n, named = n+len(values), named+len(name)
		for _, value := range values {
			valued += len(value)
		}
	}
	// One allocation each for the list, for what it points to, and for the bytes
	// of all names and of all values.
	var names strings.Builder
	names.Grow(named)
	values, raw := make([]corev3.HeaderValue, n), make([]byte, 0, valued)
	list := make([]*corev3.HeaderValue, 0, n)
	add := func(name, value string) {
		v := &values[len(list)]
		at := len(raw)
		raw = append(raw, value...)
		v.Key, v.RawValue = name, raw[at:len(raw):len(raw)]
		list = append(list, v)
	}
	for i := 0; i+1 < len(pseudo); i += 2 {
		add(pseudo[i], pseudo[i+1])
	}
	for name, fields := range h {
		at := names.Len()
		for i := range len(name) {
			c := name[i]
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			names.WriteByte(c)
		}
		name = names.String()[at:]
		for _, value := range fields {
			add(name, value)
		}
	}
	return &corev3.HeaderMap{Headers: list}
}

// valueOf is a field's value: its raw bytes, or else its text.
func valueOf(v *corev3.HeaderValue) string {
	if len(v.GetRawValue()) > 0 {
		return string(v.GetRawValue())
	}
	return v.GetValue()
}

// splitEndpoints reads a list of endpoints as it is written in a header or in
// metadata. What is empty is left out; nothing is checked.
func splitEndpoints(list string) []string {
	var out []string
	for part := range strings.SplitSeq(list, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, bracketed(part))
		}
	}
	return out
}

// bracketed puts the brackets around an IPv6 address that was written without
// them: some pickers join address and port by a colon.
func bracketed(endpoint string) string {
	if strings.Count(endpoint, ":") < 2 || strings.HasPrefix(endpoint, "[") {
		return endpoint
	}
	i := strings.LastIndexByte(endpoint, ':')
	if ip, err := netip.ParseAddr(endpoint[:i]); err == nil && ip.Is6() {
		return net.JoinHostPort(endpoint[:i], endpoint[i+1:])
	}
	return endpoint
}

// lbMetadata is dynamic metadata that sets one text in envoy.lb.
func lbMetadata(key, value string) *structpb.Struct {
	m := &struct { // one allocation, but for the maps
		outer, inner structpb.Struct
		space, text  structpb.Value
		ofSpace      structpb.Value_StructValue
		ofText       structpb.Value_StringValue
	}{}
	m.ofText.StringValue = value
	m.text.Kind = &m.ofText
	m.inner.Fields = map[string]*structpb.Value{key: &m.text}
	m.ofSpace.StructValue = &m.inner
	m.space.Kind = &m.ofSpace
	m.outer.Fields = map[string]*structpb.Value{namespaceLB: &m.space}
	return &m.outer
}

// lbText is the text under a key of envoy.lb in dynamic metadata; "" if there
// is none.
func lbText(s *structpb.Struct, key string) string {
	return s.GetFields()[namespaceLB].GetStructValue().GetFields()[key].GetStringValue()
}

// context is the metadata that a gateway sends with a message.
type contextMetadata struct {
	subset []string // nil: no hint
	served string   // "": not known yet
}

func (c contextMetadata) encode() *corev3.Metadata {
	if c.subset == nil && c.served == "" {
		return nil
	}
	m := &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{}}
	if c.subset != nil {
		list := &structpb.ListValue{}
		for _, endpoint := range c.subset {
			list.Values = append(list.Values, structpb.NewStringValue(endpoint))
		}
		m.FilterMetadata[namespaceSubset] = &structpb.Struct{Fields: map[string]*structpb.Value{keySubset: structpb.NewListValue(list)}}
	}
	if c.served != "" {
		m.FilterMetadata[namespaceLB] = &structpb.Struct{Fields: map[string]*structpb.Value{keyServed: structpb.NewStringValue(c.served)}}
	}
	return m
}

// merge takes over what m says; a message that says nothing changes nothing.
func (c *contextMetadata) merge(m *corev3.Metadata) {
	filters := m.GetFilterMetadata()
	if hint, ok := filters[namespaceSubset].GetFields()[keySubset]; ok {
		c.subset = subsetOf(hint)
	}
	if served := filters[namespaceLB].GetFields()[keyServed].GetStringValue(); served != "" {
		c.served = served
	}
}

// take takes over what a later message said.
func (c *contextMetadata) take(later contextMetadata) {
	if later.subset != nil {
		c.subset = later.subset
	}
	if later.served != "" {
		c.served = later.served
	}
}

// subsetOf reads a hint: a list of texts, each one endpoint or several, or a
// text. Never nil: a hint that names nobody leaves nobody.
func subsetOf(hint *structpb.Value) []string {
	out := []string{}
	switch kind := hint.GetKind().(type) {
	case *structpb.Value_StringValue:
		out = append(out, splitEndpoints(kind.StringValue)...)
	case *structpb.Value_ListValue:
		for _, v := range kind.ListValue.GetValues() {
			out = append(out, splitEndpoints(v.GetStringValue())...)
		}
	}
	return out
}

// inSubset says whether a member's address is in a hint, whose entries are
// host:port or a host alone.
func inSubset(subset []string, address string) bool {
	host, _, err := net.SplitHostPort(address)
	return slices.ContainsFunc(subset, func(s string) bool {
		return s == address || err == nil && (s == host || s == "["+host+"]")
	})
}
