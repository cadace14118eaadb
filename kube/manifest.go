// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/penstock/penstock/api/v1alpha1"
)

// Manifests are objects that come from files, without a cluster.
type Manifests struct {
	Objects
	// Skipped are objects of kinds that are not read, as "file: Kind name".
	Skipped []string
}

const maxManifest = 64 << 20 // of one file

// LoadManifests reads a file, or every .yaml, .yml and .json file below a
// directory, in the order of their names; files and directories whose names
// begin with a dot are passed over.
func LoadManifests(path string) (*Manifests, error) {
	m := &Manifests{}
	var errs []error
	err := filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name != path && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		case d.IsDir(), name != path && !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)):
			return nil
		}
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		if info.Size() > maxManifest {
			return fmt.Errorf("%s is larger than %d bytes", name, maxManifest)
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := m.Parse(name, text); err != nil {
			errs = append(errs, err)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return m, nil
}

// Parse adds the objects of a YAML stream or of a JSON text; name stands for
// it in errors and in Skipped. Decoding is strict: a field that the kind does
// not have is an error. Defaults of the schemas that matter are filled in.
func (m *Manifests) Parse(name string, text []byte) error {
	var errs []error
	line := 1
	for doc := range bytes.SplitSeq(text, []byte("\n---")) {
		start := line
		line += bytes.Count(doc, []byte("\n")) + 1
		// What stands behind the dashes on their line belongs to no document.
		if start > 1 {
			_, rest, _ := bytes.Cut(doc, []byte("\n"))
			doc = rest
		}
		if err := m.document(name, start, doc); err != nil {
			errs = append(errs, fmt.Errorf("%s: document at line %d: %w", name, start, err))
		}
	}
	return errors.Join(errs...)
}

func (m *Manifests) document(name string, line int, doc []byte) error {
	if blank(doc) {
		return nil
	}
	var head struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Items             []json.RawMessage `json:"items"`
	}
	if err := yaml.Unmarshal(doc, &head); err != nil {
		return err
	}
	if head.Kind == "" || head.APIVersion == "" {
		return errors.New("is no Kubernetes object: apiVersion and kind are needed")
	}
	if strings.HasSuffix(head.Kind, "List") && head.Items != nil {
		for i, item := range head.Items {
			if err := m.document(name, line, item); err != nil {
				return fmt.Errorf("item %d: %w", i, err)
			}
		}
		return nil
	}
	add, versions := m.decoder(head.APIVersion, head.Kind)
	switch {
	case add != nil:
		if err := add(doc); err != nil {
			return fmt.Errorf("%s %s: %w", head.Kind, head.Name, err)
		}
		return nil
	case versions != "":
		return fmt.Errorf("%s %s is of %s, which is not read; write apiVersion: %s", head.Kind, head.Name, head.APIVersion, versions)
	}
	m.Skipped = append(m.Skipped, fmt.Sprintf("%s: %s %s", name, head.Kind, head.Name))
	return nil
}

// blank says that a document holds nothing but comments.
func blank(doc []byte) bool {
	for line := range bytes.Lines(doc) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("---")) {
			return false
		}
	}
	return true
}

