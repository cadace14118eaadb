// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// GatewayPolicy sets what the Gateway API and InferencePool leave open: for a
// Gateway its timeouts, retries and limits, for an InferencePool its picker and
// what its servers are. It is a direct policy in its target's namespace; of two
// with the same target the older one holds.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=gateway-api
// +kubebuilder:metadata:labels=gateway.networking.k8s.io/policy=Direct
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.targetRef.kind`
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.targetRef.name`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.ancestors[*].conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="ResolvedRefs",type=string,JSONPath=`.status.ancestors[*].conditions[?(@.type=="ResolvedRefs")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GatewayPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec GatewayPolicySpec `json:"spec"`
	// Status has one entry per Gateway that is concerned.
	// +optional
	Status gatewayv1.PolicyStatus `json:"status,omitempty"`
}

// GatewayPolicyList is a list of policies.
//
// +kubebuilder:object:root=true
type GatewayPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []GatewayPolicy `json:"items"`
}

// GatewayPolicySpec is what a policy sets. Fields for the other kind of target
// are refused.
//
// +kubebuilder:validation:XValidation:message="timeouts, retries, limits, providers, prices and quota are for a Gateway",rule="self.targetRef.kind == 'Gateway' || !(has(self.timeouts) || has(self.retries) || has(self.limits) || has(self.providers) || has(self.prices) || has(self.quota))"
// +kubebuilder:validation:XValidation:message="picker, engine, metrics and isolation are for an InferencePool",rule="self.targetRef.kind == 'InferencePool' || !(has(self.picker) || has(self.engine) || has(self.metrics) || has(self.isolation))"
type GatewayPolicySpec struct {
	// +required
	TargetRef PolicyTarget `json:"targetRef"`

	// Timeouts of requests to models, where the model sets none.
	// +optional
	Timeouts *Timeouts `json:"timeouts,omitempty"`
	// Retries of requests to models, where the model sets none.
	// +optional
	Retries *Retries `json:"retries,omitempty"`
	// Limits bound what one client can make the Gateway hold.
	// +optional
	Limits *Limits `json:"limits,omitempty"`

	// Providers is what the Gateway allows to Providers that Models lead to.
	// +optional
	Providers *ProvidersPolicy `json:"providers,omitempty"`
	// Prices are lists of prices.
	// +optional
	Prices *PricesPolicy `json:"prices,omitempty"`
	// Quota is where the use of limits is counted. Default: in each process of the
	// Gateway, so that a Gateway of n processes lets in n times the limit.
	// +optional
	Quota *QuotaPolicy `json:"quota,omitempty"`

	// Picker is how a member of the pool is chosen.
	// +optional
	Picker *PickerPolicy `json:"picker,omitempty"`
	// Engine names the servers whose metrics are read. Default: auto.
	// +optional
	// +kubebuilder:validation:Enum=auto;vllm;sglang;trtllm
	Engine string `json:"engine,omitempty"`
	// Metrics is how the pool's members are read.
	// +optional
	Metrics *MetricsPolicy `json:"metrics,omitempty"`
	// Isolation keeps tenants apart in the servers' prompt caches. Default:
	// none.
	// +optional
	// +kubebuilder:validation:Enum=none;salt;partition
	Isolation string `json:"isolation,omitempty"`
}

// PolicyTarget names the object that a policy is about, in its own namespace.
//
// +kubebuilder:validation:XValidation:message="a target is a Gateway of gateway.networking.k8s.io or an InferencePool of inference.networking.k8s.io",rule="(self.group == 'gateway.networking.k8s.io' && self.kind == 'Gateway') || (self.group == 'inference.networking.k8s.io' && self.kind == 'InferencePool')"
type PolicyTarget struct {
	// +required
	Group gatewayv1.Group `json:"group"`
	// +required
	Kind gatewayv1.Kind `json:"kind"`
	// +required
	Name gatewayv1.ObjectName `json:"name"`
}

// Limits bound what one client can make the Gateway hold.
type Limits struct {
	// Body of a request, after decompression.
	// +optional
	Body *resource.Quantity `json:"body,omitempty"`
	// BodiesInFlight of all requests together; over it they get 503.
	// +optional
	BodiesInFlight *resource.Quantity `json:"bodiesInFlight,omitempty"`
	// Headers of a request.
	// +optional
	Headers *resource.Quantity `json:"headers,omitempty"`
	// Streams is the most concurrent requests of one HTTP/2 connection.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Streams *int32 `json:"streams,omitempty"`
	// Connections of clients at a time.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000000
	Connections *int32 `json:"connections,omitempty"`
	// Drain is how long streams may go on when a Gateway's process ends.
	// +optional
	Drain *gatewayv1.Duration `json:"drain,omitempty"`
}

// ProvidersPolicy is what a Gateway allows.
type ProvidersPolicy struct {
	// Private lets Providers have addresses that are not public, and plain HTTP.
	// Whoever may make Providers can then have the Gateway call what it can reach.
	// +optional
	Private bool `json:"private,omitempty"`
	// Anonymous lets a Gateway without a Tenant lead to Providers: whoever reaches
	// it spends their money.
	// +optional
	Anonymous bool `json:"anonymous,omitempty"`
}

// PricesPolicy are lists of prices.
type PricesPolicy struct {
	// ConfigMapRefs are ConfigMaps in the policy's namespace with a list in the
	// key prices.yaml (docs/prices.md) or prices.json (LiteLLM's format). The first
	// that has a price counts.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	ConfigMapRefs []gatewayv1.LocalObjectReference `json:"configMapRefs,omitempty"`
	// Unknown says what becomes of requests whose price is not known. Default:
	// allow.
	// +optional
	// +kubebuilder:validation:Enum=allow;refuse
	Unknown string `json:"unknown,omitempty"`
}

// QuotaPolicy is where the use of limits is counted.
type QuotaPolicy struct {
	// Output is the bound on the tokens of an answer to a request that states none.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000
	Output *int32 `json:"output,omitempty"`
	// Redis is a Redis or Valkey that all processes share.
	// +optional
	Redis *RedisPolicy `json:"redis,omitempty"`
}

// RedisPolicy is a Redis or Valkey, or a cluster of them.
type RedisPolicy struct {
	// Addresses as host:port.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Addresses []string `json:"addresses"`
	// Cluster: the addresses are nodes of one cluster.
	// +optional
	Cluster bool `json:"cluster,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Username string `json:"username,omitempty"`
	// PasswordRef is a Secret in the policy's namespace.
	// +optional
	PasswordRef *SecretKeyReference `json:"passwordRef,omitempty"`
	// TLS speaks TLS to it, verified by the system's authorities or those of
	// caCertificateRefs.
	// +optional
	TLS bool `json:"tls,omitempty"`
	// CACertificateRefs are ConfigMaps in the policy's namespace whose key ca.crt
	// holds the authorities.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	CACertificateRefs []gatewayv1.LocalObjectReference `json:"caCertificateRefs,omitempty"`
	// Prefix of its keys. Default: penstock.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Prefix string `json:"prefix,omitempty"`
}

