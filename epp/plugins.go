// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp

import (
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/config"
)

// plugin is a row of the table: how a type is built.
type plugin struct {
	build func(p *params, b *built)
}

// built is a plug-in with its parameters. At most one of filter, scorer and
// picker is set; none for what other parts of the gateway do.
type built struct {
	name     string
	kind     string // type
	filter   filter
	scorer   scorer
	picker   *picker
	session  *sessionParams
	index    *indexParams
	served   bool
	produced []producerRef
	notes    []string
}

// producerRef is a parameter that names a producer of a type.
type producerRef struct{ param, name, kind string }

// The producers that others may name.
const (
	prefixProducer   = "approx-prefix-cache-producer"
	inflightProducer = "inflight-load-producer"
)

// The hints of what is refused.
const (
	hintDisagg    = "disaggregated serving is not supported; use single-profile-handler"
	hintPrecise   = "use approx-prefix-cache-producer and prefix-cache-scorer"
	hintPredictor = "use expected-cost-scorer, which learns the members' speed itself"
	hintFlow      = "flow control is not supported; remove it"
	hintLabels    = "use label-selector-filter"
	hintParser    = "remove it; the request's path decides how a body is read"
	hintMedia     = "remove it; prefix-cache-scorer covers media by their hash"
	hintCluster   = "remove it; a pool's members are of one cluster"
	hintRemove    = "remove it"
)

