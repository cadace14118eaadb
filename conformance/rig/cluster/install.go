// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

// Install applies the manifests of the folders, in the order of their file
// names, and waits until every custom resource definition among them is served.
// Only cluster-wide kinds that extend the API are taken; others are an error,
// because a folder of definitions is what the caller meant.
func (c *ControlPlane) Install(ctx context.Context, dirs ...string) error {
	client, err := dynamic.NewForConfig(c.REST)
	if err != nil {
		return err
	}
	var definitions []string
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
		if err != nil {
			return err
		}
		if len(files) == 0 {
			return fmt.Errorf("%s holds no *.yaml", dir)
		}
		for _, file := range files {
			if filepath.Base(file) == "kustomization.yaml" {
				continue
			}
			names, err := apply(ctx, client, file)
			if err != nil {
				return fmt.Errorf("apply %s: %w", file, err)
			}
			definitions = append(definitions, names...)
		}
	}
	for _, name := range definitions {
		if err := waitEstablished(ctx, client, name); err != nil {
			return fmt.Errorf("wait for the definition %s: %w", name, err)
		}
	}
	return nil
}

var resources = map[schema.GroupKind]string{
	{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}:                 "customresourcedefinitions",
	{Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicy"}:        "validatingadmissionpolicies",
	{Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicyBinding"}: "validatingadmissionpolicybindings",
}

var definitionResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// apply returns the names of the custom resource definitions in the file.
func apply(ctx context.Context, client dynamic.Interface, file string) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var definitions []string
	documents := yaml.NewYAMLOrJSONDecoder(f, 64<<10)
	for {
		object := &unstructured.Unstructured{}
		if err := documents.Decode(&object.Object); errors.Is(err, io.EOF) {
			return definitions, nil
		} else if err != nil {
			return nil, err
		}
		if len(object.Object) == 0 {
			continue
		}
		gvk := object.GroupVersionKind()
		resource, ok := resources[gvk.GroupKind()]
		if !ok {
			return nil, fmt.Errorf("%s %s is no extension of the API", gvk.Kind, object.GetName())
		}
		unstructured.RemoveNestedField(object.Object, "status")
		_, err = client.Resource(gvk.GroupVersion().WithResource(resource)).
			Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: "rig", Force: true})
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", gvk.Kind, object.GetName(), err)
		}
		if resource == definitionResource.Resource {
			definitions = append(definitions, object.GetName())
		}
	}
}

func waitEstablished(ctx context.Context, client dynamic.Interface, name string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	w, err := client.Resource(definitionResource).Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String(),
	})
	if err != nil {
		return err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			return apierrors.FromObject(event.Object)
		}
		if definition, ok := event.Object.(*unstructured.Unstructured); ok && established(definition) {
			return nil
		}
	}
	return ctx.Err()
}

func established(definition *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions")
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && m["type"] == "Established" && m["status"] == string(metav1.ConditionTrue) {
			return true
		}
	}
	return false
}
