// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package admin serves what an operator asks of a running gateway: health and
// readiness, metrics, the configuration in force, pools and members, recent
// picks and their explanation, profiles of the process, and the web console.
//
// It owns nothing: what it shows and what it edits (tenants and keys, by the REST
// API of routes.go) come through the functions of [Options], so it leaves state
// to those who have it and the listening to cmd. Start reading at [Handler]; the
// JSON documents are the types of status.go, those of the API are of package auth.
//
// The console (console.go, its files in console/) is one more reader of the same,
// with sessions for browsers (session.go) and a stream of what changes (live.go).
//
// Always true: outside of /api and the console's session and playground every
// request but POST /explain is a read; no answer holds a secret but the one to whoever makes it; every edit has an actor
// and a line in the audit trail; a page of another origin can neither read nor
// reach a loopback listener through a name of its own.
package admin

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"net/url"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/penstock/penstock/auth"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/llm"
)

// Options are where the answers come from. Every function must be safe for
// concurrent use and return at once; one that is nil answers 404.
type Options struct {
	// Address is the configured one. When its host is loopback, requests must
	// name it, localhost or a loopback address in their Host header.
	Address  string
	Log      *slog.Logger
	Registry prometheus.Gatherer

	Ready  func() Readiness
	Config func() []byte // YAML, redacted
	Pools  func() []PoolStatus
	Models func() []ModelStatus
	// Targets are the targets of every model with their health; nil: no /targets.
	Targets func() []TargetHealth
	// Limits is a part of the limits, with what of them is in use: see LimitPage. It
	// may ask a store.
	Limits func(ctx context.Context, tenant, after string, n int) (LimitPage, error)

	// Picks are the newest explanations of a pool ("": of all), at most n.
	Picks func(pool string, n int) []*epp.Explanation
	// Find is the explanation of one request, nil when it is not kept.
	Find func(requestID string) *epp.Explanation
	// Route is how a request went through the targets of its model, nil when it is
	// not kept; nil: it is told nothing.
	Route func(requestID string) *RouteStatus
	// Explain decides on a request whatever routes and paths allow, and changes
	// nothing. An empty model is the body's own.
	Explain func(ctx context.Context, r DryRun) (*Decision, *llm.Error)
	Version string
	// Users are those of the configuration in force; none: whoever reaches the
	// address has every right.
	Users func() []config.AdminUser
	// Tenancy is where tenants and keys are; nil: there is no API.
	Tenancy func() Tenancy
	// Prices and Usage answer /api/v1/prices and /api/v1/usage with what has a form
	// in JSON, for the parameters that are listed; nil: 404.
	Prices, Usage           Asked
	PricesQuery, UsageQuery []string
	Ledger
	// Console is for the web console; nil: there is none. It needs Ready, Pools,
	// Models, Targets, Limits, Find and Route too.
	Console *Console
}

// Asked answers a question with the parameters of a query.
type Asked func(ctx context.Context, query url.Values) (any, error)

// DryRun is a request that is explained and not sent.
type DryRun struct {
	Pool   string // "": the model's first target
	Model  string // "": the one in the body
	Path   string
	As     string // TENANT or TENANT/KEY; "": anybody
	Header http.Header
	Body   []byte
}

// Handler serves the admin interface.
func Handler(o Options) http.Handler {
	s := newServer(o)
	s.health()
	s.get("/{$}", "this list", s.index)
	if o.Config != nil {
		s.get("/config", "the configuration in force, YAML, secrets as placeholders", s.config)
	}
	if o.Pools != nil {
		s.get("/pools", "pools with their members", s.pools)
		s.get("/members", "members; ?pool=NAME", s.members)
		s.get("/pickers", "pickers elsewhere with their replicas; ?pool=NAME", s.pickers)
	}
	if o.Models != nil {
		s.get("/models", "models with their targets", s.models)
	}
	if o.Targets != nil {
		s.get("/targets", "targets of models with their health; ?model=NAME", s.targets)
	}
	if o.Limits != nil {
		s.get("/limits", "limits with what of them is in use; ?tenant=NAME&n=100&after=NODE", s.limits)
	}
	if o.Picks != nil {
		s.get("/picks", "recent picks, newest first; ?pool=NAME&n=50", s.picks)
	}
	if o.Find != nil {
		s.get("/picks/{id}", "how a request was routed, and its pick, by request id", s.pick)
	}
	if o.Explain != nil {
		s.handleAs(Operator, http.MethodPost, "/explain", "dry run of the request body sent; ?path=/v1/chat/completions&model=NAME&pool=NAME&as=TENANT/KEY", s.explain)
	}
	s.ledger()
	if o.Console != nil {
		s.console()
	}
	if o.Tenancy != nil {
		s.api()
	}
	s.handleAs(Operator, http.MethodGet, "/debug/pprof/", "profiles of the process", pprof.Index)
	s.handleAs(Operator, http.MethodGet, "/debug/pprof/cmdline", "", pprof.Cmdline)
	s.handleAs(Operator, http.MethodGet, "/debug/pprof/profile", "", pprof.Profile)
	s.handleAs(Operator, http.MethodGet, "/debug/pprof/symbol", "", pprof.Symbol)
	s.handleAs(Operator, http.MethodGet, "/debug/pprof/trace", "", pprof.Trace)
	return s.handler()
}

