// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/sim"
)

// faultCase is one fault, on streams unless whole, and what a client must see.
type faultCase struct {
	faults string
	whole  bool
	check  func(h heard, sound heard) bool
}

func faultCases() []faultCase {
	cut := func(outputs bool) func(h, sound heard) bool {
		return func(h, sound heard) bool {
			return h.err != nil && h.failure == "" && (h.text != "") == outputs && len(h.text) < len(sound.text) && !h.ended
		}
	}
	status := func(n int) func(h, sound heard) bool {
		return func(h, _ heard) bool { return h.status == n && h.failure != "" && h.text == "" }
	}
	return []faultCase{
		{`{"cut":"start"}`, false, func(h, _ heard) bool { return h.err != nil && h.status == 0 }},
		{`{"cut":"start"}`, true, func(h, _ heard) bool { return h.err != nil && h.status == 0 }},
		{`{"cut":"headers"}`, false, func(h, _ heard) bool { return h.err != nil && h.status == 200 && len(h.body) == 0 }},
		{`{"cut":"headers"}`, true, func(h, _ heard) bool { return h.err != nil && h.status == 200 && len(h.body) == 0 }},
		{`{"cut":"preamble"}`, false, cut(false)},
		{`{"cut":"output","after":3}`, false, cut(true)},
		{`{"cut":"output"}`, true, func(h, _ heard) bool { return h.err != nil && h.status == 200 && len(h.body) > 0 }},
		{`{"malformed":"preamble"}`, false, func(h, _ heard) bool { return h.err != nil && h.text == "" && !h.ended }},
		{`{"malformed":"output","after":2}`, false, func(h, _ heard) bool { return h.err != nil && !h.ended }},
		{`{"malformed":"output"}`, true, func(h, _ heard) bool { return h.err != nil }},
		{`{"errorEvent":"preamble","error":"overloaded"}`, false, func(h, _ heard) bool {
			return h.status == 200 && h.err == nil && h.failure != "" && h.text == "" && !h.ended
		}},
		{`{"errorEvent":"output","error":"server","after":4}`, false, func(h, sound heard) bool {
			return h.err == nil && h.failure != "" && h.text != "" && strings.HasPrefix(sound.text, h.text) && !h.ended
		}},
		{`{"wire":["split"]}`, false, func(h, sound heard) bool {
			return string(h.body) == string(sound.body) || h.text == sound.text && h.ended
		}},
		{`{"wire":["pieces"]}`, true, func(h, sound heard) bool { return h.text == sound.text && h.ended }},
		{`{"wire":["gzip"]}`, false, func(h, _ heard) bool { return h.header.Get("Content-Encoding") == "gzip" }},
		{`{"wire":["gzip"]}`, true, func(h, _ heard) bool { return h.header.Get("Content-Encoding") == "gzip" }},
		{`{"wire":["json"]}`, false, func(h, sound heard) bool {
			return h.header.Get("Content-Type") == "application/json" && h.text == sound.text && h.ended
		}},
		{`{"wire":["error200"],"error":"server"}`, false, status(200)},
		{`{"wire":["html"]}`, false, func(h, _ heard) bool { return h.status == 502 && strings.HasPrefix(string(h.body), "<html>") }},
		{`{"wire":["html"],"status":503}`, true, func(h, _ heard) bool { return h.status == 503 && strings.HasPrefix(string(h.body), "<html>") }},
		{`{"wire":["empty"]}`, false, func(h, _ heard) bool { return h.status == 200 && len(h.body) == 0 }},
		{`{"usage":"missing"}`, false, func(h, sound heard) bool { return h.usages == 0 && h.text == sound.text && sound.usages > 0 }},
		{`{"usage":"missing"}`, true, func(h, _ heard) bool { return h.usages == 0 && h.ended }},
		{`{"usage":"zero"}`, false, func(h, _ heard) bool { return h.usages > 0 && h.in == 0 && h.out == 0 }},
		{`{"usage":"double"}`, true, func(h, sound heard) bool { return h.in == 2*sound.in && h.out == 2*sound.out }},
		{`{"finish":"length"}`, false, func(h, sound heard) bool {
			return h.text != "" && len(h.text) < len(sound.text) && h.ended
		}},
		{`{"finish":"filter"}`, false, func(h, sound heard) bool { return h.finish != sound.finish && h.ended }},
		{`{"finish":"empty"}`, true, func(h, _ heard) bool { return h.status == 200 && h.text == "" && h.out == 0 }},
		{`{"status":401}`, true, status(401)},
		{`{"status":402}`, true, status(402)},
		{`{"status":403}`, true, status(403)},
		{`{"status":404}`, true, status(404)},
		{`{"status":408}`, true, status(408)},
		{`{"status":500}`, true, status(500)},
		{`{"status":503}`, true, status(503)},
		{`{"status":529}`, true, status(529)},
		{`{"error":"context"}`, true, status(400)},
		{`{"error":"invalid"}`, true, status(400)},
		{`{"error":"rate","retryAfter":7}`, true, func(h, _ heard) bool {
			return h.status == 429 && h.failure != "" && h.header.Get("Retry-After") == "7"
		}},
		{`{"status":429,"retryAfter":7,"hints":["date"]}`, true, func(h, _ heard) bool {
			at, err := time.Parse(http.TimeFormat, h.header.Get("Retry-After"))
			return err == nil && time.Until(at) > 5*time.Second && time.Until(at) < 9*time.Second
		}},
		{`{"status":429,"retryAfter":7,"hints":["ms"]}`, true, func(h, _ heard) bool {
			return h.header.Get("retry-after-ms") == "7000" && h.header.Get("Retry-After") == ""
		}},
		{`{"status":429,"retryAfter":7,"hints":["ratelimit","anthropic"]}`, true, func(h, _ heard) bool {
			_, err := time.Parse(time.RFC3339, h.header.Get("anthropic-ratelimit-requests-reset"))
			return err == nil && h.header.Get("x-ratelimit-reset-requests") == "7s" && h.header.Get("Retry-After") == ""
		}},
		{`{"status":429,"retryAfter":7,"hints":["none"]}`, true, func(h, _ heard) bool { return h.status == 429 && h.header.Get("Retry-After") == "" }},
		{`{"script":[{"status":503}]}`, true, status(503)},
		{`{"model":"another","status":500}`, true, func(h, sound heard) bool { return h.text == sound.text }},
		{`{"key":"good","error":"quota"}`, true, func(h, _ heard) bool { return h.status == 429 || h.status == 400 }},
	}
}

