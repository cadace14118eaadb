// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

const caKey = "ca.crt"

// keyPair is a certificate and its key as PEM, or why a Secret holds none.
type keyPair struct {
	cert, key string
	err       error
}

// keyPairOf reads a Secret of type kubernetes.io/tls, or an Opaque one with the
// same keys. Each is parsed once per translation.
func (x *index) keyPairOf(name types.NamespacedName) *keyPair {
	if k, ok := x.keyPairs[name]; ok {
		return k
	}
	k := &keyPair{}
	x.keyPairs[name] = k
	s, ok := x.secrets[name]
	if !ok {
		k.err = fmt.Errorf("there is no Secret %s", name)
		return k
	}
	k.cert, k.key = string(s.Data[corev1.TLSCertKey]), string(s.Data[corev1.TLSPrivateKeyKey])
	if k.cert == "" || k.key == "" {
		k.err = fmt.Errorf("the Secret %s has no %s and %s", name, corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
		return k
	}
	if _, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey]); err != nil {
		// The error of the library may quote the PEM block's type, never a key.
		k.err = fmt.Errorf("the Secret %s holds no key pair: %w", name, err)
	}
	return k
}

// keyPairRef follows a reference to a key pair; reason stands for every fault
// but a missing grant.
func (x *index) keyPairRef(from kindRef, ref gatewayv1.SecretObjectReference, reason string) (*keyPair, *problem) {
	to := kindRef{string(deref(ref.Group, "")), string(deref(ref.Kind, kindSecret)), types.NamespacedName{
		Namespace: string(deref(ref.Namespace, gatewayv1.Namespace(from.Namespace))), Name: string(ref.Name),
	}}
	if to.group != "" || to.kind != kindSecret {
		return nil, &problem{reason, fmt.Sprintf("%s of group %q is not supported; refer to a Secret", to.kind, to.group)}
	}
	// The grant is asked for first: what is not granted is not told, not even
	// whether it exists.
	if !x.permitted(from, to) {
		return nil, &problem{string(gatewayv1.ListenerReasonRefNotPermitted), notPermitted(from, to)}
	}
	k := x.keyPairOf(to.NamespacedName)
	if k.err != nil {
		return nil, &problem{reason, k.err.Error()}
	}
	return k, nil
}

func notPermitted(from, to kindRef) string {
	return fmt.Sprintf("no ReferenceGrant in namespace %s lets kind %s of namespace %s refer to %s %s", to.Namespace, from.kind, from.Namespace, to.kind, to.Name)
}

// bundleReasons are the reasons of a reference to certificate authorities.
type bundleReasons struct{ kind, ref string }

// bundles are the authorities that a policy names in its own namespace. What
// cannot be had is left out; the problem is that of the last one.
func (x *index) bundles(of kindRef, refs []gatewayv1.LocalObjectReference) (texts []string, unresolved *problem) {
	for _, ref := range refs {
		text, bad := x.bundle(of, kindRef{string(ref.Group), string(ref.Kind), types.NamespacedName{Namespace: of.Namespace, Name: string(ref.Name)}}, bundleReasons{
			kind: string(gatewayv1.BackendTLSPolicyReasonInvalidKind), ref: string(gatewayv1.BackendTLSPolicyReasonInvalidCACertificateRef),
		})
		if bad != nil {
			unresolved = bad
			continue
		}
		texts = append(texts, text)
	}
	return texts, unresolved
}

// bundle follows a reference to a ConfigMap with certificate authorities.
func (x *index) bundle(from, to kindRef, why bundleReasons) (string, *problem) {
	if to.group != "" || to.kind != kindConfigMap {
		return "", &problem{why.kind, fmt.Sprintf("%s of group %q is not supported; refer to a ConfigMap with the key %s", to.kind, to.group, caKey)}
	}
	if !x.permitted(from, to) {
		return "", &problem{string(gatewayv1.ListenerReasonRefNotPermitted), notPermitted(from, to)}
	}
	m, ok := x.configMaps[to.NamespacedName]
	if !ok {
		return "", &problem{why.ref, fmt.Sprintf("there is no ConfigMap %s", to.NamespacedName)}
	}
	text, ok := m.Data[caKey]
	if !ok {
		text = string(m.BinaryData[caKey])
	}
	clean, err := authorities(text)
	if err != nil {
		return "", &problem{why.ref, fmt.Sprintf("ConfigMap %s, key %s: %v", to.NamespacedName, caKey, err)}
	}
	return clean, nil
}

// authorities are the certificates in a PEM text, and nothing else of it.
func authorities(text string) (string, error) {
	var out []byte
	rest := []byte(text)
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return "", fmt.Errorf("holds a PEM block of type %q", block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return "", fmt.Errorf("holds a certificate that cannot be read: %w", err)
		}
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
	}
	if out == nil {
		return "", errors.New("holds no certificate")
	}
	return string(out), nil
}
