// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/golden"
	"github.com/penstock/penstock/pool"
)

func TestPages(t *testing.T) {
	golden.Run(t, "testdata/pages/*.txtar", func(t *testing.T, c *golden.Case) map[string]string {
		x := pool.ReadPage(config.Engine(c.Flag("engine")), []byte(c.File(t, "page")), time.Time{})
		return map[string]string{"metrics": format(x)}
	})
}

func format(x *pool.Metrics) string {
	var b strings.Builder
	fmt.Fprintf(&b, "has %s\n", x.Has)
	show := func(s pool.Signals, form string, args ...any) {
		if x.Has&s != 0 {
			fmt.Fprintf(&b, form+"\n", args...)
		}
	}
	show(pool.HasWaiting, "waiting %v", x.Waiting)
	show(pool.HasRunning, "running %v", x.Running)
	show(pool.HasKVUsage, "kv usage %v", x.KVUsage)
	show(pool.HasCacheConfig, "cache %d blocks of %d tokens", x.NumBlocks, x.BlockSize)
	show(pool.HasPrefix, "prefix %v hits of %v", x.PrefixHits, x.PrefixQueries)
	show(pool.HasLoRA, "lora running %q waiting %q max %d", x.LoRA.Running, x.LoRA.Waiting, x.LoRA.Max)
	return b.String()
}

// page is what a vLLM server of about size bytes shows: mostly histograms.
func page(size int) []byte {
	var b strings.Builder
	b.WriteString("process_start_time_seconds 1.76430101553e+09\n")
	for _, line := range []string{
		`vllm:num_requests_running{engine="0",model_name="m/llama-8b"} 17.0`,
		`vllm:num_requests_waiting{engine="0",model_name="m/llama-8b"} 3.0`,
		`vllm:kv_cache_usage_perc{engine="0",model_name="m/llama-8b"} 0.4375`,
		`vllm:prefix_cache_queries_total{engine="0",model_name="m/llama-8b"} 1.0485760e+06`,
		`vllm:prefix_cache_hits_total{engine="0",model_name="m/llama-8b"} 786432.0`,
		`vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="27104"} 1.0`,
		`vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql,fr-legal",waiting_lora_adapters=""} 1.7643010303e+09`,
	} {
		fmt.Fprintf(&b, "# HELP %s Some words of help.\n# TYPE x gauge\n%s\n", strings.SplitN(line, "{", 2)[0], line)
	}
	names := []string{"time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds",
		"request_queue_time_seconds", "request_prefill_time_seconds", "iteration_tokens_total", "request_prompt_tokens"}
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "vllm:%s_bucket{engine=\"0\",le=\"%d.5\",model_name=\"m/llama-8b\"} %d.0\n", names[i/22%len(names)], i%22, i)
	}
	return []byte(b.String())
}

func BenchmarkScan(b *testing.B) {
	text := page(64 << 10)
	for _, e := range []config.Engine{config.VLLM, config.Auto, config.SGLang} {
		b.Run(string(e), func(b *testing.B) {
			s := pool.NewScanner(e)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				s.Scan(text)
			}
		})
	}
}

func TestScanAllocations(t *testing.T) {
	text := page(64 << 10)
	s := pool.NewScanner(config.Auto)
	s.Scan(text)
	s.Result()
	if n := testing.AllocsPerRun(100, func() { s.Scan(text) }); n != 0 {
		t.Errorf("a scan allocates %v times, want 0", n)
	}
	if n := testing.AllocsPerRun(100, func() { s.Scan(text); s.Result() }); n != 1 {
		t.Errorf("a page allocates %v times, want 1: the Metrics", n)
	}
}

// A scanner looks first for what it saw last; another engine behind the same
// address is seen as well as by a scanner that knows nothing yet.
func TestEngineChangesBetweenPages(t *testing.T) {
	texts := []string{
		"vllm:num_requests_waiting 3\nvllm:num_requests_running 2\n",
		"sglang:num_queue_reqs{tp_rank=\"0\"} 5\nsglang:num_running_reqs{tp_rank=\"0\"} 1\n",
		"python_info 1\n",
		"sglang:num_queue_reqs{tp_rank=\"0\"} 4\nvllm_other 1\n",
		"",
		"vllm:num_requests_waiting 1\n",
	}
	old := pool.NewScanner(config.Auto)
	for _, text := range texts {
		fresh := pool.NewScanner(config.Auto)
		old.Scan([]byte(text))
		fresh.Scan([]byte(text))
		if diff := cmp.Diff(fresh.Result(), old.Result()); diff != "" {
			t.Errorf("%q (-fresh +old):\n%s", text, diff)
		}
	}
	old.Scan([]byte(texts[0]))
	if x := old.Result(); x.Has&pool.HasWaiting == 0 || x.Waiting != 3 {
		t.Errorf("after all: %+v", x)
	}
}

