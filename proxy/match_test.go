// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/proxy"
)

// naive is the precedence of config.HTTPRoute word by word: every match of
// every rule is looked at, and the best one of those that hold is taken.
func naive(cfg *config.Config, r *http.Request) int {
	type candidate struct {
		host  string
		match *config.HTTPMatch
		place int
	}
	section, host := "", strings.ToLower(r.Host)
	best := -1
	for _, s := range cfg.Listeners[0].Sections {
		if score := hostScore(s.Host, host); score > best {
			section, best = s.Name, score
		}
	}
	if len(cfg.Listeners[0].Sections) > 0 && best < 0 {
		return -1
	}
	var all []candidate
	place := 0
	for i := range cfg.HTTPRoutes {
		route := &cfg.HTTPRoutes[i]
		for j := range route.Rules {
			for k := range route.Rules[j].Matches {
				m := &route.Rules[j].Matches[k]
				for _, a := range route.Parents {
					if a.Section != "" && a.Section != section {
						continue
					}
					hosts := a.Hosts
					if hosts == nil {
						hosts = []string{""}
					}
					for _, h := range hosts {
						if hostScore(h, host) >= 0 && naiveHolds(m, r) {
							all = append(all, candidate{h, m, place})
						}
					}
				}
				place++
			}
		}
	}
	if len(all) == 0 {
		return -1
	}
	kind := map[string]int{"exact": 2, "regex": 1, "prefix": 0}
	has := map[bool]int{true: 1}
	return slices.MinFunc(all, func(a, b candidate) int {
		length := func(c candidate) int { return len(strings.TrimRight(c.match.Path.Value, "/")) }
		return cmp.Or(
			cmp.Compare(hostScore(b.host, host), hostScore(a.host, host)),
			cmp.Compare(kind[b.match.Path.Type], kind[a.match.Path.Type]),
			cmp.Compare(length(b), length(a)),
			cmp.Compare(has[b.match.Method != ""], has[a.match.Method != ""]),
			cmp.Compare(len(b.match.Headers), len(a.match.Headers)),
			cmp.Compare(len(b.match.Query), len(a.match.Query)),
			cmp.Compare(a.place, b.place),
		)
	}).place
}

// hostScore orders the patterns that match a host; -1: this one does not.
func hostScore(pattern, host string) int {
	switch suffix, wild := strings.CutPrefix(pattern, "*"); {
	case pattern == "":
		return 0
	case wild && strings.HasSuffix(host, suffix) && len(host) > len(suffix):
		return len(pattern)
	case pattern == host:
		return 1000 + len(pattern)
	}
	return -1
}

func naiveHolds(m *config.HTTPMatch, r *http.Request) bool {
	p := r.URL.Path
	switch m.Path.Type {
	case "exact":
		if p != m.Path.Value {
			return false
		}
	case "regex":
		if !regexp.MustCompile("^(?:" + m.Path.Value + ")$").MatchString(p) {
			return false
		}
	default:
		prefix := strings.TrimRight(m.Path.Value, "/")
		if p != prefix && !strings.HasPrefix(p, prefix+"/") {
			return false
		}
	}
	if m.Method != "" && m.Method != r.Method {
		return false
	}
	for _, h := range m.Headers {
		if len(r.Header.Values(h.Name)) == 0 || strings.Join(r.Header.Values(h.Name), ",") != h.Value {
			return false
		}
	}
	query, _ := url.ParseQuery(r.URL.RawQuery)
	for _, q := range m.Query {
		if len(query[q.Name]) == 0 || query.Get(q.Name) != q.Value {
			return false
		}
	}
	return true
}

// dice draws from few values, so that much is equal.
type dice struct{ *rand.Rand }

func (d dice) of(list ...string) string { return list[d.IntN(len(list))] }

func (d dice) path() string {
	var b strings.Builder
	for range d.IntN(4) {
		b.WriteString("/" + d.of("a", "b", "ab", "a.b"))
	}
	if b.Len() == 0 || d.IntN(5) == 0 {
		b.WriteByte('/')
	}
	return b.String()
}

func (d dice) host() string { return d.of("x.y.z", "y.z", "z", "a.x.y.z", "w") }

