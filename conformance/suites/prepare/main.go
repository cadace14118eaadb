// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Command prepare applies manifests to the cluster that KUBECONFIG names and
// waits until a GatewayClass is accepted:
//
//	prepare [-class NAME] [-timeout 2m] FILE_OR_FOLDER...
//
// With -dry-run the API server checks them, strictly, and nothing but their
// namespaces is made; kinds that it does not know are named and left out.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

func main() {
	class := flag.String("class", "penstock", "the GatewayClass to wait for; empty: none")
	dry := flag.Bool("dry-run", false, "have the API server check the objects, and make nothing but their namespaces")
	timeout := flag.Duration("timeout", 2*time.Minute, "the longest wait")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	if *dry {
		*class = ""
	}
	if err := prepare(ctx, *class, *dry, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "prepare:", err)
		os.Exit(1)
	}
}

func prepare(ctx context.Context, class string, dry bool, paths []string) error {
	cfg, err := config.GetConfig()
	if err != nil {
		return err
	}
	c, err := client.New(cfg, client.Options{})
	if err != nil {
		return err
	}
	if err := gatewayv1.Install(c.Scheme()); err != nil {
		return err
	}
	for _, path := range paths {
		files := []string{path}
		if info, err := os.Stat(path); err != nil {
			return err
		} else if info.IsDir() {
			if files, err = filepath.Glob(filepath.Join(path, "*.yaml")); err != nil {
				return err
			}
			slices.Sort(files)
		}
		for _, file := range files {
			do := apply
			if dry {
				do = check
			}
			if err := each(file, func(o *unstructured.Unstructured) error { return do(ctx, c, o) }); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	if class == "" {
		return nil
	}
	return accepted(ctx, c, class)
}

// each calls do with every object of a file.
func each(file string, do func(*unstructured.Unstructured) error) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	for d := yaml.NewYAMLOrJSONDecoder(f, 4096); ; {
		object := &unstructured.Unstructured{}
		if err := d.Decode(object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if len(object.Object) == 0 {
			continue
		}
		if err := do(object); err != nil {
			return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
}

const owner = client.FieldOwner("prepare")

// apply makes or changes an object. One whose kind has just been defined may not
// be served yet: it is tried again until ctx ends.
func apply(ctx context.Context, c client.Client, object *unstructured.Unstructured) error {
	for {
		err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), owner, client.ForceOwnership)
		if err == nil || !meta.IsNoMatchError(err) || !pause(ctx) {
			return err
		}
	}
}

// check has the API server say whether it would take an object.
func check(ctx context.Context, c client.Client, object *unstructured.Unstructured) error {
	if name := object.GetNamespace(); name != "" {
		namespace := &unstructured.Unstructured{}
		namespace.SetAPIVersion("v1")
		namespace.SetKind("Namespace")
		namespace.SetName(name)
		if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(namespace), owner); err != nil {
			return err
		}
	}
	err := c.Patch(ctx, object, client.Apply, owner, client.ForceOwnership, client.DryRunAll, client.FieldValidation("Strict"))
	if meta.IsNoMatchError(err) {
		fmt.Printf("not checked: %s %s of %s, which this cluster does not know\n", object.GetKind(), object.GetName(), object.GetAPIVersion())
		return nil
	}
	if err == nil {
		fmt.Printf("taken: %s %s\n", object.GetKind(), object.GetName())
	}
	return err
}

func accepted(ctx context.Context, c client.Client, name string) error {
	for {
		class := &gatewayv1.GatewayClass{}
		err := c.Get(ctx, client.ObjectKey{Name: name}, class)
		if err == nil && meta.IsStatusConditionPresentAndEqual(class.Status.Conditions, string(gatewayv1.GatewayClassConditionStatusAccepted), metav1.ConditionTrue) {
			return nil
		}
		if !pause(ctx) {
			return fmt.Errorf("GatewayClass %s is not accepted: %v, %+v", name, err, class.Status.Conditions)
		}
	}
}

// pause waits a little; false: ctx has ended.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(200 * time.Millisecond):
		return true
	}
}
