// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/admin"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/llm"
)

// penstock executes one command line against the commands of this package.
func penstock(t *testing.T, stdin string, args ...string) (stdout, message string, code int) {
	t.Helper()
	root := &cobra.Command{Use: "penstock", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(newGetCommand(), newExplainCommand(), newVersionCommand(), newCheckCommand(), newEPPCommand(), newConfigCommand(), newDocsCommand(), newUsageCommand())
	var out, errs bytes.Buffer
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	if err != nil {
		code = -1
		var e *exitError
		if errors.As(err, &e) {
			code = e.ExitCode()
		}
		message = err.Error()
	}
	return out.String(), errs.String() + message, code
}

func fakeAdmin(t *testing.T) (address string) {
	t.Helper()
	one, half := 1.0, 0.5
	at := time.Date(2026, 10, 1, 12, 30, 0, 5e6, time.Local)
	pick := &epp.Explanation{
		RequestID: "req-1", At: at, Took: 12 * time.Microsecond, Pool: "llama", Profile: "default", Model: "m",
		PromptTokens: 100, Reason: "picked", Picked: []string{"10.0.0.1:8000"},
		Columns: []epp.Column{{Name: "queue-scorer", Weight: 2}, {Name: "prefix-cache-scorer", Weight: 3}},
		Candidates: []epp.Candidate{
			{Endpoint: "10.0.0.1:8000", State: "ready", Scores: []float64{1, .5}, Total: 3.5, MatchedTokens: 48, Requests: 1, Queued: 52, Waiting: 2, Running: 3, KVUsage: .25, Metrics: "fresh"},
			{Endpoint: "10.0.0.2:8000", State: "ready", Metrics: "unknown", RefusedBy: "label-selector-filter", Why: "role is prefill"},
		},
		Omitted: 2,
	}
	srv := httptest.NewServer(admin.Handler(admin.Options{
		Address: "127.0.0.1:9901",
		Pools: func() []admin.PoolStatus {
			return []admin.PoolStatus{{
				PoolSummary: admin.PoolSummary{Name: "llama", Members: 2, Ready: 1}, Requests: 4,
				Engine: "vllm", Protocol: "http", Profile: "default", Source: "dns llama:8000", Discovery: "no such host",
				Picker: &admin.PickerStatus{Pool: "llama", Address: "epp:9002", Error: "no such host", Replicas: []admin.ReplicaStatus{
					{Address: "10.0.1.1:9002", State: "ready", Streams: 3},
					{Address: "10.0.1.2:9002", State: "not ready", Error: "connection refused"},
				}},
				Status: []admin.MemberStatus{
					{Pool: "llama", Address: "10.0.0.1:8000", State: "returning", Share: .4, Requests: 4, Queued: 100, Metrics: &admin.MemberMetrics{Waiting: &one, KVUsage: &half, PrefixHits: &half, PrefixQueries: &one}},
					{Pool: "llama", Address: "10.0.0.2:8000", State: "ejected", Reason: "refused", Share: 1, Missing: []string{"kvUsage"}, Scrape: "timeout"},
				},
			}}
		},
		Models: func() []admin.ModelStatus {
			return []admin.ModelStatus{
				{Name: "chat", Alias: "chat-1", Targets: []admin.TargetStatus{{Pool: "llama", Model: "m", Weight: 1, Ready: 1}}},
				{Name: "none"},
			}
		},
		Tenancy: func() admin.Tenancy { return nil },
		Limits: func(_ context.Context, tenant, after string, _ int) (admin.LimitPage, error) { // a node at a time
			pages := map[string]admin.LimitPage{
				"":     {Next: "acme", Limits: []admin.LimitStatus{{Node: "acme", Limit: "500 USD per month", Unit: "usd", Amount: 500, Used: 120.5, Reserved: 0.5, Left: 379.5, Reset: 3600}, {Node: "acme", Limit: "5 requests at a time", Unit: "concurrency", Amount: 5, Left: 5}}},
				"acme": {Limits: []admin.LimitStatus{{Node: "acme/search", Limit: "10 USD per day", Unit: "usd", Amount: 10, Left: 10}}},
			}
			if tenant == "acme/search" {
				return pages["acme"], nil
			}
			return pages[after], nil
		},
		Picks: func(string, int) []*epp.Explanation { return []*epp.Explanation{pick} },
		Find: func(id string) *epp.Explanation {
			if id == "req-1" {
				return pick
			}
			return nil
		},
		Route: func(id string) *admin.RouteStatus {
			s := &admin.RouteStatus{RequestID: id, At: time.Date(2026, 7, 29, 9, 0, 0, 0, time.UTC), Asked: "chat", Status: 200, Pool: "llama"}
			switch id {
			case "req-1":
				s.Tries = []admin.TryStatus{{Target: "llama/m", Seconds: 0.1}} // no more than the pick says
			case "req-4":
				s.Alias, s.Tenant, s.Key, s.Tier, s.Pool = "chat-1", "search", "ci", "paid", ""
				s.Bound = "retries.attempts"
				s.Fallback, s.Dropped = "general: server", []string{"seed"}
				s.Tries = []admin.TryStatus{{Target: "one/up-1", Error: "server", Seconds: 0.001}, {Target: "two/up-2", Seconds: 0.25}}
				s.Skipped = []admin.SkippedStatus{{Target: "llama/m", Reason: "it has no tools"}}
			default:
				return nil
			}
			return s
		},
		Explain: func(_ context.Context, r admin.DryRun) (*admin.Decision, *llm.Error) {
			if string(r.Body) != "{}" {
				return nil, &llm.Error{Status: 400, Param: "model", Message: "is missing"}
			}
			d := &admin.Decision{Explanation: &epp.Explanation{DryRun: true, Pool: r.Pool, Profile: r.Path, Model: r.Model, Reason: "no-endpoints"}}
			if r.As != "" {
				d = &admin.Decision{Route: &admin.RouteStatus{DryRun: true, Asked: "chat", Tenant: r.As, Key: r.Header.Get("X-Class"), Planned: []admin.PlannedStatus{
					{Target: "one/up-1", Out: true}, {Target: "two/up-2", After: "general"}}, Skipped: []admin.SkippedStatus{{Target: "llama/m", Reason: "it has no tools"}}}}
			}
			return d, nil
		},
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

func TestTables(t *testing.T) {
	address := fakeAdmin(t)
	body := filepath.Join(t.TempDir(), "body.json")
	if err := os.WriteFile(body, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{"get pools", `
POOL   MEMBERS  READY  IN FLIGHT  ENGINE  PROTOCOL  PROFILE  SOURCE
llama  2        1      4          vllm    http      default  dns llama:8000 (last try: no such host)
`},
		{"get members --pool llama", `
POOL   MEMBER         STATE              IN FLIGHT  QUEUED TOKENS  WAITING  RUNNING  KV   PREFIX HITS  METRICS
llama  10.0.0.1:8000  returning (40%)    4          100            1        -        50%  50%          fresh
llama  10.0.0.2:8000  ejected (refused)  0          0              -        -        -    -            unknown, lacks kvUsage (last try: timeout)
`},
		{"get pickers --pool llama", `
POOL   PICKER    REPLICA        STATE      STREAMS  LAST ERROR
llama  epp:9002  10.0.1.1:9002  ready      3        -
llama  epp:9002  10.0.1.2:9002  not ready  0        connection refused
llama  epp:9002  -              -          -        no such host
`},
		{"get models", `
MODEL  ALIAS OF  POOL OR PROVIDER  UPSTREAM MODEL  PRIORITY  WEIGHT  READY MEMBERS
chat   chat-1    llama             m               0         1       1
none   -         -                 -               -         -       -
`},
		{"get limits", `
NODE         LIMIT                 USED   RESERVED  LEFT   NEW IN
acme         500 USD per month     120.5  0.5       379.5  1h
acme         5 requests at a time  0      0         5      -
acme/search  10 USD per day        0      0         10     -
`},
		{"usage --budgets", `
NODE         LIMIT              USED   RESERVED  LEFT   NEW IN
acme         500 USD per month  120.5  0.5       379.5  1h
acme/search  10 USD per day     0      0         10     -
`},
		{"usage --budgets --where tenant:acme/search", `
NODE         LIMIT           USED  RESERVED  LEFT  NEW IN
acme/search  10 USD per day  0     0         10    -
`},
		{"get picks -n 1", `
TIME          REQUEST  POOL   MODEL  PICKED         REASON  CACHED OF PROMPT
12:30:00.005  req-1    llama  m      10.0.0.1:8000  picked  48/100
`},
		{"explain req-1", `
request req-1  pool llama  profile default  model m  prompt about 100 tokens
picked: 10.0.0.1:8000  at 2026-10-01 12:30:00.005  in 12µs

MEMBER         STATE                   IN FLIGHT  QUEUED  WAITING  RUNNING  KV   CACHED  queue-scorer ×2  prefix-cache-scorer ×3  TOTAL  REMARK
10.0.0.1:8000  ready                   1          52      2        3        25%  48      1.000            0.500                   3.500
10.0.0.2:8000  ready, metrics unknown  0          0       -        -        -    0       -                -                       -      refused by label-selector-filter: role is prefill
… and 2 more
`},
		{"explain req-4", `
request req-4  model chat (alias of chat-1)  tenant search  key ci  tier paid  status 200  at 2026-07-29 09:00:00.000
fallback: general: server
no further attempt: retries.attempts is used up
parameters left out: seed

TARGET    SECONDS  WHAT BECAME OF IT
one/up-1  0.001    server
two/up-2  0.250    answered
llama/m   -        left out: it has no tools
`},
		{"explain --as shop -H X-Class:batch --body " + body, `
dry run  model chat  tenant shop  key batch

TARGET    TRIED
one/up-1  1., is out now
two/up-2  as a fallback (general)
llama/m   no: it has no tools
`},
		{"explain --model m --pool llama --path /v1/completions?trace=1 --body " + body, `
dry run  pool llama  profile /v1/completions  model m  prompt about 0 tokens
nobody was picked: no-endpoints

MEMBER  STATE  IN FLIGHT  QUEUED  WAITING  RUNNING  KV  CACHED  TOTAL  REMARK
`},
	} {
		args := append(strings.Fields(c.args), "--admin", address)
		out, message, code := penstock(t, "", args...)
		if diff := cmp.Diff(strings.TrimPrefix(c.want, "\n"), out); diff != "" || code != 0 {
			t.Errorf("penstock %s: exit %d %s (-want +got):\n%s", c.args, code, message, diff)
		}
	}
}

func TestJSONPassesAsItCame(t *testing.T) {
	address := fakeAdmin(t)
	for args, want := range map[string]string{
		"get pools":        `"source": "dns llama:8000"`,
		"get members":      `"running": null`,
		"explain req-1":    `"why": "role is prefill"`,
		"explain req-4":    `"target": "one/up-1"`,
		"explain --body -": `"dryRun": true`,
	} {
		out, message, code := penstock(t, "{}", append(strings.Fields(args), "-o", "json", "--admin", "http://"+address)...)
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("penstock %s -o json: exit %d %s, want %s in\n%s", args, code, message, want, out)
		}
	}
}

func TestErrorsSayWhatWhereAndWhatToTry(t *testing.T) {
	address := fakeAdmin(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().String()
	l.Close()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("<html>")) }))
	defer other.Close()
	for _, c := range []struct {
		args string
		code int
		want []string
	}{
		{"get pools --admin " + closed, 1, []string{closed, "connection refused", "is penstock running", "--admin"}},
		{"get pools --admin " + other.URL, 1, []string{"is not penstock's", "--admin"}},
		{"get pools --admin " + other.URL + "/x -o table", 1, []string{"is not penstock's"}},
		{"get members --pool x --admin " + address, 1, []string{`there is no pool "x"`, "pools: llama"}},
		{"get picks -n 0 --admin " + address, 1, []string{`n is "0"`, "from 1 to 1000"}},
		{"explain req-2 --admin " + address, 1, []string{`"req-2"`, "only the newest"}},
		{"explain --body - --admin " + address, 1, []string{"model: is missing"}},
		{"explain --admin " + address, 2, []string{"nothing to explain", "--body"}},
		{"explain --body - -H nocolon --admin " + address, 2, []string{"Name: value"}},
		{"explain --body - -H a@b:c --admin " + address, 2, []string{"Name: value"}},
		{"explain --body - -H :c --admin " + address, 2, []string{"Name: value"}},
		{"explain req-1 --body x", 2, []string{"exclude each other"}},
		{"explain --body /does/not/exist", 2, []string{"/does/not/exist", "no such file"}},
		{"epp --grpc-port abc", 2, []string{"--grpc-port abc: want a whole number", "epp --help"}},
		{"epp --drain 5", 2, []string{"--drain 5: want a time span with a unit"}},
		{"epp --secure-serving false", 2, []string{"--secure-serving=false"}},
		{"epp --grpc-port 0", 2, []string{"--grpc-port 0 is not a port"}},
		{"epp probe 127.0.0.1:1 --cert a.pem", 2, []string{"--cert a.pem", "--key"}},
		{"epp probe 127.0.0.1:1 --key a.pem", 2, []string{"--key a.pem", "--cert"}},
		{"epp probe 127.0.0.1:1 --plaintext --ca a.pem", 2, []string{"--plaintext", "leave out"}},
		{"get secrets", 2, []string{"secrets", "get --help"}},
		{"get", 2, []string{"get --help"}},
		{"get pools --wide", 2, []string{"--wide", "get --help"}},
		{"get pools -o yaml", 2, []string{"-o yaml", "table or json"}},
		{"get pools --admin http://", 2, []string{"not an address"}},
	} {
		out, message, code := penstock(t, "", strings.Fields(c.args)...)
		if code != c.code || out != "" {
			t.Errorf("penstock %s: exit %d, want %d; stdout %q; %s", c.args, code, c.code, out, message)
		}
		for _, part := range c.want {
			if !strings.Contains(message, part) {
				t.Errorf("penstock %s: %q lacks %q", c.args, message, part)
			}
		}
	}
}

func TestVersion(t *testing.T) {
	if out, _, code := penstock(t, "", "version"); code != 0 || !strings.HasPrefix(out, "penstock ") {
		t.Errorf("penstock version: exit %d, %q", code, out)
	}
	if out, _, code := penstock(t, "", "version", "-o", "json"); code != 0 || !strings.Contains(out, `"version": `) {
		t.Errorf("penstock version -o json: exit %d, %q", code, out)
	}
}

func TestReferenceNamesEveryCommandAndFlag(t *testing.T) {
	out, _, code := penstock(t, "", "docs", "cli")
	if code != 0 {
		t.Fatalf("penstock docs: exit %d", code)
	}
	for _, part := range []string{
		"## penstock check\n", "## penstock config\n", "## penstock explain\n", "## penstock get\n", "## penstock version\n",
		"| `--admin` | `127.0.0.1:9901` |", "| `-c`, `--config` | `penstock.yaml` |", "| 2 | wrong flags",
	} {
		if !strings.Contains(out, part) {
			t.Errorf("the reference lacks %q", part)
		}
	}
	if strings.Contains(out, "penstock docs\n") {
		t.Error("the reference lists the hidden command docs")
	}
}
