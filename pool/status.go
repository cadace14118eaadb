// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import "time"

// Status is a pool at one moment for people and the admin interface.
type Status struct {
	Name      string          `json:"name"`
	Version   uint64          `json:"version"`
	Discovery DiscoveryStatus `json:"discovery"`
	Scraping  ScrapeStatus    `json:"scraping"`
	Members   []MemberStatus  `json:"members"`
}

// DiscoveryStatus says where the members come from and whether that works.
type DiscoveryStatus struct {
	Source    string    `json:"source"` // static, dns, file or none
	OK        bool      `json:"ok"`     // the last attempt brought members
	Members   int       `json:"members"`
	LastError string    `json:"lastError,omitempty"` // why the last good members stay
	Changed   time.Time `json:"changed,omitzero"`    // since when OK is what it is
}

// ScrapeStatus says how often members are scraped. Interval is zero when they
// are not.
type ScrapeStatus struct {
	Interval   float64 `json:"intervalSeconds"`
	Configured float64 `json:"configuredSeconds"`
	Cost       float64 `json:"costSeconds"` // of one scrape, of a core
}

// MemberStatus is one member.
type MemberStatus struct {
	Address      string            `json:"address"`
	Labels       map[string]string `json:"labels,omitempty"`
	State        string            `json:"state"`
	Share        float64           `json:"share"`
	Reason       string            `json:"reason,omitempty"`     // of the ejection
	Until        time.Time         `json:"until,omitzero"`       // end of the time out
	Failures     int               `json:"failures,omitempty"`   // in a row
	Epoch        uint64            `json:"epoch"`                // restarts seen
	Load         Load              `json:"load"`                 // the gateway's own count
	Knowledge    string            `json:"knowledge"`            // unknown, fresh or stale
	Age          float64           `json:"ageSeconds,omitempty"` // of the last good page
	Metrics      *PageStatus       `json:"metrics,omitempty"`
	Missing      []string          `json:"missing,omitempty"` // were there, or should be
	ScrapeResult string            `json:"scrapeResult,omitempty"`
	ScrapeError  string            `json:"scrapeError,omitempty"`
}

// PageStatus is a member's last good page; what it lacked is absent.
type PageStatus struct {
	Waiting       *float64 `json:"waiting,omitempty"`
	Running       *float64 `json:"running,omitempty"`
	KVUsage       *float64 `json:"kvUsage,omitempty"`
	BlockSize     *int     `json:"blockSize,omitempty"`
	NumBlocks     *int     `json:"numBlocks,omitempty"`
	PrefixQueries *float64 `json:"prefixQueries,omitempty"`
	PrefixHits    *float64 `json:"prefixHits,omitempty"`
	LoRA          *LoRA    `json:"lora,omitempty"`
}

// Status is the pool as it is now. The value is the caller's, its maps and
// lists are shared and read only.
func (p *Pool) Status() Status {
	cfg := p.cfg.Load()
	snapshot := p.Snapshot()
	s := Status{
		Name:      p.name,
		Version:   snapshot.Version,
		Discovery: *p.discovery.Load(),
		Members:   make([]MemberStatus, 0, len(snapshot.Members)),
	}
	if s.Discovery.Source == sourceNone {
		s.Discovery.OK = true
	}
	s.Discovery.Members = len(snapshot.Members)
	if !cfg.Metrics.Off {
		s.Scraping = ScrapeStatus{
			Interval:   p.scrapeInterval().Seconds(),
			Configured: cfg.Metrics.Interval.D().Seconds(),
			Cost:       time.Duration(p.cost.nanoseconds.Load()).Seconds(),
		}
	}
	for _, m := range snapshot.Members {
		s.Members = append(s.Members, m.status())
	}
	return s
}

func (m *Member) status() MemberStatus {
	now := m.pool.now()
	h := m.health.Load()
	s := MemberStatus{
		Address:   m.address,
		Labels:    m.Labels(),
		State:     h.state(now).String(),
		Share:     h.share(now),
		Failures:  int(m.failures.Load()),
		Epoch:     m.Epoch(),
		Load:      m.Load(),
		Knowledge: "unknown",
		Missing:   Signals(m.lacks.Load()).Names(),
	}
	switch h.state(now) {
	case Ejected:
		s.Reason, s.Until = h.reason.String(), h.until
	case Down:
		s.Reason = "probe"
	}
	if x := m.metrics.Load(); x != nil {
		s.Metrics = pageStatus(*x)
		s.Age = now.Sub(x.At).Seconds()
		s.Knowledge = "fresh"
		if m.Stale() {
			s.Knowledge = "stale"
		}
	}
	if f := m.lastScrape.Load(); f != nil {
		s.ScrapeResult, s.ScrapeError = string(f.fault), f.text
	}
	return s
}

func pageStatus(x Metrics) *PageStatus {
	s := &PageStatus{}
	if x.Has&HasWaiting != 0 {
		s.Waiting = &x.Waiting
	}
	if x.Has&HasRunning != 0 {
		s.Running = &x.Running
	}
	if x.Has&HasKVUsage != 0 {
		s.KVUsage = &x.KVUsage
	}
	if x.Has&HasCacheConfig != 0 {
		s.BlockSize, s.NumBlocks = &x.BlockSize, &x.NumBlocks
	}
	if x.Has&HasPrefix != 0 {
		s.PrefixQueries, s.PrefixHits = &x.PrefixQueries, &x.PrefixHits
	}
	if x.Has&HasLoRA != 0 {
		s.LoRA = &x.LoRA
	}
	return s
}
