// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// file is one file of a volume.
type file struct {
	data []byte
	mode fs.FileMode
}

// fileSet is what a volume shall hold, by path below it.
type fileSet map[string]file

func (a fileSet) equal(b fileSet) bool {
	return maps.EqualFunc(a, b, func(x, y file) bool { return x.mode == y.mode && bytes.Equal(x.data, y.data) })
}

// dataLink is the symbolic link that a real kubelet switches too; programs that
// watch their files know it.
const dataLink = "..data"

// replaceFiles makes dir hold the files, all of them at once: the files lie in a
// folder of their own, the names that a program opens are links through ..data,
// and one rename of ..data switches from the old folder to the new one. A reader
// sees either state, never a certificate with the key of another.
func replaceFiles(dir string, files fileSet, group int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	fresh, err := os.MkdirTemp(dir, time.Now().UTC().Format("..2006_01_02_15_04_05."))
	if err != nil {
		return err
	}
	if err := os.Chmod(fresh, 0o755); err != nil {
		return err
	}
	for name, f := range files {
		path := filepath.Join(fresh, name)
		if !filepath.IsLocal(name) || strings.HasPrefix(name, "..") {
			return fmt.Errorf("%q is no path for a file of a volume", name)
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, f.data, 0o600); err != nil {
			return err
		}
		if group >= 0 {
			if err := os.Chown(path, -1, group); err != nil {
				return err
			}
			f.mode |= 0o440
		}
		if err := os.Chmod(path, f.mode); err != nil { // WriteFile's mode passes the umask
			return err
		}
	}
	link := filepath.Join(dir, dataLink)
	old, _ := os.Readlink(link)
	staged := link + "_tmp"
	os.Remove(staged)
	if err := os.Symlink(filepath.Base(fresh), staged); err != nil {
		return err
	}
	if err := os.Rename(staged, link); err != nil {
		return err
	}
	// Names that are new get their link after the switch, names that are gone
	// lose it: neither ever points to nothing.
	wanted := map[string]bool{}
	for name := range files {
		top, _, _ := strings.Cut(name, "/")
		wanted[top] = true
		target := filepath.Join(dir, top)
		if _, err := os.Lstat(target); err == nil {
			continue
		}
		if err := os.Symlink(filepath.Join(dataLink, top), target); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !wanted[e.Name()] && !strings.HasPrefix(e.Name(), "..") {
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	if old != "" {
		return os.RemoveAll(filepath.Join(dir, old))
	}
	return nil
}