// pluginTable is every plug-in type known, by llm-d's name where there is one.
// A new scorer is a function and a row here.
func pluginTable() map[string]plugin {
	fixed := func(f filter) plugin { return plugin{build: func(_ *params, b *built) { b.filter = f }} }
	score := func(s scorer) plugin { return plugin{build: func(_ *params, b *built) { b.scorer = s }} }
	pick := func(key func(v *view)) plugin {
		return plugin{build: func(p *params, b *built) {
			picked := pickerOf(key, p.integer("maxNumOfEndpoints", defaultEndpoints, 1, explained))
			b.picker = &picked
		}}
	}
	inert := func(notes ...string) plugin { return plugin{build: func(_ *params, b *built) { b.notes = notes }} }
	return map[string]plugin{
		// Filters.
		"label-selector-filter": {build: buildLabelSelector},
		"decode-filter":         fixed(roles(true, "decode", "prefill-decode", "both", "encode-prefill-decode")),
		"prefill-filter":        fixed(roles(false, "prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode")),
		"encode-filter":         fixed(roles(false, "encode", "encode-prefill", "encode-prefill-decode")),
		"utilization-filter":    {build: buildUtilization},
		"utilization-detector":  {build: buildUtilizationDetector},
		"concurrency-detector":  {build: buildConcurrencyDetector},
		"prefix-cache-affinity-filter": {build: func(p *params, b *built) {
			threshold := p.number("affinityThreshold", 0.8, 0, 1)
			explore := p.number("explorationProbability", 0, 0, 1)
			penalty := p.number("maxTTFTPenaltyMs", 18000, 0, math.MaxFloat64)
			peak := p.number("peakPrefillThroughput", 15928, 1, math.MaxFloat64)
			if p.text("ttftSource", "prefillThroughput", "prefillThroughput", "latencyPredictor") == "latencyPredictor" {
				p.fail("ttftSource", "latencyPredictor is not supported", "use prefillThroughput")
			}
			b.producers(p, "prefixMatchInfoProducerName", prefixProducer)
			b.producers(p, "inFlightLoadProducerName", inflightProducer)
			b.filter = prefixAffinity(threshold, explore, penalty, peak)
		}},

		"header-based-testing-filter": fixed(testEndpoints),

		// Scorers.
		"queue-scorer":                 score(queueScorer()),
		"running-requests-size-scorer": score(runningScorer()),
		"kv-cache-utilization-scorer":  score(kvScorer),
		"lora-affinity-scorer":         score(loraAffinity),
		"expected-cost-scorer":         score(expectedCost),
		"lmetric-scorer":               score(lmetric),
		"load-aware-scorer": {build: func(p *params, b *built) {
			b.scorer = loadAware(float64(p.integer("threshold", 128, 1, math.MaxInt32)))
		}},
		"active-request-scorer": {build: func(p *params, b *built) {
			p.text("requestTimeout", "") // llm-d's leak guard; here a count ends with its exchange
			idle := p.integer("idleThreshold", 0, 0, math.MaxInt32)
			busy := p.number("maxBusyScore", 1, 0, 1)
			b.producers(p, "inFlightLoadProducerName", inflightProducer)
			b.scorer = activeRequest(float64(idle), busy)
		}},
		"token-load-scorer": {build: func(p *params, b *built) {
			threshold := p.integer("queueThresholdTokens", 4194304, 1, math.MaxInt)
			b.producers(p, "inFlightLoadProducerName", inflightProducer)
			b.scorer = tokenLoad(float64(threshold))
		}},
		"prefix-cache-scorer": {build: func(p *params, b *built) {
			weight := p.number("matchLengthWeight", 0, 0, 1)
			scale := p.integer("matchLengthScaleTokens", 8192, 1, math.MaxInt32)
			b.producers(p, "prefixMatchInfoProducerName", prefixProducer)
			b.scorer = prefixCache(weight, float64(scale))
		}},
		"no-hit-lru-scorer": {build: func(p *params, b *built) {
			p.integer("lruSize", 1024, 1, math.MaxInt32) // here one word per member
			p.text("prefixPluginType", "")
			b.producers(p, "prefixPluginName", prefixProducer)
			b.producers(p, "prefixMatchInfoProducerName", prefixProducer)
			b.scorer = noHitLRU
		}},
		"session-affinity-scorer": {build: buildSessionAffinity},

		// Pickers.
		"max-score-picker":       pick(maxScore),
		"weighted-random-picker": pick(weightedRandom),
		"random-picker":          pick(uniform),
		"round-robin-picker":     pick(roundRobin),

		// For the conformance suite of the extension.
		"destination-endpoint-served-verifier": {build: func(_ *params, b *built) { b.served = true }},

		// What the gateway does in any case.
		"single-profile-handler": inert(),
		"openai-parser":          inert(),
		"core-metrics-extractor": inert(),
		"metrics-data-source": {build: func(p *params, _ *built) {
			p.text("scheme", "http", "http")
			p.text("path", "/metrics", "/metrics")
			p.boolean("insecureSkipVerify", true)
		}},
		"file-discovery": {build: func(p *params, b *built) {
			p.text("path", "")
			p.boolean("watchFile", false)
			b.notes = []string{"file-discovery has no effect here: a pool's members come from pools[].members"}
		}},
		"token-producer": {build: buildTokens},
		prefixProducer:   {build: buildPrefixProducer},
		inflightProducer: {build: func(p *params, b *built) {
			if p.boolean("addEstimatedOutputTokens", false) {
				p.fail("addEstimatedOutputTokens", "is not supported", "leave it out; expected-cost-scorer learns the output's length")
			}
			p.number("outputRatio", 1.5, 0, math.MaxFloat64)
			p.integer("maxEstimatedOutputTokens", 0, 0, math.MaxInt)
			p.boolean("syncCrossReplicaState", true)
			b.producers(p, "prefixMatchInfoProducerName", prefixProducer)
		}},
	}
}

