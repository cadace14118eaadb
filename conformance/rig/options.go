// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/penstock/penstock/conformance/rig/program"
)

// settings is what the rig inside its namespaces must know. It is passed as
// JSON.
type settings struct {
	ControlPlane string            // path of the program
	Programs     map[string]string // path by name
	Images       []string          // mappings IMAGE=PROGRAM
	CRDs         []string          // folders
	State        string            // a folder to mount the rig's files on
	Logs         string            // of the control plane; below State if empty
	Verbose      bool

	// Command is run when the rig is up; without one it stays up.
	Command []string
	// Up is where to leave what a person outside needs; empty for run.
	Up string
	// Forwards are the targets of the listeners that are passed as files.
	Forwards []string
}

// list is a flag that may be given more than once.
type list []string

func (l *list) String() string     { return strings.Join(*l, " ") }
func (l *list) Set(v string) error { *l = append(*l, v); return nil }

// folders is where the rig finds and keeps things.
type folders struct {
	source string // of the rig
	cache  string
}

func findFolders() (folders, error) {
	source := os.Getenv("PENSTOCK_RIG_SOURCE")
	if source == "" {
		out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
		if err != nil {
			return folders{}, errors.New("the folder of the rig's sources is not known; start the rig with conformance/rig/rig.sh")
		}
		source = strings.TrimSpace(string(out))
	}
	if _, err := os.Stat(filepath.Join(source, "controlplane", "go.mod")); err != nil {
		return folders{}, fmt.Errorf("%s is not the folder of the rig's sources; start the rig with conformance/rig/rig.sh", source)
	}
	root := os.Getenv("PENSTOCK_CACHE")
	if root == "" {
		root = filepath.Join(source, "..", "..", ".cache")
	}
	cache, err := filepath.Abs(filepath.Join(root, "rig"))
	return folders{source: source, cache: cache}, err
}

// extra are the flags of single commands.
type extra struct {
	forwards list
	rest     []string
}

// prepare reads the flags and builds what the rig will run.
func prepare(ctx context.Context, name string, args []string) (*settings, *extra, error) {
	where, err := findFolders()
	if err != nil {
		return nil, nil, err
	}
	s := &settings{State: filepath.Join(where.cache, "mnt")}
	more := &extra{}
	flags := flag.NewFlagSet("rig "+name, flag.ContinueOnError)
	var images, crds list
	programs := flags.String("programs", "", "comma-separated `names` of the programs to build for images; +NAME adds to the usual ones")
	penstock := flags.String("penstock", "", "`path` of the penstock program (static) instead of building cmd/penstock")
	flags.Var(&images, "image", "`IMAGE=PROGRAM [ARG...]`: run PROGRAM, a path or the name of a built program, for pods with IMAGE (any tag); may be repeated")
	flags.Var(&crds, "crds", "`folder` with further custom resource definitions; may be repeated")
	flags.BoolVar(&s.Verbose, "v", false, "say more about pods and Services")
	if name == "run" {
		flags.StringVar(&s.Logs, "logs", "", "`folder` to keep the logs of the control plane in")
	}
	if name == "up" {
		flags.Var(&more.forwards, "forward", "`PORT=ADDRESS:PORT`: forward 127.0.0.1:PORT of this machine to an address in the rig; may be repeated")
	}
	if err := flags.Parse(args); err != nil {
		return nil, nil, err
	}
	more.rest = flags.Args()
	s.Images = images

	cache := &program.Cache{Dir: filepath.Join(where.cache, "bin"), Rig: where.source, Report: os.Stderr}
	if s.ControlPlane, err = cache.ControlPlane(ctx); err != nil {
		return nil, nil, err
	}
	sources, err := choose(*programs, *penstock != "")
	if err != nil {
		return nil, nil, err
	}
	if s.Programs, err = cache.Build(ctx, sources); err != nil {
		return nil, nil, err
	}
	if *penstock != "" {
		if err := program.CheckStatic(*penstock); err != nil {
			return nil, nil, err
		}
		if s.Programs["penstock"], err = filepath.Abs(*penstock); err != nil {
			return nil, nil, err
		}
	}
	// A mistake in a mapping is told before anything starts.
	table := program.NewTable(s.Programs)
	for _, mapping := range images {
		if err := table.Map(mapping); err != nil {
			return nil, nil, err
		}
	}
	s.CRDs, err = definitions(ctx, cache, crds)
	return s, more, err
}

// choose picks the programs to build.
func choose(names string, penstockGiven bool) ([]program.Source, error) {
	all := program.Sources()
	wanted := map[string]bool{}
	usual := names == "" || strings.HasPrefix(names, "+")
	for _, s := range all {
		wanted[s.Name] = usual && !s.Extra
	}
	for name := range strings.SplitSeq(names, ",") {
		name = strings.TrimPrefix(name, "+")
		if name == "" {
			continue
		}
		if _, ok := wanted[name]; !ok {
			return nil, fmt.Errorf("--programs: no program %q", name)
		}
		wanted[name] = true
	}
	return slices.DeleteFunc(all, func(s program.Source) bool {
		return !wanted[s.Name] || s.Name == "penstock" && penstockGiven
	}), nil
}

// definitions lists the folders of the custom resource definitions: those of
// the pinned modules, then the caller's.
func definitions(ctx context.Context, cache *program.Cache, more []string) ([]string, error) {
	gatewayAPI, err := cache.ModuleDir(ctx, "sigs.k8s.io/gateway-api")
	if err != nil {
		return nil, err
	}
	inference, err := cache.ModuleDir(ctx, "sigs.k8s.io/gateway-api-inference-extension")
	if err != nil {
		return nil, err
	}
	dirs := []string{filepath.Join(gatewayAPI, "config/crd/experimental"), filepath.Join(inference, "config/crd/bases")}
	for _, dir := range more {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("--crds: %w", err)
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}
