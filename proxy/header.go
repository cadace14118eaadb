// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"crypto/rand"
	"encoding/hex"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/internal/h1"
	"golang.org/x/net/http/httpguts"
)

const requestIDHeader = "X-Request-Id"

// hopsHeader counts the gateways that a request has passed. One that has passed
// too many runs in a circle: a route or pool leads back to the gateway itself,
// and each turn would hold a connection more.
const (
	hopsHeader = "X-Penstock-Hops"
	mostHops   = 8
)

// hops is how many gateways the request has passed before this one.
func (x *exchange) hops() int {
	v := x.r.Header[hopsHeader]
	if len(v) == 0 {
		return 0
	}
	n, err := strconv.Atoi(v[0])
	if err != nil || n < 0 {
		return 0 // not ours; the next one gets a number
	}
	return n
}

// requestID keeps the client's id when it is plain and short, else makes one.
func requestID(h http.Header) string {
	if id := h.Get(requestIDHeader); id != "" && len(id) <= 128 {
		ok := true
		for i := 0; i < len(id) && ok; i++ {
			c := id[i]
			ok = c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.IndexByte("-_.:/+=", c) >= 0
		}
		if ok {
			return id
		}
	}
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// framing are request headers that are made anew for the next hop.
func framing(name string) bool {
	switch name {
	case "Host", "Content-Length", "Expect":
		return true
	}
	return false
}

// claims are what a request says of where it came from, and of what the gateway
// does: the gateway says that itself.
func claims(name string) bool {
	switch name {
	case "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port",
		"X-Forwarded-Prefix", "X-Real-Ip", requestIDHeader, "X-Model-Used":
		return true
	}
	return false
}

// private are credentials and cookies: meant for the gateway, never for a model
// server.
func private(name string) bool {
	switch name {
	case "Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "Xi-Api-Key", "Cookie", "Accept-Encoding":
		return true
	}
	return false
}

// steers says which request headers never leave the gateway: a client that
// could send these would choose an address for a server to call.
func steers(name string) bool {
	if !strings.HasPrefix(name, "X-") {
		return false
	}
	for _, prefix := range [...]string{
		"Gateway-", "Prefiller-", "Encoder-", "Data-Parallel-", "Kv-Cache-Source-", "Llm-D-", "Penstock-", "Slo-",
	} {
		if strings.HasPrefix(name[2:], prefix) {
			return true
		}
	}
	return false
}

// stripped says which request headers never reach a model server.
func stripped(name string) bool {
	return framing(name) || claims(name) || private(name) || steers(name)
}

// dash maps a name with underscores to the one that a CGI-like server cannot
// tell it from, so that X_Gateway_Y is treated as X-Gateway-Y.
func dash(name string) string {
	if strings.IndexByte(name, '_') < 0 {
		return name
	}
	return textproto.CanonicalMIMEHeaderKey(strings.ReplaceAll(name, "_", "-"))
}

// requestHeader is what goes to a member: the client's headers less those of
// this hop and those that are stripped, plus what the gateway says itself.
func (x *exchange) requestHeader() http.Header {
	in := x.r.Header
	var out http.Header
	if x.target.plain {
		out = x.plainHeader()
	} else {
		out = x.modelHeader()
	}
	if httpguts.HeaderValuesContainsToken(in["Te"], "trailers") {
		out["Te"] = []string{"trailers"}
	}
	if _, ok := out["User-Agent"]; !ok {
		out["User-Agent"] = []string{""} // or the transport would name itself
	}
	out[requestIDHeader] = []string{x.record.RequestID}
	out[hopsHeader] = []string{strconv.Itoa(x.hops() + 1)}
	if ip, _, err := net.SplitHostPort(x.r.RemoteAddr); err == nil {
		out["X-Forwarded-For"] = []string{ip}
	}
	if x.r.Host != "" {
		out["X-Forwarded-Host"] = []string{x.r.Host}
	}
	proto := "http"
	if x.r.TLS != nil {
		proto = "https"
	}
	out["X-Forwarded-Proto"] = []string{proto}
	if key := x.target.apiKey; key != "" {
		out["Authorization"] = []string{"Bearer " + key.Reveal()}
	}
	return out
}

// modelHeader is what of the client's headers a model server may see.
func (x *exchange) modelHeader() http.Header {
	in := x.r.Header
	out := make(http.Header, len(in)+4)
	named := in["Connection"]
	for name, values := range in {
		d := dash(name)
		if h1.OfTheHop(d) || stripped(d) || x.ofTask(d) || connectionNames(named, name) {
			continue
		}
		if d != name && (d == "Content-Type" || d == "Content-Encoding") {
			continue // what says how the body was read comes under one name
		}
		out[name] = values
	}
	return out
}

func connectionNames(named []string, name string) bool {
	return len(named) > 0 && httpguts.HeaderValuesContainsToken(named, name)
}

// applyEdits carries out a picker's edits. Framing and pseudo headers are not
// a picker's to set.
func applyEdits(h http.Header, e epp.HeaderEdits) {
	for _, name := range e.Remove {
		if !protected(name) {
			h.Del(name)
		}
	}
	for _, set := range e.Set {
		if !protected(set.Name) && httpguts.ValidHeaderFieldName(set.Name) && httpguts.ValidHeaderFieldValue(set.Value) {
			if set.Append {
				h.Add(set.Name, set.Value)
			} else {
				h.Set(set.Name, set.Value)
			}
		}
	}
}

func protected(name string) bool {
	if name == "" || name[0] == ':' {
		return true
	}
	name = textproto.CanonicalMIMEHeaderKey(name)
	return h1.OfTheHop(name) || name == "Host" || name == "Content-Length"
}

// responseHeader copies an answer's headers to the client: not those of the
// hop, not what speaks of the model server itself.
func responseHeader(out, in http.Header, plain bool) {
	named := in["Connection"]
	for name, values := range in {
		switch {
		case h1.OfTheHop(name), connectionNames(named, name):
			continue
		case name == "Alt-Svc", name == requestIDHeader, name == "X-Model-Used", strings.HasPrefix(name, "X-Penstock-"):
			continue
		case plain:
		case name == "Server", name == "Set-Cookie", strings.HasPrefix(name, "X-Gateway-"), strings.HasPrefix(name, "X-Inference-"):
			continue
		}
		out[name] = values
	}
}
