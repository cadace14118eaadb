// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
)

// Options are what [LoadWith] and [ParseWith] take from their surroundings.
// The zero value works.
type Options struct {
	// Check adds what other packages know to be wrong with the configuration.
	// Paths are whole ones (pickers[0].config.plugins[2].type; see
	// [Problem.Under]); positions are completed, also into picker files. It is
	// called only when the configuration is valid otherwise.
	Check func(*Config) []*Problem
	// Advise is like Check about what is valid and yet perhaps not what is meant;
	// it goes to Advice, with positions, when the configuration is valid.
	Advise func(*Config) []*Problem
	Advice *Problems
	// Env looks up variables; nil: the environment of the process.
	Env func(name string) (string, bool)
	// ReadFile reads the picker and price files that the configuration names; nil: from
	// disk, plain files of at most 4 MiB.
	ReadFile func(path string) ([]byte, error)
	// Unlistened takes a file that lists no listener of any kind, and then no
	// models either: whoever runs it says where it is reached.
	Unlistened bool
}

// Load reads, expands, decodes, defaults and validates the file at path.
// Its error is a Problems value when the content is at fault.
func Load(path string) (*Config, error) { return LoadWith(path, Options{}) }

// LoadWith is Load with options.
func LoadWith(path string, o Options) (*Config, error) {
	text, err := readBounded(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return ParseWith(path, text, o)
}

// readBounded reads any kind of file, one byte beyond the bound at most.
func readBounded(path string) ([]byte, error) {
	// Not to wait for whoever writes to a named pipe: nothing would be read
	// again, neither this file nor a later one.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

// Parse is Load over text; name stands for the file in positions, and relative
// paths in the text are relative to its directory.
func Parse(name string, text []byte) (*Config, error) { return ParseWith(name, text, Options{}) }

// ParseWith is Parse with options.
func ParseWith(name string, text []byte, o Options) (*Config, error) {
	if o.Env == nil {
		o.Env = os.LookupEnv
	}
	if o.ReadFile == nil {
		o.ReadFile = func(path string) ([]byte, error) { return readRegular(path, maxFile) }
	}
	root, ps := readTree(name, text)
	if root == nil {
		return nil, ps
	}
	l := loader{name: name, root: root, pickers: map[int]*document{}}
	d := newDecoder(name, &expander{env: o.Env})
	c := &Config{}
	setDefaults(reflect.ValueOf(c).Elem())
	d.decode(root, reflect.ValueOf(c).Elem(), scope{})
	if len(d.problems) == 1 && d.problems[0].Path == "" {
		return nil, d.problems // the document as a whole is of the wrong shape
	}
	c.derive()
	l.problems, l.faulty = d.problems, d.faulty
	l.readPickers(c, o.ReadFile)
	l.readPrices(c, o.ReadFile)
	v := validator{c: c, skip: l.isFaulty, unlistened: o.Unlistened}
	v.all()
	l.place(v.problems)
	if len(l.problems) == 0 && o.Check != nil {
		l.place(o.Check(c))
	}
	if len(l.problems) > 0 {
		return nil, l.sorted()
	}
	if o.Advise != nil && o.Advice != nil {
		l.place(o.Advise(c))
		*o.Advice = l.sorted()
	}
	return c, nil
}

func newDecoder(name string, e *expander) *decoder {
	dir, err := filepath.Abs(filepath.Dir(name))
	if err != nil {
		dir = filepath.Dir(name)
	}
	return &decoder{file: name, dir: dir, expand: e}
}

// document is a further file, which holds a part of the configuration.
type document struct {
	name string
	root *node
}

// loader gathers the problems of one load and knows the places of paths.
type loader struct {
	name     string
	root     *node
	pickers  map[int]*document // by index in Config.Pickers
	problems Problems
	faulty   []string
}

// isFaulty says that the value at path, or a part or a parent of it, could not
// be decoded: whatever is found out about it now only follows from that.
func (l *loader) isFaulty(path string) bool {
	return slices.ContainsFunc(l.faulty, func(f string) bool { return within(path, f) || within(f, path) })
}

// readPickers reads the file of every picker that has one.
func (l *loader) readPickers(c *Config, read func(string) ([]byte, error)) {
	for i := range c.Pickers {
		p := &c.Pickers[i]
		path := joinIndex("pickers", i)
		if p.File == "" || l.isFaulty(path+".file") {
			continue
		}
		fail := func(what, hint string) {
			l.place([]*Problem{{Path: path + ".file", What: what, Hint: hint}})
			l.faulty = append(l.faulty, path)
		}
		if p.Config != nil {
			fail("picker has a file and a config", "set one of them")
			continue
		}
		text, err := read(p.File)
		if err != nil {
			fail("picker file cannot be read: "+reason(err), "a relative path starts at the directory of this file")
			continue
		}
		root, ps := readTree(p.File, text)
		if root == nil {
			l.problems = append(l.problems, ps...)
			l.faulty = append(l.faulty, path)
			continue
		}
		l.pickers[i] = &document{name: p.File, root: root}
		// The file has the shape of another project: what looks like a
		// variable is its own.
		d := newDecoder(p.File, nil)
		p.Config = &EndpointPickerConfig{}
		d.decode(root, reflect.ValueOf(p.Config).Elem(), scope{})
		for _, key := range []string{"apiVersion", "kind"} {
			if len(d.problems) == 0 && !root.has(key) {
				d.fail(root.line, root.col, key, "is missing", "the file must begin with apiVersion: llm-d.ai/v1alpha1 and kind: EndpointPickerConfig")
			}
		}
		l.problems = append(l.problems, d.problems...)
		for _, f := range d.faulty {
			l.faulty = append(l.faulty, joinPath(path+".config", f))
		}
		setDefaults(reflect.ValueOf(p.Config).Elem())
	}
}

// place completes problems that have only a path and takes them over.
func (l *loader) place(ps []*Problem) {
	for _, p := range ps {
		c := *p
		doc, path := &document{name: l.name, root: l.root}, c.Path
		for i, d := range l.pickers {
			if base := joinIndex("pickers", i) + ".config"; within(path, base) {
				doc, path = d, strings.TrimPrefix(strings.TrimPrefix(path, base), ".")
			}
		}
		if c.File == "" {
			c.File, c.Path = doc.name, path
		}
		if c.Line == 0 {
			c.Line, c.Col = doc.root.place(path)
		}
		l.problems = append(l.problems, &c)
	}
}

// sorted are the problems in file order, the main file first, without repeats.
func (l *loader) sorted() Problems {
	slices.SortStableFunc(l.problems, func(a, b *Problem) int {
		if a.File != b.File {
			if a.File == l.name {
				return -1
			}
			if b.File == l.name {
				return 1
			}
		}
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	out := slices.CompactFunc(l.problems, func(a, b *Problem) bool { return *a == *b })
	if more := len(out) - maxProblems; more > 0 {
		last := *out[maxProblems]
		last.Path, last.What, last.Hint = "", fmt.Sprintf("%d more problems from here on", more), "mend the ones above first"
		out = append(out[:maxProblems], &last)
	}
	return out
}

// Validate checks a complete configuration that did not come from a file; its
// error is a Problems value without positions. See [Config.SetDefaults].
func (c *Config) Validate() error {
	v := validator{c: c, skip: func(string) bool { return false }}
	v.all()
	if len(v.problems) == 0 {
		return nil
	}
	return v.problems
}

// AsProblems is the list inside err, or nil if err is of another kind.
func AsProblems(err error) Problems {
	var ps Problems
	var p *Problem
	switch {
	case errors.As(err, &ps):
		return ps
	case errors.As(err, &p):
		return Problems{p}
	}
	return nil
}
