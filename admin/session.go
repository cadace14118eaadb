// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/config"
)

const (
	cookieName      = "penstock_console"
	sessionsPerUser = 16
	sessionAge      = 12 * time.Hour
	sessionIdle     = time.Hour
	wrongTokens     = 10 // a minute from one address, before they are slowed
)

// sessions are the browsers that have signed in. They are in memory: a restart
// signs everybody out. A session carries no rights: they are looked up with each
// request, so that a user who is taken away, or gets another token, is out at
// once.
type sessions struct {
	mu  sync.Mutex
	now func() time.Time
	all map[[sha256.Size]byte]*session // by the digest of the id, at most sessionsPerUser for a user
}

type session struct {
	user, digest string // of the token
	since, used  time.Time
}

func newSessions() *sessions {
	return &sessions{now: time.Now, all: map[[sha256.Size]byte]*session{}}
}

func (s *session) over(now time.Time) bool {
	return now.Sub(s.since) >= sessionAge || now.Sub(s.used) >= sessionIdle
}

// begin makes a session, in place of the user's oldest if there are too many.
func (s *sessions) begin(user, digest string) (id string) {
	raw := make([]byte, 32)
	rand.Read(raw)
	id = base64.RawURLEncoding.EncodeToString(raw)
	s.mu.Lock()
	defer s.mu.Unlock()
	now, own := s.now(), 0
	var oldest [sha256.Size]byte
	for k, x := range s.all {
		switch {
		case x.over(now):
			delete(s.all, k)
		case x.user == user:
			if own++; own == 1 || x.used.Before(s.all[oldest].used) {
				oldest = k
			}
		}
	}
	if own >= sessionsPerUser {
		delete(s.all, oldest)
	}
	s.all[sha256.Sum256([]byte(id))] = &session{user: user, digest: digest, since: now, used: now}
	return id
}

func (s *sessions) end(r *http.Request) {
	if c, err := r.Cookie(cookieName); err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, sha256.Sum256([]byte(c.Value)))
	}
}

// caller is the user whose session r names, with the rights of this moment.
func (s *sessions) caller(r *http.Request, users []config.AdminUser) caller {
	c, err := r.Cookie(cookieName)
	if err != nil {
		return caller{}
	}
	key := sha256.Sum256([]byte(c.Value))
	s.mu.Lock()
	defer s.mu.Unlock()
	x, now := s.all[key], s.now()
	if x == nil {
		return caller{}
	}
	if !x.over(now) {
		for i := range users {
			if users[i].Name == x.user && subtle.ConstantTimeCompare([]byte(users[i].Hash), []byte(x.digest)) == 1 {
				x.used = now
				return caller{name: x.user, role: roleOf(users[i].Role), session: true}
			}
		}
	}
	delete(s.all, key)
	return caller{}
}

// SessionStatus tells a browser who it is.
type SessionStatus struct {
	Name    string `json:"name,omitempty"`
	Role    string `json:"role"`
	SignOut bool   `json:"signOut"` // there is a session that can be ended
	Version string `json:"version,omitempty"`
}

// whoami answers everybody: who is nobody is told so, to sign in.
func (s *server) whoami(w http.ResponseWriter, r *http.Request) {
	c, late := s.paced(r)
	if late {
		tooMany(w)
		return
	}
	st := SessionStatus{Name: c.name, Role: c.role.String(), SignOut: c.session}
	if c.role > Nobody {
		st.Version = s.Version
	}
	writeJSON(w, http.StatusOK, st)
}

func (s *server) signIn(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Token string `json:"token"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 8<<10)).Decode(&in); err != nil {
		writeError(w, http.StatusBadRequest, "the body cannot be read: "+err.Error(), `send {"token": "TOKEN"}`)
		return
	}
	var c caller
	var digest string
	ok, late := s.guard.Try(r.Context(), source(r), func() bool {
		c, digest = tokenCaller(s.users(), strings.TrimSpace(in.Token))
		return c.role > Nobody
	})
	switch {
	case late:
		s.Console.Metrics.signIn("throttled")
		tooMany(w)
		return
	case !ok:
		s.Console.Metrics.signIn("wrong")
		writeError(w, http.StatusUnauthorized, "this is no token of admin.users", "")
		return
	}
	s.Console.Metrics.signIn("ok")
	s.sessions.end(r) // of whoever was signed in in this browser
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: s.sessions.begin(c.name, digest), Path: "/", MaxAge: int(sessionAge / time.Second),
		HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
	})
	writeJSON(w, http.StatusOK, SessionStatus{Name: c.name, Role: c.role.String(), SignOut: true, Version: s.Version})
}

func (s *server) signOut(w http.ResponseWriter, r *http.Request) {
	s.sessions.end(r)
	http.SetCookie(w, &http.Cookie{Name: cookieName, Path: "/", MaxAge: -1, HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode})
	w.WriteHeader(http.StatusNoContent)
}
