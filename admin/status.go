// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"time"

	"github.com/penstock/penstock/pool"
)

// Readiness answers /readyz. Ready means that the gateway can serve: a
// configuration is loaded, the listeners are up, and it is not draining. A
// pool without a ready member does not make it unready: other pools serve on,
// and a restart would cure nothing.
type Readiness struct {
	Ready     bool             `json:"ready"`
	Reason    string           `json:"reason,omitempty"` // why not
	Draining  bool             `json:"draining"`
	Version   string           `json:"version"`
	StartedAt time.Time        `json:"startedAt"`
	Config    ConfigStatus     `json:"config"`
	Listeners []ListenerStatus `json:"listeners"`
	Pools     []PoolSummary    `json:"pools"`
}

// ConfigStatus is what became of the configuration.
type ConfigStatus struct {
	File     string    `json:"file"`
	Loads    int       `json:"loads"`    // that went well, the first included
	LoadedAt time.Time `json:"loadedAt"` // the one in force
	// Error is why the newest file is not in force: file:line:col: path: what;
	// hint, a line each. Empty when it is.
	Error   string     `json:"error,omitempty"`
	ErrorAt *time.Time `json:"errorAt,omitempty"`
}

// ListenerStatus is one address.
type ListenerStatus struct {
	Name    string `json:"name"`
	Address string `json:"address"` // as bound
	TLS     bool   `json:"tls"`
	Up      bool   `json:"up"`
}

// PoolSummary counts a pool's members.
type PoolSummary struct {
	Name    string `json:"name"`
	Members int    `json:"members"`
	Ready   int    `json:"ready"` // may be picked: ready or returning
}

// PoolStatus is one document of /pools.
type PoolStatus struct {
	PoolSummary
	Engine    string         `json:"engine"`
	Protocol  string         `json:"protocol"`
	Profile   string         `json:"profile"`
	Source    string         `json:"source"`              // static, dns or file
	Discovery string         `json:"discovery,omitempty"` // what is wrong with the source; empty: nothing
	Requests  int64          `json:"requests"`            // in flight on all members
	Status    []MemberStatus `json:"memberStatus"`
}

// MemberStatus is one member as the gateway sees it at this moment.
type MemberStatus struct {
	Pool     string            `json:"pool"`
	Address  string            `json:"address"`
	Labels   map[string]string `json:"labels,omitempty"`
	State    string            `json:"state"` // ready, returning, ejected, down
	Share    float64           `json:"share"` // of its fair load; below 1 while returning
	Requests int64             `json:"requests"`
	Queued   int64             `json:"queuedTokens"`
	Context  int64             `json:"contextTokens"`
	Metrics  *MemberMetrics    `json:"metrics"` // null: never scraped
}

// MemberMetrics is the member's last good page. A value that the page lacks is
// null: missing is not zero.
type MemberMetrics struct {
	At            time.Time `json:"at"`
	Stale         bool      `json:"stale"`
	Waiting       *float64  `json:"waiting"`
	Running       *float64  `json:"running"`
	KVUsage       *float64  `json:"kvUsage"`
	BlockSize     *int      `json:"blockSize"`
	Blocks        *int      `json:"blocks"`
	PrefixQueries *float64  `json:"prefixQueryTokens"`
	PrefixHits    *float64  `json:"prefixHitTokens"`
	Adapters      []string  `json:"adapters,omitempty"`
}

// ModelStatus is one name that clients may ask for.
type ModelStatus struct {
	Name    string         `json:"name"`
	Alias   string         `json:"alias,omitempty"` // the model that it stands for
	Targets []TargetStatus `json:"targets"`         // of the alias, when it is one
}

// TargetStatus is one place that serves a model.
type TargetStatus struct {
	Pool   string `json:"pool"`
	Model  string `json:"model"` // the upstream name
	Weight int    `json:"weight"`
	Ready  int    `json:"ready"` // members that may be picked
}

// StatusOf reads a pool.
func StatusOf(p *pool.Pool) PoolStatus {
	cfg := p.Config()
	s := PoolStatus{
		PoolSummary: PoolSummary{Name: cfg.Name},
		Engine:      string(cfg.Engine),
		Protocol:    string(cfg.Protocol),
		Profile:     cfg.Picker.Profile,
		Source:      "static",
	}
	switch {
	case cfg.Members.DNS != "":
		s.Source = "dns " + cfg.Members.DNS
	case cfg.Members.File != "":
		s.Source = "file " + cfg.Members.File
	}
	for _, m := range p.Snapshot().Members {
		ms := memberStatus(cfg.Name, m)
		s.Status = append(s.Status, ms)
		s.Members++
		s.Requests += ms.Requests
		if m.Available() {
			s.Ready++
		}
	}
	return s
}

func memberStatus(poolName string, m *pool.Member) MemberStatus {
	load := m.Load()
	s := MemberStatus{
		Pool: poolName, Address: m.Address(), Labels: m.Labels(),
		State: stateName(m.State()), Share: m.Share(),
		Requests: load.Requests, Queued: load.Queued, Context: load.Context,
	}
	if x := m.Metrics(); x != nil {
		s.Metrics = metricsOf(x, m.Stale())
	}
	return s
}

func metricsOf(x *pool.Metrics, stale bool) *MemberMetrics {
	return &MemberMetrics{
		At: x.At, Stale: stale,
		Waiting:       present(x, pool.HasWaiting, x.Waiting),
		Running:       present(x, pool.HasRunning, x.Running),
		KVUsage:       present(x, pool.HasKVUsage, x.KVUsage),
		BlockSize:     present(x, pool.HasCacheConfig, x.BlockSize),
		Blocks:        present(x, pool.HasCacheConfig, x.NumBlocks),
		PrefixQueries: present(x, pool.HasPrefix, x.PrefixQueries),
		PrefixHits:    present(x, pool.HasPrefix, x.PrefixHits),
		Adapters:      x.LoRA.Running,
	}
}

func present[T any](x *pool.Metrics, s pool.Signals, v T) *T {
	if x.Has&s == 0 {
		return nil
	}
	return &v
}

func stateName(s pool.State) string {
	switch s {
	case pool.Ready:
		return "ready"
	case pool.Returning:
		return "returning"
	case pool.Ejected:
		return "ejected"
	case pool.Down:
		return "down"
	}
	return "unknown"
}
