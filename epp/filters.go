// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/pool"
)

// filter drops candidates of a view by [view.keep]. It may look at all of them
// first.
type filter func(v *view, name string)

// why is the reason of a refusal, kept without formatting: picks are many and
// readers few.
type why struct {
	code whyCode
	a, b float64
	s    string
}

type whyCode uint8

const (
	whyNone    whyCode = iota
	whyState           // s: state
	whySubset          //
	whyTried           //
	whyRole            // s: role
	whyLabels          // s: requirement
	whyAbove           // s: metric, a: value, b: bound
	whyCold            // a: match, b: threshold
	whyLoad            // s: count, a: value, b: bound; full
	whyUtilise         // s: metric, a: value, b: bound; full
	whyTest            // s: header
)

// full says that the candidate was refused for its load, not for what it is.
func (w why) full() bool { return w.code == whyAbove || w.code == whyLoad || w.code == whyUtilise }

func (w why) String() string {
	switch w.code {
	case whyNone:
		return ""
	case whyState:
		return w.s
	case whySubset:
		return "not in the subset asked for"
	case whyTried:
		return "failed this request already"
	case whyTest:
		return "not named in " + w.s
	case whyRole:
		if w.s == "" {
			return "has no role"
		}
		return "role is " + w.s
	case whyLabels:
		return "labels do not match " + w.s
	case whyCold:
		return fmt.Sprintf("holds %.0f %% of the prompt, below %.0f %%", w.a*100, w.b*100)
	case whyAbove:
		return fmt.Sprintf("%s %s is above %s", w.s, number(w.a), number(w.b))
	}
	return fmt.Sprintf("full: %s %s, bound %s", w.s, number(w.a), number(w.b))
}

func number(x float64) string { return strconv.FormatFloat(x, 'g', 4, 64) }

// The implicit stages, before every profile.
const (
	stageAvailability = "availability"
	stageSubset       = "subset"
	stageTried        = "tried"
)

// admit drops members that may not be picked whatever the profile; [view.count]
// has left out those that are not available.
func (v *view) admit() {
	if v.emptiedBy(stageAvailability) {
		return
	}
	if subset := v.r.Subset; subset != nil {
		v.keep(stageSubset, false, func(c *candidate) why {
			if slices.Contains(subset, c.t.address) {
				return why{}
			}
			return why{code: whySubset}
		})
	}
	if v.emptiedBy(stageSubset) {
		return
	}
	if tried := v.r.Tried; len(tried) > 0 {
		v.keep(stageTried, false, func(c *candidate) why {
			if !slices.Contains(tried, c.t.address) {
				return why{}
			}
			return why{code: whyTried}
		})
	}
	v.emptiedBy(stageTried)
}

// emptiedBy notes the stage after which no candidate was left.
func (v *view) emptiedBy(stage string) bool {
	if len(v.alive) == 0 && v.emptied == "" {
		v.emptied = stage
	}
	return len(v.alive) == 0
}

// roleLabel says what a member does when prefill and decode are apart.
const roleLabel = "llm-d.ai/role"

// roles keeps members with one of the roles, and those without one if
// unlabelled is set.
func roles(unlabelled bool, names ...string) filter {
	return func(v *view, name string) {
		v.keep(name, false, func(c *candidate) why {
			role := c.t.m.Labels()[roleLabel]
			if role == "" && unlabelled || role != "" && slices.Contains(names, role) {
				return why{}
			}
			return why{code: whyRole, s: role}
		})
	}
}

// requirement is one line of a Kubernetes label selector.
type requirement struct {
	key, operator string
	values        []string
	text          string
}

// The operators of a label selector.
const (
	opIn           = "In"
	opNotIn        = "NotIn"
	opExists       = "Exists"
	opDoesNotExist = "DoesNotExist"
)

func (q *requirement) matches(labels map[string]string) bool {
	value, ok := labels[q.key]
	switch q.operator {
	case opIn:
		return ok && slices.Contains(q.values, value)
	case opNotIn: // a label that is absent is not in the set
		return !ok || !slices.Contains(q.values, value)
	case opExists:
		return ok
	}
	return !ok
}

func newRequirement(key, operator string, values []string) requirement {
	text := key + " " + operator
	if len(values) > 0 {
		text += " (" + strings.Join(values, ", ") + ")"
	}
	return requirement{key: key, operator: operator, values: values, text: text}
}

func labelSelector(all []requirement) filter {
	return func(v *view, name string) {
		v.keep(name, false, func(c *candidate) why {
			labels := c.t.m.Labels()
			for i := range all {
				if !all[i].matches(labels) {
					return why{code: whyLabels, s: all[i].text}
				}
			}
			return why{}
		})
	}
}

// condition bounds one metric of the utilization filter.
type condition struct {
	metric string
	max    float64
}

// The metrics of a condition.
const (
	metricActive  = "active-requests"
	metricRunning = "running-requests"
	metricWaiting = "waiting-queue"
	metricKV      = "kv-cache-utilization"
)

