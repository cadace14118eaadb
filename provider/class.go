// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider

import "fmt"

// Class is what an outcome of an attempt means.
type Class uint8

// The classes. Each outcome has exactly one.
const (
	OK            Class = iota // an answer without an error
	Connect                    // no connection: DNS, dial, TLS
	Reset                      // the connection broke before a status
	RateLimit                  // too many requests or tokens, for a while
	Quota                      // the account is exhausted or unpaid
	Overloaded                 // the server has no room, for anybody
	Server                     // a fault of the server
	Timeout                    // a bound of the gateway's or the server's own passed
	Auth                       // the credential is refused
	Forbidden                  // the credential is known and may not do this
	ModelNotFound              // the server does not know the model, or the URL
	ContextWindow              // the prompt is too long for the model
	ContentPolicy              // the prompt or the answer is refused for what it says
	BadRequest                 // any other fault of the request
	StreamBroken               // an error after a 2xx: an event, a cut, nonsense
	Empty                      // a 2xx that holds nothing and says no good reason
	Canceled                   // the client has left
	Deadline                   // the client's time is over
	Unsupported                // the provider does not do this at all; nothing was sent
	classes
)

// Scope is what a class says something about.
type Scope uint8

// The scopes.
const (
	ScopeNone       Scope = iota
	ScopeModel            // the credential at this model
	ScopeCredential       // the credential at every model
)

// ways are what follows from a class.
type ways struct {
	name     string
	retries  int    // further attempts at the same credential, at most
	next     bool   // another credential or target may do better
	fallback string // list of fallbacks that is for it
	counts   bool   // one of the failures in a row that open the circuit
	doubtful bool   // the request may be what the server fails at
	scope    Scope  // of the time out that begins at once, without a row
}

// wayTable is indexed by Class.
var wayTable = [classes]ways{
	OK:            {name: "ok"},
	Connect:       {name: "connect", retries: 2, next: true, fallback: "general", counts: true},
	Reset:         {name: "reset", retries: 2, next: true, fallback: "general", counts: true, doubtful: true},
	RateLimit:     {name: "rate_limit", retries: 1, next: true, fallback: "general", scope: ScopeModel},
	Quota:         {name: "quota", next: true, fallback: "general", scope: ScopeCredential},
	Overloaded:    {name: "overloaded", retries: 1, next: true, fallback: "general", counts: true},
	Server:        {name: "server", retries: 1, next: true, fallback: "general", counts: true, doubtful: true},
	Timeout:       {name: "timeout", next: true, fallback: "general", counts: true, doubtful: true},
	Auth:          {name: "auth", next: true, fallback: "general", scope: ScopeCredential},
	Forbidden:     {name: "forbidden", next: true, fallback: "general", scope: ScopeModel},
	ModelNotFound: {name: "model_not_found", next: true, fallback: "general", scope: ScopeModel},
	ContextWindow: {name: "context_window", fallback: "contextWindow"},
	ContentPolicy: {name: "content_policy", fallback: "contentPolicy"},
	BadRequest:    {name: "bad_request"},
	StreamBroken:  {name: "stream_broken", next: true, fallback: "general", counts: true, doubtful: true},
	Empty:         {name: "empty", next: true, fallback: "general", counts: true, doubtful: true},
	Canceled:      {name: "canceled"},
	Deadline:      {name: "deadline"},
	Unsupported:   {name: "unsupported", next: true, fallback: "general"},
}

func (c Class) ways() ways {
	if c >= classes {
		return ways{name: fmt.Sprintf("class(%d)", uint8(c))}
	}
	return wayTable[c]
}

// String is the class in metrics, records and the state.
func (c Class) String() string { return c.ways().name }

// RetrySame says whether another attempt at the same credential may succeed: for
// RateLimit only after [Verdict].Wait, if that fits into the client's time.
func (c Class) RetrySame() bool { return c.ways().retries > 0 }

// Retries is how many such attempts are worth it.
func (c Class) Retries() int { return c.ways().retries }

// NextTarget says whether another credential, or target of the same model, may
// be asked, while no output has reached the client.
func (c Class) NextTarget() bool { return c.ways().next }

// Fallback is the list of fallbacks that the class leads to: general,
// contextWindow or contentPolicy; "": none.
func (c Class) Fallback() string { return c.ways().fallback }

// Counts says whether the outcome is a failure of the provider, one of those in
// a row that take a credential out.
func (c Class) Counts() bool { return c.ways().counts }

// Doubtful says whether such a failure may be of the request's own making: a
// prompt at which a server fails each time.
func (c Class) Doubtful() bool { return c.ways().doubtful }

// Cools is what a single outcome of this class takes out of use.
func (c Class) Cools() Scope { return c.ways().scope }
