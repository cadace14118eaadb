// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"cmp"
	"strings"
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
	// Controller is where the configuration comes from, of a gateway that has a
	// controller.
	Controller *ControllerStatus `json:"controller,omitempty"`
}

// ControllerStatus tells how a gateway and its controller stand. A gateway out
// of touch is ready: it serves what it has.
type ControllerStatus struct {
	Address   string     `json:"address"`
	Connected bool       `json:"connected"`
	Since     time.Time  `json:"since"` // connected, or out of touch
	Error     string     `json:"error,omitempty"`
	Version   string     `json:"configVersion"`     // in force
	Saved     bool       `json:"fromSavedState"`    // it is of a former run, and no other came since
	Refused   string     `json:"refused,omitempty"` // why the newest is not in force
	RefusedAt *time.Time `json:"refusedAt,omitempty"`
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
	Error   string `json:"certificateError,omitempty"` // why the newest certificate is not in use
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
	Source    string         `json:"source"`                   // static, dns or file, with its address
	Discovery string         `json:"discoveryError,omitempty"` // why the last good members stay; empty: they are new
	Scraping  float64        `json:"scrapeIntervalSeconds"`    // in force; 0: members are not scraped
	Requests  int64          `json:"requests"`                 // in flight on all members
	Picker    *PickerStatus  `json:"picker,omitempty"`         // elsewhere; null: Profile is picked by
	Status    []MemberStatus `json:"memberStatus"`
}

// PickerStatus is a picker elsewhere, and one document of /pickers.
type PickerStatus struct {
	Pool     string          `json:"pool"`
	Address  string          `json:"address"`
	Error    string          `json:"error,omitempty"` // why the replicas, or the identity shown to them, are the last known ones
	Replicas []ReplicaStatus `json:"replicas"`
}

// ReplicaStatus is one address of a picker elsewhere.
type ReplicaStatus struct {
	Address string `json:"address"`
	State   string `json:"state"` // ready, not ready, unchecked
	Streams int64  `json:"streams"`
	Error   string `json:"error,omitempty"` // the last one; empty: none since it was ready
}

// MemberStatus is one member as the gateway sees it at this moment.
type MemberStatus struct {
	Pool     string            `json:"pool"`
	Address  string            `json:"address"`
	Labels   map[string]string `json:"labels,omitempty"`
	State    string            `json:"state"`            // ready, returning, ejected, down
	Reason   string            `json:"reason,omitempty"` // of ejected or down
	Until    time.Time         `json:"until,omitzero"`   // end of the time out
	Share    float64           `json:"share"`            // of its fair load; below 1 while returning
	Epoch    uint64            `json:"epoch"`            // restarts seen
	Requests int64             `json:"requests"`
	Queued   int64             `json:"queuedTokens"`
	Context  int64             `json:"contextTokens"`
	Metrics  *MemberMetrics    `json:"metrics"`               // null: never scraped
	Missing  []string          `json:"missing,omitempty"`     // signals that its page should have and lacks
	Scrape   string            `json:"scrapeError,omitempty"` // of the last try
}

// MemberMetrics is the member's last good page. A value that the page lacks is
// null: missing is not zero.
type MemberMetrics struct {
	Age           float64  `json:"ageSeconds"`
	Stale         bool     `json:"stale"`
	Waiting       *float64 `json:"waiting"`
	Running       *float64 `json:"running"`
	KVUsage       *float64 `json:"kvUsage"`
	BlockSize     *int     `json:"blockSize"`
	Blocks        *int     `json:"blocks"`
	PrefixQueries *float64 `json:"prefixQueryTokens"`
	PrefixHits    *float64 `json:"prefixHitTokens"`
	Adapters      []string `json:"adapters,omitempty"`
}

// ModelStatus is one name that clients may ask for.
type ModelStatus struct {
	Name    string         `json:"name"`
	Alias   string         `json:"alias,omitempty"` // the model that it stands for
	Targets []TargetStatus `json:"targets"`         // of the alias, when it is one
}

// TargetStatus is one place that serves a model.
type TargetStatus struct {
	Pool     string `json:"pool,omitempty"`
	Provider string `json:"provider,omitempty"`
	Model    string `json:"model"` // the upstream name
	Priority int    `json:"priority"`
	Weight   int    `json:"weight"`
	Ready    int    `json:"ready"` // of a pool: members that may be picked
}

// TargetHealth is how one target of a model does, one document of /targets.
type TargetHealth struct {
	Model       string             `json:"model"`
	Target      string             `json:"target"`             // pool or provider, and the upstream name, as in records
	Fallback    string             `json:"fallback,omitempty"` // classes of failures that lead there; empty: one of the model's own
	Priority    int                `json:"priority"`
	Weight      int                `json:"weight"`
	State       string             `json:"state"` // ready, half-open, probing, cooling, out
	Reason      string             `json:"reason,omitempty"`
	Until       *time.Time         `json:"until,omitempty"`              // of cooling
	Open        int64              `json:"open"`                         // requests under way
	FirstOutput float64            `json:"firstOutputSeconds,omitempty"` // smoothed; 0: unknown
	Tokens      float64            `json:"tokensPerEstimated,omitempty"` // that it counts for one that is estimated
	Credentials []CredentialHealth `json:"credentials,omitempty"`
}

// CredentialHealth is how one account at a provider does.
type CredentialHealth struct {
	Name   string     `json:"name"`
	State  string     `json:"state"`
	Reason string     `json:"reason,omitempty"`
	Until  *time.Time `json:"until,omitempty"`
}

// StatusOf reads a pool.
func StatusOf(p *pool.Pool) PoolStatus {
	cfg, now := p.Config(), p.Status()
	s := PoolStatus{
		PoolSummary: PoolSummary{Name: now.Name, Members: len(now.Members)},
		Engine:      string(cfg.Engine),
		Protocol:    string(cfg.Protocol),
		Profile:     cfg.Picker.Profile,
		Source:      strings.TrimSpace(now.Discovery.Source + " " + cmp.Or(cfg.Members.DNS, cfg.Members.File)),
		Discovery:   now.Discovery.LastError,
		Scraping:    now.Scraping.Interval,
	}
	for i := range now.Members {
		m := memberStatus(now.Name, &now.Members[i])
		s.Status = append(s.Status, m)
		s.Requests += m.Requests
		if m.State == pool.Ready.String() || m.State == pool.Returning.String() {
			s.Ready++
		}
	}
	return s
}

func memberStatus(poolName string, m *pool.MemberStatus) MemberStatus {
	s := MemberStatus{
		Pool: poolName, Address: m.Address, Labels: m.Labels,
		State: m.State, Reason: m.Reason, Until: m.Until, Share: m.Share, Epoch: m.Epoch,
		Requests: m.Load.Requests, Queued: m.Load.Queued, Context: m.Load.Context,
		Missing: m.Missing, Scrape: m.ScrapeError,
	}
	if x := m.Metrics; x != nil {
		s.Metrics = &MemberMetrics{
			Age: m.Age, Stale: m.Knowledge == "stale",
			Waiting: x.Waiting, Running: x.Running, KVUsage: x.KVUsage,
			BlockSize: x.BlockSize, Blocks: x.NumBlocks,
			PrefixQueries: x.PrefixQueries, PrefixHits: x.PrefixHits,
		}
		if x.LoRA != nil {
			s.Metrics.Adapters = x.LoRA.Running
		}
	}
	return s
}
