// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// metrics is the page in Prometheus text format, under the names that the
// engine uses. Values are those of the last step that has ended.
func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	g := s.driver.observed()
	now := time.Now()
	if s.cfg.Preset.MaxLoRAs > 0 {
		s.meters.lora(strings.Join(g.RunningAdapters, ","), strings.Join(g.WaitingAdapters, ","), now)
	}
	p := page{created: s.started, old: s.cfg.MetricNames == "old"}
	p.padTo(s.cfg.PadMetrics * 1024 / 2)
	v := s.meters.read(now, g.GenerationTokens)
	switch s.cfg.Engine {
	case "sglang":
		s.sglang(&p, g, v)
	case "trtllm":
		s.trtllm(&p, g, v)
	default:
		s.vllm(&p, g, v)
	}
	p.labels = ""
	p.gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", seconds(s.started))
	p.padTo(s.cfg.PadMetrics * 1024)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(p.Bytes())
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1e3 }

func (s *Server) vllm(p *page, g Gauges, v meterValues) {
	engine := label("engine", "0")
	p.labels = join(engine, label("model_name", s.cfg.Model))
	p.gauge("vllm:num_requests_running", "Number of requests in model execution batches.", float64(g.Running))
	p.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", float64(g.Waiting))
	if p.old {
		p.gauge("vllm:gpu_cache_usage_perc", "GPU KV-cache usage. 1 means 100 percent usage.", g.KVUsage)
		p.counter("vllm:gpu_prefix_cache_queries", "GPU prefix cache queries, in terms of number of queried tokens.", float64(g.PrefixQueries))
		p.counter("vllm:gpu_prefix_cache_hits", "GPU prefix cache hits, in terms of number of cached tokens.", float64(g.PrefixHits))
	} else {
		p.head("vllm:num_requests_waiting_by_reason", "gauge", "Number of requests waiting, by reason.")
		p.sample("vllm:num_requests_waiting_by_reason", label("reason", "capacity"), float64(g.Waiting))
		p.sample("vllm:num_requests_waiting_by_reason", label("reason", "deferred"), 0)
		p.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", g.KVUsage)
		p.counter("vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", float64(g.PrefixQueries))
		p.counter("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", float64(g.PrefixHits))
	}
	p.gauge("vllm:engine_sleep_state", "Engine sleep state; awake = 0 means engine is sleeping.", boolean(!s.driver.isAsleep()))
	p.counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.", float64(g.Preemptions))
	p.counter("vllm:prompt_tokens", "Number of prefill tokens processed.", float64(g.PromptTokens))
	p.counter("vllm:generation_tokens", "Number of generation tokens processed.", float64(g.GenerationTokens))
	p.head("vllm:request_success_total", "counter", "Count of successfully processed requests.")
	for _, reason := range []string{"abort", "length", "stop"} {
		p.sample("vllm:request_success_total", label("finished_reason", reason), float64(v.success[reason]))
	}
	p.histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", v.ttft)
	itl := "vllm:inter_token_latency_seconds"
	if p.old {
		itl = "vllm:time_per_output_token_seconds"
	}
	p.histogram(itl, "Histogram of inter-token latency in seconds.", v.itl)
	p.histogram("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", v.e2e)
	if len(v.loras) > 0 {
		p.labels = ""
		p.head("vllm:lora_requests_info", "gauge", "Running stats on lora requests.")
		for _, l := range v.loras {
			p.sample("vllm:lora_requests_info", join(label("max_lora", strconv.Itoa(s.cfg.Preset.MaxLoRAs)),
				label("running_lora_adapters", l.running), label("waiting_lora_adapters", l.waiting)), l.at)
		}
	}
	p.labels = join(label("block_size", strconv.Itoa(s.cfg.Preset.BlockSize)), label("cache_dtype", "auto"),
		label("enable_prefix_caching", "True"), engine, label("gpu_memory_utilization", "0.9"),
		label("num_gpu_blocks", strconv.Itoa(s.cfg.Preset.NumBlocks)))
	p.gauge("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", 1)
}