// refusedTypes are llm-d's types that are not supported, with a hint each.
func refusedTypes() map[string]string {
	return map[string]string{
		"by-label":                                  hintLabels,
		"by-label-selector":                         hintLabels,
		"endpoint-attribute-filter":                 "use utilization-filter",
		"endpoint-attribute-scorer":                 hintRemove,
		"slo-headroom-tier-filter":                  hintPredictor,
		"latency-scorer":                            hintPredictor,
		"predicted-latency-producer":                hintPredictor,
		"latency-slo-admitter":                      hintPredictor,
		"probabilistic-admitter":                    hintFlow,
		"session-affinity-filter":                   "use session-affinity-scorer",
		"session-id-producer":                       "use session-affinity-scorer with sessionIdConfig",
		"topology-affinity-filter":                  hintDisagg,
		"topology-affinity-scorer":                  hintDisagg,
		"topology-extractor":                        hintDisagg,
		"context-length-aware":                      hintLabels,
		"header-label-affinity-scorer":              hintLabels,
		"mm-embeddings-cache-scorer":                hintMedia,
		"mm-embeddings-cache-producer":              hintMedia,
		"precise-prefix-cache-scorer":               hintPrecise,
		"precise-prefix-cache-producer":             hintPrecise,
		"burst-prefix-cache-producer":               "remove it; a pick is in the prefix index before its request leaves",
		"p2p-source-producer":                       hintRemove,
		"tokenizer":                                 "use token-producer with estimate: {}",
		"data-parallel-profile-handler":             "list every rank as a member of its own",
		"header-profile-handler":                    hintDisagg,
		"disagg-profile-handler":                    hintDisagg,
		"disagg-headers-handler":                    hintDisagg,
		"pd-profile-handler":                        hintDisagg,
		"prefill-header-handler":                    hintDisagg,
		"prefix-based-pd-decider":                   hintDisagg,
		"always-disagg-pd-decider":                  hintDisagg,
		"always-disagg-multimodal-decider":          hintDisagg,
		"disaggregatedset-rollout-screener":         hintDisagg,
		"multicluster-approx-prefix-cache-producer": hintCluster,
		"multicluster-file-discovery":               hintCluster,
		"multicluster-kv-cache-utilization-scorer":  hintCluster,
		"multicluster-queue-scorer":                 hintCluster,
		"multicluster-prefix-cache-scorer":          hintCluster,
		"multicluster-session-affinity-filter":      hintCluster,
		"global-strict-fairness-policy":             hintFlow,
		"round-robin-fairness-policy":               hintFlow,
		"program-aware-fairness":                    hintFlow,
		"fcfs-ordering-policy":                      hintFlow,
		"edf-ordering-policy":                       hintFlow,
		"slo-deadline-ordering-policy":              hintFlow,
		"static-usage-limit-policy":                 hintFlow,
		"priority-holdback-policy":                  hintFlow,
		"soft-reflective-ceiling-policy":            hintFlow,
		"anthropic-parser":                          hintParser,
		"vllmhttp-parser":                           hintParser,
		"vllmgrpc-parser":                           hintParser,
		"sglanghttp-parser":                         hintParser,
		"vertexai-parser":                           hintParser,
		"passthrough-parser":                        hintParser,
		"models-data-source":                        hintRemove,
		"models-data-extractor":                     hintRemove,
		"dcgm-data-source":                          hintRemove,
		"dcgm-extractor":                            hintRemove,
		"k8s-notification-source":                   "remove it; a pool's members come from pools[].members",
		"endpoint-notification-source":              "remove it; a pool's members come from pools[].members",
		"agent-identity":                            hintRemove,
		"request-attribute-reporter":                "remove it; the usage record has every request's tokens",
	}
}

func pickerOf(key func(v *view), endpoints int) picker { return picker{max: endpoints, key: key} }

func (b *built) producers(p *params, param, kind string) {
	if name := p.text(param, kind); name != "" {
		b.produced = append(b.produced, producerRef{param, name, kind})
	}
}

