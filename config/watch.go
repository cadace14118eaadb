// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	settleFor  = 200 * time.Millisecond // quiet time after a change
	settleMost = 2 * time.Second        // a change is told after so long at the latest
	pollEvery  = 5 * time.Second
)

// Watch calls changed when the file at path, or a file that it names
// (secrets, pickers), may have changed; it settles bursts. It blocks, ends
// with ctx and then returns nil. What changed before the call is not seen, so
// begin to watch before the first Load.
//
// Directories are watched, since editors put a new file in place of the old
// one and Kubernetes swaps a symbolic link. Contents are also compared every
// five seconds, for file systems that do not notify; where there is no
// notification at all, only that remains. changed runs on the caller's
// goroutine and should be short.
func Watch(ctx context.Context, path string, changed func()) error {
	w := watched{path: path}
	events := make(<-chan fsnotify.Event)
	faults := make(<-chan error)
	if n, err := fsnotify.NewWatcher(); err == nil {
		defer n.Close()
		w.notify, events, faults = n, n.Events, n.Errors
	}
	w.scan()
	settle(ctx, events, faults, w.scan, changed)
	return nil
}

// settle is the loop of Watch: after an event it waits for quiet, and it looks
// from time to time without any event; changed follows if scan says so.
func settle(ctx context.Context, events <-chan fsnotify.Event, faults <-chan error, scan func() bool, changed func()) {
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	quiet := time.NewTimer(time.Hour)
	quiet.Stop()
	defer quiet.Stop()
	var first time.Time // of the events not yet told; zero: none
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			if first.IsZero() {
				first = time.Now()
			}
			quiet.Reset(min(settleFor, max(0, settleMost-time.Since(first))))
			continue
		case _, ok := <-faults: // an overflow: something was missed
			if !ok {
				faults = nil
				continue
			}
		case <-poll.C:
			if !first.IsZero() {
				continue // the timer is about to look
			}
		case <-quiet.C:
			first = time.Time{}
		}
		if scan() && ctx.Err() == nil {
			changed()
		}
	}
}

// watched is the set of files behind one configuration.
type watched struct {
	path   string
	notify *fsnotify.Watcher // nil: polling only
	named  []string
	dirs   []string
	sum    [sha256.Size]byte
}

// scan reads the files again and says whether any content differs from the
// last time. It also follows files that the configuration newly names.
func (w *watched) scan() bool {
	h := sha256.New()
	text, err := readBounded(w.path)
	hash := func(name string, text []byte, err error) {
		io.WriteString(h, name+"\x00")
		if err != nil {
			io.WriteString(h, "missing")
		} else {
			sum := sha256.Sum256(text)
			h.Write(sum[:])
		}
	}
	hash(w.path, text, err)
	if err == nil {
		if named, ok := namedFiles(w.path, text); ok {
			w.named = named // a file that cannot be read keeps the last set
		}
	}
	for _, name := range w.named {
		text, err := readRegular(name, maxFile)
		hash(name, text, err)
	}
	w.follow()
	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	same := sum == w.sum
	w.sum = sum
	return !same
}

// follow watches the directory of every file, and of what a link leads to.
func (w *watched) follow() {
	if w.notify == nil {
		return
	}
	var dirs []string
	for _, name := range append([]string{w.path}, w.named...) {
		dirs = append(dirs, filepath.Dir(name))
		if real, err := filepath.EvalSymlinks(name); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	slices.Sort(dirs)
	dirs = slices.Compact(dirs)
	for _, dir := range w.dirs {
		if !slices.Contains(dirs, dir) {
			_ = w.notify.Remove(dir) // it may be gone already
		}
	}
	for _, dir := range dirs {
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			_ = w.notify.Add(dir) // again if it is new; else polling covers it
		}
	}
	w.dirs = dirs
}

// namedFiles are the files that this package reads for a configuration. ok is
// false where text is not YAML at all.
func namedFiles(path string, text []byte) (files []string, ok bool) {
	root, _ := readTree(path, text)
	if root == nil {
		return nil, false
	}
	d := newDecoder(path, &expander{env: os.LookupEnv})
	d.walkFiles(root, reflect.TypeFor[Config](), &files)
	slices.Sort(files)
	return slices.Compact(files), true
}

func (d *decoder) walkFiles(n *node, t reflect.Type, files *[]string) {
	if t == secretType {
		if text, ok := d.text(n, ""); ok && n.kind == textKind && strings.HasPrefix(n.text, "file:") {
			*files = append(*files, d.absolute(strings.TrimPrefix(text, "file:")))
		}
		return
	}
	switch t.Kind() {
	case reflect.Pointer:
		d.walkFiles(n, t.Elem(), files)
	case reflect.Slice:
		for _, item := range n.items {
			d.walkFiles(item, t.Elem(), files)
		}
	case reflect.Map:
		for _, e := range n.entries {
			d.walkFiles(e.value, t.Elem(), files)
		}
	case reflect.Struct:
		for _, e := range n.entries {
			f, ok := fieldOf(t, e.key)
			if !ok {
				continue
			}
			if f.Tag.Get("file") != "read" {
				d.walkFiles(e.value, f.Type, files)
			} else if text, ok := d.text(e.value, ""); ok && e.value.kind == textKind && text != "" {
				*files = append(*files, d.absolute(text))
			}
		}
	}
}
