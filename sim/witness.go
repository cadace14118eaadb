// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Calls are the requests of one credential to one model.
type Calls struct {
	Credential string `json:"credential"` // hashed, see [CredentialHash]
	Model      string `json:"model"`
	Attempts   int64  `json:"attempts"`
	Refused    int64  `json:"refused"`   // answered with an error status
	Cancelled  int64  `json:"cancelled"` // the client left before the end
}

// Seen is what a request brought.
type Seen struct {
	Method string `json:"method"`
	Path   string `json:"path"`
	Query  string `json:"query,omitempty"` // a key in it hashed
	Host   string `json:"host"`
	Model  string `json:"model,omitempty"`
	// Headers by canonical name. Values of what may carry a credential are
	// hashed, see [CredentialHash].
	Headers   map[string][]string `json:"headers"`
	BodySize  int                 `json:"bodySize"`
	Body      string              `json:"body,omitempty"`   // with [ProviderConfig.KeepBodies], its beginning
	Status    int                 `json:"status,omitempty"` // of a refusal
	Cancelled bool                `json:"cancelled,omitempty"`
	Ended     bool                `json:"ended"`

	key string
}

const (
	keptSeen       = 256
	keptCalls      = 1024 // further ones count under the model "other"
	keptBody       = 64 << 10
	keptHeaders    = 64
	keptValues     = 8
	keptHeaderSize = 1024
)

// CredentialHash is how the stats show a credential: the beginning of its
// SHA-256, "" for none.
func CredentialHash(secret string) string {
	if secret == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(secret))
	return "sha256:" + hex.EncodeToString(sum[:8])
}

// credentialSlots are headers that may carry a credential. Of a header
// "Bearer x" only x is hashed.
var credentialSlots = map[string]bool{
	"authorization": true, "proxy-authorization": true, "x-api-key": true, "api-key": true, "x-goog-api-key": true,
	"xi-api-key": true, "cookie": true, "x-amz-security-token": true, "cf-aig-authorization": true,
	"helicone-auth": true, "x-portkey-api-key": true, "x-litellm-api-key": true, "x-bf-vk": true,
	"ocp-apim-subscription-key": true,
}

// witness remembers what came, in bounds.
type witness struct {
	bodies    bool
	mu        sync.Mutex
	attempts  int64
	cancelled int64
	calls     map[[2]string]*Calls
	seen      []*Seen // a ring
	next      int
}

func (t *witness) arrive(r *http.Request, key, model string, body []byte) *Seen {
	s := &Seen{
		Method: r.Method, Path: truncate(r.URL.Path, keptHeaderSize), Host: r.Host, Model: model, BodySize: len(body),
		Headers: map[string][]string{}, key: CredentialHash(key),
	}
	q := r.URL.Query()
	for _, name := range []string{"key", "api-key", "access_token"} {
		for i, v := range q[name] {
			q[name][i] = CredentialHash(v)
		}
	}
	s.Query = truncate(q.Encode(), keptHeaderSize)
	for name, values := range r.Header {
		if len(s.Headers) == keptHeaders {
			break
		}
		for _, v := range values[:min(len(values), keptValues)] {
			s.Headers[name] = append(s.Headers[name], shown(name, v))
		}
	}
	if t.bodies {
		s.Body = truncate(string(body), keptBody)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attempts++
	t.count(s).Attempts++
	if len(t.seen) < keptSeen {
		t.seen = append(t.seen, s)
	} else {
		t.seen[t.next] = s
		t.next = (t.next + 1) % keptSeen
	}
	return s
}

// shown is the value of a header as the stats may show it.
func shown(name, v string) string {
	if !credentialSlots[strings.ToLower(name)] {
		return truncate(v, keptHeaderSize)
	}
	scheme, secret, ok := strings.Cut(v, " ")
	switch {
	case ok && strings.EqualFold(scheme, "Bearer"):
		return scheme + " " + CredentialHash(secret)
	case strings.HasPrefix(v, "AWS4-HMAC-SHA256 "):
		return truncate(v, keptHeaderSize) // a signature is no credential
	}
	return CredentialHash(v)
}

// count is the entry of a request; the caller holds mu.
func (t *witness) count(s *Seen) *Calls {
	k := [2]string{s.key, s.Model}
	if t.calls == nil {
		t.calls = map[[2]string]*Calls{}
	}
	if t.calls[k] == nil && len(t.calls) >= keptCalls {
		k = [2]string{"", "other"}
	}
	if t.calls[k] == nil {
		t.calls[k] = &Calls{Credential: k[0], Model: k[1]}
	}
	return t.calls[k]
}

// settle notes the end of a request.
func (t *witness) settle(s *Seen, status int, cancelled bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.Status, s.Cancelled, s.Ended = status, cancelled, true
	if status != 0 {
		t.count(s).Refused++
	}
	if cancelled {
		t.cancelled++
		t.count(s).Cancelled++
	}
}

// report adds what the witness knows to the stats.
func (t *witness) report(s *Stats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.Attempts, s.Cancelled = t.attempts, t.cancelled
	for _, c := range t.calls {
		s.Calls = append(s.Calls, *c)
	}
	slices.SortFunc(s.Calls, func(a, b Calls) int {
		return strings.Compare(a.Credential+"\x00"+a.Model, b.Credential+"\x00"+b.Model)
	})
	for i := range t.seen {
		s.Seen = append(s.Seen, *t.seen[(t.next+i)%len(t.seen)])
	}
}
