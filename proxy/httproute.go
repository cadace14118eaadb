// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"net/textproto"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
)

// httpTable is the HTTP routes of one section by host.
type httpTable struct {
	hosts hostIndex[*pathTable]
}

// pathTable is the matches of one host. Those in a list are for the same path,
// the most specific first.
type pathTable struct {
	exact   map[string][]*match
	regex   []*match
	prefix  map[string][]*match // by prefix without its last slash: "" is every path
	longest int                 // of the prefixes
}

// match is one config.HTTPMatch of one rule.
type match struct {
	rule    *rule // nil: the path belongs to the routes of models
	path    config.PathMatch
	regex   *regexp.Regexp // of the path; nil: no regex
	method  string
	headers []field
	query   []field
	order   int // of the match among all
}

// field compares a header field or a query parameter.
type field struct {
	name  string // of a header in canonical form
	value string
	regex *regexp.Regexp // nil: exact
}

func (f *field) matches(value string) bool {
	if f.regex != nil {
		return f.regex.MatchString(value)
	}
	return value == f.value
}

// rule is a config.HTTPRule.
type rule struct {
	route, name string
	service     service // no targets: 500
	request     edits
	response    edits
	redirect    *config.Redirect
	rewrite     *config.Rewrite
	mirrors     []*mirror
	cors        *cors
}

// httpBounds are what a rule says of time and attempts.
type httpBounds struct {
	backend time.Duration // of one attempt up to its end; 0: none
	codes   []int         // answers after which another attempt follows
	backoff time.Duration
}

// httpTarget is what a backend of a rule adds to its pool.
type httpTarget struct {
	status   int // in place of a pool
	request  edits
	response edits
}

// httpRoutes compiles the HTTP routes into the tables of their sections.
func (b *builder) httpRoutes() error {
	order := 0
	for i := range b.cfg.HTTPRoutes {
		rc := &b.cfg.HTTPRoutes[i]
		for j := range rc.Rules {
			ru, err := b.rule(rc, &rc.Rules[j])
			if err != nil {
				return fmt.Errorf("httpRoutes[%d].rules[%d]: %w", i, j, err)
			}
			ms := rc.Rules[j].Matches
			if len(ms) == 0 {
				ms = []config.HTTPMatch{{Path: config.PathMatch{Type: "prefix", Value: "/"}}}
			}
			for k := range ms {
				m, err := compileMatch(&ms[k])
				if err != nil {
					return fmt.Errorf("httpRoutes[%d].rules[%d].matches[%d]: %w", i, j, k, err)
				}
				m.rule, m.order = ru, order
				order++
				for _, a := range rc.Parents {
					b.attach(a, m)
				}
			}
		}
	}
	for _, s := range b.table.sites {
		for _, sec := range s.sections {
			if len(b.cfg.HTTPRoutes) > 0 && len(b.cfg.Models) > 0 {
				b.keepModels(sec, order)
			}
			sec.http.sort()
		}
	}
	return nil
}

// keepModels enters the paths at which routes of models answer among the HTTP
// routes of a section, as exact ones: an HTTP route for / leaves them alone,
// and one for that very path or a more exact host takes them.
func (b *builder) keepModels(sec *section, order int) {
	for _, rt := range sec.routes {
		host := rt.host
		if rt.rank() == 1 {
			host = "*" + host
		}
		keep := func(kind, path string) {
			sec.http.add(host, &match{path: config.PathMatch{Type: kind, Value: rt.prefix + path}, order: order})
		}
		for _, path := range llm.Paths() {
			keep("exact", path)
		}
		for path := range b.table.paths {
			keep("exact", path)
		}
		keep("prefix", "/v1/models")
	}
}

func (b *builder) attach(a config.Attachment, m *match) {
	s := b.table.sites[a.Listener]
	if s == nil {
		return
	}
	for _, sec := range s.sections {
		if a.Section != "" && a.Section != sec.name {
			continue
		}
		hosts := a.Hosts
		if len(hosts) == 0 {
			hosts = []string{""}
		}
		for _, h := range hosts {
			sec.http.add(h, m)
		}
	}
}