func (d dice) match() config.HTTPMatch {
	m := config.HTTPMatch{Path: config.PathMatch{Type: d.of("exact", "prefix", "prefix", "regex"), Value: d.path()}}
	if m.Path.Type == "regex" {
		m.Path.Value = d.of("/a.*", "/[ab]", "/a/.?b?", ".*")
	}
	if d.IntN(4) == 0 {
		m.Method = d.of("GET", "PUT")
	}
	for _, name := range []string{"h1", "H2"} {
		if d.IntN(4) == 0 {
			m.Headers = append(m.Headers, config.FieldMatch{Name: name, Value: d.of("1", "2", "1,2")})
		}
	}
	for _, name := range []string{"q1", "q 2"} {
		if d.IntN(4) == 0 {
			m.Query = append(m.Query, config.FieldMatch{Name: name, Value: d.of("1", "a b")})
		}
	}
	return m
}

func (d dice) config() *config.Config {
	c := &config.Config{Listeners: []config.Listener{{Name: "l", Address: ":80", Anonymous: true}}}
	c.Admin.Address = "off"
	if d.IntN(2) == 0 {
		seen := map[string]bool{}
		for i := range 1 + d.IntN(4) {
			host := d.of("", "*.z", "*.y.z", "x.y.z", "w")
			if !seen[host] {
				seen[host] = true
				c.Listeners[0].Sections = append(c.Listeners[0].Sections, config.Section{Name: fmt.Sprintf("s%d", i), Host: host})
			}
		}
	}
	for i := range 1 + d.IntN(5) {
		route := config.HTTPRoute{Name: fmt.Sprintf("r%d", i)}
		for range 1 + d.IntN(2) {
			a := config.Attachment{Listener: "l"}
			if s := c.Listeners[0].Sections; len(s) > 0 && d.IntN(2) == 0 {
				a.Section = s[d.IntN(len(s))].Name
			}
			for range d.IntN(3) {
				a.Hosts = append(a.Hosts, d.of("*.z", "*.y.z", "x.y.z", "y.z", "w"))
			}
			route.Parents = append(route.Parents, a)
		}
		for range 1 + d.IntN(3) {
			rule := config.HTTPRule{}
			for range 1 + d.IntN(3) {
				rule.Matches = append(rule.Matches, d.match())
			}
			route.Rules = append(route.Rules, rule)
		}
		c.HTTPRoutes = append(c.HTTPRoutes, route)
	}
	return c
}

func (d dice) request() *http.Request {
	r := &http.Request{Method: d.of("GET", "PUT", "POST"), Host: d.host(), Header: http.Header{}, URL: &url.URL{Path: d.path()}}
	for _, name := range []string{"H1", "H2"} {
		for range d.IntN(3) {
			r.Header.Add(name, d.of("1", "2"))
		}
	}
	var pairs []string
	for range d.IntN(4) {
		pairs = append(pairs, d.of("q1", "q+2", "q%202", "q3")+"="+d.of("1", "a+b", "a%20b"))
	}
	r.URL.RawQuery = strings.Join(pairs, "&")
	return r
}

// compare holds the compiled table against the naive matcher.
func compareMatchers(t *testing.T, seed1, seed2 uint64) {
	d := dice{rand.New(rand.NewPCG(seed1, seed2))}
	cfg := d.config()
	m, err := proxy.NewMatcher(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		r := d.request()
		got, ok := m.Find("l", r)
		if want := naive(cfg, r); got != want || !ok {
			t.Fatalf("seeds %d %d: %s %s%s %v: match %d, want %d\n%s", seed1, seed2, r.Method, r.Host, r.URL, r.Header, got, want, cfg.Redacted())
		}
	}
}

func TestMatchAgainstNaive(t *testing.T) {
	for seed := range uint64(500) {
		compareMatchers(t, seed, 1)
	}
}

func FuzzMatch(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(compareMatchers)
}

