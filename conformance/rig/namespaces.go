// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// The rig is three processes of the same program. The first is what the user
// started. The second, the reaper, is the first process of new PID, mount and
// network namespaces and does nothing but collect the dead: when it ends, for
// whatever reason, the kernel kills every process in the namespaces and removes
// devices and mounts. The third is the rig itself, which can crash like any
// other program without leaving anything behind.
const (
	reaperName = "rig-reaper"
	insideName = "rig-inside"
)

// firstFile is the number of the first of the files passed to the rig inside.
const firstFile = 3

// launch starts the reaper in new namespaces. With detached it outlives this
// process; otherwise it dies with it.
func launch(s *settings, files []*os.File, detached bool, output *os.File) (*exec.Cmd, error) {
	if err := os.MkdirAll(s.State, 0o755); err != nil {
		return nil, err
	}
	config, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe", string(config))
	cmd.Args[0] = reaperName
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC,
	}
	if os.Geteuid() != 0 {
		// Root in a user namespace may do all of this to what it has made itself.
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	if detached {
		cmd.SysProcAttr.Setsid = true
		cmd.Stdout, cmd.Stderr = output, output
	} else {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("make namespaces (this needs root, or user namespaces): %w", err)
	}
	return cmd, nil
}

// reap is the second process: it starts the third and collects every process
// that ends, until the third does.
func reap() int {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	var files []*os.File
	for fd := uintptr(firstFile); ; fd++ {
		// Only what was passed on is open here, in order.
		if !passed(fd) {
			break
		}
		files = append(files, os.NewFile(fd, "passed"))
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = insideName
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = files
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "rig:", err)
		return 1
	}
	for _, f := range files {
		f.Close()
	}
	go func() {
		for s := range signals {
			// An interrupt at the terminal reaches the command by itself.
			if s == syscall.SIGTERM {
				cmd.Process.Signal(s)
			}
		}
	}()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return 1
		}
		if pid != cmd.Process.Pid {
			continue
		}
		if status.Signaled() {
			return 128 + int(status.Signal())
		}
		return status.ExitStatus()
	}
}

// passed tells whether fd was inherited: what this program opens itself is
// closed on exec.
func passed(fd uintptr) bool {
	flags, err := unix.FcntlInt(fd, unix.F_GETFD, 0)
	return err == nil && flags&unix.FD_CLOEXEC == 0
}
