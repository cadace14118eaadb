// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/config"
)

// MembersAnnotation lists addresses ("host:port", with commas or spaces between
// them) on an InferencePool or a Service of a file: they stand in the place of
// the pods or endpoints, which a file without a cluster mostly lacks. A
// controller does not read it: who may edit a pool would reach any address.
const MembersAnnotation = "penstock.dev/members"

// LocalOptions say how a Gateway of files is served by one process.
type LocalOptions struct {
	// Gateway to serve, as namespace/name or name; empty: the first by
	// namespace and name.
	Gateway string
	// Bind is the host of the listeners; empty: every interface.
	Bind string
	// Shift is added to ports below 1024, which need a privilege.
	Shift int32
	Options
}

// Local is a Gateway of files.
type Local struct {
	*Gateway
	Members map[string][]config.Member // by set
	Result  *Result
	Others  []string // Gateways that are not served
}

// Local compiles the Gateway that a process without a cluster serves. Classes
// that no file defines count as ours if no file defines any class.
//
// Where the Gateway cannot be served the error says why and the result is there
// nevertheless, with the statuses of all objects.
func (m *Manifests) Local(o LocalOptions) (*Local, error) {
	objects := m.Objects
	if len(objects.GatewayClasses) == 0 {
		objects.GatewayClasses = assumedClasses(objects.Gateways)
	}
	o.Observed = map[types.NamespacedName]Observed{}
	for _, g := range objects.Gateways {
		kind := gatewayv1.IPAddressType
		o.Observed[nameOf(g)] = Observed{Bind: o.Bind, Ready: true, Addresses: []gatewayv1.GatewayStatusAddress{{Type: &kind, Value: cmp.Or(o.Bind, "127.0.0.1")}}}
	}
	l := &Local{Result: Translate(&objects, o.Options)}
	if len(l.Result.Gateways) == 0 {
		return l, errors.New("there is no Gateway of a class of penstock")
	}
	var names []string
	for _, g := range l.Result.Gateways {
		names = append(names, g.String())
		if l.Gateway == nil && (o.Gateway == "" || o.Gateway == g.String() || o.Gateway == g.Name) {
			l.Gateway = g
		}
	}
	if l.Gateway == nil {
		return l, fmt.Errorf("there is no Gateway %s; there is %s", o.Gateway, strings.Join(names, ", "))
	}
	l.Others = slices.DeleteFunc(names, func(n string) bool { return n == l.Gateway.String() })
	if l.Config == nil {
		why := judge((statusFor(l.Result.Statuses, kindGateway, l.NamespacedName)).Findings())
		return l, fmt.Errorf("Gateway %s is not accepted: %s: %s", l.NamespacedName, why.Reason, why.Message)
	}
	if err := shiftPorts(l.Config, o.Shift); err != nil {
		return l, err
	}
	var err error
	l.Members, err = m.Members(l.Sources)
	return l, err
}

func statusFor(list []*Status, kind string, n types.NamespacedName) *Status {
	for _, s := range list {
		if s.Kind == kind && s.NamespacedName == n {
			return s
		}
	}
	return &Status{Kind: kind, NamespacedName: n}
}

func assumedClasses(gateways []*gatewayv1.Gateway) []*gatewayv1.GatewayClass {
	var out []*gatewayv1.GatewayClass
	for _, g := range gateways {
		name := string(g.Spec.GatewayClassName)
		if slices.ContainsFunc(out, func(c *gatewayv1.GatewayClass) bool { return c.Name == name }) {
			continue
		}
		c := &gatewayv1.GatewayClass{}
		c.Name, c.Generation, c.Spec.ControllerName = name, 1, ControllerName
		out = append(out, c)
	}
	return out
}

// shiftPorts moves ports that need a privilege. Two listeners may then want the
// same one.
func shiftPorts(c *config.Config, by int32) error {
	taken := map[string]string{}
	for i := range c.Listeners {
		l := &c.Listeners[i]
		host, text, err := net.SplitHostPort(l.Address)
		if err != nil {
			return err
		}
		port, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		if port < 1024 && by != 0 {
			port += int(by)
			l.Address = net.JoinHostPort(host, strconv.Itoa(port))
		}
		if other, ok := taken[l.Address]; ok {
			return fmt.Errorf("listeners %s and %s would both be served at %s; choose another shift of low ports", other, l.Name, l.Address)
		}
		taken[l.Address] = l.Name
	}
	return nil
}

// Members are those of the sources: what [Members] finds in the files, or what
// annotations say in its place.
func (m *Manifests) Members(sources []*Source) (map[string][]config.Member, error) {
	out := Members(&m.Objects, sources)
	var errs []error
	put := func(set string, kind string, n types.NamespacedName, text string) {
		list, err := memberList(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %s: annotation %s: %w", kind, n, MembersAnnotation, err))
		}
		out[set] = list
	}
	for _, s := range sources {
		if s.Service != "" {
			n := types.NamespacedName{Namespace: s.Namespace, Name: s.Service}
			for _, svc := range m.Services {
				if text, ok := svc.Annotations[MembersAnnotation]; ok && nameOf(svc) == n {
					put(s.Set, kindService, n, text)
				}
			}
			continue
		}
		for _, p := range m.InferencePools {
			if text, ok := p.Annotations[MembersAnnotation]; ok && objectName(nameOf(p)) == s.Set {
				put(s.Set, kindInferencePool, nameOf(p), text)
			}
		}
	}
	return out, errors.Join(errs...)
}

func memberList(text string) ([]config.Member, error) {
	out := []config.Member{}
	for _, address := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' }) {
		host, port, err := net.SplitHostPort(address)
		if n, bad := strconv.Atoi(port); err != nil || host == "" || bad != nil || n < 1 || n > 65535 {
			return out, fmt.Errorf("%q is not host:port", address)
		}
		out = append(out, config.Member{Address: address})
	}
	return out, nil
}
