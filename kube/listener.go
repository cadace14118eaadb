// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/api/v1alpha1"
	"github.com/penstock/penstock/config"
)

// listener is one listener of a Gateway or of a ListenerSet.
type listener struct {
	scope *scope
	set   *listenerSet // nil: the Gateway's own
	spec  *gatewayv1.Listener

	name     string
	section  string // in the configuration
	port     int32
	protocol gatewayv1.ProtocolType
	host     string // empty: every host
	kinds    []gatewayv1.RouteGroupKind
	from     gatewayv1.FromNamespaces
	selector labels.Selector

	refused     *problem // why it is not accepted
	conflict    bool     // with another listener; then refused says which kind
	holds       bool     // its port and host, be it served or not
	unresolved  *problem // a reference that cannot be followed
	overlapping []string // listeners whose TLS may be taken for this one's
	tls         *config.ServerTLS
	attached    int32
}

func (l *listener) accepted() bool { return l.refused == nil }

// served says that the listener is in the configuration: it is accepted, has
// what its protocol needs, and admits some kind of route.
func (l *listener) served() bool {
	return l.refused == nil && len(l.kinds) > 0 && (l.protocol == gatewayv1.HTTPProtocolType || l.tls != nil)
}

// owner is the object whose namespace and grants count for the listener.
func (l *listener) owner() kindRef {
	if l.set != nil {
		return kindRef{gatewayGroup, kindListenerSet, nameOf(l.set)}
	}
	return kindRef{gatewayGroup, kindGateway, l.scope.name}
}

// configName is the name of the listener in the configuration that holds all
// that share its port.
func (l *listener) configName() string {
	return strings.ToLower(string(l.protocol)) + "-" + strconv.Itoa(int(l.port))
}

// addListener judges a listener by itself and appends it. A name that is there
// already is passed over: the schema has names unique, and status is by name.
func (t *translation) addListener(s *scope, set *listenerSet, list []*listener, spec *gatewayv1.Listener) []*listener {
	l := &listener{
		scope: s, set: set, spec: spec,
		name: string(spec.Name), port: spec.Port, protocol: spec.Protocol,
		host: strings.ToLower(string(deref(spec.Hostname, ""))),
		from: gatewayv1.NamespacesFromSame,
	}
	if slices.ContainsFunc(list, func(other *listener) bool { return other.name == l.name }) {
		return list
	}
	l.section = sectionOf(l)
	switch {
	case l.protocol != gatewayv1.HTTPProtocolType && l.protocol != gatewayv1.HTTPSProtocolType:
		l.refused = &problem{string(gatewayv1.ListenerReasonUnsupportedProtocol), fmt.Sprintf("protocol %s is not supported; use HTTP or HTTPS", l.protocol)}
	case l.port < 1 || l.port > 65535:
		l.refused = &problem{string(gatewayv1.ListenerReasonPortUnavailable), fmt.Sprintf("%d is not a port", l.port)}
	case t.reserved(l.port):
		l.refused = &problem{string(gatewayv1.ListenerReasonPortUnavailable), fmt.Sprintf("port %d is used by the gateway process itself", l.port)}
	case l.host != "" && !isHost(l.host):
		l.refused = &problem{string(gatewayv1.ListenerReasonUnsupportedValue), fmt.Sprintf("hostname %q is not a host name", l.host)}
	}
	l.allowedRoutes()
	return append(list, l)
}

// reserved says that the gateway process listens on the port itself.
func (t *translation) reserved(port int32) bool {
	for _, address := range []string{t.opts.Admin, t.opts.Ops} {
		if _, p, err := net.SplitHostPort(address); err == nil && p == strconv.Itoa(int(port)) {
			return true
		}
	}
	return false
}

func routeKind(group, kind string) gatewayv1.RouteGroupKind {
	return gatewayv1.RouteGroupKind{Group: new(gatewayv1.Group(group)), Kind: gatewayv1.Kind(kind)}
}

// allowedRoutes reads what may attach. Kinds that the protocol cannot carry
// are named in the status and left out; those that it can still count.
func (l *listener) allowedRoutes() {
	var supported []gatewayv1.RouteGroupKind
	if l.protocol == gatewayv1.HTTPProtocolType || l.protocol == gatewayv1.HTTPSProtocolType {
		supported = []gatewayv1.RouteGroupKind{
			routeKind(gatewayGroup, kindHTTPRoute), routeKind(gatewayGroup, kindGRPCRoute), routeKind(v1alpha1.Group, kindModel),
		}
	}
	allowed := l.spec.AllowedRoutes
	if allowed == nil || len(allowed.Kinds) == 0 {
		l.kinds = supported
	} else {
		var unknown []string
		for _, k := range allowed.Kinds {
			group := string(deref(k.Group, gatewayGroup))
			i := slices.IndexFunc(supported, func(s gatewayv1.RouteGroupKind) bool { return string(*s.Group) == group && s.Kind == k.Kind })
			switch {
			case i < 0:
				unknown = append(unknown, group+"/"+string(k.Kind))
			case !l.admitsKind(group, string(k.Kind)):
				l.kinds = append(l.kinds, supported[i])
			}
		}
		if len(unknown) > 0 {
			l.unresolved = &problem{string(gatewayv1.ListenerReasonInvalidRouteKinds), "cannot serve routes of kind " + strings.Join(unknown, ", ")}
		}
	}
	if allowed == nil || allowed.Namespaces == nil {
		return
	}
	l.from = deref(allowed.Namespaces.From, gatewayv1.NamespacesFromSame)
	if l.from == gatewayv1.NamespacesFromSelector {
		var err error
		if l.selector, err = metav1.LabelSelectorAsSelector(allowed.Namespaces.Selector); err != nil && l.refused == nil {
			l.refused = &problem{string(gatewayv1.ListenerReasonUnsupportedValue), "allowedRoutes.namespaces.selector: " + err.Error()}
		}
	}
}

