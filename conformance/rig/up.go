// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/conformance/rig/cluster"
)

// Files in the folder of the rig that is up.
const (
	pidFile          = "pid"
	logFile          = "rig.log"
	kubeconfigFile   = "kubeconfig"        // by way of this machine's loopback address
	insideConfigFile = "kubeconfig.inside" // for rig exec
	resolvFile       = "resolv.conf"       // for rig exec
	haltFolderName   = "halt"              // what the control plane is to do without
)

func upFolder(where folders) string { return filepath.Join(where.cache, "up") }

// up starts a rig in the background and returns when it can be used.
func up(ctx context.Context, args []string) error {
	where, err := findFolders()
	if err != nil {
		return err
	}
	dir := upFolder(where)
	if pid, ok := running(dir); ok {
		return fmt.Errorf("a rig is up already (process %d, KUBECONFIG=%s); make rig-down ends it", pid, filepath.Join(dir, kubeconfigFile))
	}
	s, more, err := prepare(ctx, "up", args)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	s.Up, s.Logs = dir, dir
	if err := os.RemoveAll(s.haltFolder()); err != nil { // of one that was killed
		return err
	}
	files, err := s.openForwards(more.forwards)
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(dir, logFile))
	if err != nil {
		return err
	}
	defer log.Close()
	ready, readyWrite, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	start := time.Now()
	cmd, err := launch(s, append([]*os.File{readyWrite}, files...), true, log)
	readyWrite.Close()
	for _, f := range files {
		f.Close()
	}
	if err != nil {
		return err
	}
	if err := writePID(dir, cmd.Process.Pid); err != nil {
		return err
	}
	// Who is impatient shall not find half a rig in the background later.
	interrupted, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(interrupted, func() { cmd.Process.Kill() })()
	if word, _ := io.ReadAll(ready); len(word) == 0 {
		cmd.Wait()
		os.Remove(filepath.Join(dir, pidFile))
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("the rig did not come up:\n%s", text)
	}
	fmt.Fprintf(os.Stderr, "rig: up after %s with %s; its log is %s\n",
		time.Since(start).Round(100*time.Millisecond), definitionVersions(), log.Name())
	fmt.Printf("export KUBECONFIG=%s\n", filepath.Join(dir, kubeconfigFile))
	return nil
}

// openForwards opens listeners on this machine's loopback address. They keep
// belonging to its network when they are passed on, so that the rig, which has
// no device in common with the machine, can accept from it. The first leads to
// the API server.
func (s *settings) openForwards(more []string) ([]*os.File, error) {
	s.Forwards = []string{net.JoinHostPort(bridgeIP.String(), strconv.Itoa(cluster.Port))}
	ports := []string{"0"}
	for _, f := range more {
		port, target, ok := strings.Cut(f, "=")
		if _, err := netip.ParseAddrPort(target); err != nil || !ok {
			return nil, fmt.Errorf("--forward %s: want PORT=ADDRESS:PORT", f)
		}
		s.Forwards = append(s.Forwards, target)
		ports = append(ports, port)
	}
	var files []*os.File
	for _, port := range ports {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
		if err != nil {
			return nil, err
		}
		f, err := l.(*net.TCPListener).File()
		l.Close()
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// down ends the rig that is up.
func down(args []string) error {
	if len(args) > 0 {
		return errors.New("down takes no arguments")
	}
	where, err := findFolders()
	if err != nil {
		return err
	}
	dir := upFolder(where)
	pid, ok := running(dir)
	if !ok {
		fmt.Fprintln(os.Stderr, "rig: none is up")
		return nil
	}
	// The descriptor stays the process's, whoever gets its number afterwards.
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, step := range []struct {
		signal  syscall.Signal
		patient time.Duration
	}{{syscall.SIGTERM, 10 * time.Second}, {syscall.SIGKILL, 10 * time.Second}} {
		if err := unix.PidfdSendSignal(fd, step.signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(polled, int(step.patient.Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n > 0 {
			for _, name := range []string{pidFile, kubeconfigFile, insideConfigFile, resolvFile} {
				os.Remove(filepath.Join(dir, name))
			}
			os.RemoveAll(filepath.Join(dir, haltFolderName))
			return nil
		}
	}
	return fmt.Errorf("process %d does not end", pid)
}

// enter becomes a command in the network of the rig that is up.
func enter(args []string) error {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return errors.New("exec: no command; rig exec -- COMMAND [ARG...]")
	}
	where, err := findFolders()
	if err != nil {
		return err
	}
	dir := upFolder(where)
	pid, ok := running(dir)
	if !ok {
		return errors.New("no rig is up; make rig-up starts one")
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	netns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return err
	}
	runtime.LockOSThread() // what follows changes the thread, and the thread executes
	if err := unix.Setns(int(netns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the network of the rig: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := useResolvConf(filepath.Join(dir, resolvFile)); err != nil {
		return err
	}
	os.Setenv("KUBECONFIG", filepath.Join(dir, insideConfigFile))
	os.Setenv(haltVariable, filepath.Join(dir, haltFolderName))
	return syscall.Exec(path, args, os.Environ())
}

// useResolvConf lets the mount namespace of the calling thread ask the rig's
// DNS.
func useResolvConf(path string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount(path, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("put the rig's DNS into /etc/resolv.conf: %w", err)
	}
	return nil
}

// A process is told from a later one with its number by the time of its start.
func writePID(dir string, pid int) error {
	start, err := startTime(pid)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, pidFile), fmt.Appendf(nil, "%d %s\n", pid, start), 0o644)
}

func running(dir string) (int, bool) {
	text, err := os.ReadFile(filepath.Join(dir, pidFile))
	if err != nil {
		return 0, false
	}
	var pid int
	var start string
	if _, err := fmt.Sscan(string(text), &pid, &start); err != nil {
		return 0, false
	}
	now, err := startTime(pid)
	return pid, err == nil && now == start
}

// startTime is field 22 of /proc/PID/stat; the fields behind the name, which may
// hold spaces, begin with the third. A process that is dead and not yet
// collected does not count.
func startTime(pid int) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" {
		return "", errors.New("the process has ended")
	}
	return fields[19], nil
}
