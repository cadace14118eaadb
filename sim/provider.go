// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ProviderConfig is a simulated managed provider in OpenAI form. The zero
// value takes any key, has no limits and answers fast.
type ProviderConfig struct {
	Name              string        // default "provider"
	Models            []string      // default "gpt-sim"
	Keys              []string      // accepted API keys; none: no check
	TTFT              time.Duration // median; default 200 ms
	ITL               time.Duration // median; default 10 ms
	RequestsPerMinute int           // per key; 0: no limit
	TokensPerMinute   int           // per key, prompt and possible output; 0: no limit
	MaxModelLen       int           // default 128,000
	Seed              uint64
	Faults            Faults
}

// Provider is a managed model API: no engine, no cache, no metrics; latencies
// from one distribution whatever the load, and limits per key. Its faults are
// those of a Server; Crash and Refuse concern its listener.
type Provider struct {
	cfg    ProviderConfig
	api    *api
	host   *host
	limits *limiter
	close  sync.Once

	mu      sync.Mutex // guards cancels
	cancels map[*job]context.CancelFunc
	running sync.WaitGroup
}

// NewProvider makes a provider. Close must be called.
func NewProvider(cfg ProviderConfig) *Provider {
	cfg.Name = cmp.Or(cfg.Name, "provider")
	cfg.TTFT = cmp.Or(cfg.TTFT, 200*time.Millisecond)
	cfg.ITL = cmp.Or(cfg.ITL, 10*time.Millisecond)
	cfg.MaxModelLen = cmp.Or(cfg.MaxModelLen, 128_000)
	if len(cfg.Models) == 0 {
		cfg.Models = []string{"gpt-sim"}
	}
	p := &Provider{
		cfg: cfg, cancels: map[*job]context.CancelFunc{},
		limits: &limiter{requests: cfg.RequestsPerMinute, tokens: cfg.TokensPerMinute, byKey: map[string]*spent{}},
	}
	p.api = &api{
		name: cfg.Name, models: &models{base: cfg.Models, created: time.Now().Unix()}, generator: p, blockSize: 16,
		maxLen: cfg.MaxModelLen, seed: cfg.Seed, provider: true, admit: p.limits.admit,
		faults: &faultBox{seed: cfg.Seed}, ledger: &ledger{}, stored: &storedResponses{}, closing: make(chan struct{}),
	}
	p.api.faults.set(cfg.Faults)
	mux := http.NewServeMux()
	p.api.routes(mux)
	p.api.control(mux, p.SetFaults)
	p.host = newHost(p.api.gate(p.authenticate(mux)))
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
		close(p.api.closing)
		err = p.host.close(ctx)
		p.mu.Lock()
		for j, cancel := range p.cancels {
			cancel()
			j.fail(errClosed)
		}
		p.mu.Unlock()
		p.running.Wait()
	})
	return err
}

// Stats is the provider's own count of what it served.
func (p *Provider) Stats() Stats { return p.api.ledger.read(keptRecords) }

// SetFaults replaces the faults.
func (p *Provider) SetFaults(f Faults) error {
	if err := f.Check(); err != nil {
		return err
	}
	p.api.faults.set(f)
	p.happen(f)
	return nil
}

// happen does the faults that happen once.
func (p *Provider) happen(f Faults) {
	if d := time.Duration(max(f.Refuse, f.Crash)); d > 0 {
		p.host.refuse(d, f.Crash > 0, func() {})
	}
}

// authenticate checks the key.
func (p *Provider) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		known := len(p.cfg.Keys) == 0 || bearer && slices.Contains(p.cfg.Keys, key)
		if !known && !isControl(r.URL.Path) {
			writeError(w, &apiError{
				Status: http.StatusUnauthorized, Message: "Incorrect API key provided.",
				Type: "invalid_request_error", Code: "invalid_api_key",
			})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// start gives each choice a goroutine that counts its tokens up.
func (p *Provider) start(j *job) error {
	ctx, cancel := context.WithCancel(context.Background())
	p.mu.Lock()
	p.cancels[j] = cancel
	p.mu.Unlock()
	slow := cmp.Or(p.api.faults.get().Slow, 1)
	for _, c := range j.choices {
		p.running.Go(func() { p.generate(ctx, c, slow) })
	}
	return nil
}

func (p *Provider) generate(ctx context.Context, c *choice, slow float64) {
	rng := rand.New(rand.NewPCG(c.request.Seed, p.cfg.Seed))
	timer := time.NewTimer(vary(rng, p.cfg.TTFT, slow))
	defer timer.Stop()
	for n := 1; n <= c.request.OutputTokens; n++ {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		c.update(func(s *progress) {
			s.tokens, s.done = n, n == c.request.OutputTokens
			if n == 1 {
				s.first = time.Now()
			}
		})
		timer.Reset(vary(rng, p.cfg.ITL, slow))
	}
}

// vary is 0.7 to 1.3 times the median, and three times that for one in twenty.
func vary(rng *rand.Rand, median time.Duration, slow float64) time.Duration {
	factor := 0.7 + 0.6*rng.Float64()
	if rng.IntN(20) == 0 {
		factor *= 3
	}
	return time.Duration(float64(median) * factor * slow)
}

func (p *Provider) abort(j *job) {
	p.mu.Lock()
	cancel := p.cancels[j]
	delete(p.cancels, j)
	p.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	for _, c := range j.choices {
		c.update(func(s *progress) { s.done, s.aborted = true, s.aborted || !s.done })
	}
}

// limiter counts requests and tokens per key in windows of one minute.
type limiter struct {
	requests, tokens int // per minute; 0: no limit
	mu               sync.Mutex
	byKey            map[string]*spent
}

type spent struct {
	requests, tokens int
	until            time.Time // end of the window
}

// admit takes a request with so many tokens, prompt and possible output, and
// sets the headers; or says that it is too much.
func (l *limiter) admit(key string, h http.Header, tokens int) *apiError {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	s := l.byKey[key]
	if s == nil || !now.Before(s.until) {
		maps.DeleteFunc(l.byKey, func(_ string, s *spent) bool { return !now.Before(s.until) })
		s = &spent{until: now.Add(time.Minute)}
		l.byKey[key] = s
	}
	over := ""
	switch {
	case l.requests > 0 && s.requests+1 > l.requests:
		over = "requests"
	case l.tokens > 0 && s.tokens+tokens > l.tokens:
		over = "tokens"
	default:
		s.requests++
		s.tokens += tokens
	}
	reset := s.until.Sub(now).Round(time.Millisecond)
	headers := func(what string, limit, used int) {
		if limit > 0 {
			h.Set("x-ratelimit-limit-"+what, strconv.Itoa(limit))
			h.Set("x-ratelimit-remaining-"+what, strconv.Itoa(max(0, limit-used)))
			h.Set("x-ratelimit-reset-"+what, reset.String())
		}
	}
	headers("requests", l.requests, s.requests)
	headers("tokens", l.tokens, s.tokens)
	if over == "" {
		return nil
	}
	h.Set("Retry-After", strconv.Itoa(int(reset.Seconds())+1))
	h.Set("retry-after-ms", strconv.FormatInt(reset.Milliseconds(), 10))
	return &apiError{
		Status: http.StatusTooManyRequests, Type: over, Code: "rate_limit_exceeded",
		Message: fmt.Sprintf("Rate limit reached on %s per min. Please try again in %v.", over, reset),
	}
}
