// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Header checks that every file begins with the given lines and a blank one,
// so that they are not taken for the package comment.
func Header(m *Module, lines ...string) []Violation {
	want := strings.Join(lines, "\n") + "\n\n"
	var vs []Violation
	m.each(func(_ *Package, f *File) {
		if !strings.HasPrefix(f.Source, want) {
			vs = append(vs, Violation{f.Name + ":1", "does not begin with the SPDX lines and a blank line"})
		}
	})
	return vs
}

// PackageComments checks that each package has exactly one comment, in the
// file named after the package, beginning "Package name" ("Command name" for
// a command, whose file is main.go).
func PackageComments(m *Module) []Violation {
	var vs []Violation
	for _, p := range m.Packages {
		if len(p.Code()) == 0 {
			continue
		}
		file, start := path.Join(p.Dir, p.Name+".go"), "Package "+p.Name+" "
		if p.Name == "main" {
			file, start = path.Join(p.Dir, "main.go"), "Command "+path.Base(p.Dir)+" "
		}
		found := 0
		for _, f := range p.Code() {
			if f.AST.Doc == nil {
				continue
			}
			found++
			if f.Name != file {
				vs = append(vs, Violation{f.Name, "holds a package comment, which belongs in " + file})
			}
			if text := f.AST.Doc.Text(); !strings.HasPrefix(text, start) {
				vs = append(vs, Violation{f.Name, fmt.Sprintf("the package comment does not begin with %q", start)})
			}
		}
		if found == 0 {
			vs = append(vs, Violation{p.Dir, "has no package comment"})
		}
	}
	sortViolations(vs)
	return vs
}

// Names checks that no package has one of the banned names or the name of
// another package, that its name is that of its folder, and that no type ends
// in a banned suffix.
func Names(m *Module, packages, suffixes []string) []Violation {
	var vs []Violation
	first := map[string]string{}
	for _, p := range m.Packages {
		if p.Name != "" && p.Name != "main" {
			if slices.Contains(packages, p.Name) {
				vs = append(vs, Violation{p.Dir, "package name " + p.Name + " says nothing"})
			}
			if p.Dir != "." && p.Name != path.Base(p.Dir) {
				vs = append(vs, Violation{p.Dir, "package " + p.Name + " is not named after its folder"})
			}
			if other, ok := first[p.Name]; ok {
				vs = append(vs, Violation{p.Dir, "package name " + p.Name + " is taken by " + other})
			} else {
				first[p.Name] = p.Dir
			}
		}
		for _, f := range p.Files {
			for _, t := range types(f) {
				for _, s := range suffixes {
					if strings.HasSuffix(t.Name.Name, s) {
						vs = append(vs, Violation{m.at(t), "type " + t.Name.Name + " ends in " + s})
					}
				}
			}
		}
	}
	sortViolations(vs)
	return vs
}