func TestUnchangedLoRAIsShared(t *testing.T) {
	s := pool.NewScanner(config.VLLM)
	line := `vllm:lora_requests_info{max_lora="2",running_lora_adapters="%s",waiting_lora_adapters=""} 5` + "\n"
	s.Scan(fmt.Appendf(nil, line, "a,b"))
	first := s.Result()
	s.Scan(fmt.Appendf(nil, line, "c"))
	second := s.Result()
	if diff := cmp.Diff([]string{"a", "b"}, first.LoRA.Running); diff != "" {
		t.Errorf("the earlier page changed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"c"}, second.LoRA.Running); diff != "" {
		t.Errorf("the later page (-want +got):\n%s", diff)
	}
}

// FuzzScan compares the scanner with a reader of the whole page that is
// written for plainness.
func FuzzScan(f *testing.F) {
	paths, _ := filepath.Glob("testdata/pages/*.txtar")
	for i, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(txtar.Parse(raw).Files[0].Data, byte(i))
	}
	engines := []config.Engine{config.VLLM, config.SGLang, config.TRTLLM}
	f.Fuzz(func(t *testing.T, text []byte, pick byte) {
		e := engines[int(pick)%len(engines)]
		got := pool.ReadPage(e, text, time.Time{})
		want := plainPage(e, string(text))
		if got.Has != want.Has {
			t.Fatalf("%s: has %s, plainly %s", e, got.Has, want.Has)
		}
		if diff := cmp.Diff(format(want), format(got)); diff != "" {
			t.Fatalf("%s (-plain +got):\n%s", e, diff)
		}
		pool.ReadPage(config.Auto, text, time.Time{})
	})
}

type sample struct {
	labels map[string]string
	value  float64
}

// plainPage splits the page into samples by name, then applies the rules of
// the engine one after the other.
func plainPage(e config.Engine, text string) *pool.Metrics {
	samples := map[string][]sample{}
	for line := range strings.SplitSeq(text, "\n") {
		name, s, ok := plainSample(line)
		if !ok {
			continue
		}
		for _, prefix := range []string{"vllm", "sglang", "trtllm"} {
			if rest, ok := strings.CutPrefix(name, prefix+"_"); ok {
				name = prefix + ":" + rest
			}
		}
		samples[name] = append(samples[name], s)
	}
	x := &pool.Metrics{}
	// pick folds the first of names that is on the page.
	pick := func(fold string, names ...string) (float64, bool) {
		for _, name := range names {
			if len(samples[name]) == 0 {
				continue
			}
			sum, top := 0.0, math.Inf(-1)
			for _, s := range samples[name] {
				if math.IsNaN(s.value) || math.IsInf(s.value, 0) || s.value < 0 {
					return 0, false
				}
				sum, top = sum+s.value, max(top, s.value)
			}
			switch fold {
			case "max":
				return top, true
			case "mean":
				return sum / float64(len(samples[name])), true
			}
			return sum, !math.IsInf(sum, 0)
		}
		return 0, false
	}
	take := func(to *float64, has pool.Signals, fold string, names ...string) bool {
		v, ok := pick(fold, names...)
		if ok {
			*to = v
			x.Has |= has
		}
		return ok
	}
	config1 := func(name, size, blocks string, sum bool) {
		good := len(samples[name]) > 0
		for _, s := range samples[name] {
			n, ok1 := plainCount(s.labels[size])
			k, ok2 := plainCount(s.labels[blocks])
			good = good && ok1 && ok2
			if !ok1 || !ok2 {
				continue
			}
			x.BlockSize = n
			if sum {
				x.NumBlocks += k
			} else {
				x.NumBlocks = max(x.NumBlocks, k)
			}
		}
		if good {
			x.Has |= pool.HasCacheConfig
		}
	}
	prefix := func(ok1 bool, ok2 bool) {
		if ok1 && ok2 {
			x.Has |= pool.HasPrefix
		}
	}
	switch e {
	case config.VLLM:
		take(&x.Waiting, pool.HasWaiting, "sum", "vllm:num_requests_waiting")
		take(&x.Running, pool.HasRunning, "sum", "vllm:num_requests_running")
		take(&x.KVUsage, pool.HasKVUsage, "mean", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
		prefix(take(&x.PrefixQueries, 0, "sum", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries",
			"vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries"),
			take(&x.PrefixHits, 0, "sum", "vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits",
				"vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits"))
		config1("vllm:cache_config_info", "block_size", "num_gpu_blocks", true)
		plainLoRA(x, samples["vllm:lora_requests_info"])
	case config.SGLang:
		take(&x.Waiting, pool.HasWaiting, "max", "sglang:num_queue_reqs")
		take(&x.Running, pool.HasRunning, "max", "sglang:num_running_reqs")
		take(&x.KVUsage, pool.HasKVUsage, "max", "sglang:token_usage")
		prefix(take(&x.PrefixQueries, 0, "sum", "sglang:prompt_tokens_total"),
			take(&x.PrefixHits, 0, "sum", "sglang:cached_tokens_total"))
		config1("sglang:cache_config_info", "page_size", "num_pages", false)
	case config.TRTLLM:
		take(&x.Waiting, pool.HasWaiting, "sum", "trtllm:num_requests_waiting")
		take(&x.Running, pool.HasRunning, "sum", "trtllm:num_requests_running")
		take(&x.KVUsage, pool.HasKVUsage, "max", "trtllm:kv_cache_utilization")
		size, ok1 := pick("max", "trtllm:kv_cache_tokens_per_block")
		blocks, ok2 := pick("max", "trtllm:kv_cache_max_blocks")
		ok1, ok2 = ok1 && size >= 1 && size <= math.MaxInt32, ok2 && blocks >= 1 && blocks <= math.MaxInt32
		if ok1 && ok2 {
			x.BlockSize, x.NumBlocks = int(size), int(blocks)
			x.Has |= pool.HasCacheConfig
		}
		reused, ok3 := pick("sum", "trtllm:kv_cache_reused_blocks_total", "trtllm:kv_cache_reused_blocks")
		missed, ok4 := pick("sum", "trtllm:kv_cache_missed_blocks_total", "trtllm:kv_cache_missed_blocks")
		if ok1 && ok3 && ok4 {
			x.PrefixQueries, x.PrefixHits = (reused+missed)*float64(int(size)), reused*float64(int(size))
			x.Has |= pool.HasPrefix
		}
	}
	x.KVUsage = min(x.KVUsage, 1)
	return x
}

func plainLoRA(x *pool.Metrics, samples []sample) {
	newest := math.Inf(-1)
	for _, s := range samples {
		if math.IsNaN(s.value) || math.IsInf(s.value, 0) || s.value < newest {
			continue
		}
		newest = s.value
		names := func(list string) (out []string) {
			for _, name := range strings.Split(list, ",") {
				if name = strings.TrimSpace(name); name != "" && !slices.Contains(out, name) {
					out = append(out, name)
				}
			}
			slices.Sort(out)
			return out
		}
		slots, ok := plainCount(s.labels["max_lora"])
		x.Has &^= pool.HasLoRA
		if ok {
			x.Has |= pool.HasLoRA
		}
		x.LoRA = pool.LoRA{Running: names(s.labels["running_lora_adapters"]), Waiting: names(s.labels["waiting_lora_adapters"]), Max: slots}
	}
}

func plainCount(s string) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && n > 0 && len(s) <= 10 && s[0] != '+'
}

