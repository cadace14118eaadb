// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/llm"
)

// table is a configuration compiled for matching. Immutable.
type table struct {
	cfg        *config.Config
	routes     map[string][]*route // by listener name, most specific first
	models     map[string]*model   // by every name that resolves, aliases too
	paths      map[string]bool     // request paths that some pool allows besides OpenAI's
	readLimits llm.Limits
	turn       atomic.Uint64 // of the round robin when a picker names nobody
}

// route is one config.Route on one listener.
type route struct {
	name   string
	host   string // lower case; "" any; ".suffix" a wildcard
	prefix string // "" or "/a/b"
	models []string
}

// model is a name resolved to its targets. Aliases share the value.
type model struct {
	name     string // after aliases
	report   bool   // answers carry the name that was asked for
	targets  []*target
	weights  int
	timeouts config.Timeouts
	attempts int
	budget   *budget
}

// target is one pool under one upstream model name.
type target struct {
	pool     string
	model    string
	weight   int
	paths    map[string]bool
	apiKey   config.Secret
	backend  Backend
	upstream *upstream
	counts   *targetCounts
	reject   bool // a pick of strangers is an error
}

func (s *Server) buildTable(cfg *config.Config, backends map[string]Backend, ups map[upstreamKey]*upstream) (*table, error) {
	t := &table{
		cfg: cfg, routes: map[string][]*route{}, models: map[string]*model{}, paths: map[string]bool{},
		readLimits: llm.Limits{Depth: cfg.Limits.JSONDepth},
	}
	pools := map[string]*config.Pool{}
	for i := range cfg.Pools {
		p := &cfg.Pools[i]
		pools[p.Name] = p
		if backends[p.Name].Pool == nil || backends[p.Name].Picker == nil {
			return nil, fmt.Errorf("pool %s has no backend", p.Name)
		}
	}
	for i := range cfg.Models {
		mc := &cfg.Models[i]
		if mc.Alias != "" {
			continue
		}
		m := &model{
			name: mc.Name, report: mc.ReportModel != "served",
			timeouts: mc.Timeouts.Or(cfg.Timeouts), attempts: cmp.Or(mc.Retries.Attempts, cfg.Retries.Attempts, 1),
			budget: newBudget(cmp.Or(mc.Retries.Budget, cfg.Retries.Budget)),
		}
		for _, tc := range mc.Targets {
			pc := pools[tc.Pool]
			if pc == nil {
				return nil, fmt.Errorf("model %s: no pool %s", mc.Name, tc.Pool)
			}
			u, err := s.upstreamFor(pc, ups)
			if err != nil {
				return nil, fmt.Errorf("pool %s: %w", pc.Name, err)
			}
			tg := &target{
				pool: tc.Pool, model: cmp.Or(tc.Model, mc.Name), weight: 1,
				paths: map[string]bool{}, apiKey: pc.APIKey, backend: backends[tc.Pool], upstream: u,
				counts: s.metrics.target(mc.Name, tc.Pool),
				reject: pc.Picker.Remote != nil && pc.Picker.Remote.OnInvalidPick == config.InvalidReject,
			}
			if tc.Weight != nil {
				tg.weight = *tc.Weight
			}
			paths := pc.Paths
			if paths == nil {
				paths = config.DefaultPaths()
			}
			for _, p := range paths {
				tg.paths[p], t.paths[p] = true, true
			}
			m.targets = append(m.targets, tg)
			m.weights += tg.weight
		}
		if m.weights <= 0 {
			return nil, fmt.Errorf("model %s: no target has a weight above zero", mc.Name)
		}
		t.models[mc.Name] = m
	}
	for i := range cfg.Models {
		if mc := &cfg.Models[i]; mc.Alias != "" {
			end := cfg.Resolve(mc.Name)
			if end == nil {
				return nil, fmt.Errorf("model %s: the alias leads nowhere", mc.Name)
			}
			t.models[mc.Name] = t.models[end.Name]
		}
	}
	t.buildRoutes(cfg)
	return t, nil
}

func (t *table) buildRoutes(cfg *config.Config) {
	routes := cfg.Routes
	if len(routes) == 0 {
		routes = []config.Route{{Name: "default"}}
	}
	for i := range cfg.Listeners {
		name := cfg.Listeners[i].Name
		var list []*route
		for _, rc := range routes {
			if len(rc.Listeners) > 0 && !slices.Contains(rc.Listeners, name) {
				continue
			}
			hosts := rc.Hosts
			if len(hosts) == 0 {
				hosts = []string{""}
			}
			for _, h := range hosts {
				list = append(list, &route{
					name: rc.Name, host: strings.TrimPrefix(strings.ToLower(h), "*"),
					prefix: strings.TrimSuffix(rc.PathPrefix, "/"), models: rc.Models,
				})
			}
		}
		slices.SortStableFunc(list, func(a, b *route) int {
			return cmp.Or(-cmp.Compare(a.rank(), b.rank()), -cmp.Compare(len(a.host), len(b.host)), -cmp.Compare(len(a.prefix), len(b.prefix)))
		})
		t.routes[name] = list
	}
}

