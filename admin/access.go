// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"strings"

	"github.com/penstock/penstock/config"
)

// Role is what somebody may do here. Each may do what those before it may.
type Role int

// The roles.
const (
	Nobody   Role = iota // what everybody may: see that the process runs
	Viewer               // reads what is shown
	Operator             // also keys, dry runs and profiles
	Admin                // also tenants, limits and the audit trail
)

func (r Role) String() string { return [...]string{"nobody", "viewer", "operator", "admin"}[r] }

func roleOf(name string) Role {
	for r := Viewer; r <= Admin; r++ {
		if r.String() == name {
			return r
		}
	}
	return Nobody
}

// caller is who asks.
type caller struct {
	name string
	role Role
}

// caller finds out who asks: a user by the token, the bearer of a client
// certificate, or, where there are no users, whoever reaches this address, which
// then is this machine's alone.
func (s *server) caller(r *http.Request) caller {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 && len(r.TLS.PeerCertificates) > 0 {
		name := r.TLS.PeerCertificates[0].Subject.CommonName
		if name == "" {
			name = r.TLS.PeerCertificates[0].Subject.String()
		}
		return caller{name: "certificate " + name, role: Admin}
	}
	var users []config.AdminUser
	if s.Users != nil {
		users = s.Users()
	}
	if len(users) == 0 {
		return caller{name: "this machine", role: Admin}
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || len(token) > 4<<10 {
		return caller{}
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	digest := []byte("sha256:" + hex.EncodeToString(sum[:]))
	found := caller{}
	for i := range users { // all of them, so that the time tells nothing
		if subtle.ConstantTimeCompare(digest, []byte(users[i].Hash)) == 1 {
			found = caller{name: users[i].Name, role: roleOf(users[i].Role)}
		}
	}
	return found
}

// admit says that the caller has the role, and refuses otherwise.
func (s *server) admit(w http.ResponseWriter, r *http.Request, need Role) (caller, bool) {
	if need == Nobody {
		return caller{}, true
	}
	c := s.caller(r)
	switch {
	case c.role >= need:
		return c, true
	case c.role == Nobody:
		w.Header().Set("WWW-Authenticate", `Bearer realm="penstock admin"`)
		writeError(w, http.StatusUnauthorized, "a token of one of admin.users is needed here", "send Authorization: Bearer TOKEN; the commands of penstock take it from PENSTOCK_ADMIN_TOKEN")
	default:
		writeError(w, http.StatusForbidden, c.name+" has the role "+c.role.String()+", and this needs "+need.String(), "")
	}
	return c, false
}
