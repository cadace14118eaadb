// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	infv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/api/v1alpha1"
	"github.com/penstock/penstock/kube"
)

// kind is one kind that is watched: of each object that is kept only what is
// used, and most changes of objects change nothing that is.
type kind struct {
	name     string
	resource schema.GroupVersionResource
	sample   object // of the type
	optional bool   // its definition may be missing
	fields   string // field selector
	labels   string // label selector
	strip    func(object)
	// matters says whether a change between two stripped objects matters.
	matters func(old, new object) bool
	// status says that there is a status of ours in it.
	status bool
}

// kinds are all that is read. Services, Pods and EndpointSlices are the cluster
// owner's; of these and of Secrets and ConfigMaps a cluster has many.
func kinds() []kind {
	gateway := func(name, plural string, sample object, optional, status bool) kind {
		return kind{name: name, resource: schema.GroupVersion(gatewayv1.GroupVersion).WithResource(plural), sample: sample, optional: optional, status: status, matters: specMatters}
	}
	own := func(name, plural string, sample object) kind {
		return kind{name: name, resource: v1alpha1.GroupVersion().WithResource(plural), sample: sample, optional: true, status: true, matters: specMatters}
	}
	core := corev1.SchemeGroupVersion
	return []kind{
		gateway("GatewayClass", "gatewayclasses", &gatewayv1.GatewayClass{}, false, true),
		gateway("Gateway", "gateways", &gatewayv1.Gateway{}, false, true),
		gateway("HTTPRoute", "httproutes", &gatewayv1.HTTPRoute{}, false, true),
		gateway("GRPCRoute", "grpcroutes", &gatewayv1.GRPCRoute{}, true, true),
		gateway("ListenerSet", "listenersets", &gatewayv1.ListenerSet{}, true, true),
		gateway("ReferenceGrant", "referencegrants", &gatewayv1.ReferenceGrant{}, true, false),
		gateway("BackendTLSPolicy", "backendtlspolicies", &gatewayv1.BackendTLSPolicy{}, true, true),
		{name: "InferencePool", resource: schema.GroupVersion(infv1.GroupVersion).WithResource("inferencepools"), sample: &infv1.InferencePool{}, optional: true, status: true, matters: specMatters},
		own("Model", "models", &v1alpha1.Model{}),
		own("GatewayPolicy", "gatewaypolicies", &v1alpha1.GatewayPolicy{}),
		own("Provider", "providers", &v1alpha1.Provider{}),
		own("Tenant", "tenants", &v1alpha1.Tenant{}),
		own("Key", "keys", &v1alpha1.Key{}),
		{name: "Namespace", resource: core.WithResource("namespaces"), sample: &corev1.Namespace{}, strip: stripNamespace,
			matters: func(old, new object) bool { return !maps.Equal(old.GetLabels(), new.GetLabels()) }},
		{name: "Service", resource: core.WithResource("services"), sample: &corev1.Service{}, strip: stripService, matters: serviceMatters},
		{name: "Secret", resource: core.WithResource("secrets"), sample: &corev1.Secret{}, fields: notKeyPairs(), strip: stripSecret,
			matters: func(old, new object) bool {
				return !reflect.DeepEqual(old.(*corev1.Secret).Data, new.(*corev1.Secret).Data) || !maps.Equal(old.GetLabels(), new.GetLabels())
			}},
		{name: "ConfigMap", resource: core.WithResource("configmaps"), sample: &corev1.ConfigMap{}, strip: stripConfigMap,
			matters: func(old, new object) bool {
				return !maps.Equal(old.(*corev1.ConfigMap).Data, new.(*corev1.ConfigMap).Data)
			}},
		// A pod that has ended is none, and there may be many of Jobs.
		{name: "Pod", resource: core.WithResource("pods"), sample: &corev1.Pod{}, fields: "status.phase!=Succeeded,status.phase!=Failed", strip: stripPod, matters: podMatters},
		{name: "EndpointSlice", resource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), sample: &discoveryv1.EndpointSlice{}, strip: stripSlice, matters: sliceMatters},
		{name: "Deployment", resource: appsv1.SchemeGroupVersion.WithResource("deployments"), sample: &appsv1.Deployment{}, labels: managedBy + "=" + managedByUs, strip: stripDeployment, matters: specMatters},
	}
}

// notKeyPairs leaves out Secrets of types that cannot be the key pair of a
// listener, which is of type kubernetes.io/tls or Opaque. The largest are those
// of Helm.
func notKeyPairs() string {
	var out []string
	for _, t := range []string{"helm.sh/release.v1", "kubernetes.io/service-account-token", "kubernetes.io/dockercfg",
		"kubernetes.io/dockerconfigjson", "kubernetes.io/basic-auth", "kubernetes.io/ssh-auth", "bootstrap.kubernetes.io/token"} {
		out = append(out, "type!="+t)
	}
	return strings.Join(out, ",")
}

// specMatters is for kinds whose status is not read. Labels count where
// something selects by them, annotations of some kinds are read.
func specMatters(old, new object) bool {
	return old.GetGeneration() != new.GetGeneration() || old.GetUID() != new.GetUID() ||
		!maps.Equal(old.GetLabels(), new.GetLabels()) || !maps.Equal(old.GetAnnotations(), new.GetAnnotations()) ||
		(old.GetDeletionTimestamp() == nil) != (new.GetDeletionTimestamp() == nil)
}

