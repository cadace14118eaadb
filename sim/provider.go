// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"context"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// ProviderConfig is a simulated managed provider. The zero value speaks
// OpenAI's API, takes any key, has no limits and answers fast.
type ProviderConfig struct {
	Name              string         // default "provider"
	Shape             string         // openai (default), azure, anthropic, gemini, bedrock or cohere
	Models            []string       // default "gpt-sim"; names that begin with "o-sim" are reasoning models
	Snapshot          string         // what answers add to the model's name, such as "-2026-01-01"
	Keys              []string       // accepted API keys; none and no AccessKeys: no check
	AccessKeys        []AccessKey    // bedrock: accepted for signatures
	TokenKey          *rsa.PublicKey // gemini: of the service accounts that POST /token takes; nil: any
	Region            string         // bedrock: in the scope of signatures; default us-east-1
	TTFT              time.Duration  // median; default 200 ms
	ITL               time.Duration  // median; default 10 ms
	RequestsPerMinute int            // per key; 0: no limit
	TokensPerMinute   int            // per key, prompt and possible output; 0: no limit
	MaxModelLen       int            // default 128,000
	CacheMin          int            // tokens of the shortest prefix that is cached; default 1024, -1: no caching
	Quirks            []string       // see [Quirks]
	KeepBodies        bool           // the newest requests' bodies are in the stats
	Seed              uint64
	Faults            Faults
}

// AccessKey is a pair of AWS. With a session token that must come too.
type AccessKey struct{ ID, Secret, SessionToken string }

// Quirks are what some servers of OpenAI's shape refuse: stream_options,
// max_tokens, the role developer, more than one choice, fields that they do not
// know (422); and that they show reasoning as reasoning_content.
func Quirks() []string {
	return []string{"no-stream-options", "no-max-tokens", "no-developer", "no-n", "unknown-422", "reasoning-content"}
}

// Shapes are the names of the shapes.
func Shapes() []string {
	return []string{"openai", "azure", "anthropic", "gemini", "bedrock", "cohere"}
}

// Check says what is wrong with the values.
func (c *ProviderConfig) Check() error {
	if c.Shape != "" && !slices.Contains(Shapes(), c.Shape) {
		return fmt.Errorf("sim: shape: %q is not one of %s", c.Shape, strings.Join(Shapes(), ", "))
	}
	for _, q := range c.Quirks {
		if !slices.Contains(Quirks(), q) {
			return fmt.Errorf("sim: quirk: %q is not one of %s", q, strings.Join(Quirks(), ", "))
		}
	}
	for _, k := range c.AccessKeys {
		if k.ID == "" || k.Secret == "" || c.Shape != "bedrock" {
			return errors.New("sim: access keys: an ID and a secret are needed, and the shape bedrock")
		}
	}
	return c.Faults.Check()
}

// Provider is a managed model API: no engine and no metrics; latencies from one
// distribution whatever the load, limits and cached prefixes per key. Its
// faults are those of a Server and [ProviderFaults]; Crash and Refuse concern
// its listener.
type Provider struct {
	cfg     ProviderConfig
	shape   shape
	host    *host
	maker   maker
	limits  *limiter
	cache   *prefixCache
	faults  *faultBox
	ledger  *ledger
	witness *witness
	stored  *turnStore
	created int64
	nextID  atomic.Uint64
	close   sync.Once
	closing chan struct{} // ends hung and endless requests
	dead    chan struct{} // ends answers
	running sync.WaitGroup
}

// shape is the API of a provider: its paths, credentials, errors and headers.
type shape interface {
	routes(p *Provider, mux *http.ServeMux)
	// credential finds the key of a request and says what is wrong with it.
	credential(p *Provider, r *http.Request, body []byte) (key string, bad *problem)
	// wording is an error as the API words it. It may set headers.
	wording(h http.Header, e *problem, id string) (status int, body any)
	// limited writes the state of the rate limits into headers.
	limited(h http.Header, l limitState)
}

func newShape(name string) shape {
	switch name {
	case "azure":
		return azureShape{}
	case "anthropic":
		return anthropicShape{}
	case "gemini":
		return geminiShape{}
	case "bedrock":
		return bedrockShape{}
	case "cohere":
		return cohereShape{}
	}
	return openaiShape{}
}

