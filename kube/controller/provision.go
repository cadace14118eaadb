// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/netip"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/kube"
)

// Provision says how the processes of Gateways are made.
type Provision struct {
	Image      string        // of penstock, whose program is its entry point
	PullPolicy string        // Always, IfNotPresent or Never; empty: as Kubernetes has it for the tag
	Controller string        // host:port by which gateways reach the controller
	Audience   string        // of the tokens by which they prove themselves to it
	Bundle     func() []byte // PEM, whom they trust as the controller; may change
	// ServiceType and Replicas are for Gateways whose parameters say nothing.
	ServiceType string
	Replicas    int32
}

// Labels and annotations of what is provisioned.
const (
	managedBy         = "app.kubernetes.io/managed-by"
	managedByUs       = "penstock"
	appName           = "app.kubernetes.io/name"
	gatewayApp        = "penstock-gateway"
	addressAnnotation = "penstock.dev/address" // that of the pool of addresses
	opsPort           = 9902
	caFile            = "ca.crt"
	tokenDir          = "/var/run/secrets/penstock"
	caDir             = "/var/run/penstock/ca"
	stateDir          = "/var/lib/penstock"
	userID            = 65532
	leaving           = 5 * time.Second // until everybody knows that a pod is leaving
	autoscaleCPU      = 70              // percent of what is requested
)

// shorten is s if it has at most n characters, else a shorter text that only s
// has.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	const digest = 10
	return strings.TrimRight(s[:n-digest-1], "-.") + "-" + hex.EncodeToString(sum[:])[:digest]
}

// infraName is the name of everything that is provisioned for a Gateway (GEP
// 1762: its name and that of its class). It is the name of a Service, which has
// no dots and is short.
func infraName(g *gatewayv1.Gateway) types.NamespacedName {
	name := g.Name + "-" + string(g.Spec.GatewayClassName)
	if flat := strings.ReplaceAll(name, ".", "-"); flat != name {
		// Two names may become one without their dots.
		sum := sha256.Sum256([]byte(name))
		name = flat + "-" + hex.EncodeToString(sum[:])[:6]
	}
	if name[0] >= '0' && name[0] <= '9' { // a Service's name begins with a letter
		name = "gateway-" + name
	}
	return types.NamespacedName{Namespace: g.Namespace, Name: shorten(name, 63)}
}

// resources are the kinds that are provisioned, in the order in which they are
// made.
func provisioned() []schema.GroupVersionResource {
	return []schema.GroupVersionResource{
		corev1.SchemeGroupVersion.WithResource("serviceaccounts"),
		corev1.SchemeGroupVersion.WithResource("configmaps"),
		corev1.SchemeGroupVersion.WithResource("services"),
		appsv1.SchemeGroupVersion.WithResource("deployments"),
		policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets"),
		autoscalingv2.SchemeGroupVersion.WithResource("horizontalpodautoscalers"),
	}
}

// plan is what one Gateway's infrastructure is made from.
type plan struct {
	gateway   *gatewayv1.Gateway
	infra     kube.Infrastructure
	drain     time.Duration // limits.drain of its configuration
	addresses []string      // of the pool of addresses
}

// objects are what is to be there for a Gateway, in the order of provisioned.
// One of them is nil where there is to be none.
func (p *Provision) objects(w plan) []object {
	var autoscaler object
	if a := p.autoscaler(w); a != nil {
		autoscaler = a
	}
	return []object{p.account(w), p.authorities(w), p.service(w), p.deployment(w), p.budget(w), autoscaler}
}

// meta is the metadata of every object. Owner references make the garbage
// collector clean up after a Gateway, even while no controller runs.
func (w *plan) meta() metav1.ObjectMeta {
	name := infraName(w.gateway)
	labels := w.labels()
	return metav1.ObjectMeta{
		Namespace: name.Namespace, Name: name.Name, Labels: labels, Annotations: maps.Clone(w.infra.Annotations),
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: gatewayv1.GroupVersion.String(), Kind: "Gateway", Name: w.gateway.Name, UID: w.gateway.UID,
			Controller: new(true), BlockOwnerDeletion: new(false),
		}},
	}
}

// selector are the labels by which the pods of a Gateway are found. They never
// change, as those of a Deployment may not.
func (w *plan) selector() map[string]string {
	return map[string]string{appName: gatewayApp, gatewayv1.GatewayNameLabelKey: shorten(w.gateway.Name, 63)}
}

