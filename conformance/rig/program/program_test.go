// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package program_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/conformance/rig/program"
)

func TestLookup(t *testing.T) {
	table := program.NewTable(map[string]string{"penstock": "/cache/penstock", "echo-basic": "/cache/echo"})
	for _, mapping := range []string{
		"registry.k8s.io/gateway-api-inference-extension/lwepp:v1=penstock epp --flag",
		"localhost:5000/mine=echo-basic",
	} {
		if err := table.Map(mapping); err != nil {
			t.Fatal(err)
		}
	}
	for image, want := range map[string]program.Program{
		"ghcr.io/penstock/penstock":                                    {Path: "/cache/penstock"},
		"ghcr.io/penstock/penstock:v1.2.3":                             {Path: "/cache/penstock"},
		"registry.k8s.io/gateway-api/echo-basic:v1@sha256:00":          {Path: "/cache/echo"},
		"registry.k8s.io/gateway-api-inference-extension/lwepp:v1.6.0": {Path: "/cache/penstock", Args: []string{"epp", "--flag"}},
		"localhost:5000/mine":                                          {Path: "/cache/echo"},
	} {
		got, err := table.Lookup(image)
		if err != nil || got.Path != want.Path || !slices.Equal(got.Args, want.Args) {
			t.Errorf("%s: %+v, %v; want %+v", image, got, err, want)
		}
	}
	for image, want := range map[string]string{
		"registry.k8s.io/gateway-api-inference-extension/epp:v1.5.0": "--programs +epp",
		"example.com/nobody:1": "--image example.com/nobody=PROGRAM",
	} {
		if _, err := table.Lookup(image); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", image, err, want)
		}
	}
	for _, bad := range []string{"", "image", "image=", "=echo-basic", "image=unbuilt", "image=/no/such/file"} {
		if err := table.Map(bad); err == nil {
			t.Errorf("mapping %q is taken", bad)
		}
	}
}