// PickerPolicy is how a member of a pool is chosen.
//
// +kubebuilder:validation:XValidation:message="set one of profile and config",rule="!(has(self.profile) && has(self.config))"
type PickerPolicy struct {
	// Profile is a built-in profile of the Gateway's own picker. It means
	// nothing for a pool with an endpointPickerRef.
	// +optional
	// +kubebuilder:validation:Enum=default;expected-cost;lmetric;llm-d-sticky;llm-d-blend;least-request;round-robin;random
	Profile string `json:"profile,omitempty"`
	// Config is a profile in the shape of an EndpointPickerConfig (llm-d.ai/v1alpha1).
	// It means nothing for a pool with an endpointPickerRef.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields

	Config *runtime.RawExtension `json:"config,omitempty"`
	// OnInvalidPick is what becomes of a request whose picker named no member
	// of the pool. Default: fallback.
	// +optional
	// +kubebuilder:validation:Enum=fallback;reject
	OnInvalidPick string `json:"onInvalidPick,omitempty"`
	// Timeout of a decision of the pool's endpoint picker.
	// +optional
	Timeout *gatewayv1.Duration `json:"timeout,omitempty"`
	// TLS says how the pool's endpoint picker proves itself. Absent: it is
	// spoken to over TLS and its certificate is not verified, as endpoint
	// pickers sign their own.
	// +optional
	TLS *PickerTLS `json:"tls,omitempty"`
}

// PickerTLS verifies an endpoint picker.
//
// +kubebuilder:validation:XValidation:message="set caCertificateRefs, or plaintext",rule="has(self.caCertificateRefs) != (has(self.plaintext) && self.plaintext)"
type PickerTLS struct {
	// CACertificateRefs are ConfigMaps in the policy's namespace whose key
	// ca.crt holds the authorities.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	CACertificateRefs []gatewayv1.LocalObjectReference `json:"caCertificateRefs,omitempty"`
	// Hostname that the certificate must bear. Default: NAME.NAMESPACE.svc of
	// the picker's Service.
	// +optional
	Hostname gatewayv1.PreciseHostname `json:"hostname,omitempty"`
	// Plaintext says that the picker speaks no TLS.
	// +optional
	Plaintext bool `json:"plaintext,omitempty"`
}

// MetricsPolicy is how the members of a pool are read.
type MetricsPolicy struct {
	// Path of the metrics page.
	// +optional
	// +kubebuilder:validation:Pattern=`^/[^?#%*\\; ]*$`
	// +kubebuilder:validation:MaxLength=256
	Path string `json:"path,omitempty"`
	// Interval between two readings of a member.
	// +optional
	Interval *gatewayv1.Duration `json:"interval,omitempty"`
	// Disabled reads nothing: the Gateway's own counts must do.
	// +optional
	Disabled bool `json:"disabled,omitempty"`
}
