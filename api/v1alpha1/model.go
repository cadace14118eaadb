// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Model is one or more model names that clients may ask a Gateway for, and
// where requests for them go.
//
// It is a route: it attaches to the listeners of its parents, whose
// allowedRoutes must admit kind Model of group penstock.dev (they do unless
// kinds are listed), on the hostnames that both name. It serves the model APIs
// at their usual paths; an HTTPRoute on the same hostname serves the other
// paths.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=gateway-api
// +kubebuilder:printcolumn:name="Models",type=string,JSONPath=`.spec.names`
// +kubebuilder:printcolumn:name="Alias",type=string,JSONPath=`.spec.alias`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.parents[*].conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="ResolvedRefs",type=string,JSONPath=`.status.parents[*].conditions[?(@.type=="ResolvedRefs")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Model struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec ModelSpec `json:"spec"`
	// Status is as that of a route: one entry per parent.
	// +optional
	Status gatewayv1.RouteStatus `json:"status,omitempty"`
}

// ModelList is a list of models.
//
// +kubebuilder:object:root=true
type ModelList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Model `json:"items"`
}

// ModelSpec says which names are served and by what.
//
// +kubebuilder:validation:XValidation:message="set one of targets and alias",rule="has(self.targets) != has(self.alias)"
// +kubebuilder:validation:XValidation:message="an alias has no fallbacks, reportModel, timeouts and retries of its own: set them at the model it points to",rule="!has(self.alias) || !(has(self.fallbacks) || has(self.reportModel) || has(self.timeouts) || has(self.retries))"
// +kubebuilder:validation:XValidation:message="an alias may not point to itself",rule="!has(self.alias) || !has(self.names) || !self.names.exists(n, n == self.alias)"
type ModelSpec struct {
	// ParentRefs are the Gateways, or ListenerSets, that serve these names.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:message="a parent is a Gateway or a ListenerSet",rule="self.all(p, (!has(p.group) || p.group == 'gateway.networking.k8s.io') && (!has(p.kind) || p.kind == 'Gateway' || p.kind == 'ListenerSet'))"
	ParentRefs []gatewayv1.ParentReference `json:"parentRefs"`

	// Hostnames on which the names are served: exact, or with "*" as the
	// leftmost label. None: every hostname of the listeners.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Hostnames []gatewayv1.Hostname `json:"hostnames,omitempty"`

	// Names that clients ask for; several are served alike, as the adapters of
	// one base model are. None: the name of this object.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Names []ModelName `json:"names,omitempty"`

	// Alias lets the names stand for another model that the same Gateway
	// serves: moving it is the roll-out, moving it back the roll-back.
	// +optional
	Alias ModelName `json:"alias,omitempty"`

	// Targets share the requests by their weights.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:message="one target needs a weight above 0",rule="self.exists(t, !has(t.weight) || t.weight > 0)"
	Targets []ModelTarget `json:"targets,omitempty"`

	// Fallbacks follow, in this order, when no target can serve a request.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Fallbacks []ModelFallback `json:"fallbacks,omitempty"`

	// ReportModel says which name answers carry: the one asked for, or the one
	// that served. Default: asked.
	// +optional
	// +kubebuilder:validation:Enum=asked;served
	ReportModel string `json:"reportModel,omitempty"`

	// Timeouts that differ from those of the Gateway.
	// +optional
	Timeouts *Timeouts `json:"timeouts,omitempty"`

	// Retries that differ from those of the Gateway.
	// +optional
	Retries *Retries `json:"retries,omitempty"`
}

// ModelName is the name of a model as it stands in requests.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=256
// +kubebuilder:validation:Pattern=`^[^\x00-\x20\x7f*"\\]+$`
type ModelName string

// ModelTarget is one place that serves a model.
//
// +kubebuilder:validation:XValidation:message="set one of poolRef and providerRef",rule="has(self.poolRef) != has(self.providerRef)"
type ModelTarget struct {
	// PoolRef names an InferencePool.
	// +optional
	PoolRef *PoolReference `json:"poolRef,omitempty"`
	// ProviderRef names a Provider.
	// +optional
	ProviderRef *ProviderReference `json:"providerRef,omitempty"`

	// Model is the name that the pool's servers know. Empty: the name asked
	// for.
	// +optional
	Model ModelName `json:"model,omitempty"`

	// Weight is the share among the targets; 0 is none. Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	Weight *int32 `json:"weight,omitempty"`
}

// ModelFallback is a place that serves a model when its targets fail.
//
// +kubebuilder:validation:XValidation:message="set one of poolRef and providerRef",rule="has(self.poolRef) != has(self.providerRef)"
type ModelFallback struct {
	// PoolRef names an InferencePool.
	// +optional
	PoolRef *PoolReference `json:"poolRef,omitempty"`
	// ProviderRef names a Provider.
	// +optional
	ProviderRef *ProviderReference `json:"providerRef,omitempty"`
	// Model is the name there. Empty: the name asked for.
	// +optional
	Model ModelName `json:"model,omitempty"`
	// Classes of failures that lead to it. Default: general.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=3
	// +kubebuilder:validation:items:Enum=general;contextWindow;contentPolicy
	Classes []string `json:"classes,omitempty"`
}

// ProviderReference names a Provider (penstock.dev/v1alpha1).
type ProviderReference struct {
	// +required
	Name gatewayv1.ObjectName `json:"name"`

	// Namespace of the provider; another one than the Model's needs a
	// ReferenceGrant there (from penstock.dev Model to Provider).
	// +optional
	Namespace *gatewayv1.Namespace `json:"namespace,omitempty"`
}

// PoolReference names an InferencePool (inference.networking.k8s.io/v1).
type PoolReference struct {
	// +required
	Name gatewayv1.ObjectName `json:"name"`

	// Namespace of the pool; another one than the Model's needs a
	// ReferenceGrant there (from penstock.dev Model to InferencePool).
	// +optional
	Namespace *gatewayv1.Namespace `json:"namespace,omitempty"`
}

// Timeouts bound the phases of a request to a model.
type Timeouts struct {
	// Connect bounds the making of a connection to a model server.
	// +optional
	Connect *gatewayv1.Duration `json:"connect,omitempty"`
	// FirstToken bounds the time from the end of the upload to the first byte
	// of a stream.
	// +optional
	FirstToken *gatewayv1.Duration `json:"firstToken,omitempty"`
	// Idle bounds the time between two pieces of a stream.
	// +optional
	Idle *gatewayv1.Duration `json:"idle,omitempty"`
	// Total bounds the whole request, retries included.
	// +optional
	Total *gatewayv1.Duration `json:"total,omitempty"`
}

// Retries bound the attempts at one request to a model.
type Retries struct {
	// Attempts in all, the first included.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Attempts *int32 `json:"attempts,omitempty"`
	// BudgetPercent is how many retries there may be per hundred requests; with
	// attempts: 1 there are none.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	BudgetPercent *int32 `json:"budgetPercent,omitempty"`
}
