// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	infv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/api/v1alpha1"
)

// Cluster is a connection to the Kubernetes API. Clients are made per group of
// the API from the types that are read here: the generated clients of every
// group would double the binary.
type Cluster struct {
	rest   *rest.Config
	codecs serializer.CodecFactory

	// Namespace is that of the pod this runs in, or the one that the kubeconfig
	// names; "default" where neither does.
	Namespace string
	// Host is the address of the API server, for messages.
	Host string
}

// Bounds of a client. The reads are watches, which cost a request now and then;
// the rate only keeps a fault from becoming a flood.
const (
	clientQPS     = 50
	clientBurst   = 100
	clientTimeout = 15 * time.Second // of one request that is no watch
)

// Connect finds a cluster: the kubeconfig file that is named, else the one that
// KUBECONFIG or ~/.kube/config is, else the service account of the pod this
// runs in. agent is how the API server's audit log knows the caller. Nothing is
// asked of the cluster yet.
func Connect(kubeconfig, kubecontext, agent string) (*Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	found := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: kubecontext})
	conf, err := found.ClientConfig()
	if err != nil {
		if clientcmd.IsEmptyConfig(err) {
			err = errors.New("there is no kubeconfig and this is no pod of a cluster; name a file with --kubeconfig")
		}
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	namespace, _, err := found.Namespace()
	if err != nil || namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	return NewCluster(conf, namespace, agent)
}

// NewCluster is a connection with a configuration that was found already.
func NewCluster(conf *rest.Config, namespace, agent string) (*Cluster, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, discoveryv1.AddToScheme, coordinationv1.AddToScheme,
		gatewayv1.Install, infv1.Install, v1alpha1.AddToScheme,
	} {
		if err := add(s); err != nil {
			return nil, err
		}
	}
	conf = rest.CopyConfig(conf)
	conf.UserAgent = agent
	conf.QPS, conf.Burst = clientQPS, clientBurst
	return &Cluster{rest: conf, codecs: serializer.NewCodecFactory(s), Namespace: namespace, Host: conf.Host}, nil
}

// Config is how the API server is reached, for clients of other kinds. The
// caller may change it.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.rest) }

// client is one for a group of the API.
func (c *Cluster) client(gv schema.GroupVersion) (rest.Interface, error) {
	conf := rest.CopyConfig(c.rest)
	conf.GroupVersion = &gv
	conf.APIPath = "/apis"
	conf.NegotiatedSerializer = c.codecs.WithoutConversion()
	switch gv.Group {
	case "":
		conf.APIPath = "/api"
		fallthrough
	case discoveryv1.GroupName, coordinationv1.GroupName:
		// To read it costs a fraction of JSON; custom resources have JSON alone.
		conf.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
	return rest.RESTClientFor(conf)
}

// listed is a kind as it is asked for.
type listed struct {
	schema.GroupVersion
	plural string
	kind   string
}

func (r listed) String() string {
	if r.Group == "" {
		return r.plural
	}
	return r.plural + "." + r.Group
}

func coreResource(plural, kind string) listed {
	return listed{corev1.SchemeGroupVersion, plural, kind}
}

func gatewayResource(plural, kind string) listed {
	return listed{schema.GroupVersion{Group: gatewayGroup, Version: "v1"}, plural, kind}
}

// inferencePools is what an InferencePool is listed as.
func inferencePools() listed {
	return listed{schema.GroupVersion{Group: inferenceGroup, Version: "v1"}, "inferencepools", kindInferencePool}
}

// explain says of an error of the API what a person can do about it.
func explainAPI(err error, verb string, r listed, namespace string) error {
	in := "in namespace " + namespace
	if namespace == "" {
		in = "in all namespaces"
	}
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("may not %s %s %s; the role of this service account lacks it: %w", verb, r, in, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s %s: the credential is not accepted: %w", verb, r, err)
	case isMissingKind(err):
		return fmt.Errorf("%s %s: the cluster does not know the kind; install its CRD: %w", verb, r, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s %s: the API server did not answer in time: %w", verb, r, err)
	}
	return fmt.Errorf("%s %s %s: %w", verb, r, in, err)
}

// isMissingKind says that the API server has no such resource at all, as
// opposed to no object of that name.
func isMissingKind(err error) bool {
	return apierrors.IsNotFound(err) && strings.Contains(err.Error(), "could not find the requested resource")
}
