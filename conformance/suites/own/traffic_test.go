// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package own

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// chat is a small request that every server here understands.
const chat = `{"model":"stage","max_tokens":4,"messages":[{"role":"user","content":"How much water goes through?"}]}`

// reply is what became of a request.
type reply struct {
	status int
	header http.Header
	body   []byte
	err    error
}

func (r reply) String() string {
	if r.err != nil {
		return r.err.Error()
	}
	return fmt.Sprintf("%d %s", r.status, short(r.body))
}

// send posts body to a host of the Gateway; fields are names and values.
func send(ctx context.Context, c *http.Client, address, host, body string, fields ...string) reply {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	r.Host = host
	r.Header.Set("content-type", "application/json")
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	resp, err := c.Do(r)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	out := reply{status: resp.StatusCode, header: resp.Header}
	out.body, out.err = io.ReadAll(resp.Body)
	return out
}

// ask sends one request on a connection of its own.
func (b *bed) ask(host, body string, fields ...string) reply {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return send(ctx, c, b.address, host, body, fields...)
}

// wait asks until the answer has the status: what was applied takes a moment
// to get to the gateways, each of which must have it.
func (b *bed) wait(host string, status int, fields ...string) {
	b.Helper()
	in := 0
	b.until(fmt.Sprintf("%s answers %d", host, status), time.Minute, func() (string, bool) {
		r := b.ask(host, chat, fields...)
		if in++; r.err != nil || r.status != status {
			in = 0
		}
		return r.String(), in == 6
	})
}

func digest(body string) string {
	sum := sha256.Sum256([]byte(body))
	return hex.EncodeToString(sum[:])
}

// traffic is requests that go on until it is stopped.
type traffic struct {
	end     context.CancelFunc
	workers sync.WaitGroup
	begun   time.Time
	sent    atomic.Int64

	mu   sync.Mutex
	lost []string
	by   map[string]int // answers by pod
}

// traffic sends requests from workers, half of which keep their connections,
// with a pause after each. One is lost that is not answered by 200 and the
// digest of what was sent.
func (b *bed) traffic(host string, workers int, pause time.Duration, fields ...string) *traffic {
	ctx, cancel := context.WithCancel(context.Background())
	t := &traffic{end: cancel, begun: time.Now(), by: map[string]int{}}
	b.Cleanup(func() { t.stop() })
	want, address := digest(chat), b.address
	for i := range workers {
		t.workers.Go(func() {
			c := &http.Client{Transport: &http.Transport{DisableKeepAlives: i%2 == 0}, Timeout: time.Minute}
			defer c.CloseIdleConnections()
			for ctx.Err() == nil {
				begun := time.Since(t.begun)
				// One under way when the traffic is stopped goes on to its end.
				r := send(context.Background(), c, address, host, chat, fields...)
				t.sent.Add(1)
				t.mu.Lock()
				if r.err != nil || r.status != http.StatusOK || r.header.Get("x-stage-digest") != want {
					if len(t.lost) < 1000 {
						t.lost = append(t.lost, fmt.Sprintf("worker %d, %s to %s: %s", i, begun.Round(time.Millisecond), time.Since(t.begun).Round(time.Millisecond), r))
					}
				} else {
					t.by[r.header.Get("x-stage-pod")]++
				}
				t.mu.Unlock()
				select {
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		})
	}
	return t
}

// stop ends the traffic and returns what was lost.
func (t *traffic) stop() []string {
	t.end()
	t.workers.Wait()
	return t.lost
}

// losesNothing stops the traffic and fails the test if anything was lost, or
// nothing was sent.
func (b *bed) losesNothing(t *traffic) {
	b.Helper()
	lost := t.stop()
	b.Logf("%d requests in %s, %d lost, by %d pods", t.sent.Load(), time.Since(t.begun).Round(time.Second), len(lost), len(t.by))
	for _, l := range lost[:min(len(lost), 10)] {
		b.Error("lost: ", l)
	}
	if t.sent.Load() == 0 {
		b.Error("there was no traffic")
	}
}