// plainSample takes a line apart character by character.
func plainSample(line string) (name string, s sample, ok bool) {
	line = strings.TrimLeft(line, " \t")
	i := strings.IndexAny(line, "{ \t")
	if i <= 0 || line[0] == '#' {
		return "", s, false
	}
	name, line = line[:i], strings.TrimLeft(line[i:], " \t")
	s.labels = map[string]string{}
	if strings.HasPrefix(line, "{") {
		// Labels end at the first brace outside quotes.
		end, quoted := -1, false
		for j := 1; j < len(line) && end < 0; j++ {
			switch {
			case quoted && line[j] == '\\':
				j++
			case line[j] == '"':
				quoted = !quoted
			case line[j] == '}' && !quoted:
				end = j
			}
		}
		if end < 0 {
			return "", s, false
		}
		plainLabels(s.labels, line[1:end])
		line = line[end+1:]
	}
	line = strings.TrimLeft(line, " \t")
	if j := strings.IndexAny(line, " \t\r"); j >= 0 {
		line = line[:j]
	}
	v, err := strconv.ParseFloat(line, 64)
	if err != nil || strings.ContainsAny(line, "xXpP_") {
		return "", s, false
	}
	s.value = v
	return name, s, true
}

func plainLabels(into map[string]string, text string) {
	for {
		text = strings.TrimLeft(text, " \t,")
		name, rest, ok := strings.Cut(text, "=")
		rest = strings.TrimLeft(rest, " \t")
		if !ok || name == "" || !strings.HasPrefix(rest, `"`) {
			return
		}
		end := -1
		for j := 1; j < len(rest) && end < 0; j++ {
			switch rest[j] {
			case '\\':
				j++
			case '"':
				end = j
			}
		}
		if end < 0 {
			return
		}
		into[strings.TrimRight(name, " \t")] = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n").Replace(rest[1:end])
		text = rest[end+1:]
	}
}
