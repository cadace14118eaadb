// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Cache is where built programs are kept.
type Cache struct {
	Dir    string    // each program is Dir/NAME-HASH
	Rig    string    // the folder of the rig's sources
	Report io.Writer // what takes long is said here
}

// ControlPlane builds etcd, kube-apiserver and kube-controller-manager.
func (c *Cache) ControlPlane(ctx context.Context) (string, error) {
	version, err := c.moduleVersion(ctx, "controlplane", "k8s.io/kubernetes")
	if err != nil {
		return "", err
	}
	numbers := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(numbers) < 3 {
		return "", fmt.Errorf("k8s.io/kubernetes has version %q, not vX.Y.Z", version)
	}
	const versions = "k8s.io/component-base/version."
	return c.pinned(ctx, build{
		name: "controlplane", module: "controlplane", pkg: ".",
		ldflags: fmt.Sprintf(" -X %sgitVersion=%s -X %sgitMajor=%s -X %sgitMinor=%s",
			versions, version, versions, numbers[0], versions, numbers[1]),
		note: "kube-apiserver, kube-controller-manager and etcd " + version + ", about 6 minutes on two cores the first time",
	})
}

// Build makes the named programs and returns their paths.
func (c *Cache) Build(ctx context.Context, sources []Source) (map[string]string, error) {
	paths := map[string]string{}
	for _, s := range sources {
		b := build{name: s.Name, module: s.Module, pkg: s.Package, note: s.Package}
		make := c.pinned
		if strings.HasPrefix(s.Package, "./") {
			make = c.local
		}
		path, err := make(ctx, b)
		if err != nil {
			return nil, err
		}
		paths[s.Name] = path
	}
	return paths, nil
}

// ModuleDir is where the files of a module lie that the rig's go.mod names.
func (c *Cache) ModuleDir(ctx context.Context, module string) (string, error) {
	if _, err := c.goCommand(ctx, ".", "mod", "download", module); err != nil {
		return "", err
	}
	dir, err := c.goCommand(ctx, ".", "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(dir), nil
}

type build struct {
	name, module, pkg string
	ldflags           string
	note              string
}

// pinned builds a package of a module whose go.mod and go.sum say all that goes
// into it: together with the Go version they are its name in the cache.
func (c *Cache) pinned(ctx context.Context, b build) (string, error) {
	hash := sha256.New()
	version, err := c.goCommand(ctx, b.module, "env", "GOVERSION", "GOOS", "GOARCH")
	if err != nil {
		return "", err
	}
	fmt.Fprintln(hash, version, b.pkg, b.ldflags)
	files, err := filepath.Glob(filepath.Join(c.Rig, b.module, "*.go"))
	if err != nil {
		return "", err
	}
	for _, file := range append(files, filepath.Join(c.Rig, b.module, "go.mod"), filepath.Join(c.Rig, b.module, "go.sum")) {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(hash, filepath.Base(file), len(content))
		hash.Write(content)
	}
	path := filepath.Join(c.Dir, b.name+"-"+hex.EncodeToString(hash.Sum(nil))[:16])
	// Two rigs that start at once build it once.
	unlock, err := c.lock(b.name)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	fmt.Fprintf(c.Report, "rig: building %s (%s)\n", b.name, b.note)
	start := time.Now()
	if err := c.compile(ctx, b, path); err != nil {
		return "", err
	}
	fmt.Fprintf(c.Report, "rig: built %s in %s\n", b.name, time.Since(start).Round(time.Second))
	c.removeOthers(b.name, path)
	return path, nil
}

// local builds a package that changes with the tree; the Go command's own cache
// knows whether it did.
func (c *Cache) local(ctx context.Context, b build) (string, error) {
	unlock, err := c.lock(b.name)
	if err != nil {
		return "", err
	}
	defer unlock()
	path := filepath.Join(c.Dir, b.name)
	return path, c.compile(ctx, b, path)
}

// compile puts a complete program in place by renaming it: another rig may be
// running the old one.
func (c *Cache) compile(ctx context.Context, b build, path string) error {
	partial := path + ".partial"
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w"+b.ldflags, "-o", partial, b.pkg)
	cmd.Dir = filepath.Join(c.Rig, b.module)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output

	done := make(chan struct{})
	defer close(done)
	go func() {
		tick := time.NewTicker(time.Minute)
		defer tick.Stop()
		for minutes := 1; ; minutes++ {
			select {
			case <-done:
				return
			case <-tick.C:
				fmt.Fprintf(c.Report, "rig: still building %s, %d min\n", b.name, minutes)
			}
		}
	}()
	if err := cmd.Run(); err != nil {
		os.Remove(partial)
		return fmt.Errorf("build %s: %w\n%s", b.name, err, bytes.TrimSpace(output.Bytes()))
	}
	return os.Rename(partial, path)
}

// removeOthers deletes what earlier versions left, a hundred megabytes each.
func (c *Cache) removeOthers(name, keep string) {
	old, _ := filepath.Glob(filepath.Join(c.Dir, name+"-????????????????"))
	for _, path := range old {
		if path != keep {
			os.Remove(path)
		}
	}
}

func (c *Cache) lock(name string) (unlock func(), err error) {
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(c.Dir, "."+name+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		fmt.Fprintf(c.Report, "rig: waiting for another rig that builds %s\n", name)
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err != nil {
			f.Close()
			return nil, err
		}
	} else if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

func (c *Cache) moduleVersion(ctx context.Context, folder, module string) (string, error) {
	version, err := c.goCommand(ctx, folder, "list", "-m", "-f", "{{.Version}}", module)
	return strings.TrimSpace(version), err
}

func (c *Cache) goCommand(ctx context.Context, folder string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(c.Rig, folder)
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s in %s: %w\n%s", strings.Join(args, " "), cmd.Dir, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}

// CheckStatic refuses a program that needs a dynamic linker, which no
// container's root folder has.
func CheckStatic(path string) error {
	f, err := elf.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err != nil {
		return fmt.Errorf("%s is no executable of this machine: %w", path, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is linked dynamically, and a container holds no libraries; build it with CGO_ENABLED=0", path)
		}
	}
	return nil
}