// value is the metric of c; a running gauge that is missing is replaced by the
// gateway's own count, any other missing gauge passes: unknown is not full.
func (d condition) value(c *candidate) (float64, bool) {
	switch d.metric {
	case metricActive:
		return c.requests, true
	case metricRunning:
		if c.has(pool.HasRunning) {
			return c.page.Running, true
		}
		return c.requests, true
	case metricWaiting:
		if c.has(pool.HasWaiting) {
			return c.page.Waiting, true
		}
	case metricKV:
		if c.has(pool.HasKVUsage) {
			return c.page.KVUsage, true
		}
	}
	return 0, false
}

// utilization keeps members whose every metric is at most its bound.
func utilization(conditions []condition, fallback bool) filter {
	return func(v *view, name string) {
		v.keep(name, fallback, func(c *candidate) why {
			for _, d := range conditions {
				if x, ok := d.value(c); ok && x > d.max {
					return why{code: whyAbove, s: d.metric, a: x, b: d.max}
				}
			}
			return why{}
		})
	}
}

// utilizationDetector drops members that are saturated by their own gauges:
// max(waiting/queue, kv/use) >= 1 + headroom. When all are, it keeps all, as
// llm-d does; an unknown or missing gauge does not saturate.
func utilizationDetector(queue, kv, headroom float64) filter {
	return func(v *view, name string) {
		v.keep(name, true, func(c *candidate) why {
			if c.has(pool.HasWaiting) && c.page.Waiting >= queue*(1+headroom) {
				return why{code: whyUtilise, s: metricWaiting, a: c.page.Waiting, b: queue * (1 + headroom)}
			}
			if c.has(pool.HasKVUsage) && c.page.KVUsage >= kv*(1+headroom) {
				return why{code: whyUtilise, s: metricKV, a: c.page.KVUsage, b: kv * (1 + headroom)}
			}
			return why{}
		})
	}
}

// concurrencyDetector drops members that the gateway itself has filled: in
// requests, in tokens (queued prompt tokens), or either. It never keeps a full
// one: when all are full the request is refused with 429.
func concurrencyDetector(requests, tokens, headroom float64) filter {
	return func(v *view, name string) {
		v.keep(name, false, func(c *candidate) why {
			if bound := requests * (1 + headroom); requests > 0 && c.requests >= bound {
				return why{code: whyLoad, s: "requests in flight", a: c.requests, b: bound}
			}
			if bound := tokens * (1 + headroom); tokens > 0 && c.queued >= bound {
				return why{code: whyLoad, s: "queued tokens", a: c.queued, b: bound}
			}
			return why{}
		})
	}
}

// prefixAffinity keeps the members that hold at least threshold of the prompt's
// blocks, unless the best of them would answer later than the best of the
// others by more than penalty milliseconds; the expected wait is queued tokens
// over the peak prefill throughput (tokens per second). None warm: all stay.
// explore is the probability of ignoring affinity for one pick.
func prefixAffinity(threshold, explore, penalty, peak float64) filter {
	return func(v *view, name string) {
		blocks := float64(len(v.chains.hash) * blockTokens)
		if blocks == 0 || explore > 0 && v.random.float() <= explore {
			return
		}
		best := [2]float64{-1, -1} // least queue of the cold, of the warm
		for _, i := range v.alive {
			c := &v.all[i]
			k := 0
			if float64(c.matched) >= threshold*blocks {
				k = 1
			}
			if best[k] < 0 || c.queued < best[k] {
				best[k] = c.queued
			}
		}
		if best[1] < 0 || best[0] >= 0 && (best[1]-best[0])/peak*1000 > penalty {
			return
		}
		v.keep(name, false, func(c *candidate) why {
			if match := float64(c.matched); match < threshold*blocks {
				return why{code: whyCold, a: match / blocks, b: threshold}
			}
			return why{}
		})
	}
}

// headerTestEndpoints names the endpoints that a test allows, ip or ip:port,
// separated by commas (conformance suite of the Gateway API Inference
// Extension).
const headerTestEndpoints = "Test-Epp-Endpoint-Selection"

// testEndpoints keeps the members that a test's header names; a request without
// it keeps all. The header is the client's: the filter is for tests alone.
func testEndpoints(v *view, name string) {
	lines := v.r.Header[headerTestEndpoints]
	if len(lines) == 0 {
		return
	}
	var named []string
	for _, line := range lines {
		for part := range strings.SplitSeq(line, ",") {
			named = append(named, strings.TrimSpace(part))
		}
	}
	v.keep(name, false, func(c *candidate) why {
		address := c.t.address
		host, _, _ := net.SplitHostPort(address)
		if slices.Contains(named, address) || slices.Contains(named, host) || slices.Contains(named, "["+host+"]") {
			return why{}
		}
		return why{code: whyTest, s: strings.ToLower(headerTestEndpoints)}
	})
}