// NewProvider makes a provider. [ProviderConfig.Check] says beforehand whether
// the values make sense; unknown names count as the default. Close must be
// called.
func NewProvider(cfg ProviderConfig) *Provider {
	cfg.Name = cmp.Or(cfg.Name, "provider")
	cfg.Shape = cmp.Or(cfg.Shape, "openai")
	cfg.Region = cmp.Or(cfg.Region, "us-east-1")
	cfg.TTFT = cmp.Or(cfg.TTFT, 200*time.Millisecond)
	cfg.ITL = cmp.Or(cfg.ITL, 10*time.Millisecond)
	cfg.MaxModelLen = cmp.Or(cfg.MaxModelLen, 128_000)
	cfg.CacheMin = cmp.Or(cfg.CacheMin, 1024)
	if cfg.CacheMin < 0 {
		cfg.CacheMin = 1 << 40
	}
	if len(cfg.Models) == 0 {
		cfg.Models = []string{"gpt-sim"}
	}
	p := &Provider{
		cfg: cfg, shape: newShape(cfg.Shape), created: time.Now().Unix(),
		maker:  maker{seed: cfg.Seed, secret: newSealer(cfg.Name, cfg.Seed)},
		limits: &limiter{requests: cfg.RequestsPerMinute, tokens: cfg.TokensPerMinute, byKey: map[string]*spent{}},
		cache:  &prefixCache{least: cfg.CacheMin}, stored: &turnStore{},
		faults: &faultBox{seed: cfg.Seed}, ledger: &ledger{}, witness: &witness{bodies: cfg.KeepBodies},
		closing: make(chan struct{}), dead: make(chan struct{}),
	}
	p.faults.set(cfg.Faults)
	mux := http.NewServeMux()
	p.shape.routes(p, mux)
	p.handle(mux, "/", func(c *call) {
		c.refuse(&problem{class: "path", message: "There is nothing at " + c.r.Method + " " + c.r.URL.Path + "."})
	})
	control(mux, p.faults, p.Stats, p.SetFaults)
	p.host = newHost(mux)
	return p
}

// Handler serves what Listen serves.
func (p *Provider) Handler() http.Handler { return p.host.handler }

// Listen binds addr, serves in the background and returns the address. Once.
func (p *Provider) Listen(addr string) (string, error) {
	bound, err := p.host.listen(addr)
	if err == nil {
		p.happen(p.cfg.Faults)
	}
	return bound, err
}

// Close is as [Server.Close].
func (p *Provider) Close(ctx context.Context) (err error) {
	p.close.Do(func() {
		close(p.closing)
		err = p.host.close(ctx)
		close(p.dead)
		p.running.Wait()
	})
	return err
}

// Stats is the provider's own count of what it served.
func (p *Provider) Stats() Stats {
	s := p.ledger.read(keptRecords)
	p.witness.report(&s)
	return s
}

// SetFaults replaces the faults.
func (p *Provider) SetFaults(f Faults) error {
	if err := f.Check(); err != nil {
		return err
	}
	p.faults.set(f)
	p.happen(f)
	return nil
}

// happen does the faults that happen once.
func (p *Provider) happen(f Faults) {
	if d := time.Duration(max(f.Refuse, f.Crash)); d > 0 {
		p.host.refuse(d, f.Crash > 0, func() {})
	}
}

// handle registers an endpoint: the request is noted, its credential checked,
// and a fault may befall it.
func (p *Provider) handle(mux *http.ServeMux, pattern string, h func(*call)) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		p.ledger.path(r.URL.Path)
		id := fmt.Sprintf("%s_%d", p.cfg.Name, p.nextID.Add(1))
		c := &call{p: p, w: w, r: r, id: id, arrival: time.Now()}
		w.Header().Set("X-Sim-Server", p.cfg.Name)
		p.serve(c, h)
	})
}

func (p *Provider) serve(c *call, h func(*call)) {
	p.running.Add(1)
	defer p.running.Done()
	standing := p.faults.get()
	if !standing.Hang && standing.Early && standing.Rate == 0 && c.r.Method == http.MethodPost {
		c.faults = p.faults.deal("", "") // before the body was read
		c.faults.before(c.w, c.r, p.closing)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, mostBody))
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		c.refuse(&problem{class: "tooLarge", message: "The request is too large."})
		return
	} else if err != nil {
		c.refuse(&problem{class: "invalid", message: "The body could not be read."})
		return
	}
	c.body = body
	c.asked = askedModel(c.r, body)
	key, bad := p.shape.credential(p, c.r, body)
	c.key = key
	c.seen = p.witness.arrive(c.r, key, c.asked, body)
	defer c.settle()
	if standing.Hang {
		p.hang(c)
	}
	if bad != nil {
		c.refuse(bad)
		return
	}
	if c.r.Method == http.MethodPost && c.r.URL.Path != "/token" { // what only reads never fails
		c.faults = p.faults.deal(c.asked, key)
	}
	if !c.befall() {
		h(c)
	}
}

// hang keeps a request until its client leaves or the provider closes.
func (p *Provider) hang(c *call) {
	select {
	case <-c.r.Context().Done():
	case <-p.closing:
	}
	panic(http.ErrAbortHandler)
}

// askedModel is the model of a request by its path or its body; "" if there is
// none. Only for counting and for choosing faults.
func askedModel(r *http.Request, body []byte) string {
	for _, name := range []string{"deployment", "id", "model"} {
		if v := r.PathValue(name); v != "" {
			return v
		}
	}
	if v, _, ok := strings.Cut(r.PathValue("call"), ":"); ok {
		return v
	}
	var named struct {
		Model string `json:"model"`
	}
	_ = json.Unmarshal(body, &named)
	return truncate(named.Model, 256)
}

// quirk says whether the provider has it.
func (p *Provider) quirk(name string) bool { return slices.Contains(p.cfg.Quirks, name) }

// knows says whether a key is accepted.
func (p *Provider) knows(key string) bool {
	if len(p.cfg.Keys) == 0 {
		return len(p.cfg.AccessKeys) == 0
	}
	return slices.Contains(p.cfg.Keys, key)
}