// TestProviderFaults does every fault in every shape.
func TestProviderFaults(t *testing.T) {
	for _, s := range speakers() {
		t.Run(s.shape, func(t *testing.T) {
			p, addr, client := s.provider(t, sim.Faults{})
			sound := s.say(t, client, addr, true, "hello", "bound")
			for _, tt := range faultCases() {
				f, err := sim.ReadFaults(strings.NewReader(tt.faults))
				if err != nil {
					t.Fatal(err)
				}
				if err := p.SetFaults(f); err != nil {
					t.Fatal(err)
				}
				if h := s.say(t, client, addr, !tt.whole, "hello", "bound"); !tt.check(h, sound) {
					t.Errorf("%s (whole %v): %d %v %v\n%+v\n%.300s", tt.faults, tt.whole, h.status, h.err, h.header, h.reading, h.body)
				}
			}
			if err := p.SetFaults(sim.Faults{}); err != nil {
				t.Fatal(err)
			}
			if h := s.say(t, client, addr, true, "hello", "bound"); h.text != sound.text || h.err != nil {
				t.Errorf("afterwards: %+v", h)
			}
		})
	}
}

// TestProviderFaultsOfOneShape are faults that only some shapes have.
func TestProviderFaultsOfOneShape(t *testing.T) {
	all := map[string]speaker{}
	for _, s := range speakers() {
		all[s.shape] = s
	}
	tests := []struct {
		shape, faults, text, more string
		stream                    bool
		check                     func(h heard) bool
	}{
		{"openai", `{"wire":["noEnd"]}`, "hello", "bound", true, func(h heard) bool { return h.err == nil && h.finish != "" && !h.ended }},
		{"anthropic", `{"wire":["noEnd"]}`, "hello", "bound", true, func(h heard) bool { return h.err == nil && h.finish != "" && !h.ended }},
		{"responses", `{"wire":["noEnd"]}`, "hello", "bound", true, func(h heard) bool { return h.err == nil && h.text != "" && !h.ended }},
		{"openai", `{"wire":["repeatArguments"]}`, "call f", "tools", true, func(h heard) bool {
			return h.calls[0] == `f`+strings.Repeat(`{"a":7,"b":"kot mel"}`, 2)
		}},
		{"openai", `{"wire":["together"]}`, "call f", "tools", true, func(h heard) bool { return h.text == "together " && len(h.calls) == 1 }},
		{"responses", `{"wire":["doneOnly"]}`, "call f", "tools", true, func(h heard) bool {
			return h.calls[0] == `f{"a":7,"b":"kot mel"}` && !bytes.Contains(h.body, []byte("arguments.delta"))
		}},
		{"responses", `{"errorEvent":"preamble","error":"quota","wire":["failedEvent"]}`, "hello", "", true, func(h heard) bool {
			return bytes.Contains(h.body, []byte(`event: response.failed`)) && bytes.Contains(h.body, []byte(`"code":"insufficient_quota"`))
		}},
		{"openai", `{"usage":"every"}`, "hello", "bound", true, func(h heard) bool { return h.usages > 20 && h.out == 20 }},
		{"gemini", `{"usage":"every"}`, "hello", "bound", true, func(h heard) bool { return h.usages > 20 && h.out == 20 }},
		{"anthropic", `{"usage":"every"}`, "hello", "bound", true, func(h heard) bool { return h.usages > 20 && h.out == 20 }},
		{"openai", `{"error":"filter"}`, "hello", "", true, func(h heard) bool { return h.status == 400 && h.failure != "" }},
		{"azure", `{"error":"filter"}`, "hello", "", true, func(h heard) bool {
			return h.status == 400 && bytes.Contains(h.body, []byte(`"ResponsibleAIPolicyViolation"`))
		}},
		{"gemini", `{"error":"filter"}`, "hello", "", false, func(h heard) bool {
			return h.status == 200 && bytes.Contains(h.body, []byte(`"blockReason"`))
		}},
		{"gemini", `{"error":"rate","retryAfter":17}`, "hello", "", false, func(h heard) bool {
			return bytes.Contains(h.body, []byte(`"retryDelay":"17s"`))
		}},
		{"openai", `{"error":"rate","retryAfter":20,"hints":["text"]}`, "hello", "", false, func(h heard) bool {
			return strings.Contains(h.failure, "try again in 20s") && h.header.Get("Retry-After") == ""
		}},
		{"bedrock", `{"errorEvent":"output","error":"unprocessable"}`, "hello", "", true, func(h heard) bool {
			return bytes.Contains(h.body, []byte("modelStreamErrorException"))
		}},
		{"openai", `{"wire":["comments","oddChunks"]}`, "hello", "bound", true, func(h heard) bool {
			return h.err == nil && h.ended && h.out == 20 && bytes.Contains(h.body, []byte("\n\n: keep-alive\n\n"))
		}},
		{"anthropic", `{"wire":["crlf"]}`, "hello", "bound", true, func(h heard) bool { return h.err == nil && h.ended && h.out == 20 }},
		{"responses", `{"wire":["unterminated"]}`, "hello", "bound", true, func(h heard) bool {
			return h.err != nil && bytes.Contains(h.body, []byte("\n\nevent: response.incomplete")) && bytes.HasSuffix(h.body, []byte("}"))
		}},
		{"openai", `{"slow":3,"cutAfter":4}`, "hello", "bound", true, func(h heard) bool { return h.err != nil }},
		{"anthropic", `{"garbage":true}`, "hello", "bound", true, func(h heard) bool { return h.err != nil }},
	}
	for _, tt := range tests {
		t.Run(tt.shape+tt.faults, func(t *testing.T) {
			f, err := sim.ReadFaults(strings.NewReader(tt.faults))
			if err != nil {
				t.Fatal(err)
			}
			s := all[tt.shape]
			_, addr, client := s.provider(t, f)
			if h := s.say(t, client, addr, tt.stream, tt.text, tt.more); !tt.check(h) {
				t.Errorf("%d %v %+v\n%s", h.status, h.err, h.reading, h.body)
			}
		})
	}
}

