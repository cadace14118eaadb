// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/extproc"
	"github.com/penstock/penstock/internal/certs"
	"github.com/penstock/penstock/kube/kubetest"
)

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// command runs the command line until the test ends, or until stop is called,
// which gives its error.
func command(t *testing.T, args ...string) (stop func() error) {
	t.Helper()
	root := newRootCommand()
	root.SetArgs(args)
	ctx, cancel := context.WithCancel(context.Background())
	var err error
	var running sync.WaitGroup
	running.Go(func() { err = root.ExecuteContext(ctx) })
	stop = sync.OnceValue(func() error { cancel(); running.Wait(); return err })
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("penstock %s: %v", strings.Join(args, " "), err)
		}
	})
	return stop
}

// replica is a picker in the cluster of the test.
type replica struct {
	grpc, metrics string
	stop          func() error
}

func startReplica(t *testing.T, s *kubetest.Server, flags ...string) *replica {
	t.Helper()
	r := &replica{grpc: freePort(t), metrics: freePort(t)}
	r.stop = command(t, append([]string{"epp", "--pool-name", "llama", "--pool-namespace", "models", "--kubeconfig", s.Kubeconfig("default"),
		"--grpc-port", r.grpc, "--grpc-health-port", freePort(t), "--metrics-port", r.metrics, "--zap-log-level", "error", "--admin-address", "off"}, flags...)...)
	return r
}

// probe asks the picker for a pick; pods steer it.
func (r *replica) probe(t *testing.T, pods string) *extproc.Transcript {
	t.Helper()
	p := &extproc.Probe{Address: "127.0.0.1:" + r.grpc, TLS: &certs.Client{InsecureSkipVerify: true}, Path: "/v1/completions", Header: http.Header{"Content-Type": {"application/json"}},
		Body: []byte(`{"model": "m", "prompt": "p"}`)}
	if pods != "" {
		p.Header.Set("test-epp-endpoint-selection", pods)
	}
	return p.Run(t.Context())
}

// until asks again until ok, and gives how long that took.
func (r *replica) until(t *testing.T, what, pods string, ok func(*extproc.Transcript) bool) time.Duration {
	t.Helper()
	start := time.Now()
	var last *extproc.Transcript
	for time.Since(start) < 20*time.Second {
		if last = r.probe(t, pods); ok(last) {
			return time.Since(start)
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("%s does not happen; the last answer: %+v", what, last)
	return 0
}

func picks(want ...string) func(*extproc.Transcript) bool {
	return func(t *extproc.Transcript) bool {
		got := slices.Clone(t.Endpoints)
		slices.Sort(got)
		return slices.Equal(got, want)
	}
}

func putPool(s *kubetest.Server, ports string) {
	s.Put("inferencepools", fmt.Sprintf(`{"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": {"name": "llama", "namespace": "models"},
		"spec": {"selector": {"matchLabels": {"app": "llama"}}, "targetPorts": [%s]}}`, ports))
}

func putPod(s *kubetest.Server, name, ip, ready string) {
	s.Put("pods", fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "namespace": "models", "labels": {"app": "llama"}},
		"status": {"phase": "Running", "podIP": %q, "conditions": [{"type": "Ready", "status": %q}]}}`, name, ip, ready))
}

func readyz(t *testing.T, port string) (status int, text string) {
	t.Helper()
	res, err := http.Get("http://127.0.0.1:" + port + "/readyz?verbose")
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(body)
}

func TestPickerInCluster(t *testing.T) {
	s := kubetest.New(t)
	r := startReplica(t, s, "--test-plugins", "--endpoint-target-ports", "8000", "--zap-encoder", "json", "--health-checking", "--config-text",
		"plugins:\n- type: random-picker\n- type: queue-scorer\nschedulingProfiles:\n- name: default\n  plugins:\n  - pluginRef: queue-scorer\n  - pluginRef: random-picker\n")
	r.until(t, "an answer of health", "", func(t *extproc.Transcript) bool { return t.Health == "NOT_SERVING" })
	if status, text := readyz(t, r.metrics); status != http.StatusServiceUnavailable || !strings.Contains(text, "models/llama") {
		t.Errorf("readyz before the pool was seen: %d %s", status, text)
	}
	putPod(s, "a", "10.0.0.1", "True")
	putPod(s, "b", "10.0.0.2", "True")
	putPool(s, `{"number": 8000}`)
	r.until(t, "health", "", func(t *extproc.Transcript) bool { return t.Health == "SERVING" && len(t.Endpoints) > 0 })
	if status, text := readyz(t, r.metrics); status != http.StatusOK {
		t.Errorf("readyz: %d %s", status, text)
	}
	r.until(t, "a steered pick", "10.0.0.2", picks("10.0.0.2:8000"))
	// What has no such pod is refused, before and after it is there.
	if got := r.probe(t, "10.0.0.3"); len(got.Endpoints) != 0 {
		t.Errorf("a stranger is picked: %v", got.Endpoints)
	}
	putPod(s, "c", "10.0.0.3", "True")
	took := r.until(t, "a new pod", "10.0.0.3", picks("10.0.0.3:8000"))
	t.Logf("a new pod is picked after %s", took)
	putPod(s, "c", "10.0.0.3", "False")
	took = r.until(t, "a pod that is not ready", "10.0.0.3", picks())
	t.Logf("a pod that is not ready is left out after %s", took)
	putPool(s, `{"number": 8000}, {"number": 8001}`)
	r.until(t, "another port", "10.0.0.1:8001", picks("10.0.0.1:8001"))
}

func TestPickerElection(t *testing.T) {
	s := kubetest.New(t)
	putPool(s, `{"number": 8000}`)
	putPod(s, "a", "10.0.0.1", "True")
	one := startReplica(t, s, "--ha-enable-leader-election")
	serving := func(t *extproc.Transcript) bool { return t.Health == "SERVING" }
	one.until(t, "health of the first", "", serving)
	two := startReplica(t, s, "--ha-enable-leader-election")
	two.until(t, "health of the second", "", func(t *extproc.Transcript) bool { return t.Health == "NOT_SERVING" && len(t.Endpoints) > 0 })
	if status, text := readyz(t, two.metrics); status != http.StatusServiceUnavailable || !strings.Contains(text, "another replica leads") {
		t.Errorf("readyz of the second: %d %s", status, text)
	}
	if err := one.stop(); err != nil {
		t.Error(err)
	}
	two.until(t, "health of the second after the first", "", serving)
}

func TestPickerInClusterRefusals(t *testing.T) {
	s := kubetest.New(t)
	kubeconfig := s.Kubeconfig("default")
	for _, c := range []struct{ flags, want string }{
		{"--pool-namespace models", "--pool-name is missing"},
		{"--pool-name llama --pool-namespace models --pool-group inference.networking.x-k8s.io", "is not supported"},
		{"--pool-name llama --profile default", "add --pool-namespace"},
		{"--pool-name llama --pool-namespace models --profile random --config-text x", "give one of them"},
		{"--pool-name llama --pool-namespace models --kubeconfig " + kubeconfig + " --profile nobody", "no picker"},
		{"--pool-name llama --pool-namespace models --kubeconfig /nowhere", "/nowhere"},
	} {
		root := newRootCommand()
		root.SetArgs(append([]string{"epp"}, strings.Fields(c.flags)...))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err := root.ExecuteContext(ctx)
		cancel()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("epp %s: %v, want %q", c.flags, err, c.want)
		}
	}
}