// stripMeta takes away what no object needs: the record of who set which field
// is often the larger part of it.
func stripMeta(o object) {
	o.SetManagedFields(nil)
	if a := o.GetAnnotations(); a[corev1.LastAppliedConfigAnnotation] != "" {
		delete(a, corev1.LastAppliedConfigAnnotation)
	}
}

// bareMeta keeps what tells objects apart.
func bareMeta(o object) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: o.GetName(), Namespace: o.GetNamespace(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
		Generation: o.GetGeneration(), CreationTimestamp: o.GetCreationTimestamp(), DeletionTimestamp: o.GetDeletionTimestamp(),
		Labels: o.GetLabels(),
	}
}

func stripNamespace(o object) {
	n := o.(*corev1.Namespace)
	*n = corev1.Namespace{ObjectMeta: bareMeta(n)}
}

func stripService(o object) {
	s := o.(*corev1.Service)
	address := s.Annotations[addressAnnotation]
	s.ObjectMeta = bareMeta(s)
	if address != "" {
		s.Annotations = map[string]string{addressAnnotation: address}
	}
	s.Spec.Selector = nil
	s.Status.Conditions = nil
}

// serviceMatters looks at the status too: the addresses of our own Services are
// those of Gateways.
func serviceMatters(old, new object) bool {
	a, b := old.(*corev1.Service), new.(*corev1.Service)
	if !reflect.DeepEqual(a.Spec, b.Spec) || a.UID != b.UID {
		return true
	}
	return b.Labels[managedBy] == managedByUs && (!reflect.DeepEqual(a.Status, b.Status) || !maps.Equal(a.Labels, b.Labels))
}

// stripSecret keeps a key pair, and credentials that are labelled as such:
// whatever else a Secret holds is none of ours, and is not to lie in this
// process's memory.
func stripSecret(o object) {
	s := o.(*corev1.Secret)
	credential := s.Labels[kube.CredentialLabel]
	s.ObjectMeta = bareMeta(s)
	s.Labels = nil
	if credential == "true" {
		s.Labels = map[string]string{kube.CredentialLabel: credential}
		return
	}
	maps.DeleteFunc(s.Data, func(key string, _ []byte) bool { return key != corev1.TLSCertKey && key != corev1.TLSPrivateKeyKey })
}

// stripConfigMap keeps authorities, lists of prices, and what may be parameters
// of a Gateway, which are short. The names of other keys stay: one that means nothing is said
// to.
func stripConfigMap(o object) {
	m := o.(*corev1.ConfigMap)
	m.ObjectMeta = bareMeta(m)
	m.Labels, m.BinaryData = nil, nil
	for key, value := range m.Data {
		if !slices.Contains([]string{"ca.crt", "prices.yaml", "prices.json"}, key) && len(value) > 4096 {
			m.Data[key] = ""
		}
	}
}

func stripPod(o object) {
	p := o.(*corev1.Pod)
	meta := bareMeta(p)
	for key, value := range p.Annotations {
		if strings.HasSuffix(key, "/active-ports") {
			if meta.Annotations == nil {
				meta.Annotations = map[string]string{}
			}
			meta.Annotations[key] = value
		}
	}
	status := corev1.PodStatus{Phase: p.Status.Phase, PodIP: p.Status.PodIP}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			status.Conditions = []corev1.PodCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	*p = corev1.Pod{ObjectMeta: meta, Status: status}
}

func podMatters(old, new object) bool {
	a, b := old.(*corev1.Pod), new.(*corev1.Pod)
	return a.UID != b.UID || !reflect.DeepEqual(a.Status, b.Status) || !maps.Equal(a.Labels, b.Labels) || !maps.Equal(a.Annotations, b.Annotations) ||
		(a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil)
}

func stripSlice(o object) {
	e := o.(*discoveryv1.EndpointSlice)
	meta := bareMeta(e)
	meta.Labels = map[string]string{discoveryv1.LabelServiceName: e.Labels[discoveryv1.LabelServiceName]}
	e.ObjectMeta = meta
	for i := range e.Endpoints {
		ep := &e.Endpoints[i]
		ep.Hostname, ep.NodeName, ep.Hints, ep.DeprecatedTopology = nil, nil, nil, nil
		if ref := ep.TargetRef; ref != nil {
			ep.TargetRef = &corev1.ObjectReference{Kind: ref.Kind, Name: ref.Name}
		}
	}
}

func sliceMatters(old, new object) bool {
	a, b := old.(*discoveryv1.EndpointSlice), new.(*discoveryv1.EndpointSlice)
	return serviceOf(a) != serviceOf(b) || !reflect.DeepEqual(a.Ports, b.Ports) || !slices.EqualFunc(a.Endpoints, b.Endpoints, func(x, y discoveryv1.Endpoint) bool {
		return reflect.DeepEqual(x, y)
	})
}

func serviceOf(e *discoveryv1.EndpointSlice) string { return e.Labels[discoveryv1.LabelServiceName] }

func stripDeployment(o object) {
	d := o.(*appsv1.Deployment)
	*d = appsv1.Deployment{ObjectMeta: bareMeta(d)}
}