func compileMatch(c *config.HTTPMatch) (*match, error) {
	m := &match{path: c.Path, method: c.Method}
	m.path.Type, m.path.Value = cmp.Or(m.path.Type, "prefix"), cmp.Or(m.path.Value, "/")
	var err error
	if m.path.Type == "regex" {
		if m.regex, err = whole(m.path.Value); err != nil {
			return nil, err
		}
	}
	if m.headers, err = compileFields(c.Headers, textproto.CanonicalMIMEHeaderKey); err != nil {
		return nil, err
	}
	m.query, err = compileFields(c.Query, func(name string) string { return name })
	return m, err
}

// compileFields keeps the first of several with the same name, as the Gateway
// API has it.
func compileFields(list []config.FieldMatch, canonical func(string) string) ([]field, error) {
	var out []field
	for _, c := range list {
		f := field{name: canonical(c.Name), value: c.Value}
		if slices.ContainsFunc(out, func(o field) bool { return o.name == f.name }) {
			continue
		}
		if c.Type == "regex" {
			var err error
			if f.regex, err = whole(c.Value); err != nil {
				return nil, err
			}
		}
		out = append(out, f)
	}
	return out, nil
}

// whole compiles an expression that must match all of a text.
func whole(expr string) (*regexp.Regexp, error) {
	if _, err := regexp.Compile(expr); err != nil { // a)|(b would be one only in parentheses
		return nil, err
	}
	return regexp.Compile(`\A(?:` + expr + `)\z`)
}

func (t *httpTable) empty() bool {
	return t.hosts.exact == nil && t.hosts.wild == nil && !t.hosts.any
}

func (t *httpTable) add(host string, m *match) {
	p, ok := t.hosts.get(host)
	if !ok {
		p = &pathTable{exact: map[string][]*match{}, prefix: map[string][]*match{}}
		t.hosts.put(host, p)
	}
	switch m.path.Type {
	case "exact":
		p.exact[m.path.Value] = append(p.exact[m.path.Value], m)
	case "regex":
		p.regex = append(p.regex, m)
	default:
		key := strings.TrimRight(m.path.Value, "/")
		p.prefix[key] = append(p.prefix[key], m)
		p.longest = max(p.longest, len(key))
	}
}

// sort brings the matches of each list into the order of the Gateway API: a
// method, more headers, more query parameters, the earlier route, the earlier
// rule. Of expressions, whose order it leaves open, the longer comes first.
func (t *httpTable) sort() {
	sort := func(list []*match) {
		slices.SortFunc(list, func(a, b *match) int {
			length := 0
			if a.regex != nil && b.regex != nil {
				length = cmp.Compare(len(b.path.Value), len(a.path.Value))
			}
			return cmp.Or(
				length, -cmp.Compare(min(len(a.method), 1), min(len(b.method), 1)),
				-cmp.Compare(len(a.headers), len(b.headers)), -cmp.Compare(len(a.query), len(b.query)), cmp.Compare(a.order, b.order),
			)
		})
	}
	t.hosts.all(func(p *pathTable) {
		sort(p.regex)
		for _, list := range p.exact {
			sort(list)
		}
		for _, list := range p.prefix {
			sort(list)
		}
	})
}

// find is the match that takes the request, nil if none does. path is as
// wirePath has it. It does not allocate unless a query must be unescaped.
func (t *httpTable) find(host, path string, r *http.Request) (m *match) {
	h := &t.hosts
	if p, ok := h.exact[host]; ok {
		if m = p.find(path, r); m != nil {
			return m
		}
	}
	for i := h.next(host, 0); i > 0; i = h.next(host, i) {
		if p, ok := h.wild[host[i:]]; ok {
			if m = p.find(path, r); m != nil {
				return m
			}
		}
	}
	if h.any {
		return h.rest.find(path, r)
	}
	return nil
}

