// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	infv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/api/v1alpha1"
	"github.com/penstock/penstock/kube"
)

// object is a Kubernetes object of a type known at compile time.
type object interface {
	metav1.Object
	runtime.Object
}

// fieldManager owns the fields that the controller applies.
const fieldManager = "penstock-controller"

func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, discoveryv1.AddToScheme, appsv1.AddToScheme, policyv1.AddToScheme,
		autoscalingv2.AddToScheme, authenticationv1.AddToScheme,
		gatewayv1.Install, infv1.Install, v1alpha1.AddToScheme,
	} {
		if err := add(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Cluster is a cluster whose API server can be asked.
type Cluster struct{ api *api }

// Connect finds the API server as [kube.Connect] does. It asks it nothing yet.
func Connect(kubeconfig, agent string) (*Cluster, error) {
	found, err := kube.Connect(kubeconfig, "", agent)
	if err != nil {
		return nil, err
	}
	a, err := newAPI(found)
	if err != nil {
		return nil, err
	}
	return &Cluster{a}, nil
}

// Host is the address of the API server.
func (c *Cluster) Host() string { return c.api.config.Host }

// api is the API server: typed reads and writes of the kinds of the scheme.
type api struct {
	found     *kube.Cluster // a lease is held with a client of its own, which waits behind nothing
	scheme    *runtime.Scheme
	config    *rest.Config
	http      *http.Client // one for all groups: one connection
	discovery *discovery.DiscoveryClient

	mu      sync.Mutex
	clients map[schema.GroupVersion]rest.Interface
}

func newAPI(found *kube.Cluster) (*api, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	config := found.Config()
	// The server's priority and fairness decide who waits; what is written here
	// at a time is bounded where it is written.
	config.QPS = -1
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	d, err := discovery.NewDiscoveryClientForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	return &api{found: found, scheme: scheme, config: config, http: client, discovery: d, clients: map[schema.GroupVersion]rest.Interface{}}, nil
}

// group is the client of one group and version.
func (a *api) group(gv schema.GroupVersion) (rest.Interface, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.clients[gv]; c != nil {
		return c, nil
	}
	config := rest.CopyConfig(a.config)
	config.GroupVersion = &gv
	config.APIPath = "/apis"
	if gv.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = serializer.NewCodecFactory(a.scheme).WithoutConversion()
	config.ContentType = runtime.ContentTypeJSON
	if builtIn(gv.Group) {
		config.ContentType = runtime.ContentTypeProtobuf
		config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
	c, err := rest.RESTClientForConfigAndClient(config, a.http)
	if err != nil {
		return nil, err
	}
	a.clients[gv] = c
	return c, nil
}

// builtIn says whether a group's kinds have a protobuf form: those that come
// with definitions of their own have none.
func builtIn(group string) bool {
	return slices.Contains([]string{"", "apps", "policy", "autoscaling", "discovery.k8s.io", "authentication.k8s.io"}, group)
}

func (a *api) get(ctx context.Context, gvr schema.GroupVersionResource, name types.NamespacedName, into object) error {
	c, err := a.group(gvr.GroupVersion())
	if err != nil {
		return err
	}
	return c.Get().NamespaceIfScoped(name.Namespace, name.Namespace != "").Resource(gvr.Resource).Name(name.Name).Do(ctx).Into(into)
}

func (a *api) create(ctx context.Context, gvr schema.GroupVersionResource, o, into object) error {
	c, err := a.group(gvr.GroupVersion())
	if err != nil {
		return err
	}
	return c.Post().NamespaceIfScoped(o.GetNamespace(), o.GetNamespace() != "").Resource(gvr.Resource).
		VersionedParams(&metav1.CreateOptions{FieldManager: fieldManager}, metav1.ParameterCodec).Body(o).Do(ctx).Into(into)
}

func (a *api) update(ctx context.Context, gvr schema.GroupVersionResource, o object, subresource ...string) error {
	c, err := a.group(gvr.GroupVersion())
	if err != nil {
		return err
	}
	return c.Put().NamespaceIfScoped(o.GetNamespace(), o.GetNamespace() != "").Resource(gvr.Resource).Name(o.GetName()).SubResource(subresource...).
		VersionedParams(&metav1.UpdateOptions{FieldManager: fieldManager}, metav1.ParameterCodec).Body(o).Do(ctx).Error()
}

// apply is a server-side apply: the fields of o are the controller's, others
// stay as they are.
func (a *api) apply(ctx context.Context, gvr schema.GroupVersionResource, o object) error {
	c, err := a.group(gvr.GroupVersion())
	if err != nil {
		return err
	}
	text, err := appliedForm(o)
	if err != nil {
		return err
	}
	return c.Patch(types.ApplyPatchType).Namespace(o.GetNamespace()).Resource(gvr.Resource).Name(o.GetName()).
		Param("fieldManager", fieldManager).Param("force", "true").Body(text).Do(ctx).Error()
}

// appliedForm is the text of an object without what is the server's.
func appliedForm(o object) ([]byte, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	var doc map[string]any
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	delete(doc, "status")
	if meta, ok := doc["metadata"].(map[string]any); ok {
		delete(meta, "creationTimestamp")
	}
	return json.Marshal(doc)
}

// remove deletes an object that is still the one it was; one that is gone is no
// error.
func (a *api) remove(ctx context.Context, gvr schema.GroupVersionResource, name types.NamespacedName, uid types.UID) error {
	c, err := a.group(gvr.GroupVersion())
	if err != nil {
		return err
	}
	policy := metav1.DeletePropagationBackground
	options := &metav1.DeleteOptions{PropagationPolicy: &policy}
	if uid != "" {
		options.Preconditions = &metav1.Preconditions{UID: &uid}
	}
	err = c.Delete().NamespaceIfScoped(name.Namespace, name.Namespace != "").Resource(gvr.Resource).Name(name.Name).Body(options).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// serves says whether the API server has a kind. An error means that it cannot
// be told now.
func (a *api) serves(gvr schema.GroupVersionResource) (bool, error) {
	list, err := a.discovery.ServerResourcesForGroupVersion(gvr.GroupVersion().String())
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask for the resources of %s: %w", gvr.GroupVersion(), err)
	}
	return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == gvr.Resource }), nil
}

// bundleVersion is the version of the installed Gateway API, as the definition
// of its GatewayClass says; empty if it does not, or may not be read.
func (a *api) bundleVersion(ctx context.Context) string {
	c, err := a.group(schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"})
	if err != nil {
		return ""
	}
	text, err := c.Get().Resource("customresourcedefinitions").Name("gatewayclasses.gateway.networking.k8s.io").
		SetHeader("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1").Do(ctx).Raw()
	if err != nil {
		return ""
	}
	var meta metav1.PartialObjectMetadata
	if json.Unmarshal(text, &meta) != nil {
		return ""
	}
	return meta.Annotations["gateway.networking.k8s.io/bundle-version"]
}
