// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// process is a program under measurement, started and ended by this one.
type process struct {
	name   string
	cmd    *exec.Cmd
	stderr *tail
	exited chan struct{}
}

// startProcess runs argv and waits until it accepts connections at address.
func startProcess(ctx context.Context, name, dir, address string, argv []string) (*process, error) {
	p := &process{name: name, cmd: exec.CommandContext(ctx, argv[0], argv[1:]...), stderr: &tail{}, exited: make(chan struct{})}
	p.cmd.Dir = dir
	p.cmd.Stderr = p.stderr
	p.cmd.WaitDelay = time.Second // for children that keep standard error open
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench: start %s: %w", name, err)
	}
	go func() {
		defer close(p.exited)
		p.cmd.Wait() // the exit status is of no interest: it is killed
	}()
	for range 1200 { // a minute: programs in Python take their time
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			c.Close()
			return p, nil
		}
		select {
		case <-p.exited:
			return nil, fmt.Errorf("bench: %s ended at once: %s", name, p.stderr)
		case <-ctx.Done():
			p.stop()
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	p.stop()
	return nil, fmt.Errorf("bench: %s does not listen at %s: %s", name, address, p.stderr)
}

// stop asks first, so that a program with children (nginx) ends them, and does
// not wait for a drain.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(os.Interrupt)
	select {
	case <-p.exited:
	case <-time.After(2 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

// tail keeps the last bytes written to it.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(b)
	if over := t.buf.Len() - 4096; over > 0 {
		t.buf.Next(over)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(t.buf.String())
}

// clockTick is USER_HZ, which Linux fixes at 100 for what /proc shows.
const clockTick = 10 * time.Millisecond

// cpu is the user and system time that the process and its children that it
// has waited for have used, in steps of 10 ms.
func (p *process) cpu() (time.Duration, error) {
	total := time.Duration(0)
	for _, pid := range append(children(p.cmd.Process.Pid), p.cmd.Process.Pid) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, fmt.Errorf("bench: cpu time of %s: %w", p.name, err)
		}
		t, err := cpuTime(stat)
		if err != nil {
			return 0, err
		}
		total += t
	}
	return total, nil
}

// cpuTime reads utime and stime, fields 14 and 15 of /proc/PID/stat
// (proc_pid_stat(5)). The second field is the program's name in parentheses
// and may hold anything.
func cpuTime(stat []byte) (time.Duration, error) {
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return 0, errors.New("bench: /proc stat is too short")
	}
	total := time.Duration(0)
	for _, f := range fields[11:13] {
		ticks, err := strconv.ParseUint(f, 10, 40)
		if err != nil {
			return 0, fmt.Errorf("bench: /proc stat: %w", err)
		}
		total += time.Duration(ticks) * clockTick
	}
	return total, nil
}

// children are the processes that pid has started (nginx's workers), by
// whichever of its threads.
func children(pid int) (out []int) {
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil
	}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for _, f := range strings.Fields(string(text)) {
			if n, err := strconv.Atoi(f); err == nil {
				out = append(out, n)
			}
		}
	}
	return out
}

// memory is the resident set in bytes.
func (p *process) memory() (int64, error) { return p.status("VmRSS") }

// peak is the largest resident set there was.
func (p *process) peak() (int64, error) { return p.status("VmHWM") }

// status is a size of /proc/PID/status, in bytes.
func (p *process) status(name string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("bench: memory of %s: %w", p.name, err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("bench: no %s in /proc status", name)
}

// freeAddresses are loopback addresses that were free a moment ago.
func freeAddresses(n int) ([]string, error) {
	var out []string
	var held []net.Listener
	defer func() {
		for _, l := range held {
			l.Close()
		}
	}()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		held = append(held, l)
		out = append(out, l.Addr().String())
	}
	return out, nil
}