// decoder finds how an object is read. A kind that is known with other versions
// only gives the one to use.
func (m *Manifests) decoder(apiVersion, kind string) (add func([]byte) error, versions string) {
	o := &m.Objects
	table := []struct {
		kind, apiVersion string
		add              func([]byte) error
	}{
		{kindGatewayClass, "gateway.networking.k8s.io/v1", adds(&o.GatewayClasses, "", nil)},
		{kindGateway, "gateway.networking.k8s.io/v1", adds(&o.Gateways, "default", nil)},
		{kindListenerSet, "gateway.networking.k8s.io/v1", adds(&o.ListenerSets, "default", nil)},
		{kindHTTPRoute, "gateway.networking.k8s.io/v1", adds(&o.HTTPRoutes, "default", defaultHTTPRoute)},
		{kindGRPCRoute, "gateway.networking.k8s.io/v1", adds(&o.GRPCRoutes, "default", nil)},
		{"ReferenceGrant", "gateway.networking.k8s.io/v1", adds(&o.ReferenceGrants, "default", nil)},
		{kindBackendTLSPolicy, "gateway.networking.k8s.io/v1", adds(&o.BackendTLSPolicies, "default", nil)},
		{kindInferencePool, "inference.networking.k8s.io/v1", adds(&o.InferencePools, "default", nil)},
		{kindModel, v1alpha1.GroupVersion().String(), adds(&o.Models, "default", nil)},
		{kindGatewayPolicy, v1alpha1.GroupVersion().String(), adds(&o.GatewayPolicies, "default", nil)},
		{kindProvider, v1alpha1.GroupVersion().String(), adds(&o.Providers, "default", nil)},
		{kindTenant, v1alpha1.GroupVersion().String(), adds(&o.Tenants, "default", nil)},
		{kindKey, v1alpha1.GroupVersion().String(), adds(&o.Keys, "default", nil)},
		{"Namespace", "v1", adds(&o.Namespaces, "", nil)},
		{kindService, "v1", adds(&o.Services, "default", nil)},
		{kindSecret, "v1", adds(&o.Secrets, "default", defaultSecret)},
		{kindConfigMap, "v1", adds(&o.ConfigMaps, "default", nil)},
		{"EndpointSlice", "discovery.k8s.io/v1", adds(&o.EndpointSlices, "default", nil)},
		{"Pod", "v1", adds(&o.Pods, "default", nil)},
	}
	group := func(apiVersion string) string {
		g, _, ok := strings.Cut(apiVersion, "/")
		if !ok {
			return ""
		}
		return g
	}
	for _, row := range table {
		if row.kind != kind || group(row.apiVersion) != group(apiVersion) {
			continue
		}
		// The kinds of gateway.networking.k8s.io that were in v1beta1 had the
		// same shape there.
		if row.apiVersion == apiVersion || apiVersion == gatewayGroup+"/v1beta1" {
			return row.add, ""
		}
		return nil, row.apiVersion
	}
	return nil, ""
}

// adds decodes an object into a list. namespace is that of an object that has
// none; empty: the kind has none.
func adds[T any, P object[T]](list *[]P, namespace string, defaults func(P)) func([]byte) error {
	return func(doc []byte) error {
		o := P(new(T))
		if err := yaml.UnmarshalStrict(doc, o); err != nil {
			return errors.New(strings.TrimPrefix(strings.TrimPrefix(err.Error(), "error unmarshaling JSON: "), "while decoding JSON: "))
		}
		if o.GetName() == "" {
			return errors.New("has no metadata.name")
		}
		switch {
		case namespace == "":
			o.SetNamespace("")
		case o.GetNamespace() == "":
			o.SetNamespace(namespace)
		}
		if o.GetGeneration() == 0 {
			o.SetGeneration(1)
		}
		for _, other := range *list {
			if nameOf(other) == nameOf(o) {
				return fmt.Errorf("is there already, in namespace %q", o.GetNamespace())
			}
		}
		if defaults != nil {
			defaults(o)
		}
		*list = append(*list, o)
		return nil
	}
}

// defaultHTTPRoute gives a route without rules the one of its schema, which
// matches every path.
func defaultHTTPRoute(r *gatewayv1.HTTPRoute) {
	if r.Spec.Rules == nil {
		r.Spec.Rules = []gatewayv1.HTTPRouteRule{{}}
	}
}

// defaultSecret merges stringData, which the API server does on writing.
func defaultSecret(s *corev1.Secret) {
	for k, v := range s.StringData {
		if s.Data == nil {
			s.Data = map[string][]byte{}
		}
		s.Data[k] = []byte(v)
	}
	s.StringData = nil
}