// TestProviderScript deals out a list of faults and then the default.
func TestProviderScript(t *testing.T) {
	f, err := sim.ReadFaults(strings.NewReader(`{"script":[{"status":503},{},{"cut":"start"}],"status":418}`))
	if err != nil {
		t.Fatal(err)
	}
	s := speakers()[0]
	_, addr, client := s.provider(t, f)
	var got []int
	for range 5 {
		got = append(got, s.say(t, client, addr, false, "hello", "bound").status)
	}
	if fmt.Sprint(got) != "[503 200 0 418 418]" {
		t.Errorf("%v", got)
	}
}

// TestProviderStall holds that a stall lasts, ends when it should, and that the
// provider sees its client leave within a second at every place.
func TestProviderStall(t *testing.T) {
	for _, s := range speakers() {
		for _, place := range []sim.Place{"start", "headers", "preamble", "output"} {
			t.Run(fmt.Sprintf("%s %s", s.shape, place), func(t *testing.T) {
				t.Parallel()
				p, addr, client := s.provider(t, sim.Faults{ProviderFaults: sim.ProviderFaults{Stall: place, After: 3}})
				var h heard
				left := int64(0)
				for _, patience := range []time.Duration{200 * time.Millisecond, time.Second, 5 * time.Second} { // a slow machine gets there later
					client.Timeout = patience
					h = s.say(t, client, addr, true, "hello", "bound")
					left++
					if (h.status != 0) == (place != "start") && (h.text != "") == (place == "output") {
						break
					}
				}
				if h.err == nil || (h.status != 0) != (place != "start") || (h.text != "") != (place == "output") {
					t.Errorf("%d %v %+v %s", h.status, h.err, h.reading, h.body)
				}
				begin := time.Now()
				if !eventually(func() bool { return p.Stats().Cancelled == left }) || time.Since(begin) > time.Second {
					t.Errorf("after %v: %+v", time.Since(begin), p.Stats().Calls)
				}
				client.Timeout = 0
				if err := p.SetFaults(sim.Faults{ProviderFaults: sim.ProviderFaults{Stall: place, For: sim.Duration(30 * time.Millisecond)}}); err != nil {
					t.Fatal(err)
				}
				begin = time.Now()
				if h := s.say(t, client, addr, true, "hello", "bound"); h.err != nil || !h.ended || time.Since(begin) < 30*time.Millisecond {
					t.Errorf("a stall of 30 ms: %v after %v, %+v", h.err, time.Since(begin), h.reading)
				}
			})
		}
	}
}