func (w *plan) labels() map[string]string {
	out := maps.Clone(w.infra.Labels)
	if out == nil {
		out = map[string]string{}
	}
	out["gateway.networking.k8s.io/gateway-class-name"] = shorten(string(w.gateway.Spec.GatewayClassName), 63)
	out[managedBy] = managedByUs
	maps.Copy(out, w.selector())
	return out
}

func typeMeta(gv schema.GroupVersion, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: gv.String(), Kind: kind}
}

func (p *Provision) account(w plan) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{
		TypeMeta: typeMeta(corev1.SchemeGroupVersion, "ServiceAccount"), ObjectMeta: w.meta(),
		AutomountServiceAccountToken: new(false), // a gateway has no business with the API server
	}
}

func (p *Provision) authorities(w plan) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta: typeMeta(corev1.SchemeGroupVersion, "ConfigMap"), ObjectMeta: w.meta(),
		Data: map[string]string{caFile: string(p.Bundle())},
	}
}

// service leads each port of the listeners to the same port of the pods, which
// bind it as they are told: see unprivilegedPorts.
func (p *Provision) service(w plan) *corev1.Service {
	s := &corev1.Service{TypeMeta: typeMeta(corev1.SchemeGroupVersion, "Service"), ObjectMeta: w.meta()}
	s.Spec.Selector = w.selector()
	s.Spec.Type = corev1.ServiceType(p.ServiceType)
	if t := w.infra.Parameters.ServiceType; t != "" {
		s.Spec.Type = t
	}
	for _, port := range w.infra.Ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
			Name: "port-" + strconv.Itoa(int(port)), Protocol: corev1.ProtocolTCP, Port: port, TargetPort: intstr.FromInt32(port),
		})
	}
	addresses := w.addresses
	if len(addresses) > 0 {
		if s.Annotations == nil {
			s.Annotations = map[string]string{}
		}
		s.Annotations[addressAnnotation] = addresses[0]
		s.Spec.ExternalIPs = addresses // kube-proxy accepts them on every node
	} else {
		addresses = requested(w.gateway)
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer && len(addresses) > 0 {
		s.Spec.LoadBalancerIP = addresses[0]
	}
	if v6(addresses) {
		s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
	}
	return s
}

func v6(addresses []string) bool {
	for _, a := range addresses {
		if ip, err := netip.ParseAddr(a); err == nil && ip.Is6() {
			return true
		}
	}
	return false
}

// unprivilegedPorts lets a process without privileges bind every port, within
// the pod alone. The sysctl is a safe one: no node has to allow it, and the pod
// security standard "restricted" admits it. The ports of listeners are those
// that the process binds, so that nothing between has to translate them, in
// redirects least of all.
func unprivilegedPorts() []corev1.Sysctl {
	return []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"}}
}

func (p *Provision) deployment(w plan) *appsv1.Deployment {
	d := &appsv1.Deployment{TypeMeta: typeMeta(appsv1.SchemeGroupVersion, "Deployment"), ObjectMeta: w.meta()}
	d.Spec = appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: w.selector()},
		// A pod goes only after another has come, and not before the load
		// balancers have noticed that one.
		Strategy: appsv1.DeploymentStrategy{
			Type: appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{
				MaxUnavailable: new(intstr.FromInt32(0)), MaxSurge: new(intstr.FromString("25%")),
			},
		},
		MinReadySeconds: 2,
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: w.labels(), Annotations: maps.Clone(w.infra.Annotations)},
			Spec:       p.pod(w),
		},
	}
	if p.autoscaler(w) == nil { // else the number is the autoscaler's
		d.Spec.Replicas = new(p.replicas(w))
	}
	return d
}

func (p *Provision) replicas(w plan) int32 {
	if n := w.infra.Parameters.Replicas; n != nil {
		return *n
	}
	return p.Replicas
}

