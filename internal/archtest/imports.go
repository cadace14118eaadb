// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"fmt"
	"slices"
	"strings"
)

// Order says which folders of the module each folder may import directly.
type Order map[string][]string

// ParseOrder reads lines of the form
//
//	config llm < usage pool
//
// which lets usage and pool import config and llm, and nothing more: lines add
// up, but the order is not transitive. "none" on the left lets the right
// import nothing, "everything" lets it import all. A folder stands for those
// below it too unless they have a line of their own. Text after # is a comment.
func ParseOrder(text string) (Order, error) {
	o := Order{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		line, _, _ = strings.Cut(line, "#")
		if strings.TrimSpace(line) == "" {
			continue
		}
		left, right, ok := strings.Cut(line, "<")
		if !ok || strings.Contains(right, "<") || len(strings.Fields(left)) == 0 || len(strings.Fields(right)) == 0 {
			return nil, fmt.Errorf("archtest: order line %d: want \"left < right\", got %q", n, strings.TrimSpace(line))
		}
		for _, r := range strings.Fields(right) {
			for _, l := range strings.Fields(left) {
				if l == "none" {
					l = r // a package may always import itself (its tests do)
				}
				o[r] = append(o[r], l)
			}
		}
	}
	if cycle := o.cycle(); cycle != "" {
		return nil, fmt.Errorf("archtest: order has a cycle through %s", cycle)
	}
	return o, nil
}

// cycle names a folder on a cycle, or "".
func (o Order) cycle() string {
	const visiting, done = 1, 2
	state := map[string]int{}
	var visit func(string) string
	visit = func(n string) string {
		switch state[n] {
		case visiting:
			return n
		case done:
			return ""
		}
		state[n] = visiting
		for _, l := range o[n] {
			if l == n {
				continue
			}
			if c := visit(l); c != "" {
				return c
			}
		}
		state[n] = done
		return ""
	}
	for n := range o {
		if c := visit(n); c != "" {
			return c
		}
	}
	return ""
}

// entry finds the line for dir: its own or that of the nearest folder above.
func (o Order) entry(dir string) ([]string, bool) {
	for d := dir; ; {
		if l, ok := o[d]; ok {
			return l, true
		}
		i := strings.LastIndexByte(d, '/')
		if i < 0 {
			return nil, false
		}
		d = d[:i]
	}
}

// Imports checks the order. Code may import what the order says. Tests may
// import more, but not what closedToTests names. A folder the order lacks is a
// violation: a new package needs a place first.
func Imports(m *Module, o Order, closedToTests ...string) []Violation {
	var vs []Violation
	for _, p := range m.Packages {
		allowed, ok := o.entry(p.Dir)
		if !ok {
			vs = append(vs, Violation{p.Dir, "has no line in the import order"})
			continue
		}
		for _, f := range p.Files {
			for _, imp := range f.Imports() {
				dir, ok := strings.CutPrefix(imp, m.Path+"/")
				if !ok || dir == p.Dir {
					continue
				}
				if f.Test {
					if slices.ContainsFunc(closedToTests, func(c string) bool { return within(dir, c) }) && !slices.Contains(allowed, "everything") {
						vs = append(vs, Violation{f.Name, "a test here may not import " + dir})
					}
					continue
				}
				if !slices.ContainsFunc(allowed, func(a string) bool { return a == "everything" || within(dir, a) }) {
					vs = append(vs, Violation{f.Name, fmt.Sprintf("may not import %s (allowed: %s)", dir, strings.Join(allowed, " "))})
				}
			}
		}
	}
	sortViolations(vs)
	return vs
}

// within says whether dir is top or below it.
func within(dir, top string) bool { return dir == top || strings.HasPrefix(dir, top+"/") }

// Forbidden is an import path that only some folders may use.
type Forbidden struct {
	Path   string   // import path; it stands for those below it too
	Exact  bool     // the path alone, not those below it
	Only   []string // folders that may
	Tests  bool     // test files may
	Reason string
}

// ForbiddenImports checks direct imports, of tests too.
func ForbiddenImports(m *Module, list []Forbidden) []Violation {
	var vs []Violation
	for _, fb := range list {
		if strings.TrimSpace(fb.Reason) == "" {
			vs = append(vs, Violation{fb.Path, "is forbidden without a reason"})
		}
	}
	m.each(func(p *Package, f *File) {
		for _, imp := range f.Imports() {
			for _, fb := range list {
				hit := within(imp, fb.Path)
				if fb.Exact {
					hit = imp == fb.Path
				}
				if !hit || fb.Tests && f.Test || slices.ContainsFunc(fb.Only, func(o string) bool { return within(p.Dir, o) }) {
					continue
				}
				vs = append(vs, Violation{f.Name, fmt.Sprintf("imports %s: %s", imp, fb.Reason)})
			}
		}
	})
	sortViolations(vs)
	return vs
}

// StandardOnly checks that the code of the folders imports the standard
// library and the named folders of the module alone.
func StandardOnly(m *Module, dirs map[string][]string) []Violation {
	var vs []Violation
	m.each(func(p *Package, f *File) {
		if f.Test {
			return
		}
		for top, own := range dirs {
			if !within(p.Dir, top) {
				continue
			}
			for _, imp := range f.Imports() {
				dir, inModule := strings.CutPrefix(imp, m.Path+"/")
				first, _, _ := strings.Cut(imp, "/")
				switch {
				case inModule && (within(dir, top) || slices.Contains(own, dir)):
				case inModule || strings.Contains(first, "."):
					vs = append(vs, Violation{f.Name, "imports " + imp + ": " + top + " uses the standard library only"})
				}
			}
		}
	})
	sortViolations(vs)
	return vs
}
