// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Key lets a client of a Tenant in. Its secret is in Secrets; gateways get its
// digest alone.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=gateway-api
// +kubebuilder:printcolumn:name="Tenant",type=string,JSONPath=`.spec.tenantRef.name`
// +kubebuilder:printcolumn:name="Expires",type=string,JSONPath=`.spec.expires`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="ResolvedRefs",type=string,JSONPath=`.status.conditions[?(@.type=="ResolvedRefs")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Key struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec KeySpec `json:"spec"`
	// +optional
	Status Conditions `json:"status,omitempty"`
}

// KeyList is a list of keys.
//
// +kubebuilder:object:root=true
type KeyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Key `json:"items"`
}

// KeySpec says whose key it is, where its secrets are, and what it may do.
type KeySpec struct {
	// TenantRef names the tenant. Another namespace than the Key's needs a
	// ReferenceGrant there (from penstock.dev Key to Tenant).
	// +required
	TenantRef TenantReference `json:"tenantRef"`
	// SecretRefs hold the key, or "sha256:" and its digest in hexadecimal. Several
	// are live at a time, for rotation.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	SecretRefs []KeySecretReference `json:"secretRefs"`
	// Tier, for conditions. Default: the tenant's.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Tier   string `json:"tier,omitempty"`
	Access `json:",inline"`
	// +optional
	NotBefore *metav1.Time `json:"notBefore,omitempty"`
	// +optional
	Expires *metav1.Time `json:"expires,omitempty"`
	// +optional
	Disabled bool `json:"disabled,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Metadata map[string]string `json:"metadata,omitempty"`
	// Limits of the key, beside those of its tenant.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Limits []Limit `json:"limits,omitempty"`
}

// TenantReference names a Tenant.
type TenantReference struct {
	// +required
	Name gatewayv1.ObjectName `json:"name"`
	// +optional
	Namespace *gatewayv1.Namespace `json:"namespace,omitempty"`
}

// KeySecretReference names a secret of a key and when it counts.
type KeySecretReference struct {
	SecretKeyReference `json:",inline"`
	// +optional
	NotBefore *metav1.Time `json:"notBefore,omitempty"`
	// Expires is the end of its grace.
	// +optional
	Expires *metav1.Time `json:"expires,omitempty"`
}