// Ops serves health and metrics only, for probes and Prometheus. It is meant
// for an address that others reach, so it does not look at the Host header.
func Ops(o Options) http.Handler {
	o.Address, o.Users = "", nil
	s := newServer(o)
	s.health()
	s.hint = "health and metrics only: /healthz, /readyz, /metrics"
	return s.handler()
}

// server is a mux that answers in JSON also when it refuses.
type server struct {
	Options
	mux   *http.ServeMux
	paths []path
	hint  string // where there is nothing

	guard    *auth.Guard // slows wrong tokens
	sessions *sessions
	live     *hub // nil: there is no console
}

// path is one line of the index.
type path struct{ method, pattern, about string }

func newServer(o Options) *server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &server{Options: o, mux: http.NewServeMux(), hint: "GET / lists the paths", guard: auth.NewGuard(wrongTokens, o.Log, nil), sessions: newSessions()}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, http.StatusNotFound, "no such path: "+r.URL.Path, s.hint)
	})
	return s
}

// health registers what both listeners serve.
func (s *server) health() {
	s.handleAs(Nobody, http.MethodGet, "/healthz", "200 while the process runs", s.healthz)
	if s.Ready != nil {
		s.get("/readyz", "200 when the gateway can serve; ?verbose for the detail, JSON", s.readyz)
	}
	if s.Registry != nil {
		h := promhttp.HandlerFor(s.Registry, promhttp.HandlerOpts{
			ErrorLog:            slog.NewLogLogger(s.Log.Handler(), slog.LevelError),
			ErrorHandling:       promhttp.ContinueOnError,
			MaxRequestsInFlight: 8,
			EnableOpenMetrics:   true, // which carries exemplars
		})
		s.get("/metrics", "Prometheus metrics", h.ServeHTTP)
	}
}

func (s *server) get(pattern, about string, h http.HandlerFunc) {
	s.handleAs(Viewer, http.MethodGet, pattern, about, h)
}

// handleAs registers h for one method and those who have the role; GET serves
// HEAD too.
func (s *server) handleAs(need Role, method, pattern, about string, h http.HandlerFunc) {
	s.paths = append(s.paths, path{method, pattern, about})
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != method && (method != http.MethodGet || r.Method != http.MethodHead) {
			w.Header().Set("Allow", method)
			writeError(w, http.StatusMethodNotAllowed, r.Method+" is not served here", "use "+method)
			return
		}
		if _, in := s.admit(w, r, need); in {
			h(w, r)
		}
	})
}

// handler wraps the mux: no answer is cached or sniffed, no foreign name gets
// one (see hostAllowed), and a browser cannot post from another origin.
func (s *server) handler() http.Handler {
	origin := http.NewCrossOriginProtection()
	origin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, http.StatusForbidden, "a page of another origin may not post here", "")
	}))
	next := origin.Handler(s.mux)
	loopback := hostOf(s.Address)
	checked := isLoopback(loopback)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		if checked && !hostAllowed(r.Host, loopback) {
			writeError(w, http.StatusForbidden, "the Host header names "+quote(r.Host)+", which is not this listener",
				"ask for "+s.Address+" or localhost")
			return
		}
		if s.Console != nil && r.URL.Path == "/" && !unsafe(r.Method) && wantsPage(r) { // before anybody is asked who he is: the console does
			http.Redirect(w, r, consolePath, http.StatusSeeOther)
			return
		}
		next.ServeHTTP(w, r)
	})
}
