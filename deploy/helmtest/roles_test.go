// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package helmtest_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/penstock/penstock/kube"
)

// granted are rules, a line per verb on a resource.
func granted(rules []rbacv1.PolicyRule) []string {
	var out []string
	for _, r := range rules {
		names := r.ResourceNames
		if names == nil {
			names = []string{""}
		}
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					for _, name := range names {
						out = append(out, line(verb, group, resource, name))
					}
				}
			}
		}
		if len(r.NonResourceURLs) > 0 {
			out = append(out, fmt.Sprint(r.NonResourceURLs))
		}
	}
	slices.Sort(out)
	return out
}

func line(verb, group, resource, name string) string {
	return strings.TrimSpace(verb + " " + resource + "." + group + " " + name)
}

// asked is a table of access in the same form. pools are the names to which an
// InferencePool is narrowed.
func asked(table []kube.Access, pool string) []string {
	var out []string
	for _, a := range table {
		names := a.Names
		if a.Resource == "inferencepools" && pool != "" {
			names = []string{pool}
		}
		if names == nil {
			names = []string{""}
		}
		for _, verb := range a.Verbs {
			for _, name := range names {
				out = append(out, line(verb, a.Group, a.Resource, name))
			}
		}
		if a.Why == "" {
			out = append(out, "no reason: "+a.Resource)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// TestRoles holds each role to the calls that are made: no fewer and no more.
func TestRoles(t *testing.T) {
	controller, local := kube.ControllerAccess(), kube.LocalAccess()
	for _, c := range []struct {
		values, role string
		want         []string
	}{
		{"", "*v1.ClusterRole penstock-controller", asked(controller, "")},
		{"", "*v1.Role penstock-controller", asked(kube.ControllerOwnAccess(), "")},
		{allInOne, "*v1.ClusterRole penstock", asked(local, "")},
		{eppValues, "*v1.Role llama-epp", asked(kube.PickerAccess(false), "llama")},
		{everything, "*v1.Role llama-epp", asked(kube.PickerAccess(false), "llama")},
		{everything, "*v1.Role qwen-epp", asked(kube.PickerAccess(true), "qwen")},
	} {
		text, err := render(c.values)
		if err != nil {
			t.Fatal(err)
		}
		var rules []rbacv1.PolicyRule
		found := 0
		for _, o := range decode(t, text) {
			if fmt.Sprintf("%T %s", o, o.GetName()) != c.role {
				continue
			}
			found++
			switch o := o.(type) {
			case *rbacv1.ClusterRole:
				rules = o.Rules
			case *rbacv1.Role:
				rules = o.Rules
			}
		}
		if found != 1 {
			t.Errorf("%s is there %d times", c.role, found)
		}
		if diff := cmp.Diff(c.want, granted(rules)); diff != "" {
			t.Errorf("%s (-called +granted):\n%s", c.role, diff)
		}
	}
}

// TestArguments gives the arguments of every container to the program, which
// must know each flag.
func TestArguments(t *testing.T) {
	program := filepath.Join(t.TempDir(), "penstock")
	build := exec.Command("go", "build", "-o", program, "./cmd/penstock")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, values := range []string{"", everything, allInOne, eppValues} {
		text, err := render(values)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range decode(t, text) {
			d, ok := o.(*appsv1.Deployment)
			if !ok {
				continue
			}
			for _, c := range d.Spec.Template.Spec.Containers {
				// What is unknown is an error before help is printed.
				out, err := exec.Command(program, append(c.Args, "--help")...).CombinedOutput()
				if err != nil || !strings.Contains(string(out), "penstock "+c.Args[0]) {
					t.Errorf("%s: penstock %s: %v\n%s", d.Name, strings.Join(c.Args, " "), err, out)
				}
			}
		}
	}
}
