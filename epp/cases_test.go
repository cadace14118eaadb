// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/internal/golden"
	"github.com/penstock/penstock/pool"
)

// TestPickCases: members and requests in, the table of each decision out.
//
// members: a line per member: address, then key=value: waiting, running, kv,
// age (of the page), blocks (of 16 tokens), lora (running;waiting;max),
// requests, queued and context (own counts), state, holds (of the prompt, in
// blocks) and any other key as a label. Without waiting, running, kv and lora
// there is no page.
//
// requests: a line per request: prompt=bytes (all prompts are prefixes of one),
// model, subset, tried, dry, or any header as Header=value.
//
// profile: the name of a built-in, or profile.yaml.
func TestPickCases(t *testing.T) {
	golden.Run(t, "testdata/pick/*.txtar", func(t *testing.T, c *golden.Case) map[string]string {
		clock := newClock()
		var members []config.Member
		lines := strings.Split(strings.TrimSpace(c.File(t, "members")), "\n")
		for _, line := range lines {
			members = append(members, caseMember(line))
		}
		p := poolOf(t, clock.Now, members...)
		var profile *epp.Profile
		if c.Has("profile.yaml") {
			var err error
			if profile, err = epp.Compile(decode(t, c.File(t, "profile.yaml"))); err != nil {
				t.Fatal(err)
			}
		} else {
			profile = builtin(t, c.Flag("profile"))
		}
		s := epp.New(p, profile, epp.Options{Now: clock.Now, Seed: 1})
		for _, line := range lines {
			caseState(t, s, p, clock, line)
		}
		var b strings.Builder
		for i, line := range strings.Split(strings.TrimSpace(c.File(t, "requests")), "\n") {
			if i > 0 {
				b.WriteString("\n")
			}
			b.WriteString("> " + line + "\n")
			casePick(t, s, p, &b, line)
		}
		return map[string]string{"decisions": b.String()}
	})
}

func fields(line string) map[string]string {
	m := map[string]string{}
	for _, f := range strings.Fields(line) {
		key, value, _ := strings.Cut(f, "=")
		m[key] = value
	}
	return m
}

func float(s string) float64 { x, _ := strconv.ParseFloat(s, 64); return x }

var caseKeys = map[string]bool{
	"waiting": true, "running": true, "kv": true, "age": true, "blocks": true, "lora": true, "requests": true,
	"queued": true, "context": true, "state": true, "holds": true,
}

func caseMember(line string) config.Member {
	m := config.Member{Address: strings.Fields(line)[0], Labels: map[string]string{}}
	for key, value := range fields(line) {
		if !caseKeys[key] && key != m.Address {
			m.Labels[key] = value
		}
	}
	return m
}

const caseModel = "m"

func caseState(t *testing.T, s *epp.Scheduler, p *pool.Pool, clock *clock, line string) {
	addr, f := strings.Fields(line)[0], fields(line)
	m := p.Lookup(addr)
	if n, _ := strconv.Atoi(f["holds"]); n > 0 {
		warm(t, s, addr, text(1, n*256))
	}
	for range int(float(f["requests"])) {
		m.Charge(0, 0)
	}
	if f["queued"] != "" || f["context"] != "" {
		// One request more that holds them.
		m.Charge(int(float(f["queued"])), int(float(f["context"])))
	}
	x := &pool.Metrics{At: clock.Now()}
	if d, err := time.ParseDuration(f["age"]); err == nil {
		x.At = x.At.Add(-d)
	}
	for key, signal := range map[string]pool.Signals{
		"waiting": pool.HasWaiting, "running": pool.HasRunning, "kv": pool.HasKVUsage, "lora": pool.HasLoRA, "blocks": pool.HasCacheConfig,
	} {
		if _, ok := f[key]; ok {
			x.Has |= signal
		}
	}
	x.Waiting, x.Running, x.KVUsage, x.BlockSize, x.NumBlocks = float(f["waiting"]), float(f["running"]), float(f["kv"]), 16, int(float(f["blocks"]))
	if l := strings.Split(f["lora"], ";"); len(l) == 3 {
		x.LoRA = pool.LoRA{Running: strings.Split(l[0], ","), Waiting: strings.Split(l[1], ","), Max: int(float(l[2]))}
	}
	if x.Has != 0 {
		m.SetMetrics(x)
	}
	if f["state"] == "ejected" {
		m.Report(pool.Refused)
	}
}

func casePick(t *testing.T, s *epp.Scheduler, p *pool.Pool, b *strings.Builder, line string) {
	r := request(t)
	r.Model, r.Header = caseModel, http.Header{}
	dry := false
	for key, value := range fields(line) {
		switch key {
		case "prompt":
			n, _ := strconv.Atoi(value)
			r.Prompt = prompt(t, text(1, n))
		case "other": // a prompt of which nobody holds anything
			n, _ := strconv.Atoi(value)
			r.Prompt = prompt(t, text(2, n))
		case "model":
			r.Model = value
		case "subset":
			r.Subset = strings.Split(value, ",")
		case "tried":
			r.Tried = strings.Split(value, ",")
		case "dry":
			dry = true
		default:
			r.Header.Set(key, value)
		}
	}
	var e *epp.Explanation
	if dry {
		e = s.Explain(r)
	} else {
		res := pick(t, s, r)
		e = s.Recent(1)[0]
		if d := res.Denial; d != nil {
			b.WriteString(strconv.Itoa(d.Status) + " " + d.Detail + "\n")
		} else {
			head := http.Header{}
			res.Observer.Attempt(p.Lookup(res.Endpoints[0]))
			res.Observer.Head(http.StatusOK, head)
			for name := range head {
				b.WriteString("answer has " + name + "\n")
				if !res.Edits {
					t.Error("the result does not say that its observer may edit answers")
				}
			}
		}
	}
	e.Took, e.At = 0, time.Time{} // they differ from run to run
	if err := e.Table(b); err != nil {
		t.Fatal(err)
	}
}