func (p *Provision) pod(w plan) corev1.PodSpec {
	return corev1.PodSpec{
		ServiceAccountName:           infraName(w.gateway).Name,
		AutomountServiceAccountToken: new(false),
		EnableServiceLinks:           new(false),
		// A stream may last as long as the drain; then there is time to count.
		TerminationGracePeriodSeconds: new(int64((w.drain + leaving + 10*time.Second).Seconds())),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(userID)), RunAsGroup: new(int64(userID)), FSGroup: new(int64(userID)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			Sysctls:        unprivilegedPorts(),
		},
		TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
			LabelSelector: &metav1.LabelSelector{MatchLabels: w.selector()},
		}},
		Containers: []corev1.Container{p.container(w)},
		Volumes: []corev1.Volume{
			{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
					Audience: p.Audience, ExpirationSeconds: new(int64(3600)), Path: "token",
				}}},
			}}},
			{Name: "ca", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: infraName(w.gateway).Name},
			}}},
			{Name: "state", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
				Medium: corev1.StorageMediumMemory, SizeLimit: new(resource.MustParse("256Mi")),
			}}},
		},
	}
}

func (p *Provision) container(w plan) corev1.Container {
	probe := func(path string, period, failures int32) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("ops")}},
			PeriodSeconds: period, FailureThreshold: failures, TimeoutSeconds: 2,
		}
	}
	c := corev1.Container{
		Name: "gateway", Image: p.Image, ImagePullPolicy: corev1.PullPolicy(p.PullPolicy),
		Args: []string{
			"gateway", "--controller=" + p.Controller, "--token-file=" + tokenDir + "/token", "--ca-file=" + caDir + "/" + caFile,
			"--state-dir=" + stateDir, "--ops=:" + strconv.Itoa(opsPort), "--log-format=json",
		},
		Ports: []corev1.ContainerPort{{Name: "ops", ContainerPort: opsPort, Protocol: corev1.ProtocolTCP}},
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("250m"), corev1.ResourceMemory: resource.MustParse("256Mi"),
		}},
		StartupProbe:   probe("/healthz", 1, 60),
		ReadinessProbe: probe("/readyz", 2, 2),
		LivenessProbe:  probe("/healthz", 10, 6),
		// Between the decision that a pod goes and the moment in which the last
		// proxy knows it, connections still come: they are served.
		Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: int64(leaving.Seconds())}}},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), RunAsNonRoot: new(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "token", MountPath: tokenDir, ReadOnly: true},
			{Name: "ca", MountPath: caDir, ReadOnly: true},
			{Name: "state", MountPath: stateDir},
		},
	}
	if r := w.infra.Parameters.Resources; r != nil {
		c.Resources = *r
	}
	return c
}

func (p *Provision) budget(w plan) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{TypeMeta: typeMeta(policyv1.SchemeGroupVersion, "PodDisruptionBudget"), ObjectMeta: w.meta()}
	b.Spec = policyv1.PodDisruptionBudgetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: w.selector()},
		// Of a single pod too: a budget that forbids every eviction keeps nodes
		// from being drained, and is then removed with all others.
		MaxUnavailable:             new(intstr.FromInt32(1)),
		UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow),
	}
	return b
}

// autoscaler is nil where the number of pods is fixed.
func (p *Provision) autoscaler(w plan) *autoscalingv2.HorizontalPodAutoscaler {
	least, most := max(p.replicas(w), 1), w.infra.Parameters.MaxReplicas
	if most == nil || *most <= least {
		return nil
	}
	name := infraName(w.gateway).Name
	a := &autoscalingv2.HorizontalPodAutoscaler{
		TypeMeta: typeMeta(autoscalingv2.SchemeGroupVersion, "HorizontalPodAutoscaler"), ObjectMeta: w.meta(),
	}
	a.Spec = autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "Deployment", Name: name},
		MinReplicas:    new(least), MaxReplicas: *most,
		Metrics: []autoscalingv2.MetricSpec{{
			Type: autoscalingv2.ResourceMetricSourceType,
			Resource: &autoscalingv2.ResourceMetricSource{
				Name:   corev1.ResourceCPU,
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: new(int32(autoscaleCPU))},
			},
		}},
		// A pod that goes takes its long streams with it only after the drain.
		Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{
			ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(int32(300))},
		},
	}
	if n := w.infra.Parameters.OpenPerReplica; n != nil && *n > 0 {
		// Long streams keep little of a CPU busy, but memory and connections.
		a.Spec.Metrics = append(a.Spec.Metrics, autoscalingv2.MetricSpec{
			Type: autoscalingv2.PodsMetricSourceType,
			Pods: &autoscalingv2.PodsMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: "penstock_requests_open"},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: resource.NewQuantity(int64(*n), resource.DecimalSI)},
			},
		})
	}
	return a
}
