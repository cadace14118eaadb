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

// Names in a configuration are bounded (63 characters) and become labels of
// metrics, so they are made of what a person knows: namespace, name, port. What
// joins the parts may stand in none of them: a namespace has no dot, and no
// name in Kubernetes has an underscore.

const maxName = 63

// plainName is what config accepts as a name.
var plainName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

// bounded is s if it is a name, else a name that only s has.
func bounded(s string) string {
	if len(s) <= maxName && plainName.MatchString(s) {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-', r == '_':
			return r
		}
		return -1
	}, s)
	clean = strings.TrimLeft(clean, "._-")
	const digest = 10
	clean = clean[:min(len(clean), maxName-digest-1)]
	if clean == "" {
		clean = "x"
	}
	return clean + "-" + hex.EncodeToString(sum[:])[:digest]
}

func objectName(n types.NamespacedName) string { return bounded(n.Namespace + "." + n.Name) }

func grpcRouteName(n types.NamespacedName) string {
	return bounded(n.Namespace + "." + n.Name + "_grpc")
}

// servicePool is the name of the pool for a port of a Service.
func servicePool(n types.NamespacedName, port int32, grpc bool) string {
	s := n.Namespace + "." + n.Name + "_" + strconv.Itoa(int(port))
	if grpc {
		s += "_grpc"
	}
	return bounded(s)
}

func sectionOf(l *listener) string {
	if l.set == nil {
		return bounded(l.name)
	}
	return bounded(l.set.Namespace + "_" + l.set.Name + "_" + l.name)
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

// BoundedName is the name by which a configuration knows something that has
// that name in Kubernetes: the same, unless that is too long.
func BoundedName(name string) string { return bounded(name) }
