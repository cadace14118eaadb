// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 holds the Kubernetes types of the API group penstock.dev:
// what a Gateway that serves models needs and the Gateway API cannot say.
//
// [Model] is a route by the name of a model, which stands in the body of a
// request. [GatewayPolicy] sets what the Gateway API and InferencePool leave
// open, for a Gateway or for an InferencePool. [Provider] is a managed model API;
// [Tenant] and [Key] say who may ask a Gateway, and how much.
//
// Package kube says what the types mean; the schemas with their rules are in
// deploy/crds (make generate).
//
// +kubebuilder:object:generate=true
// +groupName=penstock.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of this package, Version its version.
const (
	Group   = "penstock.dev"
	Version = "v1alpha1"
)

// GroupVersion is group and version as one value.
func GroupVersion() schema.GroupVersion { return schema.GroupVersion{Group: Group, Version: Version} }

// AddToScheme makes the types of this package known to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	gv := GroupVersion()
	s.AddKnownTypes(gv, &Model{}, &ModelList{}, &GatewayPolicy{}, &GatewayPolicyList{},
		&Provider{}, &ProviderList{}, &Tenant{}, &TenantList{}, &Key{}, &KeyList{})
	metav1.AddToGroupVersion(s, gv)
	return nil
}