// TestProviderSeesCancel leaves in prefill and in decode, streamed and whole.
func TestProviderSeesCancel(t *testing.T) {
	for _, tt := range []struct {
		stream bool
		ttft   time.Duration
	}{{false, time.Hour}, {true, time.Hour}, {false, time.Millisecond}, {true, time.Millisecond}} {
		p := sim.NewProvider(sim.ProviderConfig{Models: []string{"m"}, TTFT: tt.ttft, ITL: 20 * time.Millisecond})
		addr, err := p.Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		_, body := speakers()[0].send(tt.stream, "hello", "")
		req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+addr+"/v1/chat/completions", strings.NewReader(body))
		time.AfterFunc(50*time.Millisecond, cancel)
		if res, err := http.DefaultClient.Do(req); err == nil {
			_, err = io.ReadAll(res.Body)
			res.Body.Close()
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%+v: %v", tt, err)
			}
		}
		begin := time.Now()
		if !eventually(func() bool { s := p.Stats(); return s.InFlight == 0 && s.Aborted == 1 && s.Cancelled == 1 }) || time.Since(begin) > time.Second {
			t.Errorf("%+v: after %v %+v", tt, time.Since(begin), p.Stats())
		}
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestProviderGzip holds that compressed answers are what they say.
func TestProviderGzip(t *testing.T) {
	for _, s := range speakers() {
		for _, stream := range []bool{false, true} {
			_, addr, client := s.provider(t, sim.Faults{ProviderFaults: sim.ProviderFaults{Wire: []string{"gzip"}}})
			h := s.say(t, client, addr, stream, "hello", "bound")
			z, err := gzip.NewReader(bytes.NewReader(h.body))
			if err != nil {
				t.Fatal(err)
			}
			plain, err := io.ReadAll(z)
			if err != nil {
				t.Errorf("%s: %v", s.shape, err)
			}
			all, err := events(h.header.Get("Content-Type"), plain)
			if r := s.read(all); err != nil || !r.ended || r.out != 20 {
				t.Errorf("%s: %v %+v", s.shape, err, r)
			}
		}
	}
}