func buildLabelSelector(p *params, b *built) {
	var all []requirement
	labels := p.section("matchLabels")
	for key := range sorted(labels.tree) {
		all = append(all, newRequirement(key, opIn, []string{labels.text(key, "")}))
	}
	for _, e := range p.list("matchExpressions") {
		q := newRequirement(e.text("key", ""), e.text("operator", "", opIn, opNotIn, opExists, opDoesNotExist), e.texts("values"))
		wantsValues := q.operator == opIn || q.operator == opNotIn
		switch {
		case q.key == "":
			e.fail("key", "is missing", "name a label")
		case q.operator == "":
			e.fail("operator", "is missing", "In, NotIn, Exists or DoesNotExist")
		case wantsValues && len(q.values) == 0:
			e.fail("values", "is empty", "operator "+q.operator+" needs values")
		case !wantsValues && len(q.values) > 0:
			e.fail("values", "is not allowed", "operator "+q.operator+" has none")
		}
		all = append(all, q)
	}
	b.filter = labelSelector(all)
}

func buildUtilization(p *params, b *built) {
	var all []condition
	for _, e := range p.list("conditions") {
		d := condition{metric: e.text("metric", "", metricActive, metricRunning, metricWaiting, metricKV)}
		d.max = e.number("maxValue", -1, 0, math.MaxFloat64)
		switch {
		case d.metric == "":
			e.fail("metric", "is missing", strings.Join([]string{metricActive, metricRunning, metricWaiting, metricKV}, ", "))
		case d.max < 0:
			e.fail("maxValue", "is missing", "give a bound")
		}
		all = append(all, d)
	}
	if len(all) == 0 {
		p.fail("conditions", "is empty", "give at least one metric and maxValue")
	}
	fallback := p.boolean("fallbackOnEmpty", false)
	b.producers(p, "inFlightLoadProducerName", inflightProducer)
	b.filter = utilization(all, fallback)
}

func buildUtilizationDetector(p *params, b *built) {
	queue := p.integer("queueDepthThreshold", 5, 1, math.MaxInt32)
	kv := p.number("kvCacheUtilThreshold", 0.8, 0.001, 1)
	headroom := p.number("headroom", 0, 0, 100)
	if p.duration("metricsStalenessThreshold", 0) != 0 {
		b.notes = []string{"utilization-detector.metricsStalenessThreshold has no effect here: pools[].metrics.stale says when a page is stale"}
	}
	b.filter = utilizationDetector(float64(queue), kv, headroom)
}

func buildConcurrencyDetector(p *params, b *built) {
	requests := p.integer("maxConcurrency", 100, 1, math.MaxInt32)
	tokens := p.integer("maxTokenConcurrency", 1_000_000, 1, math.MaxInt)
	headroom := p.number("headroom", 0, 0, 100)
	switch p.text("concurrencyMode", "requests", "requests", "tokens", "hybrid") {
	case "requests":
		tokens = 0
	case "tokens":
		requests = 0
	}
	b.producers(p, "inFlightLoadProducerName", inflightProducer)
	b.filter = concurrencyDetector(float64(requests), float64(tokens), headroom)
}

// buildSessionAffinity reads llm-d's two strategies: a token in a header that
// the answer gives and the client echoes, and a session id of the client's. The
// token here is a hash, since an address is nothing a client should learn.
func buildSessionAffinity(p *params, b *built) {
	s := &sessionParams{header: "x-session-token", echo: true}
	strategy := p.text("strategy", "encoded_endpoint_header", "encoded_endpoint_header", "session_id")
	encoded, id := p.section("encodedEndpointHeaderConfig"), p.section("sessionIdConfig")
	if strategy == "encoded_endpoint_header" {
		s.header = encoded.text("header", s.header)
		if len(id.tree) > 0 {
			p.fail("sessionIdConfig", "does not go with the strategy", "set strategy: session_id")
		}
	} else {
		*s = sessionParams{header: "x-session-id"}
		for i, source := range id.list("sources") {
			header, cookie := source.text("header", ""), source.text("cookie", "")
			switch {
			case i > 0:
				id.fail("sources[1]", "a second source is not supported", "keep one")
			case (header == "") == (cookie == ""):
				source.fail("", "must have one of header and cookie", "name one")
			default:
				s.header, s.cookie = header, cookie
			}
		}
		s.ttl = time.Duration(id.number("evictionTtlSeconds", 300, 1, 1e7) * float64(time.Second))
		id.number("evictionSweepSeconds", 10, 0, 1e7) // here bindings are dropped by generation
		if len(encoded.tree) > 0 {
			p.fail("encodedEndpointHeaderConfig", "does not go with the strategy", "set strategy: encoded_endpoint_header")
		}
	}
	p.text("profileName", "")
	b.session, b.scorer = s, sessionAffinity
}

