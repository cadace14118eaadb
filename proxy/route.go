// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/llm"
)

// table is a configuration compiled for matching. Immutable.
type table struct {
	cfg        *config.Config
	sites      map[string]*site  // by listener name
	models     map[string]*model // by every name that resolves, aliases too
	paths      map[string]bool   // request paths that some pool allows besides OpenAI's
	readLimits llm.Limits
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
	service
	name   string // after aliases
	report bool   // answers carry the name that was asked for
}

// service is who may answer a request, and its bounds.
type service struct {
	targets  []*target
	weights  int
	timeouts config.Timeouts
	attempts int     // in all
	resends  int     // attempts after one that had the whole request
	budget   *budget // of attempts after one that reached a server; nil: they have no other bound
	http     *httpBounds
}

// target is one pool, under one upstream model name.
type target struct {
	pool     string
	model    string // "" on HTTP routes
	weight   int
	plain    bool // the members are no model servers
	paths    map[string]bool
	apiKey   config.Secret
	backend  Backend
	upstream *upstream
	counts   *targetCounts
	reject   bool          // a pick of strangers is an error
	turn     atomic.Uint64 // of the round robin
	http     *httpTarget   // on HTTP routes
}

// builder compiles a configuration.
type builder struct {
	server   *Server
	cfg      *config.Config
	pools    map[string]*config.Pool
	backends map[string]Backend
	ups      map[upstreamKey]*upstream
	table    *table
}

func (s *Server) buildTable(cfg *config.Config, backends map[string]Backend, ups map[upstreamKey]*upstream) (*table, error) {
	b := &builder{
		server: s, cfg: cfg, pools: map[string]*config.Pool{}, backends: backends, ups: ups,
		table: &table{
			cfg: cfg, sites: map[string]*site{}, models: map[string]*model{}, paths: map[string]bool{},
			readLimits: llm.Limits{Depth: cfg.Limits.JSONDepth},
		},
	}
	for i := range cfg.Pools {
		p := &cfg.Pools[i]
		b.pools[p.Name] = p
		if backends[p.Name].Pool == nil || backends[p.Name].Picker == nil && !p.Plain {
			return nil, fmt.Errorf("pool %s has no backend", p.Name)
		}
	}
	if err := b.models(); err != nil {
		return nil, err
	}
	b.sites()
	b.routes()
	if err := b.httpRoutes(); err != nil {
		return nil, err
	}
	return b.table, nil
}

func (b *builder) models() error {
	cfg, t := b.cfg, b.table
	for i := range cfg.Models {
		mc := &cfg.Models[i]
		if mc.Alias != "" {
			continue
		}
		m := &model{name: mc.Name, report: mc.ReportModel != "served", service: service{
			timeouts: mc.Timeouts.Or(cfg.Timeouts), attempts: cmp.Or(mc.Retries.Attempts, cfg.Retries.Attempts, 1), resends: 1,
			budget: newBudget(cmp.Or(mc.Retries.Budget, cfg.Retries.Budget)),
		}}
		for _, tc := range mc.Targets {
			tg, err := b.target(tc.Pool, mc.Name)
			if err != nil {
				return fmt.Errorf("model %s: %w", mc.Name, err)
			}
			tg.model, tg.paths = cmp.Or(tc.Model, mc.Name), map[string]bool{}
			if tc.Weight != nil {
				tg.weight = *tc.Weight
			}
			paths := b.pools[tc.Pool].Paths
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
			return fmt.Errorf("model %s: no target has a weight above zero", mc.Name)
		}
		t.models[mc.Name] = m
	}
	for i := range cfg.Models {
		if mc := &cfg.Models[i]; mc.Alias != "" {
			end := cfg.Resolve(mc.Name)
			if end == nil {
				return fmt.Errorf("model %s: the alias leads nowhere", mc.Name)
			}
			t.models[mc.Name] = t.models[end.Name]
		}
	}
	return nil
}

// target is a pool as a target. model labels its metrics; "": an HTTP route's.
func (b *builder) target(name, model string) (*target, error) {
	pc := b.pools[name]
	if pc == nil {
		return nil, fmt.Errorf("no pool %s", name)
	}
	u, err := b.server.upstreamFor(pc, b.ups)
	if err != nil {
		return nil, fmt.Errorf("pool %s: %w", name, err)
	}
	return &target{
		pool: name, weight: 1, plain: pc.Plain, apiKey: pc.APIKey, backend: b.backends[name], upstream: u,
		counts: b.server.metrics.target(model, name),
		reject: pc.Picker.Remote != nil && pc.Picker.Remote.OnInvalidPick == config.InvalidReject,
	}, nil
}

// routes puts the routes of models into the sections that they serve.
func (b *builder) routes() {
	routes := b.cfg.Routes
	if len(routes) == 0 && len(b.cfg.Models) > 0 {
		routes = []config.Route{{Name: "default"}}
	}
	for name, s := range b.table.sites {
		for _, sec := range s.sections {
			for _, rc := range routes {
				if rc.Listeners != nil && !slices.Contains(rc.Listeners, name) && !slices.Contains(rc.Listeners, name+"/"+sec.name) {
					continue
				}
				hosts := rc.Hosts
				if len(hosts) == 0 {
					hosts = []string{""}
				}
				for _, h := range hosts {
					sec.routes = append(sec.routes, &route{
						name: rc.Name, host: strings.TrimPrefix(strings.ToLower(h), "*"),
						prefix: strings.TrimSuffix(rc.PathPrefix, "/"), models: rc.Models,
					})
				}
			}
			slices.SortStableFunc(sec.routes, func(a, b *route) int {
				return cmp.Or(-cmp.Compare(a.rank(), b.rank()), -cmp.Compare(len(a.host), len(b.host)), -cmp.Compare(len(a.prefix), len(b.prefix)))
			})
		}
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
func (x *exchange) match(host string) *llm.Error {
	unknown := func() *llm.Error { return llm.NotFound(x.r.URL.Path) }
	if x.r.Method == http.MethodConnect || x.r.URL.Path == "" || x.r.URL.Path[0] != '/' {
		return unknown()
	}
	clean := x.r.URL.Path
	if strings.Contains(clean, "//") || strings.Contains(clean, "/.") {
		clean = path.Clean(clean)
	}
	list := x.section.routes
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
	case x.op.Further() && !x.table.paths[x.path]:
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
	x.model, x.service, x.target = m, &m.service, m.choose()
	x.record.Pool, x.record.ModelUsed = x.target.pool, x.target.model
	x.record.Stream = x.req.Stream
	if x.op.Further() && !x.upgrades() && !x.target.paths[x.path] {
		return llm.NotFound(x.r.URL.Path)
	}
	return nil
}

// choose draws a target by weight, which the weights must allow.
func (s *service) choose() *target {
	if len(s.targets) == 1 {
		return s.targets[0]
	}
	n := rand.IntN(s.weights)
	for _, tg := range s.targets {
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
