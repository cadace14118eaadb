// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Config is one simulated server. The zero value is a fast server named "sim".
type Config struct {
	Name         string        // in the x-sim-server header and in ids; default "sim"
	Model        string        // default "sim-model"
	Aliases      []string      // further names of the model
	Adapters     []string      // LoRA adapters that are there from the start
	Preset       Preset        // default Tiny
	Speedup      float64       // steps take 1/Speedup of the preset's time; default 1
	Engine       string        // "vllm" (default), "sglang" or "trtllm": names and place of the metrics
	MetricNames  string        // "new" (default) or "old"
	Ranks        int           // tensor parallel ranks that SGLang shows series for; default 1
	PadMetrics   int           // pad the metrics page to this many KB
	MaxModelLen  int           // tokens of prompt and output; default what the cache holds
	StartupDelay time.Duration // answers 503 for so long after New and after a crash
	Seed         uint64        // of output texts and of which requests a fault befalls
	Faults       Faults
}

// Check says what is wrong with the values.
func (c *Config) Check() error {
	switch {
	case !slices.Contains([]string{"", "vllm", "sglang", "trtllm"}, c.Engine):
		return fmt.Errorf("sim: engine: %q is not vllm, sglang or trtllm", c.Engine)
	case !slices.Contains([]string{"", "old", "new"}, c.MetricNames):
		return fmt.Errorf("sim: metric names: %q is not old or new", c.MetricNames)
	case !(c.Speedup >= 0) || math.IsInf(c.Speedup, 1):
		return fmt.Errorf("sim: speedup: %v is not a positive number", c.Speedup)
	case len(c.Adapters) > 0 && c.Preset.NumBlocks > 0 && c.Preset.MaxLoRAs == 0:
		return fmt.Errorf("sim: adapters: the preset has no LoRA slots")
	}
	return errors.Join(c.Faults.Check(), (&faultBox{server: true}).refuses(&c.Faults))
}

func (c *Config) setDefaults() {
	c.Name = cmp.Or(c.Name, "sim")
	c.Model = cmp.Or(c.Model, "sim-model")
	c.Engine = cmp.Or(c.Engine, "vllm")
	c.MetricNames = cmp.Or(c.MetricNames, "new")
	c.Speedup = cmp.Or(c.Speedup, 1)
	c.Ranks = max(c.Ranks, 1)
	if c.Preset.NumBlocks == 0 {
		c.Preset = Tiny()
	}
	cache := c.Preset.NumBlocks * max(c.Preset.BlockSize, 1)
	if c.MaxModelLen <= 0 || c.MaxModelLen > cache {
		c.MaxModelLen = cache
	}
}

// Server is a simulated model server: an engine in real time behind OpenAI
// endpoints, with metrics, faults and its own count of what it served.
type Server struct {
	cfg     Config
	api     *api
	driver  *driver
	meters  *meters
	host    *host
	started time.Time
	mux     *http.ServeMux
	close   sync.Once

	mu    sync.Mutex
	ready time.Time // when the start-up delay is over
}

// New makes a server; its engine sleeps until there is work. [Config.Check]
// says beforehand whether the values make sense; unknown names count as the
// default. Close must be called.
func New(cfg Config) *Server {
	cfg.setDefaults()
	now := time.Now()
	s := &Server{cfg: cfg, meters: newMeters(), started: now, ready: now.Add(cfg.StartupDelay), mux: http.NewServeMux()}
	s.driver = newDriver(cfg.Preset, cfg.Speedup, s.meters)
	s.api = &api{
		name:      cfg.Name,
		models:    &models{base: append([]string{cfg.Model}, cfg.Aliases...), adapters: slices.Clone(cfg.Adapters), created: now.Unix()},
		generator: s.driver, blockSize: s.driver.engine.preset.BlockSize, maxLen: cfg.MaxModelLen, seed: cfg.Seed,
		faults: &faultBox{seed: cfg.Seed, server: true}, ledger: &ledger{}, stored: &storedResponses{}, closing: make(chan struct{}),
	}
	s.routes()
	s.host = newHost(s.api.gate(s.loading(s.mux)))
	s.api.faults.set(cfg.Faults)
	s.driver.setSlow(cmp.Or(cfg.Faults.Slow, 1))
	return s
}

func (s *Server) routes() {
	a := s.api
	a.routes(s.mux)
	for _, prefix := range []string{"", "/v1", "/v2"} {
		a.handle(s.mux, "POST "+prefix+"/rerank", a.rerank)
	}
	for _, prefix := range []string{"", "/v1"} {
		a.handle(s.mux, "POST "+prefix+"/score", a.scores)
	}
	a.handle(s.mux, "POST /v1/audio/transcriptions", a.transcribe)
	s.mux.HandleFunc("POST /tokenize", s.tokenize)
	s.mux.HandleFunc("POST /detokenize", s.detokenize)
	s.mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	s.mux.HandleFunc("GET /ping", func(http.ResponseWriter, *http.Request) {})
	s.mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"version": "sim"})
	})
	s.mux.HandleFunc("POST /v1/load_lora_adapter", s.loadAdapter)
	s.mux.HandleFunc("POST /v1/unload_lora_adapter", s.unloadAdapter)
	s.mux.HandleFunc("POST /sleep", s.sleep(true))
	s.mux.HandleFunc("POST /wake_up", s.sleep(false))
	s.mux.HandleFunc("GET /is_sleeping", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]bool{"is_sleeping": s.driver.isAsleep()})
	})
	if s.cfg.Engine == "trtllm" {
		s.mux.HandleFunc("GET /prometheus/metrics", s.metrics)
		s.mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, http.StatusOK, []struct{}{}) // iteration statistics, off
		})
	} else {
		s.mux.HandleFunc("GET /metrics", s.metrics)
	}
	control(s.mux, a.faults, s.Stats, s.SetFaults)
}