// rank orders exact hosts before wildcards before none.
func (rt *route) rank() int {
	switch {
	case rt.host == "":
		return 0
	case rt.host[0] == '.':
		return 1
	}
	return 2
}

// matches returns the path that is left after the route's prefix.
func (rt *route) matches(host, p string) (string, bool) {
	switch rt.rank() {
	case 2:
		if host != rt.host {
			return "", false
		}
	case 1:
		if !strings.HasSuffix(host, rt.host) || len(host) == len(rt.host) {
			return "", false
		}
	}
	rest, ok := strings.CutPrefix(p, rt.prefix)
	if !ok || rest == "" || rest[0] != '/' {
		return "", false
	}
	return rest, true
}

func (rt *route) allows(model string) bool {
	if len(rt.models) == 0 {
		return true
	}
	for _, pattern := range rt.models {
		if prefix, wild := strings.CutSuffix(pattern, "*"); pattern == model || wild && strings.HasPrefix(model, prefix) {
			return true
		}
	}
	return false
}

// match finds the route and the operation. Only the cleaned path counts, for
// the match and for what is sent on, so that both ends read the same path.
func (x *exchange) match() *llm.Error {
	if x.table == nil {
		return llm.Unavailable("no configuration is loaded", time.Second)
	}
	unknown := func() *llm.Error { return llm.NotFound(x.r.URL.Path) }
	if x.r.Method == http.MethodConnect || x.r.URL.Path == "" || x.r.URL.Path[0] != '/' {
		return unknown()
	}
	host := strings.ToLower(x.r.Host)
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	clean := x.r.URL.Path
	if strings.Contains(clean, "//") || strings.Contains(clean, "/.") {
		clean = path.Clean(clean)
	}
	list := x.table.routes[x.listener.name]
	i := slices.IndexFunc(list, func(rt *route) bool { _, ok := rt.matches(host, clean); return ok })
	if i < 0 {
		return unknown()
	}
	x.route = list[i]
	x.path, _ = x.route.matches(host, clean)
	x.op, x.record.Route = llm.OpOf(x.path), x.route.name

	want := http.MethodPost
	switch {
	case x.upgrades():
		if !x.listener.allowsUpgrade(x.path) {
			return llm.UpgradeRefused(x.r.Header.Get("Upgrade"))
		}
		x.op, want = llm.OpOther, http.MethodGet
	case x.op == llm.OpModels:
		want = http.MethodGet
	case x.op == llm.OpOther && !x.table.paths[x.path]:
		return unknown()
	}
	if x.r.Method != want && !(want == http.MethodGet && x.r.Method == http.MethodHead) {
		return llm.MethodNotAllowed(x.r.Method, want)
	}
	return nil
}

// resolve finds the model's target. What the route does not allow is answered
// like what does not exist.
func (x *exchange) resolve(asked string) *llm.Error {
	x.record.ModelAsked = asked
	m := x.table.models[asked]
	if m == nil || !x.route.allows(asked) {
		return llm.ModelNotFound(asked)
	}
	x.model, x.target = m, m.choose()
	x.record.Pool, x.record.ModelUsed = x.target.pool, x.target.model
	x.record.Stream = x.req.Stream
	if x.op == llm.OpOther && !x.upgrades() && !x.target.paths[x.path] {
		return llm.NotFound(x.r.URL.Path)
	}
	return nil
}

// choose draws a target by weight.
func (m *model) choose() *target {
	if len(m.targets) == 1 {
		return m.targets[0]
	}
	n := rand.IntN(m.weights)
	for _, tg := range m.targets {
		if n -= tg.weight; n < 0 {
			return tg
		}
	}
	panic("proxy: weights do not add up")
}

// pickRequest is what a picker may know of a request to this target.
func (tg *target) pickRequest(id string, req *llm.Request, r *http.Request, path string) *epp.Request {
	p := &epp.Request{
		ID: id, Method: http.MethodPost, Path: path, Op: req.Op, Model: tg.model, Asked: req.Model,
		Prompt: &req.Prompt, CacheSalt: req.CacheSalt, MaxTokens: req.MaxTokens, Stream: req.Stream,
	}
	if r != nil {
		p.Host, p.Header = r.Host, r.Header
	}
	return p
}

// listModels answers /v1/models and /v1/models/{id} from the configuration.
func (x *exchange) listModels() *llm.Error {
	if id, one := strings.CutPrefix(x.path, "/v1/models/"); one && id != "" {
		if x.table.models[id] == nil || !x.route.allows(id) {
			return llm.ModelNotFound(id)
		}
		return x.answerJSON(llm.ModelObject(id))
	}
	var names []string
	for name := range x.table.models {
		if x.route.allows(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return x.answerJSON(llm.ModelList(names))
}
