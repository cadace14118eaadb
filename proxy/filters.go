// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
)

// edits change header fields: remove, set, add.
type edits struct {
	remove   []string // canonical
	set, add []config.Field
}

func compileEdits(c *config.FieldEdits) edits {
	if c == nil {
		return edits{}
	}
	var e edits
	for _, name := range c.Remove {
		if !protected(name) {
			e.remove = append(e.remove, textproto.CanonicalMIMEHeaderKey(name))
		}
	}
	keep := func(list []config.Field) (out []config.Field) {
		for _, f := range list {
			if !protected(f.Name) {
				out = append(out, config.Field{Name: textproto.CanonicalMIMEHeaderKey(f.Name), Value: f.Value})
			}
		}
		return out
	}
	e.set, e.add = keep(c.Set), keep(c.Add)
	return e
}

// apply edits h, whose values may belong to somebody else.
func (e *edits) apply(h http.Header) {
	for _, name := range e.remove {
		delete(h, name)
	}
	for _, f := range e.set {
		h[f.Name] = []string{f.Value}
	}
	for _, f := range e.add {
		old := h[f.Name]
		h[f.Name] = append(old[:len(old):len(old)], f.Value)
	}
}

// redirect answers with a Location.
func (x *exchange) redirect(m *match) *llm.Error {
	to := m.rule.redirect
	scheme, port := to.Scheme, ""
	if scheme == "" {
		scheme, port = "http", x.table.sites[x.listener.name].port
		if x.r.TLS != nil {
			scheme = "https"
		}
	}
	if to.Port != 0 {
		port = strconv.Itoa(to.Port)
	}
	host := to.Host
	if host == "" {
		host = hostName(x.r.Host)
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port != "" && !(scheme == "http" && port == "80") && !(scheme == "https" && port == "443") {
		host = net.JoinHostPort(strings.Trim(host, "[]"), port)
	}
	path, ok := x.http.wire.rewrite(to.Path, m)
	if !ok {
		return ambiguousPath()
	}
	location := scheme + "://" + host + path
	if x.r.URL.RawQuery != "" {
		location += "?" + x.r.URL.RawQuery
	}
	x.w.Header().Set("Location", location)
	status := to.Status
	if status == 0 {
		status = http.StatusFound
	}
	x.answer(status, nil)
	return nil
}

// rewrite is the escaped path after c, which may be nil.
func (w *wirePath) rewrite(c *config.PathRewrite, m *match) (escaped string, ok bool) {
	switch {
	case c == nil:
	case c.Full != nil:
		return escape(*c.Full), true
	case c.Prefix != nil:
		return w.replacePrefix(m.path.Value, *c.Prefix)
	}
	return w.send, true
}

func ambiguousPath() *llm.Error {
	return &llm.Error{
		Status: http.StatusBadRequest, Type: "invalid_request_error", Code: "ambiguous_path",
		Message: "the path can be read in two ways that lead to different places",
	}
}

// cors is config.CORS compiled.
type cors struct {
	any     bool     // every origin
	origins []origin // the others
	c       *config.CORS
	methods []string // nil: any
	headers []string // nil: any
	expose  string   // "*" too
	maxAge  string
}

// origin is scheme, host and port; a host may begin with "*".
type origin struct{ scheme, host, port string }

func compileCORS(c *config.CORS) *cors {
	if c == nil {
		return nil
	}
	out := &cors{c: c, expose: strings.Join(c.ExposeHeaders, ", "), methods: listOrAny(c.AllowMethods), headers: listOrAny(c.AllowHeaders)}
	age := c.MaxAge
	if age == 0 {
		age = config.Duration(5e9)
	}
	out.maxAge = strconv.FormatInt(int64(age.D().Seconds()), 10)
	for _, text := range c.AllowOrigins {
		if text == "*" {
			out.any = true
		} else if o, ok := parseOrigin(text); ok {
			out.origins = append(out.origins, o)
		}
	}
	return out
}

// listOrAny is the list, nil if it says "*".
func listOrAny(list []string) []string {
	out := []string{}
	for _, s := range list {
		if s == "*" {
			return nil
		}
		out = append(out, s)
	}
	return out
}

// parseOrigin reads scheme://host[:port]; without a port it is the scheme's.
func parseOrigin(text string) (o origin, ok bool) {
	scheme, host, ok := strings.Cut(strings.ToLower(text), "://")
	if !ok || host == "" || strings.ContainsAny(host, "/?#@") {
		return origin{}, false
	}
	o = origin{scheme: scheme, host: host}
	if i := strings.LastIndexByte(host, ':'); i >= 0 && host[len(host)-1] != ']' {
		o.host, o.port = host[:i], host[i+1:]
	}
	if o.port == "" {
		o.port = map[string]string{"http": "80", "https": "443"}[scheme]
	}
	return o, true
}

// allows says whether an origin may read answers.
func (c *cors) allows(text string) bool {
	if c.any {
		return text != ""
	}
	o, ok := parseOrigin(text)
	if !ok {
		return false
	}
	for _, p := range c.origins {
		if p.scheme != o.scheme || p.port != o.port {
			continue
		}
		if suffix, wild := strings.CutPrefix(p.host, "*"); wild {
			if strings.HasSuffix(o.host, suffix) && len(o.host) > len(suffix) {
				return true
			}
		} else if p.host == o.host {
			return true
		}
	}
	return false
}

// preflight says that r asks what a script may do, and does nothing itself
// (Fetch standard, CORS-preflight request).
func preflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// answerPreflight tells a script what it may do. One from elsewhere hears
// nothing, which browsers take for a no.
func (x *exchange) answerPreflight(c *cors) {
	h := x.w.Header()
	h["Vary"] = append(h["Vary"], "Origin, Access-Control-Request-Method, Access-Control-Request-Headers")
	if !c.allows(x.r.Header.Get("Origin")) {
		x.answer(http.StatusNoContent, nil)
		return
	}
	// "*" does not stand for everything beside credentials, and the wish itself
	// always does.
	if c.methods == nil {
		h.Set("Access-Control-Allow-Methods", x.r.Header.Get("Access-Control-Request-Method"))
	} else if len(c.methods) > 0 {
		h.Set("Access-Control-Allow-Methods", strings.Join(c.methods, ", "))
	}
	if wish := strings.Join(x.r.Header["Access-Control-Request-Headers"], ", "); c.headers == nil && wish != "" {
		h.Set("Access-Control-Allow-Headers", wish)
	} else if len(c.headers) > 0 {
		h.Set("Access-Control-Allow-Headers", strings.Join(c.headers, ", "))
	}
	h.Set("Access-Control-Max-Age", c.maxAge)
	x.answer(http.StatusNoContent, nil) // marked there
}

// mark lets the script that asked read the answer.
func (c *cors) mark(h http.Header, r *http.Request) {
	if !preflight(r) { // whose answer says more, see answerPreflight
		h["Vary"] = append(h["Vary"][:len(h["Vary"]):len(h["Vary"])], "Origin")
	}
	asks := r.Header.Get("Origin")
	if asks == "" {
		return
	}
	for name := range h {
		// What the backend says of it has no say.
		if name == "Access-Control-Allow-Origin" || name == "Access-Control-Allow-Credentials" || name == "Access-Control-Expose-Headers" {
			delete(h, name)
		}
	}
	if !c.allows(asks) {
		return
	}
	h.Set("Access-Control-Allow-Origin", asks)
	if c.c.AllowCredentials {
		h.Set("Access-Control-Allow-Credentials", "true")
	}
	if c.expose != "" {
		h.Set("Access-Control-Expose-Headers", c.expose)
	}
}
