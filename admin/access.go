// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"net/netip"
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
	name    string
	role    Role
	session bool // known by a browser's cookie
}

// caller finds out who asks: a user by the token or by the session of a browser,
// the bearer of a client certificate, or, where there are no users, whoever
// reaches this address, which then is this machine's alone.
func (s *server) caller(r *http.Request) caller {
	if c := s.trusted(r); c.role > Nobody {
		return c
	}
	if r.Header.Get("Authorization") == "" {
		return s.sessions.caller(r, s.users())
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return caller{}
	}
	c, _ := tokenCaller(s.users(), strings.TrimSpace(token))
	return c
}

// trusted is who needs no token.
func (s *server) trusted(r *http.Request) caller {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 && len(r.TLS.PeerCertificates) > 0 {
		name := r.TLS.PeerCertificates[0].Subject.CommonName
		if name == "" {
			name = r.TLS.PeerCertificates[0].Subject.String()
		}
		return caller{name: "certificate " + name, role: Admin}
	}
	if len(s.users()) == 0 {
		return caller{name: "this machine", role: Admin}
	}
	return caller{}
}

func (s *server) users() []config.AdminUser {
	if s.Users == nil {
		return nil
	}
	return s.Users()
}

// tokenCaller is the user of a token, and the token's digest.
func tokenCaller(users []config.AdminUser, token string) (found caller, digest string) {
	if len(token) > 4<<10 {
		return caller{}, ""
	}
	sum := sha256.Sum256([]byte(token))
	digest = "sha256:" + hex.EncodeToString(sum[:])
	for i := range users { // all of them, so that the time tells nothing
		if subtle.ConstantTimeCompare([]byte(digest), []byte(users[i].Hash)) == 1 {
			found = caller{name: users[i].Name, role: roleOf(users[i].Role)}
		}
	}
	return found, digest
}

// paced is caller, with wrong tokens slowed. late says that too many wrong ones
// came from that address.
func (s *server) paced(r *http.Request) (c caller, late bool) {
	if r.Header.Get("Authorization") == "" || s.trusted(r).role > Nobody {
		return s.caller(r), false
	}
	_, late = s.guard.Try(r.Context(), source(r), func() bool { c = s.caller(r); return c.role > Nobody })
	return c, late
}

// source is the address that r comes from.
func source(r *http.Request) netip.Addr {
	a, _ := netip.ParseAddrPort(r.RemoteAddr) // the zero address counts as one source
	return a.Addr().Unmap()
}

// admit says that the caller has the role, and refuses otherwise.
func (s *server) admit(w http.ResponseWriter, r *http.Request, need Role) (caller, bool) {
	if need == Nobody {
		return caller{}, true
	}
	c, late := s.paced(r)
	switch {
	case late:
		tooMany(w)
	case c.session && unsafe(r.Method) && r.Header.Get("Origin") == "" && r.Header.Get("Sec-Fetch-Site") == "":
		// Without these the check for other origins (see handler) has nothing to go
		// by. Browsers send them.
		writeError(w, http.StatusForbidden, "this browser does not say which page it posts for", "use a newer one, or send the token as Authorization: Bearer")
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

func unsafe(method string) bool {
	return method != http.MethodGet && method != http.MethodHead && method != http.MethodOptions
}

func tooMany(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "60")
	writeError(w, http.StatusTooManyRequests, "too many wrong tokens came from this address; use a right one, or wait a minute", "")
}
