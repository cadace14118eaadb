// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package auth says who is asking: a key, in whatever header a client's library
// sends it, becomes an [Identity].
//
// It leaves to others what an identity may spend (quota) and which model a
// request reaches (proxy). Start reading at [Directory.Identify].
//
// Always: a key is known by its digest only; the answer to a wrong key is the
// same as to none; nothing is read from the request but its headers and query.
package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
)

// Identity is who asks. The zero value is anybody. Immutable.
type Identity struct {
	Tenant  string
	Tier    string
	Key     string   // its name
	Regions []string // the only ones in which its requests may be processed; nil: any
	Nodes   []*Node  // outermost first, the key last; nil for anybody
	models  []string // that it may ask for; nil: every one
}

// Node is one level of the tree from the organisation to the key. Immutable, and
// shared by the identities below it.
type Node struct {
	// Name is the path: "acme", "acme/search"; the key's ends with its name:
	// "acme/search:ci".
	Name   string
	Limits []config.Limit
	Users  *config.Users // nil: end users are not told apart at this level
}

// Allows says whether the identity may ask for model.
func (id *Identity) Allows(model string) bool {
	if len(id.models) == 0 {
		return true
	}
	for _, pattern := range id.models {
		if config.MatchName(pattern, model) {
			return true
		}
	}
	return false
}

// Directory knows every key of one configuration. Immutable.
type Directory struct {
	keys map[[sha256.Size]byte]*Identity
	list []*Identity // in the order of the configuration
}

// New compiles the tenants of a configuration that is valid.
func New(tenants []config.Tenant) *Directory {
	d := &Directory{keys: map[[sha256.Size]byte]*Identity{}}
	for i := range tenants {
		t := &tenants[i]
		tenant := &Node{Name: t.Name, Limits: t.Limits, Users: t.Users}
		for j := range t.Keys {
			k := &t.Keys[j]
			id := &Identity{Tenant: t.Name, Tier: t.Tier, Key: k.Name, Regions: t.Regions, models: k.Models}
			id.Nodes = []*Node{tenant, {Name: t.Name + ":" + k.Name, Limits: k.Limits}}
			if k.Tier != "" {
				id.Tier = k.Tier
			}
			var digest [sha256.Size]byte
			if n, err := hex.Decode(digest[:], []byte(strings.TrimPrefix(k.Hash, "sha256:"))); err == nil && n == len(digest) {
				d.keys[digest], d.list = id, append(d.list, id)
			}
		}
	}
	return d
}

// As is the identity of a tenant's key by its name; without one, of the tenant
// with its first key. nil: there is none.
func (d *Directory) As(tenant, key string) *Identity {
	for _, id := range d.list {
		if id.Tenant == tenant && (key == "" || id.Key == key) {
			return id
		}
	}
	return nil
}

// maxKey bounds what is hashed for a request.
const maxKey = 4 << 10

// Identify finds who sent r, by the first key that it carries. Digests of keys
// are looked up, so that the time it takes tells nothing of the keys that exist.
func (d *Directory) Identify(r *http.Request) (*Identity, *llm.Error) {
	key := Credential(r)
	if key == "" {
		return nil, unauthorized("this address asks for a key: send it as Authorization: Bearer KEY, x-api-key, api-key or x-goog-api-key")
	}
	if len(key) <= maxKey {
		if id := d.keys[sha256.Sum256([]byte(key))]; id != nil {
			return id, nil
		}
	}
	return nil, unauthorized("the key is not known here")
}

// Credential is the key that r carries, in one of the places in which the
// clients of the providers send theirs; "" for none.
func Credential(r *http.Request) string {
	if v := r.Header.Get("Authorization"); v != "" {
		if scheme, key, ok := strings.Cut(v, " "); ok && strings.EqualFold(scheme, "Bearer") {
			return strings.TrimSpace(key)
		}
	}
	for _, name := range [...]string{"X-Api-Key", "Api-Key", "X-Goog-Api-Key"} {
		if v := r.Header.Get(name); v != "" {
			return v
		}
	}
	if strings.Contains(r.URL.RawQuery, "key=") {
		return r.URL.Query().Get("key") // Gemini's libraries of old
	}
	return ""
}

func unauthorized(message string) *llm.Error {
	return &llm.Error{
		Status: http.StatusUnauthorized, Type: "authentication_error", Code: "invalid_api_key", Message: message,
		Header: http.Header{"Www-Authenticate": {`Bearer realm="penstock"`}},
	}
}
