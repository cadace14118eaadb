// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The tests run twice over: outside they start a rig whose command is this same
// test program, which finds itself inside and then looks at the cluster (files
// inside_*_test.go). One rig serves all of those.
const insideVariable = "PENSTOCK_RIG_INSIDE"

func isInside() bool { return os.Getenv(insideVariable) != "" }

var rigBinary string

func TestMain(m *testing.M) {
	flag.Parse()
	if isInside() {
		os.Exit(m.Run())
	}
	// Those are for the program inside, which TestCluster starts.
	if err := flag.Set("test.skip", "^TestInside"); err != nil {
		panic(err)
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "*** THE RIG IS NOT TESTED: its tests need root")
		if os.Getenv("CI") == "true" {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if err := buildRig(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func buildRig() error {
	source, err := os.Getwd()
	if err != nil {
		return err
	}
	if os.Getenv("PENSTOCK_CACHE") == "" {
		os.Setenv("PENSTOCK_CACHE", filepath.Join(source, "..", "..", ".cache"))
	}
	os.Setenv("PENSTOCK_RIG_SOURCE", source)
	// The script builds the program, and the program what it will run.
	cmd := exec.Command("./rig.sh", "build", "--programs", programs)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build the rig: %w", err)
	}
	rigBinary = filepath.Join(os.Getenv("PENSTOCK_CACHE"), "rig", "bin", "rig")
	return nil
}

const programs = "echo-basic,coredns,apiclient"

// rig is the command with the flags that all tests use.
func rig(command string, args ...string) *exec.Cmd {
	return exec.Command(rigBinary, append([]string{command, "--programs", programs}, args...)...)
}

func TestCluster(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{
		"--image", "rig.test/mapped=apiclient and its arguments",
		"--image", "rig.test/once=apiclient once",
		"--", self, "-test.run", "^TestInside", "-test.timeout", "5m",
	}
	if testing.Verbose() {
		args = append(args, "-test.v")
	}
	cmd := rig("run", args...)
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || testing.Verbose() {
		t.Logf("inside:\n%s", out)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestRunPassesTheExitCode(t *testing.T) {
	out, err := rig("run", "--", "sh", "-c", "test -s $KUBECONFIG && exit 7").CombinedOutput()
	if code := err.(*exec.ExitError).ExitCode(); code != 7 {
		t.Errorf("exit code %d, want the command's 7\n%s", code, out)
	}
}

// TestKilledRigLeavesNothing kills each of the three processes in turn without
// a chance to clean up, with pods running.
func TestKilledRigLeavesNothing(t *testing.T) {
	for _, depth := range []int{0, 1, 2} {
		t.Run(fmt.Sprintf("process %d", depth+1), func(t *testing.T) {
			cmd := rig("run", "--", "sh", "-c", `
				kubectl create deployment echo --image=registry.k8s.io/gateway-api/echo-basic --replicas=2 >/dev/null &&
				kubectl wait --for=condition=Available deployment/echo --timeout=60s && exec sleep 600`)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line := make([]byte, 256)
			n, _ := out.Read(line)
			if !bytes.Contains(line[:n], []byte("condition met")) {
				t.Fatalf("the pods are not ready: %s", line[:n])
			}
			pid := cmd.Process.Pid
			for range depth {
				pid = child(t, pid)
			}
			all := traces(t, cmd.Process.Pid)
			if len(all) < 9 { // three of the rig, three of the control plane, two pods, the command
				t.Fatalf("only %d processes: the test does not see all of the rig", len(all))
			}
			syscall.Kill(pid, syscall.SIGKILL)
			cmd.Wait()
			expectGone(t, all)
		})
	}
}

func TestUpAndDown(t *testing.T) {
	cache := t.TempDir() // a rig of the user's may be up
	env := append(os.Environ(), "PENSTOCK_CACHE="+cache)
	if err := os.MkdirAll(filepath.Join(cache, "rig"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(rigBinary), filepath.Join(cache, "rig", "bin")); err != nil {
		t.Fatal(err)
	}
	upCmd := rig("up", "--forward", "0=10.245.0.1:80")
	upCmd.Env = env
	var stderr bytes.Buffer
	upCmd.Stderr = &stderr
	out, err := upCmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	text, err := os.ReadFile(filepath.Join(cache, "rig", "up", "pid"))
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	fmt.Sscan(string(text), &pid)
	all := traces(t, pid)
	t.Cleanup(func() {
		downCmd := exec.Command(rigBinary, "down")
		downCmd.Env = env
		if out, err := downCmd.CombinedOutput(); err != nil {
			t.Errorf("rig down: %v\n%s", err, out)
		}
		expectGone(t, all)
	})
	kubeconfig, ok := strings.CutPrefix(strings.TrimSpace(string(out)), "export KUBECONFIG=")
	if !ok {
		t.Fatalf("rig up prints %q", out)
	}
	get := exec.Command("kubectl", "--kubeconfig", kubeconfig, "get", "node", "-o", "name")
	if out, err := get.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "node/rig" {
		t.Errorf("kubectl from the machine: %v\n%s", err, out)
	}
	inside := exec.Command(rigBinary, "exec", "--", "kubectl", "get", "namespace", "default", "-o", "name")
	inside.Env = env
	if out, err := inside.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "namespace/default" {
		t.Errorf("kubectl by rig exec: %v\n%s", err, out)
	}
	again := rig("up")
	again.Env = env
	if out, err := again.CombinedOutput(); err == nil || !strings.Contains(string(out), "up already") {
		t.Errorf("a second rig up: %v\n%s", err, out)
	}
}

// traces are what a rig could leave behind: its processes, which keep its
// namespaces, told from later ones of the same number by the time of their
// start; and mounts of this machine.
func traces(t *testing.T, pid int) []string {
	t.Helper()
	parents := map[int][]int{}
	entries, _ := filepath.Glob("/proc/[0-9]*")
	for _, entry := range entries {
		if fields := stat(entry); fields != nil {
			parent, _ := strconv.Atoi(fields[1])
			self, _ := strconv.Atoi(filepath.Base(entry))
			parents[parent] = append(parents[parent], self)
		}
	}
	var found []string
	for queue := []int{pid}; len(queue) > 0; queue = queue[1:] {
		if fields := stat(fmt.Sprint("/proc/", queue[0])); fields != nil {
			found = append(found, fmt.Sprintf("%d %s", queue[0], fields[19]))
		}
		queue = append(queue, parents[queue[0]]...)
	}
	return found
}

// stat is the fields of a process behind its name, from the state on; nil when
// there is none or it is dead and only not collected yet.
func stat(entry string) []string {
	text, err := os.ReadFile(filepath.Join(entry, "stat"))
	if err != nil {
		return nil
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" {
		return nil
	}
	return fields
}

// expectGone waits until the processes are gone: the kernel ends those of a
// namespace in its own time, and they are not ours to wait for.
func expectGone(t *testing.T, before []string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		var left []string
		for _, trace := range before {
			pid, start, _ := strings.Cut(trace, " ")
			if fields := stat("/proc/" + pid); fields != nil && fields[19] == start {
				command, _ := os.ReadFile("/proc/" + pid + "/cmdline")
				left = append(left, pid+" "+string(bytes.ReplaceAll(command, []byte{0}, []byte{' '})))
			}
		}
		mounts, err := os.ReadFile("/proc/self/mounts")
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(mounts), "/rig/mnt") {
			left = append(left, string(mounts))
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind:\n%s", strings.Join(left, "\n"))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func child(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		t.Fatal(err)
	}
	var first int
	if _, err := fmt.Sscan(string(text), &first); err != nil {
		t.Fatalf("children of %d: %q", pid, text)
	}
	return first
}
