// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package kube turns Kubernetes objects into configurations of gateways and
// into status.
//
// [Translate] is a pure function: it reads no clock, does no I/O, changes none
// of its objects, and gives the same result for the same objects in whatever
// order they come. A controller, "penstock run -f DIR" and tests call it alike.
// What it yields per Gateway is a [config.Config], what is to be provisioned
// for it, and where the members of its pools come from ([Source]); and one
// [Status] for each object that has one to be written.
//
// Members are no part of a configuration: [Members] computes them from the same
// objects on a path of its own, so that a pod that comes or goes never rebuilds
// a configuration.
//
// The rules are those of the Gateway API v1.6, of the Gateway API Inference
// Extension v1.6 and of package api/v1alpha1; where a comment quotes a "must",
// it is theirs. Start reading at [Translate], in translate.go; the cases in
// testdata tell what each rule does.
package kube

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	infv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/api/v1alpha1"
	"github.com/penstock/penstock/config"
)

// ControllerName is what a GatewayClass names to be ours.
const ControllerName = "penstock.dev/gateway-controller"

// Objects is everything that a translation reads, of every namespace and class.
// The lists may be in any order and are only read. Objects are taken as the API
// server has them: with the defaults of their schemas, which [ParseManifests]
// fills in for objects that come from files.
type Objects struct {
	GatewayClasses     []*gatewayv1.GatewayClass
	Gateways           []*gatewayv1.Gateway
	ListenerSets       []*gatewayv1.ListenerSet
	HTTPRoutes         []*gatewayv1.HTTPRoute
	GRPCRoutes         []*gatewayv1.GRPCRoute
	ReferenceGrants    []*gatewayv1.ReferenceGrant
	BackendTLSPolicies []*gatewayv1.BackendTLSPolicy
	InferencePools     []*infv1.InferencePool
	Models             []*v1alpha1.Model
	GatewayPolicies    []*v1alpha1.GatewayPolicy
	Providers          []*v1alpha1.Provider
	Tenants            []*v1alpha1.Tenant
	Keys               []*v1alpha1.Key
	Namespaces         []*corev1.Namespace
	Services           []*corev1.Service
	Secrets            []*corev1.Secret
	ConfigMaps         []*corev1.ConfigMap
	EndpointSlices     []*discoveryv1.EndpointSlice // read by Members alone
	Pods               []*corev1.Pod                // read by Members alone
}

// Options are what a translation takes from its surroundings. The zero value
// works.
type Options struct {
	// Observed is what is known of the infrastructure of each Gateway. One
	// without an entry is not provisioned yet.
	Observed map[types.NamespacedName]Observed
	// Admin and Ops are the addresses of the administration interface and of
	// health and metrics in each gateway process. Empty: 127.0.0.1:9901 and
	// :9902; "off" is none. Their ports are not available to listeners.
	Admin, Ops string
	// Check adds what other packages know to be wrong with a picker profile (see
	// [config.Options].Check).
	Check func(*config.Config) []*config.Problem
	// BundleVersion is that of the installed Gateway API (the annotation
	// gateway.networking.k8s.io/bundle-version), which the condition
	// SupportedVersion of a GatewayClass judges. Empty: no such condition.
	BundleVersion string
}

// Observed is what the infrastructure of a Gateway has come to.
type Observed struct {
	// Addresses that clients reach, for the status.
	Addresses []gatewayv1.GatewayStatusAddress
	// Unusable are addresses of the Gateway's spec that cannot be had here.
	Unusable []string
	// Ready says that a process serves the Gateway.
	Ready bool
	// Refused is why processes do not take the newest configuration; empty: none
	// refuses it.
	Refused string
	// Unprovisioned is why something of the infrastructure cannot be made; empty:
	// nothing is known to be in the way.
	Unprovisioned string
	// Bind is the host on which the listeners listen; empty: every interface.
	Bind string
}

// Result is what a translation yields.
type Result struct {
	// Gateways of our classes, by namespace and name.
	Gateways []*Gateway
	// Statuses of every object that has something of ours to be written or to
	// be removed, by kind, namespace and name.
	Statuses []*Status
}

// Gateway is what one Gateway is to be.
type Gateway struct {
	types.NamespacedName
	// Config is complete and valid. It is nil while the Gateway is not
	// accepted: then what runs stays as it is, and nothing new is provisioned.
	Config         *config.Config
	Infrastructure Infrastructure
	// Sources of the members of Config's pools and of the endpoints of its
	// pickers, by set.
	Sources []*Source
}

// Infrastructure is what is to be provisioned for a Gateway.
type Infrastructure struct {
	Addresses []gatewayv1.GatewaySpecAddress // asked for; none: any
	Ports     []int32                        // TCP, ascending
	// Labels and Annotations for every object that is created; the label
	// gateway.networking.k8s.io/gateway-name is among them.
	Labels, Annotations map[string]string
	Parameters          Parameters
}

// Parameters come from the parametersRef of a Gateway or of its class: a
// ConfigMap whose keys are named here.
type Parameters struct {
	Replicas    *int32 // replicas
	MaxReplicas *int32 // maxReplicas: scaled by load from replicas up to it
	// OpenPerReplica is how many requests under way (penstock_requests_open) a
	// process is meant to carry on average, for scaling besides its CPU; 0 and nil:
	// CPU alone counts.
	OpenPerReplica *int32
	ServiceType    corev1.ServiceType // serviceType: LoadBalancer, NodePort or ClusterIP; empty: the controller's
	Records        string             // records: stdout, one line per request; off or empty: none
	// Resources of the container (resources, as in a pod, as YAML text); nil: the
	// controller's.
	Resources *corev1.ResourceRequirements
}

// Source says where the members of one set come from: pods that an
// InferencePool selects, or the endpoints of a port of a Service.
type Source struct {
	// Set is the name under which a gateway process knows the members: the name
	// of a pool of its configuration, or that of the endpoints of a pool's
	// picker (see [config.PickerSet]).
	Set       string
	Namespace string

	// Selector and Ports are set for an InferencePool.
	Selector map[string]string
	Ports    []int32

	// Service and Port are set for a Service: its name and that of the port,
	// which is empty where a Service has a single port without a name.
	Service string
	Port    string
}
