// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import "github.com/penstock/penstock/config"

// slot is what a metric family tells, before it becomes part of a [Metrics].
type slot uint8

const (
	slotWaiting slot = iota
	slotRunning
	slotKVUsage
	slotPrefixQueries // tokens
	slotPrefixHits    // tokens
	slotPromptTokens  // only to witness a restart
	slotOutputTokens  // likewise
	slotBlockSize
	slotNumBlocks
	slotReusedBlocks
	slotMissedBlocks
	slotProcessStart
	numSlots

	slotLoRA        // value is the time, content is in the labels
	slotCacheConfig // content is in the labels
)

// fold says how several series of one family become one number.
type fold uint8

const (
	foldSum  fold = iota // counts of data-parallel ranks behind one port
	foldMean             // usage of equal parts of one cache
	foldMax              // views that several ranks have of one thing
)

// family is one metric name of an engine, without the engine's prefix.
type family struct {
	name string
	slot slot
	fold fold
	// rank orders names for the same slot: the lowest on a page counts alone,
	// so that an old name beside its successor is not added to it.
	rank uint8
}

// table is how an engine names its signals.
type table struct {
	// prefix stands before every name, followed by a colon, or an underscore
	// from exporters that allow no colons.
	prefix   string
	families []family
	// Label names of the cache configuration.
	sizeLabel, countLabel string
	// expected are the signals that every server of the engine shows.
	expected Signals

	// For a quick look at a line: the first letter of prefix, its length with
	// the separator, and the first letters of the families.
	letter byte
	length int
	wanted [256]bool
}

func newTable(t table) *table {
	t.letter, t.length = t.prefix[0], len(t.prefix)+1
	for _, f := range t.families {
		t.wanted[f.name[0]] = true
	}
	return &t
}

// vllmTable: counts are summed over the label engine (data-parallel ranks), KV
// usage is their mean, which fits the summed number of blocks. The counters
// are exposed with _total. gpu_cache_usage_perc and gpu_prefix_cache_* are the
// names of V0 and early V1.
func vllmTable() *table {
	return newTable(table{
		prefix:     "vllm",
		sizeLabel:  "block_size",
		countLabel: "num_gpu_blocks",
		expected:   HasWaiting | HasRunning | HasKVUsage | HasCacheConfig | HasPrefix,
		families: []family{
			{name: "num_requests_waiting", slot: slotWaiting},
			{name: "num_requests_running", slot: slotRunning},
			{name: "kv_cache_usage_perc", slot: slotKVUsage, fold: foldMean},
			{name: "gpu_cache_usage_perc", slot: slotKVUsage, fold: foldMean, rank: 1},
			{name: "prefix_cache_queries_total", slot: slotPrefixQueries},
			{name: "prefix_cache_queries", slot: slotPrefixQueries, rank: 1},
			{name: "gpu_prefix_cache_queries_total", slot: slotPrefixQueries, rank: 2},
			{name: "gpu_prefix_cache_queries", slot: slotPrefixQueries, rank: 3},
			{name: "prefix_cache_hits_total", slot: slotPrefixHits},
			{name: "prefix_cache_hits", slot: slotPrefixHits, rank: 1},
			{name: "gpu_prefix_cache_hits_total", slot: slotPrefixHits, rank: 2},
			{name: "gpu_prefix_cache_hits", slot: slotPrefixHits, rank: 3},
			{name: "prompt_tokens_total", slot: slotPromptTokens},
			{name: "generation_tokens_total", slot: slotOutputTokens},
			{name: "cache_config_info", slot: slotCacheConfig},
			{name: "lora_requests_info", slot: slotLoRA},
		},
	})
}

// sglangTable: gauges exist once per tp_rank and are views of one scheduler,
// so the largest counts and they are never summed. The token counters come
// from the one tokenizer process; cached_tokens is split by cache_source, so
// those are summed. Some exporters write the prefix with an underscore.
func sglangTable() *table {
	return newTable(table{
		prefix:     "sglang",
		sizeLabel:  "page_size",
		countLabel: "num_pages",
		expected:   HasWaiting | HasRunning | HasKVUsage | HasCacheConfig,
		families: []family{
			{name: "num_queue_reqs", slot: slotWaiting, fold: foldMax},
			{name: "num_running_reqs", slot: slotRunning, fold: foldMax},
			{name: "token_usage", slot: slotKVUsage, fold: foldMax},
			{name: "prompt_tokens_total", slot: slotPrefixQueries},
			{name: "cached_tokens_total", slot: slotPrefixHits},
			{name: "generation_tokens_total", slot: slotOutputTokens},
			{name: "cache_config_info", slot: slotCacheConfig, fold: foldMax},
		},
	})
}

// trtllmTable: the cache counters are in blocks and become tokens by the block
// size.
func trtllmTable() *table {
	return newTable(table{
		prefix:   "trtllm",
		expected: HasWaiting | HasRunning | HasKVUsage,
		families: []family{
			{name: "num_requests_waiting", slot: slotWaiting},
			{name: "num_requests_running", slot: slotRunning},
			{name: "kv_cache_utilization", slot: slotKVUsage, fold: foldMax},
			{name: "kv_cache_tokens_per_block", slot: slotBlockSize, fold: foldMax},
			{name: "kv_cache_max_blocks", slot: slotNumBlocks, fold: foldMax},
			{name: "kv_cache_reused_blocks_total", slot: slotReusedBlocks},
			{name: "kv_cache_reused_blocks", slot: slotReusedBlocks, rank: 1},
			{name: "kv_cache_missed_blocks_total", slot: slotMissedBlocks},
			{name: "kv_cache_missed_blocks", slot: slotMissedBlocks, rank: 1},
		},
	})
}

// tablesFor are the tables to try; the first that knows a line of a page reads
// that page alone.
func tablesFor(e config.Engine) []*table {
	switch e {
	case config.VLLM:
		return []*table{vllmTable()}
	case config.SGLang:
		return []*table{sglangTable()}
	case config.TRTLLM:
		return []*table{trtllmTable()}
	}
	return []*table{vllmTable(), sglangTable(), trtllmTable()}
}