func (p *pathTable) find(path string, r *http.Request) *match {
	if m := first(p.exact[path], r); m != nil {
		return m
	}
	for _, m := range p.regex {
		if m.regex.MatchString(path) && m.holds(r) {
			return m
		}
	}
	for q := strings.TrimSuffix(path, "/"); ; {
		if len(q) <= p.longest {
			if m := first(p.prefix[q], r); m != nil {
				return m
			}
		}
		i := strings.LastIndexByte(q, '/')
		if i < 0 {
			return nil
		}
		q = q[:i]
	}
}

// first is the first of the list that holds.
func first(list []*match, r *http.Request) *match {
	for _, m := range list {
		if m.holds(r) {
			return m
		}
	}
	return nil
}

// holds says whether all of the match but its path holds.
func (m *match) holds(r *http.Request) bool {
	if m.method != "" && m.method != r.Method {
		return false
	}
	for i := range m.headers {
		f := &m.headers[i]
		values := r.Header[f.name]
		if f.name == "Host" {
			if !f.matches(r.Host) {
				return false
			}
			continue
		}
		switch len(values) {
		case 0:
			return false
		case 1:
			if !f.matches(values[0]) {
				return false
			}
		default: // one list (RFC 9110 §5.3)
			if !f.matches(strings.Join(values, ",")) {
				return false
			}
		}
	}
	for i := range m.query {
		value, ok := parameter(r.URL.RawQuery, m.query[i].name)
		if !ok || !m.query[i].matches(value) {
			return false
		}
	}
	return true
}

// parameter is the first value of a query parameter. What cannot be read as one
// is none.
func parameter(query, name string) (value string, ok bool) {
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		key, v, _ := strings.Cut(pair, "=")
		if strings.IndexByte(pair, ';') >= 0 {
			continue
		}
		if strings.ContainsAny(key, "%+") {
			k, err := url.QueryUnescape(key)
			if err != nil {
				continue
			}
			key = k
		}
		if key != name {
			continue
		}
		if strings.ContainsAny(v, "%+") {
			u, err := url.QueryUnescape(v)
			if err != nil {
				continue
			}
			v = u
		}
		return v, true
	}
	return "", false
}

// rule compiles what becomes of a request.
func (b *builder) rule(rc *config.HTTPRoute, c *config.HTTPRule) (*rule, error) {
	ru := &rule{
		route: rc.Name, name: c.Name,
		request: compileEdits(c.Filters.RequestHeaders), response: compileEdits(c.Filters.ResponseHeaders),
		redirect: c.Filters.Redirect, rewrite: c.Filters.Rewrite, cors: compileCORS(c.Filters.CORS),
	}
	s := &ru.service
	s.timeouts = b.cfg.Timeouts
	if c.Timeouts.Request > 0 {
		s.timeouts.Total = c.Timeouts.Request
	}
	s.http = &httpBounds{backend: c.Timeouts.Backend.D()}
	s.attempts, s.resends = cmp.Or(b.cfg.Retries.Attempts, 1), 1
	if r := c.Retry; r != nil && r.Attempts > 0 {
		s.attempts, s.resends = max(s.attempts, 1+r.Attempts), r.Attempts
		s.http.codes, s.http.backoff = r.Codes, r.Backoff.D()
	}
	for i := range c.Backends {
		bc := &c.Backends[i]
		tg := &target{weight: 1}
		if bc.Pool != "" {
			var err error
			if tg, err = b.target(bc.Pool, ""); err != nil {
				return nil, err
			}
		}
		if bc.Weight != nil {
			tg.weight = *bc.Weight
		}
		tg.http = &httpTarget{status: bc.Status, request: compileEdits(bc.RequestHeaders), response: compileEdits(bc.ResponseHeaders)}
		if tg.weight > 0 && s.weights <= math.MaxInt-tg.weight {
			s.targets, s.weights = append(s.targets, tg), s.weights+tg.weight
		}
	}
	for i := range c.Filters.Mirrors {
		mc := &c.Filters.Mirrors[i]
		tg, err := b.target(mc.Pool, "")
		if err != nil {
			return nil, err
		}
		tg.http = &httpTarget{}
		ru.mirrors = append(ru.mirrors, &mirror{target: tg, share: mc.Numerator, of: cmp.Or(mc.Denominator, 100)})
	}
	return ru, nil
}
