// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"
)

// supportedFeatures are the names under which the conformance suites know what
// a data plane of ours does, in alphabetical order ("MUST be sorted").
func supportedFeatures() []gatewayv1.SupportedFeature {
	names := []gatewayv1.FeatureName{
		"BackendTLSPolicy", "BackendTLSPolicySANValidation",
		"GRPCRoute", "GRPCRouteNamedRouteRule",
		"Gateway", "GatewayAddressEmpty", "GatewayBackendClientCertificate",
		"GatewayFrontendClientCertificateValidation", "GatewayFrontendClientCertificateValidationInsecureFallback",
		"GatewayHTTPListenerIsolation", "GatewayHTTPSListenerDetectMisdirectedRequests",
		"GatewayInfrastructure", "GatewayPort8080", "GatewayStaticAddresses",
		"HTTPRoute", "HTTPRoute303RedirectStatusCode", "HTTPRoute307RedirectStatusCode", "HTTPRoute308RedirectStatusCode",
		"HTTPRouteBackendProtocolH2C", "HTTPRouteBackendProtocolWebSocket", "HTTPRouteBackendRequestHeaderModification",
		"HTTPRouteBackendTimeout", "HTTPRouteCORS", "HTTPRouteDestinationPortMatching", "HTTPRouteHostRewrite", "HTTPRouteMethodMatching",
		"HTTPRouteNamedRouteRule", "HTTPRouteParentRefPort", "HTTPRoutePathRedirect", "HTTPRoutePathRewrite",
		"HTTPRoutePortRedirect", "HTTPRouteQueryParamMatching", "HTTPRouteRequestMirror",
		"HTTPRouteRequestMultipleMirrors", "HTTPRouteRequestPercentageMirror", "HTTPRouteRequestTimeout",
		"HTTPRouteResponseHeaderModification", "HTTPRouteRetry", "HTTPRouteRetryBackendTimeout",
		"HTTPRouteRetryConnectionError", "HTTPRouteSchemeRedirect",
		"ListenerSet", "ReferenceGrant", "SupportInferencePool",
	}
	slices.Sort(names)
	out := make([]gatewayv1.SupportedFeature, len(names))
	for i, n := range names {
		out[i].Name = n
	}
	return out
}

// parameterKeys are those of a ConfigMap of parameters, for messages.
const parameterKeys = "replicas, maxReplicas, openPerReplica, serviceType, records and resources"

// class is a GatewayClass of ours.
type class struct {
	params   Parameters
	rejected *problem
}

func (t *translation) readClasses() {
	for _, c := range byAge(t.objects.GatewayClasses) {
		if c.Spec.ControllerName != ControllerName {
			continue
		}
		own := &class{}
		if ref := c.Spec.ParametersRef; ref != nil {
			own.params, own.rejected = t.parameters(kindRef{string(ref.Group), string(ref.Kind), types.NamespacedName{
				Namespace: string(deref(ref.Namespace, "")), Name: ref.Name,
			}})
		}
		t.classes[c.Name] = own
		s := t.status(kindGatewayClass, c)
		s.Conditions = append(s.Conditions,
			condition(string(gatewayv1.GatewayClassConditionStatusAccepted), c.Generation, own.rejected, string(gatewayv1.GatewayClassReasonAccepted), "penstock serves Gateways of this class"))
		if v := t.opts.BundleVersion; v != "" {
			s.Conditions = append(s.Conditions,
				condition(string(gatewayv1.GatewayClassConditionStatusSupportedVersion), c.Generation, bundleProblem(v), string(gatewayv1.GatewayClassReasonSupportedVersion), "Gateway API "+v+" is installed"))
		}
		s.Features = supportedFeatures()
	}
}

// bundleProblem judges the installed Gateway API: the versions whose standard
// channel has every kind that is read here.
func bundleProblem(version string) *problem {
	for _, v := range []string{"v1.6.", "v1.7."} {
		if strings.HasPrefix(version, v) {
			return nil
		}
	}
	return &problem{string(gatewayv1.GatewayClassReasonUnsupportedVersion), "Gateway API " + version + " is installed; v1.6 and v1.7 are supported, and this one is served as far as it goes"}
}

// parameters reads a ConfigMap of parameters.
func (x *index) parameters(ref kindRef) (Parameters, *problem) {
	bad := func(format string, args ...any) (Parameters, *problem) {
		return Parameters{}, &problem{string(gatewayv1.GatewayReasonInvalidParameters), "parametersRef: " + fmt.Sprintf(format, args...)}
	}
	if ref.group != "" || ref.kind != kindConfigMap {
		return bad("%s of group %q is not supported; refer to a ConfigMap with the keys "+parameterKeys, ref.kind, ref.group)
	}
	m, ok := x.configMaps[ref.NamespacedName]
	if !ok {
		return bad("there is no ConfigMap %s", ref.NamespacedName)
	}
	var p Parameters
	keys := make([]string, 0, len(m.Data))
	for key := range m.Data {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		value := strings.TrimSpace(m.Data[key])
		switch key {
		case "replicas", "maxReplicas", "openPerReplica":
			n, err := strconv.ParseInt(value, 10, 32)
			if err != nil || n < 0 || n > 100000 {
				return bad("%s is %q, not a number from 0 to 100000", key, value)
			}
			switch key {
			case "replicas":
				p.Replicas = new(int32(n))
			case "maxReplicas":
				p.MaxReplicas = new(int32(n))
			default:
				p.OpenPerReplica = new(int32(n))
			}
		case "resources":
			p.Resources = &corev1.ResourceRequirements{}
			if err := yaml.UnmarshalStrict([]byte(value), p.Resources); err != nil {
				return bad("resources: %v", err)
			}
		case "records":
			if value != "stdout" && value != "off" {
				return bad("records is %q; use stdout or off", value)
			}
			p.Records = value
		case "serviceType":
			s, ok := serviceType(value)
			if !ok {
				return bad("serviceType is %q; use LoadBalancer, NodePort or ClusterIP", value)
			}
			p.ServiceType = s
		default:
			return bad("ConfigMap %s has the key %q, which means nothing; "+parameterKeys+" do", ref.NamespacedName, key)
		}
	}
	return p, nil
}

func deref[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// over are the parameters where what p leaves open is that of class.
func (p Parameters) over(class Parameters) Parameters {
	if p.Replicas == nil {
		p.Replicas = class.Replicas
	}
	if p.MaxReplicas == nil {
		p.MaxReplicas = class.MaxReplicas
	}
	if p.OpenPerReplica == nil {
		p.OpenPerReplica = class.OpenPerReplica
	}
	if p.Records == "" {
		p.Records = class.Records
	}
	if p.ServiceType == "" {
		p.ServiceType = class.ServiceType
	}
	if p.Resources == nil {
		p.Resources = class.Resources
	}
	return p
}
