// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	infv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/api/v1alpha1"
)

// Read lists what people ask about: Gateways, routes, InferencePools and
// Models of a namespace, or of all where it is empty. Kinds that the cluster
// does not know are left out and named.
func (c *Cluster) Read(ctx context.Context, namespace string) (o *Objects, unknown []string, err error) {
	o = &Objects{}
	var gateways gatewayv1.GatewayList
	var http gatewayv1.HTTPRouteList
	var grpc gatewayv1.GRPCRouteList
	var pools infv1.InferencePoolList
	var models v1alpha1.ModelList
	for _, row := range []struct {
		listed
		into runtime.Object
	}{
		{gatewayResource("gateways", kindGateway), &gateways},
		{gatewayResource("httproutes", kindHTTPRoute), &http},
		{gatewayResource("grpcroutes", kindGRPCRoute), &grpc},
		{inferencePools(), &pools},
		{listed{schema.GroupVersion{Group: v1alpha1.Group, Version: v1alpha1.Version}, "models", kindModel}, &models},
	} {
		err := c.list(ctx, row.listed, namespace, row.into)
		switch {
		case isMissingKind(err):
			unknown = append(unknown, row.String())
		case err != nil:
			return nil, nil, explainAPI(err, "list", row.listed, namespace)
		}
	}
	o.Gateways, o.HTTPRoutes, o.GRPCRoutes = pointers(gateways.Items), pointers(http.Items), pointers(grpc.Items)
	o.InferencePools, o.Models = pointers(pools.Items), pointers(models.Items)
	return o, unknown, nil
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