// buildTokens accepts the estimating backend alone: no tokenizer is at hand.
func buildTokens(p *params, _ *built) {
	p.section("estimate")
}

func buildPrefixProducer(p *params, b *built) {
	x := &indexParams{blocks: maxBlocks}
	if size := p.integer("blockSizeTokens", blockTokens, 1, math.MaxInt32); size > blockTokens {
		p.fail("blockSizeTokens", fmt.Sprintf("%d is not supported", size), "blocks have 64 tokens; leave it out")
	} else if size < blockTokens {
		b.notes = []string{fmt.Sprintf("%s.blockSizeTokens %d is raised to %d", prefixProducer, size, blockTokens)}
	}
	x.reported = p.boolean("autoTune", true)
	x.capacity = p.integer("lruCapacityPerServer", unknownCapacity, 1, maxEntries)
	blocks := p.integer("maxPrefixBlocksToMatch", maxBlocks, 1, math.MaxInt32)
	tokens := p.integer("maxPrefixTokensToMatch", 0, 0, math.MaxInt32)
	if tokens > 0 {
		blocks = max(1, tokens/blockTokens)
	}
	x.blocks = min(blocks, maxBlocks)
	b.index = x
}

// params reads the parameters of one plug-in strictly: what is not asked for is
// unknown. The first fault is kept.
type params struct {
	path  string
	tree  map[string]any
	known []string
	under []*params
	fault *config.Problem
}

func (p *params) fail(key, what, hint string) {
	if p.fault == nil {
		p.fault = problem(strings.TrimSuffix(p.path+"."+key, "."), what, hint)
	}
}

// finish returns the first fault: a wrong value, or a key nobody asked for.
func (p *params) finish() *config.Problem {
	if p.fault != nil {
		return p.fault
	}
	for key := range sorted(p.tree) {
		if !slices.Contains(p.known, key) {
			slices.Sort(p.known)
			hint := "it takes no parameters"
			if len(p.known) > 0 {
				hint = "known are " + strings.Join(slices.Compact(p.known), ", ")
			}
			switch key { // of llm-d's prefix-cache-scorer, before it had a producer
			case "hashBlockSize", "blockSize":
				hint = "remove it; blocks have 64 tokens"
			case "maxPrefixBlocksToMatch", "lruCapacityPerServer":
				hint = "declare " + prefixProducer + " and move it there"
			}
			return problem(p.path+"."+key, "unknown parameter", hint)
		}
	}
	for _, q := range p.under {
		if f := q.finish(); f != nil {
			return f
		}
	}
	return nil
}

func (p *params) get(key string) (any, bool) {
	p.known = append(p.known, key)
	v, ok := p.tree[key]
	return v, ok && v != nil
}

func (p *params) number(key string, def, low, high float64) float64 {
	v, ok := p.get(key)
	if !ok {
		return def
	}
	x, ok := asFloat(v)
	if !ok || !(x >= low && x <= high) {
		p.fail(key, fmt.Sprintf("%v is not a number in range", v), "from "+number(low)+" to "+number(high))
		return def
	}
	return x
}

func (p *params) integer(key string, def, low, high int) int {
	v, ok := p.get(key)
	if !ok {
		return def
	}
	x, ok := asFloat(v)
	if !ok || x != math.Trunc(x) || x < float64(low) || x > float64(high) || x >= math.MaxInt64 {
		p.fail(key, fmt.Sprintf("%v is not a whole number in range", v), fmt.Sprintf("from %d to %d", low, high))
		return def
	}
	return int(x)
}