// FuzzPath: whatever the spelling, a path that reads as one below /admin is
// never taken by the rule for the rest.
func FuzzPath(f *testing.F) {
	for _, p := range []string{"/admin", "/%61dmin/x", "//admin", "/x/../admin", "/x%2f../admin", `/x\..\admin`, "/./admin", "/a/%2e%2e/admin", "/admin%2fx", "/pub/..;/admin", "/admin;x", "/.;x/admin;y/z"} {
		f.Add(p)
	}
	one := func(value string) config.HTTPRule {
		return config.HTTPRule{Matches: []config.HTTPMatch{{Path: config.PathMatch{Type: "prefix", Value: value}}}}
	}
	m, err := proxy.NewMatcher(&config.Config{
		Listeners:  []config.Listener{{Name: "l", Address: ":80"}},
		HTTPRoutes: []config.HTTPRoute{{Name: "r", Parents: []config.Attachment{{Listener: "l"}}, Rules: []config.HTTPRule{one("/admin"), one("/")}}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, path string) {
		u, err := url.ParseRequestURI(path)
		if err != nil || u.Host != "" || u.Scheme != "" || !strings.HasPrefix(u.Path, "/") {
			return
		}
		place, ok := m.Find("l", &http.Request{Host: "h", Method: "GET", Header: http.Header{}, URL: u})
		if !ok || place == 0 {
			return
		}
		// Readings of servers: decoded once, backslashes as slashes, slashes merged
		// before or after dots are resolved.
		bare := regexp.MustCompile(`;[^/]*`).ReplaceAllString(strings.ReplaceAll(u.Path, `\`, "/"), "")
		for _, p := range []string{u.Path, strings.ReplaceAll(u.Path, `\`, "/"), bare} {
			for _, clean := range []string{cleanLoose(p), cleanStrict(p)} {
				if clean == "/admin" || strings.HasPrefix(clean, "/admin/") {
					t.Errorf("%q reads as %q and is taken by the rule for the rest", path, clean)
				}
			}
		}
	})
}

// cleanLoose merges slashes and then resolves dots.
func cleanLoose(p string) string {
	var out []string
	for e := range strings.SplitSeq(p, "/") {
		switch e {
		case "", ".":
		case "..":
			out = out[:max(0, len(out)-1)]
		default:
			out = append(out, e)
		}
	}
	return "/" + strings.Join(out, "/")
}

// cleanStrict leaves empty elements and resolves dots as RFC 3986 §5.2.4 does, as a server
// that was sent no dots need not; such a one is sent the path without them.
func cleanStrict(p string) string {
	if strings.Contains(p, "/.") {
		return cleanLoose(p)
	}
	return p
}

// 1,000 routes: some by host, some by path, some with headers.
func BenchmarkMatch(b *testing.B) {
	cfg := &config.Config{Listeners: []config.Listener{{Name: "l", Address: ":80"}}}
	for i := range 1000 {
		m := config.HTTPMatch{Path: config.PathMatch{Type: "prefix", Value: fmt.Sprintf("/team/%d/service", i)}}
		a := config.Attachment{Listener: "l"}
		switch i % 4 {
		case 1:
			a.Hosts = []string{fmt.Sprintf("h%d.example.com", i)}
		case 2:
			a.Hosts = []string{fmt.Sprintf("*.h%d.example.com", i)}
		case 3:
			m.Headers = []config.FieldMatch{{Name: "version", Value: "two"}}
			m.Query = []config.FieldMatch{{Name: "q", Value: "1"}}
		}
		cfg.HTTPRoutes = append(cfg.HTTPRoutes, config.HTTPRoute{Name: fmt.Sprintf("r%d", i), Parents: []config.Attachment{a}, Rules: []config.HTTPRule{{Matches: []config.HTTPMatch{m}}}})
	}
	m, err := proxy.NewMatcher(cfg)
	if err != nil {
		b.Fatal(err)
	}
	for name, c := range map[string]struct {
		host, path, query string
		want              int
	}{
		"host":     {"h501.example.com", "/team/501/service/a/b/c", "", 501},
		"wildcard": {"a.b.h502.example.com", "/team/502/service/a/b/c", "", 502},
		"any":      {"other.example.com", "/team/500/service/a/b/c", "", 500},
		"headers":  {"other.example.com", "/team/503/service", "a=b&q=1", 503},
		"none":     {"other.example.com", "/no/such/path/as/this/one", "", -1},
	} {
		r := &http.Request{Method: "GET", Host: c.host, URL: &url.URL{Path: c.path, RawQuery: c.query}, Header: http.Header{"Version": {"two"}, "Accept": {"*/*"}}}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if got, _ := m.Find("l", r); got != c.want {
					b.Fatalf("match %d, want %d", got, c.want)
				}
			}
		})
	}
}
