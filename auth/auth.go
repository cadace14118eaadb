// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package auth says who is asking: a key, in whatever header a client's library
// sends it, becomes an [Identity] with all that holds for it on the way from the
// organisation down to the key.
//
// Keys are those of the configuration ([New]) and those of a store, which
// [Registry] keeps in memory. The package leaves to others what an identity may
// spend (quota), which model a request reaches (proxy) and where keys are kept
// (keystore). Start reading at [Directory.Identify].
//
// Always: a key is known by its digest only; the answer to a wrong key is the
// same as to none; nothing is read from the request but its headers, query and
// address; what a level of the tree does not allow, none below it does.
package auth

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
)

// Identity is who asks. The zero value is anybody. Immutable.
type Identity struct {
	Tenant  string // path
	Tier    string
	Key     string   // its name
	ID      string   // of a stored key; "": the key is a configuration's
	Regions []string // the only ones in which its requests may be processed; nil: any
	Nodes   []*Node  // outermost first, the key last; nil for anybody

	bound      []*Node    // those of Nodes that list sources; nil: none
	of         *Directory // that made it
	generation uint64     // of the stored tenants when it was made
}

// Node is one level of the tree from the organisation to the key. Immutable, and
// shared by the identities below it.
type Node struct {
	// Name is the path: "acme", "acme/search"; the key's ends with its name:
	// "acme/search:ci".
	Name     string
	Limits   []config.Limit
	Users    *config.Users // nil: end users are not told apart at this level
	Metadata map[string]string

	tier, kind   string
	regions      []string
	models, deny []string // patterns; nil: no rule
	sources      []netip.Prefix
}

// Allows says whether the identity may ask for model: no level denies it, and
// every level that lists models has it on its list.
func (id *Identity) Allows(model string) bool {
	for _, n := range id.Nodes {
		if n.deny != nil && config.MatchesAny(n.deny, model) || n.models != nil && !config.MatchesAny(n.models, model) {
			return false
		}
	}
	return true
}

// Denies says that some level denies the model.
func (id *Identity) Denies(model string) bool {
	for _, n := range id.Nodes {
		if n.deny != nil && config.MatchesAny(n.deny, model) {
			return true
		}
	}
	return false
}

// Restricted says that there are models which the identity may not ask for.
func (id *Identity) Restricted() bool {
	for _, n := range id.Nodes {
		if n.models != nil || n.deny != nil {
			return true
		}
	}
	return false
}

// Metadata is the text of that name at the level nearest to the key; "": there
// is none.
func (id *Identity) Metadata(name string) string {
	for i := len(id.Nodes) - 1; i >= 0; i-- {
		if text := id.Nodes[i].Metadata[name]; text != "" {
			return text
		}
	}
	return ""
}

// admits says that every level which lists sources lists client.
func (id *Identity) admits(client netip.Addr) bool {
	for _, n := range id.bound {
		in := false
		for _, block := range n.sources {
			in = in || block.Contains(client)
		}
		if !in {
			return false
		}
	}
	return true
}

// client is the address that r came from. A header can say anything and is not
// believed.
func client(r *http.Request) netip.Addr {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap().WithZone("")
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

// Strip takes off r what [Credential] may have read, in every place.
func Strip(r *http.Request) {
	for _, name := range [...]string{"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key"} {
		r.Header.Del(name)
	}
	if !strings.Contains(r.URL.RawQuery, "key=") {
		return
	}
	var kept []string
	for part := range strings.SplitSeq(r.URL.RawQuery, "&") {
		name, _, _ := strings.Cut(part, "=")
		if plain, err := url.QueryUnescape(name); err != nil || plain != "key" {
			kept = append(kept, part)
		}
	}
	r.URL.RawQuery = strings.Join(kept, "&")
}

func unauthorized(message string) *llm.Error {
	return &llm.Error{
		Status: http.StatusUnauthorized, Type: "authentication_error", Code: "invalid_api_key", Message: message,
		Header: http.Header{"Www-Authenticate": {`Bearer realm="penstock"`}},
	}
}
