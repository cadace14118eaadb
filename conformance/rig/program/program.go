// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package program knows which local program stands for which container image,
// and builds those programs from Go modules into a cache. There is no registry
// and no image: the name in a manifest, without tag and digest, is looked up in
// a table, which the rig's flag --image extends.
//
// [Sources] is the table; [Cache.Build] makes the programs of it.
package program

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Program is what a container runs: an executable, and arguments that go before
// those of the container.
type Program struct {
	Path string
	Args []string
}

// Source says how a program is built and which images it stands for.
type Source struct {
	Name    string
	Module  string // folder of its go.mod, below the rig's folder
	Package string
	Images  []string
	// Extra programs are built on request only: they take long and few need them.
	Extra bool
}

// Sources is the table of what the rig can build.
func Sources() []Source {
	return []Source{
		{
			Name: "echo-basic", Module: "images/gatewayapi", Package: "sigs.k8s.io/gateway-api/conformance/echo-basic",
			Images: []string{
				"registry.k8s.io/gateway-api/echo-basic",
				"gcr.io/k8s-staging-gateway-api/echo-basic",
				"us-central1-docker.pkg.dev/k8s-staging-images/gateway-api/echo-basic",
			},
		},
		{
			Name: "coredns", Module: ".", Package: "./images/coredns",
			Images: []string{"registry.k8s.io/coredns/coredns", "coredns/coredns"},
		},
		{
			Name: "penstock", Module: "../..", Package: "./cmd/penstock",
			Images: []string{"ghcr.io/penstock/penstock", "penstock"},
		},
		{
			Name: "lwepp", Module: "images/lwepp", Package: "sigs.k8s.io/gateway-api-inference-extension/cmd/lwepp",
			Images: []string{
				"registry.k8s.io/gateway-api-inference-extension/lwepp",
				"us-central1-docker.pkg.dev/k8s-staging-images/gateway-api-inference-extension/lwepp",
			},
		},
		{
			Name: "epp", Module: "images/epp", Package: "sigs.k8s.io/gateway-api-inference-extension/cmd/epp",
			Images: []string{
				"registry.k8s.io/gateway-api-inference-extension/epp",
				"us-central1-docker.pkg.dev/k8s-staging-images/gateway-api-inference-extension/epp",
			},
			Extra: true,
		},
		// For the rig's own tests.
		{Name: "apiclient", Module: ".", Package: "./images/apiclient", Images: []string{"rig.test/apiclient"}, Extra: true},
	}
}

// Table maps image names to programs.
type Table struct {
	programs map[string]Program // by name of the program
	images   map[string]Program // by name of the image, without tag
	unbuilt  map[string]string  // image → name of the program that was not built
}

// NewTable makes the table of the built programs, by name.
func NewTable(built map[string]string) *Table {
	t := &Table{programs: map[string]Program{}, images: map[string]Program{}, unbuilt: map[string]string{}}
	for name, path := range built {
		t.programs[name] = Program{Path: path}
	}
	for _, s := range Sources() {
		for _, image := range s.Images {
			if p, ok := t.programs[s.Name]; ok {
				t.images[image] = p
			} else {
				t.unbuilt[image] = s.Name
			}
		}
	}
	return t
}

// Map adds or replaces an image. mapping is IMAGE=PROGRAM [ARG...], where
// PROGRAM is the path of a static executable or the name of a built program.
func (t *Table) Map(mapping string) error {
	image, command, ok := strings.Cut(mapping, "=")
	words := strings.Fields(command)
	if !ok || image == "" || len(words) == 0 {
		return fmt.Errorf("image mapping %q: want IMAGE=PROGRAM [ARG...]", mapping)
	}
	p, ok := t.programs[words[0]]
	if !ok {
		if !strings.Contains(words[0], "/") {
			return fmt.Errorf("image mapping %q: no program %q was built; built are %s, or give a path with a slash",
				mapping, words[0], strings.Join(slices.Sorted(maps.Keys(t.programs)), ", "))
		}
		if err := CheckStatic(words[0]); err != nil {
			return fmt.Errorf("image mapping %q: %w", mapping, err)
		}
		p.Path = words[0]
	}
	p.Args = words[1:]
	t.images[imageName(image)] = p
	return nil
}

// Lookup finds the program for an image reference.
func (t *Table) Lookup(image string) (Program, error) {
	name := imageName(image)
	if p, ok := t.images[name]; ok {
		return p, nil
	}
	if source, ok := t.unbuilt[name]; ok {
		return Program{}, fmt.Errorf("image %s: the program %s was not built; start the rig with --programs +%s", name, source, source)
	}
	return Program{}, fmt.Errorf("image %s: no program stands for it; start the rig with --image %s=PROGRAM", name, name)
}

// imageName drops tag and digest. A colon before the last slash belongs to the
// registry's port.
func imageName(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
		image = image[:i]
	}
	return image
}
