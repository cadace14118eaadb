// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Names in a configuration are bounded and become labels of metrics, so they are
// made of what a person knows: namespace, name, port. What joins the parts
// stands in none of them, and things of different kinds have names of
// different forms: a pool for an InferencePool is "namespace/name", one for a
// port of a Service "namespace/name/port".

const (
	longName  = 253 // of pools and HTTP routes
	shortName = 63  // of everything else
)

var (
	longForm  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$`)
	shortForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
)

func long(parts ...string) string { return bounded(strings.Join(parts, "/"), longName, longForm) }

func short(s string) string { return bounded(s, shortName, shortForm) }

// bounded is s if it is a name of the form, else a name that only s has.
func bounded(s string, most int, form *regexp.Regexp) string {
	if len(s) <= most && form.MatchString(s) {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-', r == '_', r == '/' && most == longName:
			return r
		}
		return -1
	}, s)
	const digest = 10
	clean = strings.TrimLeft(clean, "./_-")
	if clean = clean[:min(len(clean), most-digest-1)]; clean == "" {
		clean = "x"
	}
	return clean + "-" + hex.EncodeToString(sum[:])[:digest]
}

// objectName is the name of an HTTPRoute and of the pool of an InferencePool.
func objectName(n types.NamespacedName) string { return long(n.Namespace, n.Name) }

func grpcRouteName(n types.NamespacedName) string { return long(n.Namespace, n.Name, "grpc") }

// servicePool is the name of the pool for a port of a Service.
func servicePool(n types.NamespacedName, port int32, grpc bool) string {
	if grpc {
		return long(n.Namespace, n.Name, strconv.Itoa(int(port)), "grpc")
	}
	return long(n.Namespace, n.Name, strconv.Itoa(int(port)))
}

// pickerName is that of an InferencePool's own profile.
func pickerName(n types.NamespacedName) string { return short(n.Namespace + "." + n.Name) }

// sectionOf is the section of a listener: its name, or the names of the
// ListenerSet and its own, joined by what no name in Kubernetes has.
func sectionOf(l *listener) string {
	if l.set == nil {
		return short(l.name)
	}
	return short(l.set.Namespace + "_" + l.set.Name + "_" + l.name)
}

// hostForm is a host name as a hostname of the Gateway API may have it: exact,
// or with one wildcard label in front; lower case, no address.
var hostForm = regexp.MustCompile(`^(\*\.)?[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`)

var addressForm = regexp.MustCompile(`^[0-9.]+$`)

func isHost(s string) bool {
	return len(s) <= 253 && hostForm.MatchString(s) && !addressForm.MatchString(s) && s != "*."
}

// intersect is the host that both admit, each exact, "*.suffix" or empty for
// every host.
func intersect(a, b string) (host string, ok bool) {
	switch {
	case a == "" || a == b:
		return b, true
	case b == "":
		return a, true
	case covers(a, b):
		return b, true
	case covers(b, a):
		return a, true
	}
	return "", false
}

// covers says whether wildcard "*.suffix" matches every host of h: one or more
// labels in place of the star, never none.
func covers(wildcard, h string) bool {
	suffix, ok := strings.CutPrefix(wildcard, "*")
	return ok && len(h) > len(suffix) && strings.HasSuffix(h, suffix)
}