func (s *Server) sglang(p *page, g Gauges, v meterValues) {
	size, blocks := float64(s.cfg.Preset.BlockSize), float64(s.cfg.Preset.NumBlocks)
	var ranks []string
	for i := range s.cfg.Ranks {
		ranks = append(ranks, join(label("dp_rank", "0"), label("engine_type", "unified"), label("model_name", s.cfg.Model),
			label("moe_ep_rank", "0"), label("pp_rank", "0"), label("tp_rank", strconv.Itoa(i))))
	}
	each := func(name, kind, help string, value float64) {
		p.head("sglang:"+name, kind, help)
		for _, p.labels = range ranks {
			p.sample("sglang:"+name, "", value)
		}
	}
	each("num_running_reqs", "gauge", "The number of running requests.", float64(g.Running))
	each("num_queue_reqs", "gauge", "The number of requests in the waiting queue.", float64(g.Waiting))
	each("token_usage", "gauge", "The token usage.", g.KVUsage)
	each("num_used_tokens", "gauge", "The number of used tokens.", math.Round(g.KVUsage*blocks)*size)
	each("max_total_num_tokens", "gauge", "Maximum total number of tokens in the KV cache pool.", blocks*size)
	each("cache_hit_rate", "gauge", "The prefix cache hit rate.", ratio(g.PrefixHits, g.PrefixQueries))
	each("gen_throughput", "gauge", "The generation throughput (token/s).", v.throughput)
	each("num_retracted_reqs", "gauge", "The number of retracted requests.", float64(g.Preemptions))
	p.labels = ranks[0]
	p.head("sglang:prompt_tokens_total", "counter", "Number of prefill tokens processed.")
	p.sample("sglang:prompt_tokens_total", "", float64(g.PromptTokens))
	p.head("sglang:generation_tokens_total", "counter", "Number of generation tokens processed.")
	p.sample("sglang:generation_tokens_total", "", float64(g.GenerationTokens))
	p.head("sglang:cached_tokens_total", "counter", "Number of cached prompt tokens.")
	p.sample("sglang:cached_tokens_total", label("cache_source", "device"), float64(g.PrefixHits))
	p.head("sglang:num_requests_total", "counter", "Number of requests processed.")
	p.sample("sglang:num_requests_total", "", float64(g.FinishedSequences))
	p.histogram("sglang:time_to_first_token_seconds", "Histogram of time to first token in seconds.", v.ttft)
	itl := "sglang:inter_token_latency_seconds"
	if p.old {
		itl = "sglang:time_per_output_token_seconds"
	}
	p.histogram(itl, "Histogram of inter-token latency in seconds.", v.itl)
	p.histogram("sglang:e2e_request_latency_seconds", "Histogram of End-to-end request latency in seconds", v.e2e)
	p.labels = join(label("num_pages", strconv.Itoa(s.cfg.Preset.NumBlocks)), label("page_size", strconv.Itoa(s.cfg.Preset.BlockSize)))
	p.gauge("sglang:cache_config_info", "Information of the cache config.", 1)
}