// asFloat takes a number as any YAML decoder gives it, and its quoted form,
// as Kubernetes quantities of plain digits come.
func asFloat(v any) (float64, bool) {
	switch x := v.(type) {
	case int:
		return float64(x), true
	case int64:
		return float64(x), true
	case uint64:
		return float64(x), true
	case float64:
		return x, true
	case string:
		f, err := strconv.ParseFloat(x, 64)
		return f, err == nil
	}
	return 0, false
}

func (p *params) boolean(key string, def bool) bool {
	v, ok := p.get(key)
	if !ok {
		return def
	}
	x, ok := v.(bool)
	if !ok {
		p.fail(key, fmt.Sprintf("%v is neither true nor false", v), "")
		return def
	}
	return x
}

// text reads a string; with allowed, one of them.
func (p *params) text(key, def string, allowed ...string) string {
	v, ok := p.get(key)
	if !ok {
		return def
	}
	x, ok := v.(string)
	if !ok {
		p.fail(key, fmt.Sprintf("%v is not a string", v), "quote it")
		return def
	}
	if len(allowed) > 0 && !slices.Contains(allowed, x) {
		p.fail(key, fmt.Sprintf("%q is not known", x), "use "+strings.Join(allowed, " or "))
		return def
	}
	return x
}

func (p *params) duration(key string, def time.Duration) time.Duration {
	s := p.text(key, "")
	if s == "" {
		return def
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		p.fail(key, fmt.Sprintf("%q is not a duration", s), "write 200ms or 2s")
		return def
	}
	return d
}

func (p *params) texts(key string) []string {
	v, ok := p.get(key)
	if !ok {
		return nil
	}
	items, ok := v.([]any)
	if !ok {
		p.fail(key, "is not a list", "")
	}
	var out []string
	for i, item := range items {
		s, ok := item.(string)
		if !ok {
			p.fail(fmt.Sprintf("%s[%d]", key, i), fmt.Sprintf("%v is not a string", item), "quote it")
			return nil
		}
		out = append(out, s)
	}
	return out
}

// section reads a mapping; absent, it is empty.
func (p *params) section(key string) *params {
	q := &params{path: p.path + "." + key}
	if v, ok := p.get(key); ok {
		tree, isMap := v.(map[string]any)
		if !isMap {
			p.fail(key, "is not a mapping", "")
		}
		q.tree = tree
	}
	p.under = append(p.under, q)
	return q
}

// list reads a list of mappings.
func (p *params) list(key string) []*params {
	v, ok := p.get(key)
	if !ok {
		return nil
	}
	items, ok := v.([]any)
	if !ok {
		p.fail(key, "is not a list", "")
	}
	var out []*params
	for i, item := range items {
		tree, isMap := item.(map[string]any)
		if !isMap {
			p.fail(fmt.Sprintf("%s[%d]", key, i), "is not a mapping", "")
			return nil
		}
		out = append(out, &params{path: fmt.Sprintf("%s.%s[%d]", p.path, key, i), tree: tree})
	}
	p.under = append(p.under, out...)
	return out
}

// nearest is a hint for a mistyped type: a type with the longest common prefix.
func nearest(name string, table map[string]plugin) string {
	best, length := "", 3
	for candidate := range sorted(table) {
		n := 0
		for n < min(len(candidate), len(name)) && candidate[n] == name[n] {
			n++
		}
		if n > length {
			best, length = candidate, n
		}
	}
	if best == "" {
		return ""
	}
	return "did you mean " + best + "?"
}

// sorted goes through a map's keys in order.
func sorted[V any](m map[string]V) iter.Seq[string] {
	return slices.Values(slices.Sorted(maps.Keys(m)))
}
