// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// becomeContainer enters the pod's network, lays out the root folder and
// executes the program. It runs as the first process of new PID, mount and UTS
// namespaces and returns only an error.
func becomeContainer(spec *os.File) error {
	runtime.LockOSThread() // namespaces and capabilities belong to the thread that executes
	var c initSpec
	if err := json.NewDecoder(spec).Decode(&c); err != nil {
		return fmt.Errorf("read the container: %w", err)
	}
	spec.Close()
	if c.OwnNetwork {
		const netns = 5
		if err := unix.Setns(netns, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the network namespace: %w", err)
		}
		unix.Close(netns)
	}
	if c.Hostname != "" {
		if err := unix.Sethostname([]byte(c.Hostname)); err != nil {
			return fmt.Errorf("set the host name: %w", err)
		}
	}
	if err := c.mountAll(); err != nil {
		return err
	}
	if err := c.dropPrivileges(); err != nil {
		return err
	}
	dir := c.Dir
	if dir == "" {
		dir = "/"
	}
	if err := os.Chdir(dir); err != nil {
		return err
	}
	path := programPath(c.Program)
	return fmt.Errorf("execute %s: %w", path, unix.Exec(path, append([]string{path}, c.Args...), c.Env))
}

func programPath(program string) string { return "/bin/" + filepath.Base(program) }

func (c *Container) mountAll() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount(c.Root, c.Root, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind the root folder: %w", err)
	}
	mounts := []Mount{{Source: c.Program, Target: programPath(c.Program), ReadOnly: true}}
	for _, device := range []string{"null", "zero", "full", "random", "urandom"} {
		mounts = append(mounts, Mount{Source: "/dev/" + device, Target: "/dev/" + device})
	}
	for _, m := range append(mounts, c.Mounts...) {
		if err := m.bind(c.Root); err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
	}
	tmp := filepath.Join(c.Root, "tmp")
	if err := os.MkdirAll(tmp, 0o777); err != nil {
		return err
	}
	if err := os.Chmod(tmp, 0o777|os.ModeSticky); err != nil {
		return err
	}
	proc := filepath.Join(c.Root, "proc")
	if err := os.MkdirAll(proc, 0o555); err != nil {
		return err
	}
	if err := unix.Mount("proc", proc, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if dir := filepath.Join(c.Root, c.Dir); c.Dir != "" {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// With the new root stacked on the old one, "." is the old one: detaching it
	// leaves nothing of the machine's files in sight.
	if err := os.Chdir(c.Root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change the root folder: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the old root folder: %w", err)
	}
	if c.ReadOnlyRoot {
		if err := remountReadOnly("/"); err != nil {
			return fmt.Errorf("make the root folder read-only: %w", err)
		}
	}
	return nil
}

func (m Mount) bind(root string) error {
	target := filepath.Join(root, m.Target)
	info, err := os.Stat(m.Source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(target, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(target), 0o755); err == nil {
		var f *os.File
		f, err = os.OpenFile(target, os.O_CREATE|os.O_EXCL, 0o644)
		if err == nil {
			f.Close()
		} else if errors.Is(err, fs.ErrExist) {
			err = nil
		}
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(m.Source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if m.ReadOnly {
		return remountReadOnly(target)
	}
	return nil
}

// remountReadOnly keeps the flags that the file system already has: without
// privileges on the machine the kernel refuses to drop them.
func remountReadOnly(path string) error {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return err
	}
	keep := uintptr(s.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME | unix.MS_RELATIME)
	return unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|keep, "")
}

func (c *Container) dropPrivileges() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	if c.DropCaps {
		for capability := uintptr(0); capability <= unix.CAP_LAST_CAP; capability++ {
			// A capability that the kernel does not know cannot be dropped either.
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("drop capability %d: %w", capability, err)
			}
		}
	}
	// The syscall package changes every thread of the process.
	if u := c.User; u != nil {
		if err := syscall.Setgroups(u.Groups); err != nil {
			return fmt.Errorf("set groups: %w", err)
		}
		if err := syscall.Setgid(u.GID); err != nil {
			return fmt.Errorf("become group %d: %w", u.GID, err)
		}
		if err := syscall.Setuid(u.UID); err != nil {
			return fmt.Errorf("become user %d: %w", u.UID, err)
		}
	}
	return nil
}