// Handler serves what Listen serves; for tests that bring their own listener.
// Faults that close connections by way of the listener do nothing then.
func (s *Server) Handler() http.Handler { return s.host.handler }

// Listen binds addr (host:port, port 0 for any), serves in the background and
// returns the address. Once per Server.
func (s *Server) Listen(addr string) (string, error) {
	bound, err := s.host.listen(addr)
	if err == nil {
		s.happen(s.cfg.Faults)
	}
	return bound, err
}

// Close lets running answers end until ctx is done, then cuts them. No
// goroutine is left when it returns. It returns the error of ctx if answers
// were cut.
func (s *Server) Close(ctx context.Context) (err error) {
	s.close.Do(func() {
		close(s.api.closing)
		s.driver.setAsleep(false)
		err = s.host.close(ctx)
		s.driver.close()
	})
	return err
}

// Stats is the server's own count of what it served.
func (s *Server) Stats() Stats { return s.api.ledger.read(keptRecords) }

// Gauges is the state of the engine after its last step.
func (s *Server) Gauges() Gauges { return s.driver.observed() }

// SetFaults replaces the faults.
func (s *Server) SetFaults(f Faults) error {
	if err := errors.Join(f.Check(), s.api.faults.refuses(&f)); err != nil {
		return err
	}
	s.api.faults.set(f)
	s.driver.setSlow(cmp.Or(f.Slow, 1))
	s.happen(f)
	return nil
}

// happen does the faults that happen once.
func (s *Server) happen(f Faults) {
	if f.Crash > 0 {
		s.host.refuse(time.Duration(f.Crash), true, s.reload)
		s.driver.restart()
	} else if f.Refuse > 0 {
		s.host.refuse(time.Duration(f.Refuse), false, func() {})
	}
}

// reload begins the start-up delay anew.
func (s *Server) reload() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = time.Now().Add(s.cfg.StartupDelay)
}

// loading answers 503 until the start-up delay is over.
func (s *Server) loading(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		left := time.Until(s.ready)
		s.mu.Unlock()
		if left <= 0 || isControl(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Retry-After", strconv.Itoa(int(left.Seconds())+1))
		writeError(w, &apiError{Status: http.StatusServiceUnavailable, Message: "the model is loading", Type: "ServiceUnavailableError"})
	})
}

func (s *Server) sleep(asleep bool) http.HandlerFunc {
	return func(http.ResponseWriter, *http.Request) { s.driver.setAsleep(asleep) }
}

func (s *Server) loadAdapter(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Name string `json:"lora_name"`
		Path string `json:"lora_path"`
	}
	switch err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&req); {
	case err != nil || req.Name == "" || req.Path == "":
		writeError(w, invalid("lora_name", "Both 'lora_name' and 'lora_path' must be provided."))
	case s.cfg.Preset.MaxLoRAs == 0:
		writeError(w, invalid("lora_name", "LoRA is not enabled."))
	case !s.api.models.load(req.Name):
		writeError(w, invalid("lora_name", fmt.Sprintf("The lora adapter '%s' has already been loaded.", req.Name)))
	default:
		fmt.Fprintf(w, "Success: LoRA adapter '%s' added successfully.", req.Name)
	}
}

func (s *Server) unloadAdapter(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Name string `json:"lora_name"`
	}
	switch err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&req); {
	case err != nil || req.Name == "":
		writeError(w, invalid("lora_name", "'lora_name' must be provided."))
	case !s.api.models.unload(req.Name):
		e := invalid("lora_name", fmt.Sprintf("The lora adapter '%s' cannot be found.", req.Name))
		e.Status, e.Type = http.StatusNotFound, "NotFoundError"
		writeError(w, e)
	default:
		fmt.Fprintf(w, "Success: LoRA adapter '%s' removed successfully.", req.Name)
	}
}

func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	body, ok := s.api.body(w, r)
	if !ok {
		return
	}
	var req struct {
		Prompt   *string       `json:"prompt"`
		Messages []chatMessage `json:"messages"`
		Tools    []chatTool    `json:"tools"`
		Strings  bool          `json:"return_token_strs"`
	}
	if err := json.Unmarshal(body, &req); err != nil {
		writeError(w, badJSON(err))
		return
	}
	var t tokens
	switch {
	case req.Prompt != nil:
		t = t.segment(*req.Prompt)
	case len(req.Messages) > 0:
		functions := make([]function, len(req.Tools))
		for i, tool := range req.Tools {
			functions[i] = tool.Function
		}
		t = renderChat(req.Messages, functions)
	default:
		writeError(w, invalid("prompt", "prompt or messages is required"))
		return
	}
	var pieces []string
	if req.Strings {
		for i := range t.count() {
			pieces = append(pieces, t[i*bytesPerToken:(i+1)*bytesPerToken].text())
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"count": t.count(), "max_model_len": s.cfg.MaxModelLen, "tokens": t.ids(), "token_strs": pieces,
	})
}

func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) {
	body, ok := s.api.body(w, r)
	if !ok {
		return
	}
	var req struct {
		Tokens []uint32 `json:"tokens"`
	}
	if err := json.Unmarshal(body, &req); err != nil {
		writeError(w, badJSON(err))
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"prompt": tokensOf(req.Tokens).text()})
}
