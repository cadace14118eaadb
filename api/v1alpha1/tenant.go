// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Tenant is an organisation, team or project that may ask Gateways of its
// namespace for models. A Gateway that a Tenant names asks every request to a
// [Key], even while the Tenant is not valid.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=gateway-api
// +kubebuilder:printcolumn:name="Parent",type=string,JSONPath=`.spec.parent`
// +kubebuilder:printcolumn:name="Gateways",type=string,JSONPath=`.spec.gateways`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="ResolvedRefs",type=string,JSONPath=`.status.conditions[?(@.type=="ResolvedRefs")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Tenant struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec TenantSpec `json:"spec"`
	// +optional
	Status Conditions `json:"status,omitempty"`
}

// TenantList is a list of tenants.
//
// +kubebuilder:object:root=true
type TenantList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Tenant `json:"items"`
}

// TenantSpec says where a tenant stands and what it may do. The fields mean what
// those of the same names mean in the file form (docs/keys.md, docs/limits.md).
//
// +kubebuilder:validation:XValidation:message="set one of gateways and parent",rule="has(self.gateways) != has(self.parent)"
type TenantSpec struct {
	// Gateways of this namespace at which the tenant and those below it may ask.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Gateways []gatewayv1.ObjectName `json:"gateways,omitempty"`
	// Parent is the Tenant of this namespace that it is below.
	// +optional
	Parent gatewayv1.ObjectName `json:"parent,omitempty"`
	// Kind of the level. Default: the one below the parent's, from organisation on.
	// +optional
	// +kubebuilder:validation:Enum=organisation;team;project
	Kind string `json:"kind,omitempty"`
	// Tier, for conditions. Default: the parent's.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Tier string `json:"tier,omitempty"`
	// Regions are the only ones in which its requests may be processed.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Regions []string `json:"regions,omitempty"`
	Access  `json:",inline"`
	// Metadata is for conditions on routing (docs/models.md).
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Metadata map[string]string `json:"metadata,omitempty"`
	// Limits of all its keys together.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Limits []Limit `json:"limits,omitempty"`
}

// Access is what may be asked for, and from where.
type Access struct {
	// Models that may be asked for: names, or patterns with one *. None: every
	// model that is allowed to the levels above.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=128
	Models []string `json:"models,omitempty"`
	// Deny are models that may not, whatever models says.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=128
	Deny []string `json:"deny,omitempty"`
	// Sources are CIDR blocks or addresses of clients; none: any.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Sources []string `json:"sources,omitempty"`
}

// Limit bounds use. Exactly one unit is set.
//
// +kubebuilder:validation:XValidation:message="set exactly one of requests, input, output, tokens, usd and concurrency",rule="[has(self.requests), has(self.input), has(self.output), has(self.tokens), has(self.usd), has(self.concurrency)].filter(x, x).size() == 1"
// +kubebuilder:validation:XValidation:message="a limit has a window: set per (concurrency has none)",rule="has(self.per) != has(self.concurrency)"
type Limit struct {
	// +optional
	// +kubebuilder:validation:Minimum=1
	Requests *int64 `json:"requests,omitempty"`
	// Input tokens.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Input *int64 `json:"input,omitempty"`
	// Output tokens.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Output *int64 `json:"output,omitempty"`
	// Tokens of input and output.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Tokens *int64 `json:"tokens,omitempty"`
	// USD by the prices.
	// +optional
	USD Amount `json:"usd,omitempty"`
	// Concurrency is requests under way.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Concurrency *int64 `json:"concurrency,omitempty"`
	// Per is the window: a duration as 1m, or minute, hour, day, week, month, year
	// of the calendar.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Per string `json:"per,omitempty"`
	// Zone of a calendar's window. Default: UTC.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Zone string `json:"zone,omitempty"`
	// Models that it counts: names, or patterns with one *. None: all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Models []string `json:"models,omitempty"`
	// Mode: enforce refuses, shadow tells in records and metrics. Default: enforce.
	// +optional
	// +kubebuilder:validation:Enum=enforce;shadow
	Mode string `json:"mode,omitempty"`
	// SoftPercent is the part of the limit from which on answers warn.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	SoftPercent *int32 `json:"softPercent,omitempty"`
	// Oversize says what becomes of a request that is larger than the whole limit:
	// reject, or debt. Default: reject.
	// +optional
	// +kubebuilder:validation:Enum=reject;debt
	Oversize string `json:"oversize,omitempty"`
	// OnStoreFailure says what happens while the shared store is away. Default:
	// failClosed.
	// +optional
	// +kubebuilder:validation:Enum=failClosed;failOpen
	OnStoreFailure string `json:"onStoreFailure,omitempty"`
	// SharePercent is the part of the limit that one gateway process lets in alone
	// meanwhile, with failOpen.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	SharePercent *int32 `json:"sharePercent,omitempty"`
}
