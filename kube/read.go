// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	infv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/api/v1alpha1"
)

// lists is what a cluster is asked for, in the shape of its answers.
type lists struct {
	classes     gatewayv1.GatewayClassList
	gateways    gatewayv1.GatewayList
	sets        gatewayv1.ListenerSetList
	http        gatewayv1.HTTPRouteList
	grpc        gatewayv1.GRPCRouteList
	tlsPolicies gatewayv1.BackendTLSPolicyList
	pools       infv1.InferencePoolList
	models      v1alpha1.ModelList
	policies    v1alpha1.GatewayPolicyList
	pods        corev1.PodList
	services    corev1.ServiceList
}

// Read lists objects of the kinds, of a namespace or of all where it is empty,
// and what tells why they are as they are: the latter as far as the credential
// goes, since not everybody may see it. notes are about what is not known then.
func (c *Cluster) Read(ctx context.Context, namespace string, kinds ...string) (v *Overview, notes []string, err error) {
	var l lists
	o := &Objects{}
	own := func(plural, kind string) listed {
		return listed{schema.GroupVersion{Group: v1alpha1.Group, Version: v1alpha1.Version}, plural, kind}
	}
	routes := []string{kindHTTPRoute, kindGRPCRoute, kindModel}
	for _, row := range []struct {
		listed
		into runtime.Object
		take func()
		with []string // kinds that it is read beside
	}{
		{gatewayResource("gatewayclasses", kindGatewayClass), &l.classes, func() { o.GatewayClasses = pointers(l.classes.Items) }, append(routes, kindGateway, kindListenerSet, kindGatewayPolicy)},
		{gatewayResource("gateways", kindGateway), &l.gateways, func() { o.Gateways = pointers(l.gateways.Items) }, append(routes, kindListenerSet, kindGatewayPolicy)},
		{gatewayResource("listenersets", kindListenerSet), &l.sets, func() { o.ListenerSets = pointers(l.sets.Items) }, routes},
		{gatewayResource("httproutes", kindHTTPRoute), &l.http, func() { o.HTTPRoutes = pointers(l.http.Items) }, nil},
		{gatewayResource("grpcroutes", kindGRPCRoute), &l.grpc, func() { o.GRPCRoutes = pointers(l.grpc.Items) }, nil},
		{gatewayResource("backendtlspolicies", kindBackendTLSPolicy), &l.tlsPolicies, func() { o.BackendTLSPolicies = pointers(l.tlsPolicies.Items) }, nil},
		{inferencePools(), &l.pools, func() { o.InferencePools = pointers(l.pools.Items) }, append(routes, kindGatewayPolicy)},
		{own("models", kindModel), &l.models, func() { o.Models = pointers(l.models.Items) }, nil},
		{own("gatewaypolicies", kindGatewayPolicy), &l.policies, func() { o.GatewayPolicies = pointers(l.policies.Items) }, nil},
		{coreResource("pods", "Pod"), &l.pods, func() { o.Pods = pointers(l.pods.Items) }, append(routes, kindInferencePool)},
		{coreResource("services", kindService), &l.services, func() { o.Services = pointers(l.services.Items) }, []string{kindBackendTLSPolicy}},
	} {
		asked := slices.Contains(kinds, row.kind)
		if !asked && !slices.ContainsFunc(kinds, func(k string) bool { return slices.Contains(row.with, k) }) {
			continue
		}
		at := namespace
		if row.kind == kindGatewayClass {
			at = ""
		}
		err := c.list(ctx, row.listed, at, row.into)
		switch {
		case err == nil:
			row.take()
		case asked && isMissingKind(err):
			notes = append(notes, fmt.Sprintf("the cluster knows no %s: their CRD is not installed", row))
		case asked:
			return nil, nil, explainAPI(err, "list", row.listed, at)
		case row.kind == "Pod" && slices.Contains(kinds, kindInferencePool):
			notes = append(notes, fmt.Sprintf("which pods serve is not known: %v", explainAPI(err, "list", row.listed, at)))
		}
	}
	return &Overview{Objects: o, Statuses: o.Statuses(), read: namespace}, notes, nil
}

func (c *Cluster) list(ctx context.Context, r listed, namespace string, into runtime.Object) error {
	client, err := c.client(r.GroupVersion)
	if err != nil {
		return err
	}
	return client.Get().NamespaceIfScoped(namespace, namespace != "").Resource(r.plural).Timeout(clientTimeout).Do(ctx).Into(into)
}

func pointers[T any](list []T) []*T {
	out := make([]*T, len(list))
	for i := range list {
		out[i] = &list[i]
	}
	return out
}
