// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/extproc/extproctest"
)

// The gateway in front of scripted servers and a scripted picker.
type remoteRig struct {
	*rig
	picker  *extproctest.Picker
	servers []*httptest.Server
	asked   []atomic.Int64 // requests each server has had
	bodies  chan string    // what the servers were sent, newest last
}

// newRemoteRig has n servers that answer with their number; remote is what the
// configuration says of the picker besides its address.
func newRemoteRig(t testing.TB, n int, remote string, script func(endpoints []string) extproctest.Script) *remoteRig {
	t.Helper()
	r := &remoteRig{asked: make([]atomic.Int64, n), bodies: make(chan string, 1000)}
	for i := range n {
		r.servers = append(r.servers, model(t, func(w http.ResponseWriter, q *http.Request) {
			body, _ := io.ReadAll(q.Body)
			r.asked[i].Add(1)
			r.bodies <- string(body)
			w.Header().Set("X-Server", fmt.Sprint(i))
			w.Header().Set("X-Saw", q.Header.Get("X-Added")+q.URL.Path)
			if strings.Contains(string(body), `"stream":true`) {
				streams(chunk("up-m", "hi"), finish, usageEv, doneMark)(w, q)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, answer)
		}))
	}
	r.picker = extproctest.Start(t, script(r.endpoints()), nil)
	if !strings.Contains(", "+remote, ", timeout:") {
		remote = "timeout: 10s, " + remote
	}
	remote = "health: {interval: 10s, timeout: 10s}, " + remote
	r.rig = newRig(t, r.servers, func(y string) string {
		return strings.Replace(y, "{profile: round-robin}", fmt.Sprintf("{remote: {address: %q, %s}}", r.picker.Address, remote), 1)
	})
	return r
}

func (r *remoteRig) endpoints() (list []string) {
	for _, s := range r.servers {
		list = append(list, strings.TrimPrefix(s.URL, "http://"))
	}
	return list
}

// metric is the value of a counter or gauge whose line begins with name.
func (r *remoteRig) metric(name string) string {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			line := f.GetName()
			for _, l := range m.GetLabel() {
				line += " " + l.GetValue()
			}
			if line == name {
				return fmt.Sprint(m.GetCounter().GetValue() + m.GetGauge().GetValue())
			}
		}
	}
	return ""
}