func (l *listener) admitsKind(group, kind string) bool {
	return slices.ContainsFunc(l.kinds, func(k gatewayv1.RouteGroupKind) bool { return string(*k.Group) == group && string(k.Kind) == kind })
}

// admitsNamespace says whether objects of a namespace may attach.
func (x *index) admitsNamespace(from gatewayv1.FromNamespaces, selector labels.Selector, own, other string) bool {
	switch from {
	case gatewayv1.NamespacesFromAll:
		return true
	case gatewayv1.NamespacesFromSame:
		return own == other
	case gatewayv1.NamespacesFromSelector:
		return selector != nil && selector.Matches(x.namespaceLabels(other))
	}
	return false
}

// settle finds the conflicts of a group of listeners, all of a Gateway or all
// of a ListenerSet, with those of earlier ones, which have precedence, and then
// with each other, where there is no winner ("MUST NOT pick one conflicting
// Listener as the winner").
func settle(earlier []*listener, group []*listener) {
	for _, l := range group {
		for _, e := range earlier {
			if e.holds && l.port == e.port {
				l.judge(e)
			}
		}
	}
	contenders := make([]*listener, 0, len(group))
	for _, l := range group {
		if l.refused == nil {
			contenders = append(contenders, l)
		}
	}
	for i, a := range contenders {
		for _, b := range contenders[i+1:] {
			if a.port == b.port {
				a.judge(b)
				b.judge(a)
			}
		}
	}
	for _, l := range contenders {
		l.holds = l.refused == nil
	}
}

// judge marks l if it cannot be told from other, on the same port.
func (l *listener) judge(other *listener) {
	where := "another listener"
	if other.set == l.set || other.set == nil {
		where = "listener " + other.name // nothing of a stranger's object is told
	}
	switch {
	case l.protocol != other.protocol:
		l.conflict = true
		l.refused = &problem{string(gatewayv1.ListenerReasonProtocolConflict), fmt.Sprintf("port %d is used by %s with another protocol", l.port, where)}
	case l.host == other.host && (l.refused == nil || l.conflict):
		if l.refused == nil {
			l.refused = &problem{string(gatewayv1.ListenerReasonHostnameConflict), fmt.Sprintf("port %d and hostname %q are used by %s", l.port, l.host, where)}
		}
		l.conflict = true
	}
}

// resolveListener follows the references of a listener. Certificates are
// resolved also where the listener is refused: the status tells of both.
func (t *translation) resolveListener(l *listener) {
	if l.protocol != gatewayv1.HTTPSProtocolType {
		return
	}
	from := l.owner()
	invalid := func(reason gatewayv1.ListenerConditionReason, message string) {
		l.unresolved = &problem{string(reason), message}
	}
	spec := l.spec.TLS
	switch {
	case spec == nil || len(spec.CertificateRefs) == 0:
		invalid(gatewayv1.ListenerReasonInvalidCertificateRef, "an HTTPS listener needs tls.certificateRefs")
		return
	case deref(spec.Mode, gatewayv1.TLSModeTerminate) != gatewayv1.TLSModeTerminate:
		l.refuse(gatewayv1.ListenerReasonUnsupportedValue, "tls.mode must be Terminate for protocol HTTPS")
	case len(spec.CertificateRefs) > 1:
		// "Implementation-specific" support; better refused than one of them
		// chosen in silence.
		l.refuse(gatewayv1.ListenerReasonUnsupportedValue, "more than one of tls.certificateRefs is not supported; use a listener per hostname")
	}
	pair, bad := t.keyPairRef(from, spec.CertificateRefs[0], string(gatewayv1.ListenerReasonInvalidCertificateRef))
	if bad != nil {
		l.unresolved = bad
		return
	}
	tls := &config.ServerTLS{CertPEM: pair.cert, KeyPEM: config.Secret(pair.key)}
	if t.frontendValidation(l, tls) {
		l.tls = tls
	}
}

func (l *listener) refuse(reason gatewayv1.ListenerConditionReason, message string) {
	if l.refused == nil {
		l.refused = &problem{string(reason), message}
	}
}

