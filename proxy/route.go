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
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/auth"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/provider"
	"github.com/penstock/penstock/quota"
	"github.com/penstock/penstock/usage"
	"github.com/tiktoken-go/tokenizer"
)

// table is a configuration compiled for matching. Immutable.
type table struct {
	cfg        *config.Config
	sites      map[string]*site // by listener name
	keys       *auth.Directory
	models     map[string]*model // by every name that resolves, aliases too
	aliases    map[string]string // what each alias stands for, perhaps another one
	patterns   []*model          // whose names hold a *, the most specific first
	labels     map[string]bool   // of every target
	paths      map[string]bool   // request paths that some pool allows besides OpenAI's
	readLimits llm.Limits
	prices     *usage.Prices
	unpriced   sync.Map // labels of targets whose price is not known, and that was told
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
	name      string      // after aliases
	report    bool        // answers carry the name that was asked for
	wild      bool        // name is a pattern
	maxCost   *config.USD // of a request; nil: none
	weighted  bool        // a weight is written
	affinity  bool
	several   bool // more than one account, or pool, may serve it
	fallbacks []fallback
	degraded  string // the answer of last resort; "": none
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

	// At providers.
	perTarget        int
	backoff, maxWait time.Duration
	within           time.Duration // of the request's beginning
}

// target is one pool, or one provider, under one upstream model name.
type target struct {
	label    string // in headers and records: pool or provider, and the model
	system   string // in records: who speaks there
	pool     string
	model    string // "" on HTTP routes, and for the name that is asked for
	star     string // likewise, but that its * is for what the * of the model's name stands for; "": it has none
	weight   int
	priority int
	plain    bool // the members are no model servers
	paths    map[string]bool
	apiKey   config.Secret
	backend  Backend
	upstream *upstream
	counts   *targetCounts
	reject   bool          // a pick of strangers is an error
	turn     atomic.Uint64 // of the round robin
	http     *httpTarget   // on HTTP routes

	provider *provider.Provider     // nil: a pool
	accounts int                    // at the provider
	limits   map[string]*quota.Node // of the accounts by their names; nil: none has any
	query    usage.Query            // whose prices are its
	tiered   bool                   // service_tier is passed on as it is
	seals    map[string]string      // names of the accounts by their marks, where reasoning is encrypted (see llm.Seal)
	terms
}

// terms are the conditions and the changes under which a target serves.
type terms struct {
	of                          string // the model whose target it is; "": a fallback by itself
	when                        condition
	can                         *config.Capabilities // nil: nothing is known
	regions                     []string
	timeouts                    *config.Timeouts
	encoding                    tokenizer.Encoding // "": tokens are estimated by characters
	media                       llm.MediaRule
	defaults, overrides         []llm.Member
	chatDefaults, chatOverrides []llm.Member // those of them that are set before a chat is translated
	quirks                      llm.Quirks   // of bodies that are made for it
	ways                        llm.Quirks   // of bodies that pass: none but for servers that are known
	*mark
}

// maxOutput is the output bound for servers that ask for one.
func (tg *target) maxOutput() int {
	if tg.can == nil {
		return 0
	}
	return tg.can.Output
}

// builder compiles a configuration.
type builder struct {
	server    *Server
	cfg       *config.Config
	pools     map[string]*config.Pool
	backends  map[string]Backend
	providers map[string]*provider.Provider
	ups       map[upstreamKey]*upstream
	compiler  *compiler
	table     *table
}

func (s *Server) buildTable(cfg *config.Config, backends map[string]Backend, providers map[string]*provider.Provider, ups map[upstreamKey]*upstream) (*table, error) {
	c, err := newCompiler()
	if err != nil {
		return nil, err
	}
	b := &builder{
		server: s, cfg: cfg, pools: map[string]*config.Pool{}, backends: backends, providers: providers, ups: ups, compiler: c,
		table: &table{
			cfg: cfg, keys: auth.New(cfg.Tenants, s.stored()), aliases: map[string]string{}, sites: map[string]*site{}, models: map[string]*model{}, labels: map[string]bool{}, paths: map[string]bool{},
			readLimits: llm.Limits{Depth: cfg.Limits.JSONDepth},
		},
	}
	var problems config.Problems
	if b.table.prices, problems, _ = usage.NewPrices(&cfg.Prices); len(problems) > 0 {
		return nil, problems
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
		if config.MatchName(pattern, model) {
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
	x.record.Operation = x.op.String()

	want := http.MethodPost
	switch {
	case x.upgrades():
		if !x.listener.allowsUpgrade(x.path) {
			return llm.UpgradeRefused(x.r.Header.Get("Upgrade"))
		}
		x.op, want = llm.OpOther, http.MethodGet
	case x.op == llm.OpModels:
		want = http.MethodGet
	case x.op.Further() && !x.table.paths[x.path] && !x.table.elsewhere(x.op, x.path):
		return unknown()
	}
	if x.r.Method != want && !(want == http.MethodGet && x.r.Method == http.MethodHead) {
		return llm.MethodNotAllowed(x.r.Method, want)
	}
	return nil
}

// elsewhere says that an operation may be served although no pool has its path:
// by translation, or by a provider.
func (t *table) elsewhere(op llm.Op, path string) bool {
	return op.Translates() || len(t.cfg.Providers) > 0 && (op != llm.OpOther || provider.PassesOn(path))
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

// pickRequest is what a picker may know of a request to a target.
// named is its name there, "" for the one that is asked for.
func pickRequest(id, named string, req *llm.Request, r *http.Request, path string) *epp.Request {
	p := &epp.Request{
		ID: id, Method: http.MethodPost, Path: path, Op: req.Op, Model: cmp.Or(named, req.Model), Asked: req.Model,
		Prompt: &req.Prompt, CacheSalt: req.CacheSalt, MaxTokens: req.MaxTokens, Stream: req.Stream,
	}
	if r != nil {
		p.Host, p.Header = r.Host, r.Header
	}
	return p
}

// model finds who serves a name: the model or alias of that name, else the most
// specific pattern.
func (t *table) model(name string) *model {
	if m := t.models[name]; m != nil {
		return m
	}
	for _, m := range t.patterns {
		if config.MatchName(m.name, name) {
			return m
		}
	}
	return nil
}

// listModels answers /v1/models and /v1/models/{id} from the configuration:
// names that the route and the key allow, and what an alias stands for.
func (x *exchange) listModels() *llm.Error {
	allowed := func(name string) bool { return x.route.allows(name) && x.mayAsk(name) }
	one := func(name string) llm.Listed {
		l := llm.Listed{ID: name}
		if m := x.table.models[name]; m != nil && m.name != name {
			l.Alias = m.name
		}
		return l
	}
	if id := llm.ListedID(x.path); id != "" {
		if x.table.model(id) == nil || !allowed(id) {
			return llm.ModelNotFound(id)
		}
		return x.answerJSON(llm.ModelObject(x.path, x.r.Header, one(id)))
	}
	var names []string
	for name := range x.table.models {
		if allowed(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	list := make([]llm.Listed, len(names))
	for i, name := range names {
		list[i] = one(name)
	}
	return x.answerJSON(llm.ModelList(x.path, x.r.Header, list))
}