// settled waits until no stream to the picker is open.
func (r *remoteRig) settled() {
	r.t.Helper()
	for range 500 {
		if r.picker.Open.Load() == 0 && r.metric("penstock_picker_streams p") == "0" {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.t.Errorf("streams to the picker stay open: %d there, %s here", r.picker.Open.Load(), r.metric("penstock_picker_streams p"))
}

const stranger = "192.0.2.1:9"

// What the gateway's client sees of each kind of picker, good and bad, in both
// failure modes.
func TestRemotePickers(t *testing.T) {
	big := strings.Repeat("word ", 40_000) // 200 KB: several messages
	bigBody := `{"model":"m","messages":[{"role":"user","content":"` + big + `"}]}`
	second := func(e []string) string { return e[1] }
	broken := extproctest.Fault("the picker's own fault")
	for _, c := range []struct {
		name   string
		script func(e []string) extproctest.Script
		remote string
		body   string
		open   string // answer under FailOpen: a status, and for 200 which server ("any")
		shut   string // and under FailClose
		pick   string // outcome in the record, FailOpen
		count  string // a metric that must be above zero
	}{
		{name: "good", script: func(e []string) extproctest.Script { return extproctest.Good(second(e)) }, open: "200 1", shut: "200 1", pick: "picked"},
		{name: "good, several messages", body: bigBody, script: func(e []string) extproctest.Script { return extproctest.Good(second(e)) }, open: "200 1", shut: "200 1", pick: "picked"},
		{name: "metadata only", script: func(e []string) extproctest.Script { return extproctest.Channels("", second(e)) }, open: "200 1", shut: "200 1", pick: "picked"},
		{name: "header only", script: func(e []string) extproctest.Script { return extproctest.Channels(second(e), "") }, open: "200 1", shut: "200 1", pick: "picked"},
		{name: "channels differ", script: func(e []string) extproctest.Script { return extproctest.Channels(second(e), e[0]) }, open: "200 1", shut: "200 1", pick: "picked", count: "penstock_picker_oddities_total p mismatch"},
		{name: "a list with spaces", script: func(e []string) extproctest.Script { return extproctest.Good(" " + second(e) + " , " + e[0]) }, open: "200 1", shut: "200 1", pick: "picked"},
		{name: "echoes everything", script: func(e []string) extproctest.Script { return extproctest.Echoes(second(e)) }, open: "200 1", shut: "200 1", pick: "picked", count: "penstock_picker_mutations_refused_total p framing"},
		{name: "empty body replies", body: bigBody, script: func(e []string) extproctest.Script { return extproctest.EmptyBodies(second(e)) }, open: "200 1", shut: "200 1", pick: "picked", count: "penstock_picker_oddities_total p empty-body"},
		{name: "body before headers", body: bigBody, script: func(e []string) extproctest.Script { return extproctest.BodyFirst(second(e)) }, open: "200 1", shut: "200 1", pick: "picked", count: "penstock_picker_oddities_total p early-body"},
		{name: "no body reply", script: func(e []string) extproctest.Script { return extproctest.NoBody(second(e)) }, open: "200 1", shut: "200 1", pick: "picked", count: "penstock_picker_oddities_total p no-body"},
		{name: "closes after its answer", body: bigBody, script: func(e []string) extproctest.Script { return extproctest.ClosesAfter(second(e)) }, open: "200 1", shut: "200 1", pick: "picked"},
		{name: "slow reader", script: func(e []string) extproctest.Script { return extproctest.SlowReader(second(e), time.Hour) }, remote: "response: {headTimeout: 20ms}", open: "200 1", shut: "200 1", pick: "picked", count: "penstock_picker_oddities_total p late-head"},
		{name: "bad mutations", script: func(e []string) extproctest.Script {
			return extproctest.Mutates(second(e), extproctest.Field{Name: "x added", Value: "no"}, extproctest.Field{Name: "X-Added", Value: "a\r\nb"},
				extproctest.Field{Name: "content-length", Value: "1"}, extproctest.Field{Name: "x-added", Value: "yes"})
		}, open: "200 1", shut: "200 1", pick: "picked", count: "penstock_picker_mutations_refused_total p name"},
		{name: "closes at once", script: func([]string) extproctest.Script { return extproctest.ClosesAtOnce }, open: "200 any", shut: "503", pick: "fallback-picker-ended", count: "penstock_picker_failures_total p ended"},
		{name: "never answers", script: func([]string) extproctest.Script { return extproctest.Silent }, remote: "timeout: 100ms", open: "200 any", shut: "504", pick: "fallback-picker-timeout", count: "penstock_picker_failures_total p timeout"},
		{name: "never reads", body: bigBody + strings.Repeat(" ", 5<<20), script: func([]string) extproctest.Script { return extproctest.Deaf }, remote: "timeout: 200ms", open: "200 any", shut: "504", pick: "fallback-picker-timeout", count: "penstock_picker_failures_total p timeout"},
		{name: "fails", script: func([]string) extproctest.Script { return func(*extproctest.Session) error { return broken } }, open: "200 any", shut: "503", pick: "fallback-picker-broken", count: "penstock_picker_failures_total p broken"},
		{name: "fails after the headers", body: bigBody, script: func(e []string) extproctest.Script { return extproctest.BreaksAfterHeaders(second(e), broken) }, open: "200 any", shut: "503", pick: "fallback-picker-broken", count: "penstock_picker_failures_total p broken"},
		{name: "ends in the middle of the body", body: bigBody, script: func(e []string) extproctest.Script { return extproctest.BreaksAfterHeaders(second(e), nil) }, open: "200 any", shut: "503", pick: "fallback-picker-ended", count: "penstock_picker_failures_total p ended"},
		{name: "a message too large", script: func(e []string) extproctest.Script { return extproctest.Huge(second(e), 5<<20) }, open: "200 any", shut: "503", pick: "fallback-picker-broken", count: "penstock_picker_failures_total p broken"},
		{name: "names a stranger", script: func([]string) extproctest.Script { return extproctest.Good(stranger) }, open: "200 any", shut: "200 any", pick: "fallback-invalid-pick", count: "penstock_picks_refused_total p"},
		{name: "names a stranger, reject", script: func([]string) extproctest.Script { return extproctest.Good(stranger) }, remote: "onInvalidPick: reject", open: "503", shut: "503", pick: "refused-invalid-pick", count: "penstock_picks_refused_total p"},
		{name: "names nobody", script: func([]string) extproctest.Script { return extproctest.Channels("", "") }, open: "200 any", shut: "200 any", pick: "fallback-invalid-pick"},
		{name: "the third of five lives", script: func(e []string) extproctest.Script {
			return extproctest.Good(stranger + ",192.0.2.2:9," + second(e) + ",192.0.2.3:9,192.0.2.4:9")
		}, open: "200 1", shut: "200 1", pick: "picked", count: "penstock_picks_refused_total p"},
		{name: "429", script: func([]string) extproctest.Script {
			return extproctest.Refuses(429, "later", extproctest.Field{Name: "Retry-After", Value: "7"}, extproctest.Field{Name: "x-llm-d-request-dropped-reason", Value: "rejected-saturated"})
		}, open: "429 later", shut: "429 later", pick: "denied"},
		{name: "503", script: func([]string) extproctest.Script { return extproctest.Refuses(503, "nobody") }, open: "503 nobody", shut: "503 nobody", pick: "denied"},
		{name: "400", script: func([]string) extproctest.Script { return extproctest.Refuses(400, `{"error":"bad"}`) }, open: `400 {"error":"bad"}`, shut: `400 {"error":"bad"}`, pick: "denied"},
		{name: "no status", script: func([]string) extproctest.Script { return extproctest.Refuses(0, "what") }, open: "500 what", shut: "500 what", pick: "denied"},
		{name: "429 before the body has come", body: bigBody + strings.Repeat(" ", 5<<20), script: func([]string) extproctest.Script {
			return func(s *extproctest.Session) error {
				s.Next()
				return s.Immediate(429, "early")
			}
		}, open: "429 early", shut: "429 early", pick: "denied"},
	} {
		for _, mode := range []string{"FailOpen", "FailClose"} {
			t.Run(c.name+"/"+mode, func(t *testing.T) {
				remote := "failureMode: " + mode
				if c.remote != "" {
					remote += ", " + c.remote
				}
				want := c.open
				if mode == "FailClose" {
					want = c.shut
				}
				body := c.body
				if body == "" {
					body = hello
				}
				r := newRemoteRig(t, 3, remote, c.script)
				for i, stream := range []bool{false, true} {
					sent := body
					if stream {
						sent = strings.Replace(body, `"model":"m"`, `"model":"m","stream":true`, 1)
					}
					r.expect(i, sent, want)
				}
				outcome := r.record(0).PickOutcome
				if mode == "FailOpen" && outcome != c.pick {
					t.Errorf("pick outcome %q, want %q", outcome, c.pick)
				}
				r.tells(outcome)
				if c.count != "" && (r.metric(c.count) == "" || r.metric(c.count) == "0") {
					t.Errorf("%s is %q, want more than 0", c.count, r.metric(c.count))
				}
				r.settled()
			})
		}
	}
}

// tells checks that two requests that came to outcome are counted once each,
// and that the explanation says the same and who was sent the request.
func (r *remoteRig) tells(outcome string) {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	counted := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "penstock_pool_picks_total" && m.GetCounter().GetValue() > 0 {
				counted[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	if len(counted) != 1 || counted[outcome] != 2 {
		r.t.Errorf("picks counted as %v, want two of %s", counted, outcome)
	}
	rec := r.record(0)
	e := r.remote.Find(rec.RequestID)
	if e == nil || e.Reason != outcome || e.SentTo() != rec.Served {
		r.t.Errorf("the explanation says %+v, want %s, sent to %q", e, outcome, rec.Served)
		return
	}
	var text strings.Builder
	e.Table(&text)
	for line := range strings.Lines(text.String()) {
		if word, _, _ := strings.Cut(strings.TrimSpace(line), " "); word == "failed" || word == "refused" {
			r.t.Errorf("a line has no time: %q", line)
		}
	}
	headline := strings.Split(text.String(), "\n")[1]
	want := outcome + ": " + rec.Served
	if rec.Served == "" {
		want = "nobody was picked: " + outcome
	}
	if !strings.HasPrefix(headline, want) {
		r.t.Errorf("the headline is %q, want %q", headline, want)
	}
}

// expect sends request number i and compares the answer: a status and, for
// 200, the server that answered ("any"), else the start of the body if one is
// named. A server must have been sent the body byte for byte.
func (r *remoteRig) expect(i int, body, want string) {
	r.t.Helper()
	res, got := r.post(body)
	code, rest, _ := strings.Cut(want, " ")
	if fmt.Sprint(res.StatusCode) != code {
		r.t.Fatalf("status %d, want %s: %s", res.StatusCode, code, got)
	}
	if code != "200" {
		if !strings.HasPrefix(got, rest) {
			r.t.Errorf("body %q, want %q", got, rest)
		}
		if n := len(r.bodies); n != 0 {
			r.t.Errorf("%d requests reached servers", n)
		}
		return
	}
	if server := res.Header.Get("X-Server"); rest != "any" && server != rest {
		r.t.Errorf("server %s answered, want %s", server, rest)
	}
	if res.Header.Get("X-Saw") != "/v1/chat/completions" && res.Header.Get("X-Saw") != "yes/v1/chat/completions" {
		r.t.Errorf("the server saw %q", res.Header.Get("X-Saw"))
	}
	whole := strings.Contains(got, "hi") && (!strings.Contains(body, `"stream":true`) || strings.HasSuffix(got, doneMark))
	if !whole {
		r.t.Errorf("answer %q", got)
	}
	sent := strings.Replace(body, `"model":"m"`, `"model":"up-m"`, 1)
	seen := strings.Replace(<-r.bodies, `,"stream_options":{"include_usage":true}`, "", 1)
	if seen != sent {
		r.t.Errorf("the server was sent another body (%d bytes, want %d): %.200s", len(seen), len(sent), seen)
	}
	if rec := r.record(i); rec.Status != 200 || rec.Served == "" {
		r.t.Errorf("record %+v", rec)
	}
}

// A picker that renames the model in the body: the answer carries the name that
// was asked for unless the served one is wanted, and the record the one used.
func TestPickerRenamesTheModel(t *testing.T) {
	rename := func(e []string) extproctest.Script {
		return extproctest.Replaces(e[0], func(b []byte) []byte { return []byte(strings.Replace(string(b), `"up-m"`, `"other"`, 1)) })
	}
	for _, c := range []struct{ target, report, want string }{
		{"up-m", "", "m"}, {"m", "", "m"}, {"m", "served", "up-m"}, {"up-m", "served", "up-m"},
	} {
		t.Run(c.target+" "+c.report, func(t *testing.T) {
			script := rename
			if c.target == "m" {
				script = func(e []string) extproctest.Script {
					return extproctest.Replaces(e[0], func(b []byte) []byte { return []byte(strings.Replace(string(b), `"m"`, `"other"`, 1)) })
				}
			}
			r := newRemoteRig(t, 1, "", script)
			cfg := *r.cfg
			cfg.Models = slices.Clone(cfg.Models)
			cfg.Models[0].ReportModel = c.report
			cfg.Models[0].Targets = []config.Target{{Pool: "p", Model: c.target}}
			r.apply(&cfg)
			for i, body := range []string{hello, helloStream} {
				res, got := r.post(body)
				if sent := <-r.bodies; !strings.Contains(sent, `"model":"other"`) {
					t.Fatalf("the server was sent %s", sent)
				}
				if !strings.Contains(got, `"model":"`+c.want+`"`) || strings.Count(got, `"model":`) != strings.Count(got, `"model":"`+c.want+`"`) {
					t.Errorf("the answer names another model than %s:\n%s", c.want, got)
				}
				if used := r.record(i).ModelUsed; used != "other" || res.Header.Get("X-Model-Used") != "other" {
					t.Errorf("used %q, header %q", used, res.Header.Get("X-Model-Used"))
				}
			}
			r.settled()
		})
	}
}
