// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/internal/h1"
	"golang.org/x/net/http/httpguts"
)

// maxMutations bounds the header fields that one answer of a picker may name.
const maxMutations = 1000

// Why a field of a mutation was not taken; label values.
const (
	refusedName    = "name"    // not a field name
	refusedValue   = "value"   // not a field value, or both forms of one
	refusedPseudo  = "pseudo"  // :method and its kin, host
	refusedFraming = "framing" // of the hop; content-length is left out without a word
	refusedMany    = "many"    // more than maxMutations
)

// mutation reads what a picker wants done to header fields. sent is what it was
// shown: pickers give back every field that they saw, and an echo changes
// nothing. What endpoints it names comes apart from the edits.
//
// Of a field that was sent with several values each of these counts as an echo.
func (c *clientCounters) mutation(m *extprocv3.HeaderMutation, sent http.Header) (edits epp.HeaderEdits, endpoints string) {
	sets := m.GetSetHeaders()
	if over := len(sets) + len(m.GetRemoveHeaders()) - maxMutations; over > 0 {
		c.mutationsRefused(refusedMany, over)
		sets = sets[:min(len(sets), maxMutations)]
	}
	for i, name := range m.GetRemoveHeaders() {
		if i >= maxMutations {
			break
		}
		if why := refusal(name); why != "" {
			if !isLength(name) {
				c.mutationsRefused(why, 1)
			}
			continue
		}
		edits.Remove = append(edits.Remove, name)
	}
	for _, set := range sets {
		field := set.GetHeader()
		name := textproto.CanonicalMIMEHeaderKey(field.GetKey())
		value := valueOf(field)
		before := sent[name]
		echo := slices.Contains(before, value)
		if name == canonicalEndpoint {
			endpoints = value
			continue
		}
		if why := refusal(field.GetKey()); why != "" {
			// Pseudo headers are always given back, and the protocol wants a length.
			if key := field.GetKey(); !echo && !isPseudo(key) && !isLength(key) {
				c.mutationsRefused(why, 1)
			}
			continue
		}
		if len(field.GetValue()) > 0 && len(field.GetRawValue()) > 0 || !httpguts.ValidHeaderFieldValue(value) {
			c.mutationsRefused(refusedValue, 1)
			continue
		}
		//lint:ignore SA1019 the old form is still sent
		switch action, appends := set.GetAppendAction(), set.GetAppend().GetValue(); {
		case action == corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD && appends:
			edits.Set = append(edits.Set, epp.HeaderValue{Name: name, Value: value, Append: true})
		case action == corev3.HeaderValueOption_ADD_IF_ABSENT && len(before) > 0,
			action == corev3.HeaderValueOption_OVERWRITE_IF_EXISTS && len(before) == 0,
			echo:
		case value == "" && !set.GetKeepEmptyValue() && len(before) == 0:
		default:
			edits.Set = append(edits.Set, epp.HeaderValue{Name: name, Value: value})
		}
	}
	return edits, endpoints
}

// canonicalEndpoint is HeaderEndpoint as net/http writes it.
const canonicalEndpoint = "X-Gateway-Destination-Endpoint"

func isPseudo(name string) bool { return name != "" && name[0] == ':' }

// isLength says that a field is content-length, which pickers must set with a
// body of their own and which is the gateway's to set.
func isLength(name string) bool { return strings.EqualFold(name, "content-length") }

// refusal says why a picker may not touch a field, or "".
func refusal(name string) string {
	switch {
	case isPseudo(name):
		return refusedPseudo
	case !httpguts.ValidHeaderFieldName(name):
		return refusedName
	}
	switch name = textproto.CanonicalMIMEHeaderKey(name); {
	case name == "Host":
		return refusedPseudo
	case name == "Content-Length", h1.OfTheHop(name):
		return refusedFraming
	}
	return ""
}

// shown is what a picker is shown of a client's header: not what belongs to
// the hop, no credentials, and nothing that speaks for a picker.
func shown(h http.Header) http.Header {
	out := make(http.Header, len(h))
	for name, values := range h {
		switch name {
		case "Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "Xi-Api-Key", "Host",
			canonicalEndpoint, "X-Gateway-Destination-Endpoint-Served", "X-Gateway-Destination-Endpoint-Subset",
			"X-Llm-D-Request-Dropped-Reason":
			continue
		}
		if !h1.OfTheHop(name) {
			out[name] = values
		}
	}
	return out
}

// edit carries edits out.
func edit(h http.Header, e epp.HeaderEdits) {
	for _, name := range e.Remove {
		h.Del(name)
	}
	for _, set := range e.Set {
		if set.Append {
			h.Add(set.Name, set.Value)
		} else {
			h.Set(set.Name, set.Value)
		}
	}
}
