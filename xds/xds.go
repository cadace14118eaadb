// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package xds carries configurations from a control plane to the gateways that
// serve them: ADS in its delta form (envoy.service.discovery.v3) with resource
// types of Penstock's own, over TLS on which both sides prove who they are.
//
// Left to others: making the configurations and following the members (package
// kube), applying them (cmd), what a token means (the [TokenReviewer]).
//
// Start reading at [Server] for the control plane and at [Client] for the
// gateway. server.go holds what is served, stream.go one client's stream;
// sign.go and authority.go are how a gateway gets its certificate.
//
// Always true: a client sees the resources of one Gateway, the one that its
// certificate names; what a client has is never sent again; a client has a
// pool's members before the configuration that names the pool and loses them
// after the one that no longer does; the newest state alone is sent, however
// slow a client is; what a client cannot use changes nothing there.
package xds

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/penstock/penstock/config"
)

// The resource types. The value of each is a JSON document and no protobuf: the
// type of the configuration exists once, in Go, and a copy of it in a schema
// would have to follow every field. Both ends are this package.
const (
	// ConfigType has one resource, named [ConfigName]: config.Config.Encode.
	ConfigType = "type.penstock.dev/config.v1"
	// MembersType has a resource for each set of members that comes from the
	// control plane: of a pool, named as the pool, or of a pool's remote picker,
	// named by config.PickerSet.
	MembersType = "type.penstock.dev/members.v1"

	// ConfigName is the name of the one configuration.
	ConfigName = "config"
)

// maxMessage bounds what a gateway takes at once.
const maxMessage = 64 << 20

// Gateway names what a data plane serves: a Gateway of Kubernetes.
type Gateway struct{ Namespace, Name string }

func (g Gateway) String() string { return g.Namespace + "/" + g.Name }

// membersDoc is the value of a members resource. A reader ignores keys that it
// does not know: what an older gateway must not overlook belongs into the
// configuration.
type membersDoc struct {
	Members []member `json:"members"`
}

// member is config.Member with JSON keys. The conversions below fail to compile
// when the two differ.
type member struct {
	Address string            `json:"address"`
	Labels  map[string]string `json:"labels,omitempty"`
}

func encodeMembers(list []config.Member) []byte {
	doc := membersDoc{Members: make([]member, len(list))}
	for i, m := range list {
		doc.Members[i] = member(m)
	}
	raw, err := json.Marshal(doc)
	if err != nil {
		panic("xds: members have no JSON form: " + err.Error()) // texts and maps of texts always have
	}
	return raw
}

func decodeMembers(raw []byte) ([]config.Member, error) {
	var doc membersDoc
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, fmt.Errorf("members: %w", err)
	}
	list := make([]config.Member, len(doc.Members))
	for i, m := range doc.Members {
		if m.Address == "" {
			return nil, fmt.Errorf("members: entry %d has no address", i)
		}
		list[i] = config.Member(m)
	}
	return list, nil
}

// externalSets are the names under which cfg expects members from the control
// plane: those of pools, and those of the pickers of pools.
func externalSets(cfg *config.Config) (names []string) {
	for i := range cfg.Pools {
		p := &cfg.Pools[i]
		if p.Members.External {
			names = append(names, p.Name)
		}
		if r := p.Picker.Remote; r != nil && r.External {
			names = append(names, config.PickerSet(p.Name))
		}
	}
	return names
}

// versionOf depends on the content alone: a control plane that was restarted,
// or another replica of it, gives the same content the same version.
func versionOf(value []byte) string {
	sum := sha256.Sum256(value)
	return hex.EncodeToString(sum[:12])
}

func packed(typeURL string, value []byte) *anypb.Any {
	return &anypb.Any{TypeUrl: typeURL, Value: value}
}

// short names a type in metrics and messages.
func short(typeURL string) string {
	s, _, _ := strings.Cut(strings.TrimPrefix(typeURL, "type.penstock.dev/"), ".")
	return s
}