// trtllm has no gauges under the old names: the first versions of its page had
// five series only.
func (s *Server) trtllm(p *page, g Gauges, v meterValues) {
	p.labels = join(label("engine_type", "trtllm"), label("model_name", s.cfg.Model))
	p.head("trtllm_request_success_total", "counter", "Count of successfully processed requests.")
	for _, reason := range []string{"length", "stop"} {
		p.sample("trtllm_request_success_total", label("finished_reason", reason), float64(v.success[reason]))
	}
	p.histogram("trtllm_e2e_request_latency_seconds", "Histogram of end to end request latency in seconds.", v.e2e)
	p.histogram("trtllm_time_to_first_token_seconds", "Histogram of time to first token in seconds.", v.ttft)
	p.histogram("trtllm_time_per_output_token_seconds", "Histogram of time per output token in seconds.", v.itl)
	if p.old {
		return
	}
	blocks, size := s.cfg.Preset.NumBlocks, s.cfg.Preset.BlockSize
	used := math.Round(g.KVUsage * float64(blocks))
	p.gauge("trtllm_num_requests_running", "Number of running requests.", float64(g.Running))
	p.gauge("trtllm_num_requests_waiting", "Number of waiting requests.", float64(g.Waiting))
	p.gauge("trtllm_kv_cache_utilization", "KV cache utilization.", g.KVUsage)
	p.gauge("trtllm_kv_cache_hit_rate", "KV cache hit rate.", ratio(g.PrefixHits, g.PrefixQueries))
	p.gauge("trtllm_kv_cache_max_blocks", "Maximum number of KV cache blocks.", float64(blocks))
	p.gauge("trtllm_kv_cache_used_blocks", "Number of used KV cache blocks.", used)
	p.gauge("trtllm_kv_cache_free_blocks", "Number of free KV cache blocks.", float64(blocks)-used)
	p.gauge("trtllm_kv_cache_tokens_per_block", "Tokens in a KV cache block.", float64(size))
	p.counter("trtllm_kv_cache_reused_blocks", "Number of reused KV cache blocks.", float64(g.PrefixHits)/float64(size))
	p.counter("trtllm_kv_cache_missed_blocks", "Number of missed KV cache blocks.", math.Ceil(float64(g.PrefixQueries-g.PrefixHits)/float64(size)))
	p.counter("trtllm_prompt_cached_tokens", "Number of cached prompt tokens.", float64(g.PrefixHits))
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func ratio(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// page writes metrics in text format, as the Python client does.
type page struct {
	bytes.Buffer
	labels  string // of the samples that follow
	created time.Time
	old     bool
}

func (p *page) head(name, kind, help string) {
	fmt.Fprintf(p, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

func (p *page) sample(name, extra string, value float64) {
	p.WriteString(name)
	if labels := sorted(join(extra, p.labels)); labels != "" {
		p.WriteString("{" + labels + "}")
	}
	p.WriteString(" " + number(value) + "\n")
}

func (p *page) gauge(name, help string, value float64) {
	p.head(name, "gauge", help)
	p.sample(name, "", value)
}

// counter takes the name without _total.
func (p *page) counter(name, help string, value float64) {
	p.head(name+"_total", "counter", help)
	p.sample(name+"_total", "", value)
	p.head(name+"_created", "gauge", help)
	p.sample(name+"_created", "", seconds(p.created))
}

func (p *page) histogram(name, help string, h histogram) {
	p.head(name, "histogram", help)
	total := int64(0)
	for i, n := range h.counts {
		total += n
		bound := math.Inf(1)
		if i < len(h.bounds) {
			bound = h.bounds[i]
		}
		p.sample(name+"_bucket", label("le", number(bound)), float64(total))
	}
	p.sample(name+"_count", "", float64(total))
	p.sample(name+"_sum", "", h.sum)
	p.head(name+"_created", "gauge", help)
	p.sample(name+"_created", "", seconds(p.created))
}

// padTo fills the page up to n bytes with series that no reader wants, but for
// less than one line.
func (p *page) padTo(n int) {
	if p.Len() >= n {
		return
	}
	p.head("sim_padding_bucket", "untyped", "Filler of the configured page size.")
	for i := 0; ; i++ {
		line := fmt.Sprintf("sim_padding_bucket{engine=\"0\",le=\"%d.0\",model_name=\"filler\"} 0.0\n", i)
		if p.Len()+len(line) > n {
			return
		}
		p.WriteString(line)
	}
}

// number is a float as Python prints it.
func number(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "+Inf"
	case v == math.Trunc(v) && math.Abs(v) < 1e16:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// label is name="value" with the value escaped as the format wants it.
func label(name, value string) string {
	return name + `="` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, labelEnd, "").Replace(value) + `"`
}

// labelEnd stands between labels while they are put together; values have none.
const labelEnd = "\x00"

func join(labels ...string) string {
	labels = slices.DeleteFunc(labels, func(l string) bool { return l == "" })
	return strings.Join(labels, labelEnd)
}

func sorted(joined string) string {
	if joined == "" {
		return ""
	}
	labels := strings.Split(joined, labelEnd)
	slices.Sort(labels)
	return strings.Join(labels, ",")
}
