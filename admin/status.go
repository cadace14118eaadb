// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/penstock/penstock/epp"
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
	// Keys is the store of tenants and keys, where there is one.
	Keys *KeysStatus `json:"keys,omitempty"`
}

// KeysStatus tells how the store of keys stands. A gateway that cannot ask it is
// ready: it goes by what it knows, as long as keys.maxStale says.
type KeysStatus struct {
	Store     string     `json:"store"`
	Reachable bool       `json:"reachable"`
	Since     *time.Time `json:"since,omitempty"` // when it answered last
	Error     string     `json:"error,omitempty"`
	Keys      int        `json:"keys"`
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

// Decision is what is kept of a request: how it went through the targets of its
// model, and the pick in a pool if there was one.
type Decision struct {
	*epp.Explanation
	Route  *RouteStatus `json:"route,omitempty"`
	Change *epp.Change  `json:"change,omitempty"` // what would have led the pick elsewhere
}

// RouteStatus is how a request went through the targets of its model.
type RouteStatus struct {
	RequestID string          `json:"requestId"`
	At        time.Time       `json:"at"`
	Asked     string          `json:"modelAsked"`
	Alias     string          `json:"alias,omitempty"` // the model that the name stood for
	Tenant    string          `json:"tenant,omitempty"`
	Key       string          `json:"key,omitempty"`
	Tier      string          `json:"tier,omitempty"`
	Status    int             `json:"status"`
	Pool      string          `json:"pool,omitempty"` // of the last try
	Fallback  string          `json:"fallback,omitempty"`
	Bound     string          `json:"bound,omitempty"` // the key that allowed no further attempt
	Error     string          `json:"error,omitempty"`
	Tries     []TryStatus     `json:"tries"`
	Skipped   []SkippedStatus `json:"skipped,omitempty"`
	Dropped   []string        `json:"dropped,omitempty"` // parameters
	DryRun    bool            `json:"dryRun,omitempty"`  // nothing was sent: there are no tries
	Planned   []PlannedStatus `json:"planned,omitempty"` // of a dry run: who would be tried, in this order
}

// PlannedStatus is a target that would be tried.
type PlannedStatus struct {
	Target string `json:"target"`
	After  string `json:"after,omitempty"` // the class of failures after which it is; "": in turn
	Out    bool   `json:"out,omitempty"`   // nothing is to be hoped of it now
}

// TryStatus is one attempt at a target.
type TryStatus struct {
	Target  string  `json:"target"`
	Error   string  `json:"error,omitempty"` // "": it answered
	Seconds float64 `json:"seconds"`         // until the answer began, or failed
}

// SkippedStatus is a target that was left out, and why.
type SkippedStatus struct {
	Target string `json:"target"`
	Reason string `json:"reason"`
}

// Plain says that the route tells no more than the pick does: one member of the
// only target answered.
func (s *RouteStatus) Plain() bool {
	if s.DryRun {
		return len(s.Planned) == 1 && len(s.Skipped) == 0
	}
	return s.Pool != "" && len(s.Tries) == 1 && len(s.Skipped) == 0 && s.Fallback == "" && s.Tries[0].Error == ""
}

// Table writes the route for people.
func (s *RouteStatus) Table(w io.Writer) error {
	var b strings.Builder
	if s.DryRun {
		fmt.Fprintf(&b, "dry run  model %s", s.Asked)
	} else {
		fmt.Fprintf(&b, "request %s  model %s", s.RequestID, s.Asked)
	}
	if s.Alias != "" {
		fmt.Fprintf(&b, " (alias of %s)", s.Alias)
	}
	if s.Tenant != "" {
		fmt.Fprintf(&b, "  tenant %s  key %s", s.Tenant, s.Key)
		if s.Tier != "" {
			fmt.Fprintf(&b, "  tier %s", s.Tier)
		}
	}
	if s.DryRun {
		b.WriteString("\n\n")
		return s.planTable(w, &b)
	}
	fmt.Fprintf(&b, "  status %d  at %s\n", s.Status, s.At.UTC().Format("2006-01-02 15:04:05.000"))
	if s.Fallback != "" {
		fmt.Fprintf(&b, "fallback: %s\n", s.Fallback)
	}
	if s.Error != "" {
		fmt.Fprintf(&b, "error: %s\n", s.Error)
	}
	if s.Bound != "" {
		fmt.Fprintf(&b, "no further attempt: %s is used up\n", s.Bound)
	}
	if len(s.Dropped) > 0 {
		fmt.Fprintf(&b, "parameters left out: %s\n", strings.Join(s.Dropped, ", "))
	}
	b.WriteByte('\n')
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprint(t, "TARGET\tSECONDS\tWHAT BECAME OF IT\n")
	for _, a := range s.Tries {
		fmt.Fprintf(t, "%s\t%.3f\t%s\n", a.Target, a.Seconds, cmp.Or(a.Error, "answered"))
	}
	for _, k := range s.Skipped {
		fmt.Fprintf(t, "%s\t-\tleft out: %s\n", k.Target, k.Reason)
	}
	t.Flush() // into memory: no error
	_, err := io.WriteString(w, b.String())
	return err
}

// planTable writes after b who would be tried, and who not.
func (s *RouteStatus) planTable(w io.Writer, b *strings.Builder) error {
	t := tabwriter.NewWriter(b, 0, 8, 2, ' ', 0)
	fmt.Fprint(t, "TARGET\tTRIED\n")
	for i, p := range s.Planned {
		when := fmt.Sprintf("%d.", i+1)
		if p.After != "" {
			when = "as a fallback (" + p.After + ")"
		}
		if p.Out {
			when += ", is out now"
		}
		fmt.Fprintf(t, "%s\t%s\n", p.Target, when)
	}
	for _, k := range s.Skipped {
		fmt.Fprintf(t, "%s\tno: %s\n", k.Target, k.Reason)
	}
	t.Flush() // into memory: no error
	_, err := io.WriteString(w, b.String())
	return err
}
