// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package own

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// streams are answers under way, each of numbered events.
type streams struct {
	all  sync.WaitGroup
	open sync.WaitGroup // until the first event of each

	mu     sync.Mutex
	broken []string
	ended  int
}

// stream begins n answers of the given length from a host.
func (b *bed) stream(s *streams, n int, host string, length time.Duration, fields ...string) {
	body := strings.Replace(chat, "{", `{"stream":true,`, 1)
	address := b.address
	s.open.Add(n)
	for range n {
		s.all.Go(func() {
			opened := sync.OnceFunc(s.open.Done)
			defer opened()
			events, err := readStream(address, host, body, length, opened, append(fields, "x-stage-stream", length.String()))
			s.mu.Lock()
			defer s.mu.Unlock()
			s.ended++
			if err != nil {
				s.broken = append(s.broken, fmt.Sprintf("%s, after %d events: %v", host, events, err))
			}
		})
	}
	s.open.Wait()
}

// readStream reads one to its end: every event in its place and the last one
// there.
func readStream(address, host, body string, length time.Duration, opened func(), fields []string) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), length+2*time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.Host = host
	r.Header.Set("content-type", "application/json")
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s", resp.Status)
	}
	n, last := 0, ""
	for lines := bufio.NewScanner(resp.Body); ; {
		if !lines.Scan() {
			if err := lines.Err(); err != nil {
				return n, err
			}
			break
		}
		if lines.Text() == "" {
			continue
		}
		last = lines.Text()
		if strings.Contains(last, `"content":`) {
			opened()
			if !strings.Contains(last, fmt.Sprintf(`"content":"%d "`, n)) {
				return n, fmt.Errorf("event %d is %s", n, last)
			}
			n++
		}
	}
	if want := int(length / (100 * time.Millisecond)); n != want || last != "data: [DONE]" {
		return n, fmt.Errorf("it ended with %q, %d events; want %d", last, n, want)
	}
	return n, nil
}

// restart rolls a Deployment out anew, as kubectl rollout restart does, and
// waits until the new pods are all there is.
func (b *bed) restart(name string) {
	b.Helper()
	begun := time.Now()
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: b.ns, Name: name}}
	patch := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":%q}}}}}`, begun.Format(time.RFC3339Nano))
	if err := b.Patch(b.Context(), d, client.RawPatch(client.Merge.Type(), patch)); err != nil {
		b.Fatal(err)
	}
	b.running(name)
	b.Logf("%s was rolled out in %s", name, time.Since(begun).Round(100*time.Millisecond))
}

// TestRollOuts replaces every process that a stream of several minutes goes
// through, while it does; short requests lose nothing meanwhile. The picker is
// given less time than the streams take: who has been picked needs it no more.
func TestRollOuts(t *testing.T) {
	length := lasting(t, "OWN_STREAM", 90*time.Second)
	b := lay(t)
	b.mayPick()
	p := penstockPicker(b, "picked")
	p.args, p.grace, p.preStop = append(p.args, "--drain", "5s"), 20, 2
	b.deploy(p)
	for _, pool := range []string{"picked", "alone"} {
		s := servers(pool, 2)
		s.grace, s.preStop = int(length.Seconds())+60, 2
		b.deploy(s)
	}
	short := b.both(p)
	s := &streams{}
	more := func() {
		b.stream(s, 2, "picked.own.test", length)
		b.stream(s, 2, "alone.own.test", length)
	}
	for _, name := range []string{"gw-penstock", "picked-picker", "picked-server", "alone-server"} {
		more()
		b.restart(name)
	}
	s.mu.Lock()
	if s.ended > len(s.broken) {
		t.Errorf("%d streams had ended before everything was rolled out: they say nothing; OWN_STREAM makes them longer", s.ended)
	}
	s.mu.Unlock()
	// The traffic goes on until the last of the old processes has drained: that
	// is when requests are lost, if any are.
	s.all.Wait()
	b.until("what was replaced is gone", time.Minute, func() (string, bool) {
		n := len(b.pods(""))
		return fmt.Sprintf("%d pods", n), n == 2+1+2+2
	})
	for _, traffic := range short {
		b.losesNothing(traffic)
	}
	t.Logf("%d streams of %s, %d broken", s.ended, length, len(s.broken))
	for _, what := range s.broken {
		t.Error("stream: ", what)
	}
}
