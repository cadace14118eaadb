// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench_test

import (
	"bytes"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/bench"
)

func TestBlocksAgreeExactlyWhereTokensDo(t *testing.T) {
	system := bench.Segment{ID: 1, Tokens: 100}
	for _, c := range []struct {
		name string
		a, b bench.Prompt
		want int // common blocks of 16
	}{
		{"equal", bench.Prompt{system, {ID: 2, Tokens: 60}}, bench.Prompt{system, {ID: 2, Tokens: 60}}, 10},
		{"one is longer", bench.Prompt{system}, bench.Prompt{system, {ID: 2, Tokens: 60}}, 6},
		{"differ after the system prompt", bench.Prompt{system, {ID: 2, Tokens: 60}}, bench.Prompt{system, {ID: 3, Tokens: 60}}, 6},
		{"the same message after different beginnings", bench.Prompt{{ID: 4, Tokens: 16}, system}, bench.Prompt{{ID: 5, Tokens: 16}, system}, 0},
		{"shifted by a token", bench.Prompt{{ID: 4, Tokens: 16}, system}, bench.Prompt{{ID: 4, Tokens: 17}, system}, 1},
		{"shorter than a block", bench.Prompt{{ID: 4, Tokens: 15}}, bench.Prompt{{ID: 4, Tokens: 15}}, 0},
	} {
		a, b := c.a.Blocks(nil, 16), c.b.Blocks(nil, 16)
		if len(a) != c.a.Tokens()/16 || len(b) != c.b.Tokens()/16 {
			t.Errorf("%s: %d and %d blocks of %d and %d tokens", c.name, len(a), len(b), c.a.Tokens(), c.b.Tokens())
		}
		common := 0
		for common < min(len(a), len(b)) && a[common] == b[common] {
			common++
		}
		if common != c.want {
			t.Errorf("%s: %d common blocks, want %d", c.name, common, c.want)
		}
		// The text must tell the same story as the hashes.
		x, y := c.a.AppendText(nil), c.b.AppendText(nil)
		if len(x) != c.a.Tokens()*bench.TextBytes {
			t.Errorf("%s: %d bytes for %d tokens", c.name, len(x), c.a.Tokens())
		}
		if whole := c.want * 16 * bench.TextBytes; !bytes.Equal(x[:whole], y[:whole]) {
			t.Errorf("%s: the text differs within the common blocks", c.name)
		}
	}
}

func TestTextIsOneWordPerToken(t *testing.T) {
	text := string(bench.Prompt{{ID: 9, Tokens: 1000}, {ID: 10, Tokens: 3}}.AppendText(nil))
	words := strings.Fields(text)
	if len(words) != 1003 {
		t.Fatalf("%d words, want 1003", len(words))
	}
	slices.Sort(words)
	if n := len(slices.Compact(words)); n < 950 {
		t.Errorf("only %d different words of 1003", n)
	}
}

func TestSessionsDependOnSeedAndLoadAlone(t *testing.T) {
	for _, w := range bench.Workloads() {
		a, b := w.Sessions(0.5, 1), w.Sessions(0.5, 1)
		if !reflect.DeepEqual(a, b) { // go-cmp takes minutes over so many turns
			t.Errorf("%s: equal seeds differ", w.Name)
		}
		if c := w.Sessions(0.5, 2); reflect.DeepEqual(a, c) {
			t.Errorf("%s: seeds 1 and 2 give the same", w.Name)
		}
		if !slices.IsSortedFunc(a, func(x, y bench.Session) int { return int(x.Start - y.Start) }) {
			t.Errorf("%s: not in order of start", w.Name)
		}
	}
}

func TestRateIsMet(t *testing.T) {
	for _, name := range []string{"1-b2b", "3-hot", "4-unique", "7-bursts"} { // each request on its own
		w, ok := bench.WorkloadNamed(name)
		if !ok {
			t.Fatalf("no workload %s", name)
		}
		n := float64(len(w.Sessions(1, 3)))
		want := w.Rate * w.Window.Seconds()
		if math.Abs(n-want) > 0.15*want {
			t.Errorf("%s: %.0f requests in the window, want about %.0f", name, n, want)
		}
	}
}

func TestChatCarriesItsHistory(t *testing.T) {
	w, _ := bench.WorkloadNamed("2-chat")
	for _, s := range w.Sessions(0.2, 1) {
		for i := 1; i < len(s.Turns); i++ {
			before, now := s.Turns[i-1], s.Turns[i]
			history := append(slices.Clone(before.Prompt), before.Answer)
			if !slices.Equal(history, now.Prompt[:len(history)]) || len(now.Prompt) != len(history)+1 {
				t.Fatalf("session %d turn %d does not begin with what was said: %v, %v", s.ID, i, history, now.Prompt)
			}
		}
		if last := s.Turns[len(s.Turns)-1]; len(s.Turns) > 1 && last.Prompt.Tokens()+last.Answer.Tokens > 32_000 {
			t.Errorf("session %d has a context of %d tokens", s.ID, last.Prompt.Tokens())
		}
	}
}

func TestShapes(t *testing.T) {
	groups := func(name string, load float64) map[uint64]int {
		w, _ := bench.WorkloadNamed(name)
		out := map[uint64]int{}
		for _, s := range w.Sessions(load, 1) {
			out[s.Turns[0].Prompt[0].ID]++
		}
		return out
	}
	if g := groups("1-b2b", 1); len(g) != 150 {
		t.Errorf("1-b2b has %d groups, want 150", len(g))
	}
	most, total := 0, 0
	for _, n := range groups("3-hot", 1) {
		most, total = max(most, n), total+n
	}
	// 40 % viral and the first of Zipf 1.1 over 500, which is the same one.
	if part := float64(most) / float64(total); part < 0.4 || part > 0.6 {
		t.Errorf("3-hot: the viral prefix has %.2f of the requests", part)
	}
	w, _ := bench.WorkloadNamed("burst200")
	burst := w.Sessions(1, 1)
	if len(burst) != 200 || burst[0].Start != burst[199].Start {
		t.Errorf("burst200: %d requests from %v to %v", len(burst), burst[0].Start, burst[len(burst)-1].Start)
	}
	w, _ = bench.WorkloadNamed("hot-tail")
	classes := map[string]float64{}
	for _, s := range w.Sessions(1, 1) {
		classes[s.Class]++
	}
	if part := classes["hot"] / (classes["hot"] + classes["tail"]); part < 0.77 || part > 0.83 {
		t.Errorf("hot-tail: %.2f of the requests are hot, want 0.8", part)
	}
}

func TestEventOrder(t *testing.T) {
	at := []time.Duration{5, 1, 3, 1, 9, 3, 0, 1}
	if got, want := bench.EventOrder(at), []int{6, 1, 3, 7, 2, 5, 0, 4}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v: by time, and first made first", got, want)
	}
}

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		q, want float64
	}{
		{nil, 0.5, 0},
		{[]float64{7}, 0.99, 7},
		{[]float64{1, 2, 3, 4}, 0.5, 2},
		{[]float64{1, 2, 3, 4, 5}, 0.5, 3},
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0.9, 9},
		{[]float64{1, 2, 3}, 1, 3},
		{[]float64{1, 2, 3}, 0, 1},
	} {
		if got := bench.Quantile(c.samples, c.q); got != c.want {
			t.Errorf("quantile %g of %v is %g, want %g", c.q, c.samples, got, c.want)
		}
	}
}
