// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// sections checks the sections of a listener.
func (v *validator) sections(path string, l *Listener) {
	v.notEmpty(path+".sections", l.Sections != nil, len(l.Sections), "one section for every host")
	names, hosts := map[string]string{}, map[string]string{}
	encrypted := 0
	for i := range l.Sections {
		s, at := &l.Sections[i], joinIndex(path+".sections", i)
		v.name(at, s.Name, names)
		if s.Host != "" {
			v.host(at+".host", s.Host)
		}
		v.unique(at+".host", s.Host, hosts)
		if s.TLS != nil {
			encrypted++
			v.serverTLS(at+".tls", s.TLS)
		}
	}
	switch {
	case encrypted > 0 && l.TLS != nil:
		v.fail(path+".tls", "its sections have certificates of their own", "leave out one of them")
	case encrypted > 0 && encrypted < len(l.Sections):
		v.fail(path+".sections", "some sections serve TLS and some do not, on one address", "give each a certificate, or none")
	}
}

// host checks a name in lower case without port, or *.suffix.
func (v *validator) host(path, h string) {
	name := strings.TrimPrefix(h, "*.")
	if len(name) > 253 || !hostForm.MatchString(name) || strings.ToLower(h) != h || strings.HasSuffix(h, ".") {
		v.fail(path, fmt.Sprintf("%q is not a host", h), "write a name in lower case without port, or *.suffix")
	}
}

// hostWithin says that every host that h matches is one that outer does.
func hostWithin(h, outer string) bool {
	suffix, wild := strings.CutPrefix(outer, "*")
	switch {
	case outer == "" || h == outer:
		return true
	case wild:
		return strings.HasSuffix(strings.TrimPrefix(h, "*"), suffix) && len(h) > len(suffix)
	}
	return false
}

// serverTLS checks a server's certificate.
func (v *validator) serverTLS(path string, t *ServerTLS) {
	v.either(path, "clientCA", t.ClientCA != "", t.ClientCAPEM != "")
	v.pemAuthorities(path+".clientCAPEM", t.ClientCAPEM)
	if v.eitherPair(path, t.Cert, t.Key, t.CertPEM, t.KeyPEM) {
		v.keyPair(path, t.Cert, t.Key, true)
	}
}

// clientTLS checks how servers prove themselves, and the own certificate.
func (v *validator) clientTLS(path string, t *ClientTLS) {
	v.either(path, "ca", t.CA != "", t.CAPEM != "")
	v.pemAuthorities(path+".caPEM", t.CAPEM)
	if v.eitherPair(path, t.Cert, t.Key, t.CertPEM, t.KeyPEM) {
		v.keyPair(path, t.Cert, t.Key, false)
	}
	if (t.CA != "" || t.CAPEM != "") && t.InsecureSkipVerify {
		v.fail(path+".insecureSkipVerify", "no certificate would be checked against ca", "leave out one of them")
	}
	v.notEmpty(path+".subjectAltNames", t.SubjectAltNames != nil, len(t.SubjectAltNames), "serverName")
	for i, name := range t.SubjectAltNames {
		dns, isDNS := strings.CutPrefix(name, "dns:")
		uri, isURI := strings.CutPrefix(name, "uri:")
		if !(isDNS && hostForm.MatchString(dns)) && !(isURI && uri != "") {
			v.fail(joinIndex(path+".subjectAltNames", i), fmt.Sprintf("%q is no alternative name", name), "write dns:NAME or uri:URI")
		}
	}
	v.notEmpty(path+".pins", t.Pins != nil, len(t.Pins), "any key")
	for i, pin := range t.Pins {
		if sum, err := base64.StdEncoding.DecodeString(pin); err != nil || len(sum) != sha256.Size {
			v.fail(joinIndex(path+".pins", i), fmt.Sprintf("%q is not a SHA-256 in base64", pin), "write 44 characters that end in =, as in RFC 7469")
		}
	}
}

func (v *validator) either(path, key string, file, text bool) {
	if file && text {
		v.fail(path+"."+key, "is given as a file and as text", "leave out "+key+" or "+key+"PEM")
	}
}