// frontendValidation sets whose certificates clients must show. It is the
// Gateway's to say, also for the listeners of a ListenerSet. false: nobody
// could be let in.
func (t *translation) frontendValidation(l *listener, tls *config.ServerTLS) bool {
	if l.scope.Spec.TLS == nil || l.scope.Spec.TLS.Frontend == nil {
		return true
	}
	front := l.scope.Spec.TLS.Frontend
	v := front.Default.Validation
	for i := range front.PerPort {
		if front.PerPort[i].Port == l.port {
			v = front.PerPort[i].TLS.Validation
		}
	}
	if v == nil {
		return true
	}
	var bundles []string
	for _, ref := range v.CACertificateRefs {
		to := kindRef{string(ref.Group), string(ref.Kind), types.NamespacedName{
			Namespace: string(deref(ref.Namespace, gatewayv1.Namespace(l.scope.Namespace))), Name: string(ref.Name),
		}}
		pem, bad := t.bundle(kindRef{gatewayGroup, kindGateway, l.scope.name}, to, bundleReasons{
			kind: string(gatewayv1.ListenerReasonInvalidCACertificateKind), ref: string(gatewayv1.ListenerReasonInvalidCACertificateRef),
		})
		if bad != nil {
			l.unresolved = bad
			continue
		}
		bundles = append(bundles, pem)
	}
	if len(bundles) == 0 {
		if l.unresolved == nil {
			l.unresolved = &problem{string(gatewayv1.ListenerReasonInvalidCACertificateRef), "tls.frontend names no certificate authority"}
		}
		l.refuse(gatewayv1.ListenerReasonNoValidCACertificate, "no certificate authority for clients is valid: "+l.unresolved.message)
		return false
	}
	tls.ClientCAPEM = strings.Join(bundles, "")
	if v.Mode == gatewayv1.AllowInsecureFallback {
		tls.AcceptInvalid = true
		l.scope.insecure = append(l.scope.insecure, l.name)
	}
	return true
}

// overlaps marks listeners whose TLS may serve requests meant for another one,
// as browsers reuse connections: "MUST be set on all Listeners with overlapping
// TLS config".
func overlaps(list []*listener) {
	for i, a := range list {
		for _, b := range list[i+1:] {
			if a.protocol != gatewayv1.HTTPSProtocolType || b.protocol != a.protocol || a.port != b.port || a.refused != nil || b.refused != nil {
				continue
			}
			if _, ok := intersect(a.host, b.host); ok {
				a.overlapping = append(a.overlapping, b.name)
				b.overlapping = append(b.overlapping, a.name)
			}
		}
	}
}

// conditions of a listener; generation is that of the object it stands in.
func (l *listener) conditions(generation int64) []metav1.Condition {
	programmed := l.notProgrammed()
	out := []metav1.Condition{
		condition(string(gatewayv1.ListenerConditionAccepted), generation, l.refused, string(gatewayv1.ListenerReasonAccepted), "the listener is valid"),
		condition(string(gatewayv1.ListenerConditionProgrammed), generation, programmed, string(gatewayv1.ListenerReasonProgrammed), "configuration has been sent to the data plane"),
		condition(string(gatewayv1.ListenerConditionResolvedRefs), generation, l.unresolved, string(gatewayv1.ListenerReasonResolvedRefs), "all references are resolved"),
	}
	conflicted := condition(string(gatewayv1.ListenerConditionConflicted), generation, &problem{string(gatewayv1.ListenerReasonNoConflicts), "no other listener is in the way"}, "", "")
	if l.conflict {
		conflicted = condition(string(gatewayv1.ListenerConditionConflicted), generation, nil, l.refused.reason, l.refused.message)
	}
	out = append(out, conflicted)
	if len(l.overlapping) > 0 {
		out = append(out, condition(string(gatewayv1.ListenerConditionOverlappingTLSConfig), generation, nil, string(gatewayv1.ListenerReasonOverlappingHostnames),
			"hostnames overlap with "+strings.Join(l.overlapping, ", ")+"; a request on a connection made for another listener gets 421"))
	}
	return out
}

func (l *listener) notProgrammed() *problem {
	switch {
	case l.conflict:
		return l.refused
	case l.refused != nil:
		return &problem{string(gatewayv1.ListenerReasonInvalid), "the listener is not accepted: " + l.refused.message}
	case !l.served():
		message := "no kind of route can attach"
		if l.unresolved != nil {
			message = l.unresolved.message
		}
		return &problem{string(gatewayv1.ListenerReasonInvalid), message}
	}
	switch up := l.scope.notProgrammed(); {
	case up == nil, up == l.scope.unusable && l.scope.observed.Ready:
		return nil // it is served at the addresses that there are
	default:
		return &problem{string(gatewayv1.ListenerReasonPending), up.message}
	}
}

func (l *listener) status(generation int64) gatewayv1.ListenerStatus {
	kinds := l.kinds
	if kinds == nil {
		kinds = []gatewayv1.RouteGroupKind{} // required by the schema
	}
	return gatewayv1.ListenerStatus{
		Name: gatewayv1.SectionName(l.name), SupportedKinds: kinds, AttachedRoutes: l.attached, Conditions: l.conditions(generation),
	}
}
