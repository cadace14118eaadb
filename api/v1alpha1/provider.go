// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Provider is a managed model API with the accounts at it. Models lead to it by
// providerRef.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=gateway-api
// +kubebuilder:printcolumn:name="Dialect",type=string,JSONPath=`.spec.dialect`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="ResolvedRefs",type=string,JSONPath=`.status.conditions[?(@.type=="ResolvedRefs")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Provider struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec ProviderSpec `json:"spec"`
	// +optional
	Status Conditions `json:"status,omitempty"`
}

// ProviderList is a list of providers.
//
// +kubebuilder:object:root=true
type ProviderList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Provider `json:"items"`
}

// Conditions are the status of a Provider, Tenant or Key: Accepted says that it
// is valid and in force, ResolvedRefs that what it refers to is there.
type Conditions struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ProviderSpec says where a provider is and how it is asked. The fields mean
// what those of the same names mean in the file form (docs/providers.md).
type ProviderSpec struct {
	// Dialect that the API speaks. Default: openai.
	// +optional
	// +kubebuilder:default=openai
	// +kubebuilder:validation:Enum=openai;azure;anthropic;gemini;vertex;bedrock;cohere
	Dialect string `json:"dialect,omitempty"`
	// BaseURL of the API; empty: the dialect's own. An address that is not public,
	// or plain HTTP, needs the consent of the Gateway: its GatewayPolicy's
	// providers.private.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	BaseURL string `json:"baseURL,omitempty"`
	// Quirks of a server that is compatible with OpenAI's; empty: by its host.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Quirks string `json:"quirks,omitempty"`
	// Region of bedrock and vertex, and for prices.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Region string `json:"region,omitempty"`
	// Project of vertex.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Project string `json:"project,omitempty"`
	// APIVersion of azure's classic paths.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	APIVersion string `json:"apiVersion,omitempty"`
	// Credentials are the accounts; requests are spread over them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Credentials []ProviderCredential `json:"credentials,omitempty"`
	// PriceList is LiteLLM's name for the provider in price lists; empty: by
	// dialect.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	PriceList string `json:"priceList,omitempty"`
	// Prices of its models. They come before those of lists.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Prices []Price `json:"prices,omitempty"`
	// Timeouts that differ from those of the Gateway.
	// +optional
	Timeouts *Timeouts `json:"timeouts,omitempty"`
}

// ProviderCredential is an account at a provider.
type ProviderCredential struct {
	// Name in metrics and records; empty: its place in the list, from 1.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`
	Name string `json:"name,omitempty"`
	// SecretRef holds the key of the account.
	// +required
	SecretRef SecretKeyReference `json:"secretRef"`
	// Weight is the share among the credentials; 0: only when no other is left.
	// Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	Weight *int32 `json:"weight,omitempty"`
	// Organization of openai.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Organization string `json:"organization,omitempty"`
	// Project of openai.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Project string `json:"project,omitempty"`
	// AccessKeyID of bedrock: requests are signed with it and the secret.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	AccessKeyID string `json:"accessKeyID,omitempty"`
	// SessionTokenRef of bedrock.
	// +optional
	SessionTokenRef *SecretKeyReference `json:"sessionTokenRef,omitempty"`
	// Limits of what is sent with it; over them the next credential or target is
	// asked.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Limits []Limit `json:"limits,omitempty"`
}

// SecretKeyReference names a key of a Secret in the namespace of the object that
// refers to it. The Secret needs the label penstock.dev/credential: "true", by
// which its owner says that it is meant for gateways: of others the controller
// keeps no more than certificates.
type SecretKeyReference struct {
	// +required
	Name gatewayv1.ObjectName `json:"name"`
	// Key of the Secret's data. Default: key.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	Key string `json:"key,omitempty"`
}

// Amount is an amount of USD as a decimal number.
//
// +kubebuilder:validation:Pattern=`^[0-9]{1,7}(\.[0-9]{1,12})?$`
type Amount string

// Price is what a model costs: USD per million tokens but for perRequest. A rate
// that is not given is taken for the one that docs/prices.md names, or is unknown.
type Price struct {
	// Model, or a pattern with one *; empty: every model.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Model string `json:"model,omitempty"`
	// From is the first day (UTC) on which it counts, as 2026-12-31.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}$`
	From string `json:"from,omitempty"`
	// +optional
	Input Amount `json:"input,omitempty"`
	// +optional
	CacheRead Amount `json:"cacheRead,omitempty"`
	// +optional
	CacheWrite Amount `json:"cacheWrite,omitempty"`
	// +optional
	CacheWrite1h Amount `json:"cacheWrite1h,omitempty"`
	// +optional
	Output Amount `json:"output,omitempty"`
	// +optional
	Reasoning Amount `json:"reasoning,omitempty"`
	// PerRequest is in USD.
	// +optional
	PerRequest Amount `json:"perRequest,omitempty"`
}