// eitherPair checks a certificate and key that are given as text, and says
// whether files are meant instead.
func (v *validator) eitherPair(path, cert, key, certText string, keyText Secret) (files bool) {
	if certText == "" && keyText == "" {
		return true
	}
	v.either(path, "cert", cert != "" || key != "", true)
	switch {
	case certText == "":
		v.fail(path+".certPEM", "is missing", "a certificate and its key go together")
	case keyText == "":
		v.fail(path+".keyPEM", "is missing", "a certificate and its key go together")
	default:
		// The error may hold parts of what was read: it stays here.
		if _, err := tls.X509KeyPair([]byte(certText), []byte(keyText.Reveal())); err != nil {
			v.fail(path+".certPEM", "is no certificate in PEM form that goes with keyPEM", "")
		}
	}
	return false
}

func (v *validator) pemAuthorities(path, text string) {
	if text != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(text)) {
		v.fail(path, "holds no certificate in PEM form", "")
	}
}

// longNameForm is for names that other systems make: a namespace and a name.
var longNameForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$`)

func (v *validator) longName(path, name string, seen map[string]string) {
	at := path + ".name"
	switch {
	case name == "":
		v.fail(at, "is missing", "every entry of this list needs a name")
	case len(name) > 253 || !longNameForm.MatchString(name):
		v.fail(at, fmt.Sprintf("%q is not a name", name), "use letters, digits and . _ - / inside, 253 characters at most")
	default:
		v.unique(at, name, seen)
	}
}

func (v *validator) httpRoutes() {
	seen := map[string]string{}
	pools := names(v.c.Pools, func(p *Pool) string { return p.Name })
	isPool := setOf(pools)
	for i := range v.c.HTTPRoutes {
		r, path := &v.c.HTTPRoutes[i], joinIndex("httpRoutes", i)
		v.longName(path, r.Name, seen)
		if len(r.Parents) == 0 {
			v.fail(path+".parents", "there are none, so that the route is served nowhere", "add parents: [{listener: NAME}]")
		}
		for j := range r.Parents {
			v.attachment(joinIndex(path+".parents", j), &r.Parents[j])
		}
		rules := map[string]string{}
		v.instructions = 0
		for j := range r.Rules {
			ru, at := &r.Rules[j], joinIndex(path+".rules", j)
			if ru.Name != "" {
				v.longName(at, ru.Name, rules)
			}
			v.httpRule(at, ru)
			for k := range ru.Backends {
				v.httpBackend(joinIndex(at+".backends", k), &ru.Backends[k], pools, isPool)
			}
			for k := range ru.Filters.Mirrors {
				m, mp := &ru.Filters.Mirrors[k], joinIndex(at+".filters.mirrors", k)
				v.poolRef(mp+".pool", m.Pool, pools, isPool)
				if m.Numerator > m.Denominator {
					v.fail(mp+".numerator", fmt.Sprintf("is more than the denominator of %d", m.Denominator), "")
				}
			}
		}
	}
}

func (v *validator) attachment(path string, a *Attachment) {
	listeners := names(v.c.Listeners, func(l *Listener) string { return l.Name })
	i := slices.IndexFunc(v.c.Listeners, func(l Listener) bool { return l.Name == a.Listener })
	v.notEmpty(path+".hosts", a.Hosts != nil, len(a.Hosts), "every host of the section")
	if i < 0 {
		if a.Listener == "" {
			v.fail(path+".listener", "is missing", "name one of listeners")
		} else {
			v.dangling(path+".listener", "listeners", "listener", a.Listener, listeners)
		}
		return
	}
	outer := ""
	if a.Section != "" {
		sections := v.c.Listeners[i].Sections
		j := slices.IndexFunc(sections, func(s Section) bool { return s.Name == a.Section })
		if j < 0 {
			v.dangling(path+".section", joinIndex("listeners", i), "section", a.Section, names(sections, func(s *Section) string { return s.Name }))
			return
		}
		outer = sections[j].Host
	}
	for k, h := range a.Hosts {
		at := joinIndex(path+".hosts", k)
		if v.host(at, h); !hostWithin(h, outer) {
			v.fail(at, fmt.Sprintf("%q is not within %q, the section's host", h, outer), "")
		}
	}
}

func (v *validator) poolRef(path, pool string, pools []string, isPool map[string]bool) {
	switch {
	case pool == "":
		v.fail(path, "is missing", "name one of pools")
	case !isPool[pool]:
		v.dangling(path, "pools", "pool", pool, pools)
	}
}

func (v *validator) httpBackend(path string, b *HTTPBackend, pools []string, isPool map[string]bool) {
	switch {
	case b.Pool == "" && b.Status == 0:
		v.fail(path+".pool", "is missing", "name one of pools, or a status that stands for it")
	case b.Pool != "" && b.Status != 0:
		v.fail(path+".status", "is for a backend without a pool", "leave out one of them")
	case b.Pool == "" && (b.Status < 400 || b.Status > 599):
		v.fail(path+".status", "is no status of an error", "use one from 400 to 599")
	case b.Pool != "":
		v.poolRef(path+".pool", b.Pool, pools, isPool)
	}
	v.edits(path+".requestHeaders", b.RequestHeaders)
	v.edits(path+".responseHeaders", b.ResponseHeaders)
}

func (v *validator) httpRule(path string, r *HTTPRule) {
	prefixes := true
	for i := range r.Matches {
		v.httpMatch(joinIndex(path+".matches", i), &r.Matches[i])
		prefixes = prefixes && r.Matches[i].Path.Type == "prefix"
	}
	f, at := &r.Filters, path+".filters"
	v.edits(at+".requestHeaders", f.RequestHeaders)
	v.edits(at+".responseHeaders", f.ResponseHeaders)
	if d := f.Redirect; d != nil {
		if len(r.Backends) > 0 {
			v.fail(at+".redirect", "the rule has backends, which would never be asked", "leave out one of them")
		}
		if f.Rewrite != nil {
			v.fail(at+".rewrite", "means nothing beside redirect", "leave out one of them")
		}
		if d.Host != "" {
			v.plainHost(at+".redirect.host", d.Host)
		}
		if !slices.Contains([]int{301, 302, 303, 307, 308}, d.Status) {
			v.fail(at+".redirect.status", fmt.Sprintf("%d is no redirect", d.Status), "use 301, 302, 303, 307 or 308")
		}
		v.pathRewrite(at+".redirect.path", d.Path, prefixes)
	}
	if w := f.Rewrite; w != nil {
		if w.Host == "" && w.Path == nil {
			v.fail(at+".rewrite", "says nothing", "set host or path")
		}
		if w.Host != "" {
			v.plainHost(at+".rewrite.host", w.Host)
		}
		v.pathRewrite(at+".rewrite.path", w.Path, prefixes)
	}
	if f.CORS != nil {
		v.cors(at+".cors", f.CORS)
	}
	if t := r.Timeouts; t.Request > 0 && t.Backend > t.Request {
		v.fail(path+".timeouts.backend", fmt.Sprintf("is longer than the request's %s", t.Request), "")
	}
	if r.Retry != nil {
		for i, code := range r.Retry.Codes {
			if code < 400 || code > 599 {
				v.fail(joinIndex(path+".retry.codes", i), fmt.Sprintf("%d is no status of an error", code), "use some from 400 to 599")
			}
		}
	}
}

// plainHost checks one host without wildcard and port.
func (v *validator) plainHost(path, host string) {
	if len(host) > 253 || !hostForm.MatchString(host) {
		v.fail(path, fmt.Sprintf("%q is not a host", host), "write a name without port")
	}
}

func (v *validator) pathRewrite(path string, p *PathRewrite, prefixes bool) {
	if p == nil {
		return
	}
	switch {
	case p.Full == nil && p.Prefix == nil:
		v.fail(path, "says nothing", "set one of full and prefix")
	case p.Full != nil && p.Prefix != nil:
		v.fail(path, "says two things", "set one of full and prefix")
	case p.Prefix != nil && !prefixes:
		v.fail(path+".prefix", "a match of the rule has no prefix to replace", "let every match have a path of type prefix")
	}
	for key, text := range map[string]*string{"full": p.Full, "prefix": p.Prefix} {
		if text != nil && *text != "" && (*text)[0] != '/' {
			v.fail(path+"."+key, fmt.Sprintf("%q is not absolute", *text), "begin with /")
		}
	}
}

func (v *validator) httpMatch(path string, m *HTTPMatch) {
	if m.Path.Type == "regex" {
		v.regex(path+".path.value", m.Path.Value)
	} else {
		v.matchPath(path+".path.value", m.Path.Value)
	}
	if m.Method != "" && (!httpguts.ValidHeaderFieldName(m.Method) || strings.ToUpper(m.Method) != m.Method) {
		v.fail(path+".method", fmt.Sprintf("%q is not a method", m.Method), "write it in capitals")
	}
	for i := range m.Headers {
		f, at := &m.Headers[i], joinIndex(path+".headers", i)
		if !httpguts.ValidHeaderFieldName(f.Name) {
			v.fail(at+".name", fmt.Sprintf("%q is not a header name", f.Name), "")
		}
		v.fieldMatch(at, f)
	}
	for i := range m.Query {
		f, at := &m.Query[i], joinIndex(path+".query", i)
		if f.Name == "" {
			v.fail(at+".name", "is missing", "")
		}
		v.fieldMatch(at, f)
	}
}

func (v *validator) fieldMatch(path string, f *FieldMatch) {
	if f.Type == "regex" {
		v.regex(path+".value", f.Value)
	}
}

func (v *validator) regex(path, expr string) {
	n, err := Expression(expr)
	switch v.instructions += n; {
	case err != nil:
		v.fail(path, fmt.Sprintf("%q is not a regular expression to match: %v", expr, err), "the syntax is that of RE2")
	case v.instructions > MaxRouteExpressions:
		v.fail(path, fmt.Sprintf("the expressions of the route come to about %d instructions, and %d are the most", v.instructions, MaxRouteExpressions), "match by prefix or exactly where that will do")
	}
}

// matchPath checks a path to compare with: such paths as no request has after
// it was normalised would never match.
func (v *validator) matchPath(path, p string) {
	low := strings.ToLower(p)
	switch {
	case p == "" || p[0] != '/':
		v.fail(path, fmt.Sprintf("%q is not absolute", p), "begin with /")
	case strings.Contains(p, "//"), strings.Contains(p, "/./"), strings.Contains(p, "/../"), strings.HasSuffix(p, "/."), strings.HasSuffix(p, "/.."):
		v.fail(path, fmt.Sprintf("%q is not clean, and no request has such a path", p), "no //, /./ or /../")
	case strings.ContainsAny(p, "?#"), strings.Contains(low, "%2f"):
		v.fail(path, fmt.Sprintf("%q holds what no path has", p), "no ?, # or %2F")
	}
}

// edits checks names and values. What belongs to this hop (Connection, Host,
// Content-Length and such) is left as it is when edits are carried out.
func (v *validator) edits(path string, e *FieldEdits) {
	if e == nil {
		return
	}
	for key, list := range map[string][]Field{"set": e.Set, "add": e.Add} {
		for i, f := range list {
			at := joinIndex(path+"."+key, i)
			if !httpguts.ValidHeaderFieldName(f.Name) {
				v.fail(at+".name", fmt.Sprintf("%q is not a header name", f.Name), "")
			}
			if !httpguts.ValidHeaderFieldValue(f.Value) {
				v.fail(at+".value", "holds characters that no header may have", "")
			}
		}
	}
	for i, name := range e.Remove {
		if !httpguts.ValidHeaderFieldName(name) {
			v.fail(joinIndex(path+".remove", i), fmt.Sprintf("%q is not a header name", name), "")
		}
	}
}

var originForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://(\*\.?)?[A-Za-z0-9._\[\]-]*(:[0-9]{1,5})?$`)

func (v *validator) cors(path string, c *CORS) {
	for i, o := range c.AllowOrigins {
		if o != "*" && (!originForm.MatchString(o) || strings.HasSuffix(o, "://")) {
			v.fail(joinIndex(path+".allowOrigins", i), fmt.Sprintf("%q is not an origin", o), `write "*", or scheme://host:port, where the host may begin with *.`)
		}
	}
	for key, list := range map[string][]string{"allowMethods": c.AllowMethods, "allowHeaders": c.AllowHeaders, "exposeHeaders": c.ExposeHeaders} {
		for i, name := range list {
			if name != "*" && !httpguts.ValidHeaderFieldName(name) {
				v.fail(joinIndex(path+"."+key, i), fmt.Sprintf("%q is not a name", name), "")
			}
		}
	}
}
