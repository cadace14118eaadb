// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"math"
	"net"
	"strings"
	"time"
	_ "time/tzdata" // calendars have zones also where the system has no list of them

	"golang.org/x/net/http/httpguts"
)

// Limit bounds what a level of the tree from the tenant to the key, an end user
// or the credential of a provider may use. Exactly one of the units is set.
type Limit struct {
	Requests    int     `yaml:"requests" min:"0" max:"1000000000000000"`
	Input       int     `yaml:"input" min:"0" max:"1000000000000000"`    // tokens
	Output      int     `yaml:"output" min:"0" max:"1000000000000000"`   // tokens
	Tokens      int     `yaml:"tokens" min:"0" max:"1000000000000000"`   // input and output
	Weighted    int     `yaml:"weighted" min:"0" max:"1000000000000000"` // tokens times Weights
	USD         float64 `yaml:"usd" min:"0" max:"9000000"`
	Concurrency int     `yaml:"concurrency" min:"0" max:"1000000000"` // requests under way

	Weights *Weights `yaml:"weights"`
	// Per is the length of the window: a duration, or one of minute, hour, day,
	// week, month and year. Empty with Concurrency alone.
	Per    string      `yaml:"per"`
	Window LimitWindow `yaml:"window" enum:"bucket|sliding|calendar"` // empty: calendar where Per is a word, else bucket
	Zone   string      `yaml:"zone"`                                  // of calendars; empty: UTC
	Models []string    `yaml:"models"`                                // names or patterns with one *, as clients ask for them; nil: every model
	Mode   LimitMode   `yaml:"mode" default:"enforce" enum:"enforce|shadow"`
	// Soft is the part of the limit from which on answers warn; 0: none.
	Soft           float64        `yaml:"soft" min:"0" max:"1"`
	Oversize       Oversize       `yaml:"oversize" default:"reject" enum:"reject|debt"`
	OnStoreFailure OnStoreFailure `yaml:"onStoreFailure" default:"failClosed" enum:"failClosed|failOpen"`
	// Share is the part of the limit that this gateway alone lets in while the
	// store is away, with failOpen.
	Share float64 `yaml:"share" min:"0" max:"1"`
}

// Weights are what a token of each kind counts in a weighted limit.
type Weights struct {
	Input      float64 `yaml:"input" default:"1" min:"0" max:"1000"` // neither read from a cache nor written to one
	Cached     float64 `yaml:"cached" default:"1" min:"0" max:"1000"`
	CacheWrite float64 `yaml:"cacheWrite" default:"1" min:"0" max:"1000"`
	Output     float64 `yaml:"output" default:"1" min:"0" max:"1000"`
	Reasoning  float64 `yaml:"reasoning" default:"1" min:"0" max:"1000"`
}

// LimitWindow is how a limit forgets.
type LimitWindow string

// The windows.
const (
	WindowBucket   LimitWindow = "bucket"   // what was used flows off evenly
	WindowSliding  LimitWindow = "sliding"  // what is older than the window does not count
	WindowCalendar LimitWindow = "calendar" // everything is forgotten when a new minute, …, year begins
)

// LimitMode says whether a limit refuses.
type LimitMode string

// The modes.
const (
	LimitEnforce LimitMode = "enforce"
	LimitShadow  LimitMode = "shadow" // counts, and says what it would have refused
)

// Oversize is what becomes of a request that is larger than the whole limit.
type Oversize string

// The answers to it.
const (
	OversizeReject Oversize = "reject" // an error that says so: no wait would help
	OversizeDebt   Oversize = "debt"   // let in when nothing of the limit is in use; what follows waits for it
)

// OnStoreFailure is what a limit does while its store is away.
type OnStoreFailure string

// The ways.
const (
	LimitFailClosed OnStoreFailure = "failClosed"
	LimitFailOpen   OnStoreFailure = "failOpen"
)

// Users are limits of each end user of a tenant.
type Users struct {
	// From says where the name of the end user is, the first that is there: "user"
	// and "safety_identifier" of the body, "header NAME".
	From   []string `yaml:"from"`
	Limits []Limit  `yaml:"limits"`                                      // of each of them
	Max    int      `yaml:"max" default:"100000" min:"1" max:"10000000"` // told apart at a time; the rest share one more
}

// Quota is where the use of limits is kept, and what is assumed of requests.
type Quota struct {
	Store QuotaStore `yaml:"store" default:"memory" enum:"memory|redis"`
	Redis *Redis     `yaml:"redis"`
	// Output is the bound on the tokens of an answer to a request that states
	// none, at a model that has none.
	Output int `yaml:"output" default:"4096" min:"1" max:"1000000000"`
	// Lease is how long the reservations of a gateway outlive it.
	Lease Duration `yaml:"lease" default:"30s" min:"1s" max:"1h"`
}

// QuotaStore is a kind of store.
type QuotaStore string

// The stores.
const (
	QuotaMemory QuotaStore = "memory" // of this process, forgotten at its end
	QuotaRedis  QuotaStore = "redis"  // Redis or Valkey, shared by gateways
)

// Redis is a server, or a cluster of them, that speaks the protocol of Redis.
type Redis struct {
	Addresses []string   `yaml:"addresses"` // host:port
	Cluster   bool       `yaml:"cluster"`   // the addresses are nodes of one cluster
	Username  string     `yaml:"username"`
	Password  Secret     `yaml:"password"`
	DB        int        `yaml:"db" min:"0" max:"65535"`
	TLS       *ClientTLS `yaml:"tls"` // nil: plaintext
	Prefix    string     `yaml:"prefix" default:"penstock"`
	Timeout   Duration   `yaml:"timeout" default:"250ms" min:"1ms" max:"1m"` // of one call; after it the store counts as away
	Retry     Duration   `yaml:"retry" default:"1s" min:"10ms" max:"1m"`     // between two looks at a store that is away
}

// Unit is what the limit counts, "" if that is not exactly one thing.
func (l *Limit) Unit() string {
	unit := ""
	for name, amount := range l.units() {
		if amount == 0 {
			continue
		}
		if unit != "" {
			return ""
		}
		unit = name
	}
	return unit
}

// Amount is how much of the unit: whole numbers, but for money.
func (l *Limit) Amount() float64 { return l.units()[l.Unit()] }

func (l *Limit) units() map[string]float64 {
	return map[string]float64{
		"requests": float64(l.Requests), "input": float64(l.Input), "output": float64(l.Output), "tokens": float64(l.Tokens),
		"weighted": float64(l.Weighted), "usd": l.USD, "concurrency": float64(l.Concurrency),
	}
}

// Span is the window: its kind, and its length or, for the calendar, the word
// for it. The zero values for concurrency.
func (l *Limit) Span() (kind LimitWindow, length time.Duration, word string) {
	if l.Per == "" {
		return "", 0, ""
	}
	length, isWord := periods()[l.Per]
	kind = l.Window
	if isWord {
		if kind == "" {
			kind = WindowCalendar
		}
		return kind, length, l.Per
	}
	d, _ := parseDuration(l.Per)
	if kind == "" {
		kind = WindowBucket
	}
	for name, same := range periods() { // 1h of the calendar is the hour
		if same == d.D() && kind == WindowCalendar {
			word = name
		}
	}
	return kind, d.D(), word
}

// periods are the words for the length of a window. Months and years differ in
// length: 0.
func periods() map[string]time.Duration {
	return map[string]time.Duration{
		"minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour, "week": 7 * 24 * time.Hour, "month": 0, "year": 0,
	}
}

const unitNames = "requests, input, output, tokens, weighted, usd, concurrency"

// limitsOf checks a list of limits.
func (v *validator) limitsOf(path string, list []Limit) {
	seen := map[string]string{}
	for i := range list {
		l, at := &list[i], joinIndex(path, i)
		v.limit(at, l)
		if unit := l.Unit(); unit != "" {
			key := fmt.Sprint(unit, l.Per, l.Window, l.Zone, l.Models, l.Mode)
			if first, ok := seen[key]; ok {
				v.fail(at, "limits the same as "+first, "keep one of them")
			}
			seen[key] = joinIndex("limits", i) // of the same list, which may be a document's of the admin API
		}
	}
}

func (v *validator) limit(at string, l *Limit) {
	unit := l.Unit()
	if unit == "" {
		set := 0
		for _, amount := range l.units() {
			if amount != 0 {
				set++
			}
		}
		if set == 0 {
			v.fail(at, "limits nothing", "give one of "+unitNames+" an amount above 0")
		} else {
			v.fail(at, "limits more than one thing", "write a limit for each of them: one of "+unitNames)
		}
		return
	}
	if amount := l.Amount(); amount < 0 || math.IsNaN(amount) || amount > 9e15 {
		return // told by the bounds
	}
	if l.Weights != nil && unit != "weighted" {
		v.fail(at+".weights", "mean nothing with "+unit, "they belong to weighted")
	}
	v.span(at, l, unit)
	for i, m := range l.Models {
		v.pattern(joinIndex(at+".models", i), m)
	}
	v.notEmpty(at+".models", l.Models != nil, len(l.Models), "every model")
	if unit == "concurrency" && l.Oversize == OversizeDebt {
		v.fail(at+".oversize", "means nothing with concurrency", "a request takes one place")
	}
	switch {
	case l.OnStoreFailure == LimitFailOpen && l.Share == 0:
		v.fail(at+".share", "is missing", "write the part of the limit that this gateway alone lets in while the store is away, such as 0.5 where there are two")
	case l.OnStoreFailure != LimitFailOpen && l.Share != 0:
		v.fail(at+".share", "means nothing without onStoreFailure: failOpen", "")
	case l.OnStoreFailure == LimitFailOpen && v.c.Quota.Store != QuotaRedis:
		v.fail(at+".onStoreFailure", "means nothing with quota.store: memory", "that store is never away")
	}
}

func (v *validator) span(at string, l *Limit, unit string) {
	words := "minute, hour, day, week, month or year"
	if unit == "concurrency" {
		if l.Per != "" || l.Window != "" || l.Zone != "" {
			v.fail(at, "concurrency has no window", "leave out per, window and zone")
		}
		return
	}
	length, isWord := periods()[l.Per]
	switch {
	case l.Per == "":
		v.fail(at+".per", "is missing", "write a duration such as 1m, or "+words)
		return
	case !isWord:
		d, p := parseDuration(l.Per)
		if p != nil {
			v.fail(at+".per", p.What, "write a duration such as 1m or 24h, or "+words)
			return
		}
		if length = d.D(); length < time.Second || length > 366*24*time.Hour {
			v.fail(at+".per", "must be between 1s and 8784h", "")
			return
		}
	}
	kind, _, word := l.Span()
	switch {
	case kind == WindowCalendar && word == "":
		v.fail(at+".per", fmt.Sprintf("%q is no period of the calendar", l.Per), "write "+words)
	case kind != WindowCalendar && length == 0:
		v.fail(at+".window", fmt.Sprintf("%s needs windows of one length, and a %s has none", kind, l.Per), "write window: calendar, or a duration such as 720h")
	case kind != WindowCalendar && l.Zone != "":
		v.fail(at+".zone", fmt.Sprintf("means nothing with window: %s", kind), "it belongs to calendars")
	}
	if l.Zone == "Local" {
		v.fail(at+".zone", `"Local" differs from machine to machine`, "write a name such as Europe/Berlin")
	} else if _, err := time.LoadLocation(l.Zone); err != nil {
		v.fail(at+".zone", fmt.Sprintf("there is no time zone %q", l.Zone), "write a name such as Europe/Berlin or UTC")
	}
}

func (v *validator) users(path string, u *Users) {
	if len(u.From) == 0 {
		v.fail(path+".from", "is missing", `say where end users are named: user, safety_identifier or "header NAME"`)
	}
	for i, from := range u.From {
		name, isHeader := strings.CutPrefix(from, "header ")
		switch {
		case from == "user", from == "safety_identifier":
		case !isHeader:
			v.fail(joinIndex(path+".from", i), fmt.Sprintf("%q is not known", from), `write user, safety_identifier or "header NAME"`)
		case !httpguts.ValidHeaderFieldName(name):
			v.fail(joinIndex(path+".from", i), fmt.Sprintf("%q is not a header name", name), "")
		}
	}
	if len(u.Limits) == 0 {
		v.fail(path+".limits", "there are none", "list the limits that each end user has")
	}
	v.limitsOf(path+".limits", u.Limits)
}

func (v *validator) quota() {
	q := &v.c.Quota
	switch {
	case q.Store == QuotaRedis && q.Redis == nil:
		v.fail("quota.redis", "is missing", "write where it is: {addresses: [\"redis:6379\"]}")
		return
	case q.Store != QuotaRedis && q.Redis != nil:
		v.fail("quota.redis", "means nothing with store: memory", "write store: redis")
		return
	case q.Redis == nil:
		return
	}
	r := q.Redis
	if len(r.Addresses) == 0 {
		v.fail("quota.redis.addresses", "is missing", `write ["HOST:PORT"]`)
	}
	for i, a := range r.Addresses {
		if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" {
			v.fail(joinIndex("quota.redis.addresses", i), fmt.Sprintf("%q is not an address", a), "write host:port, such as redis:6379")
		}
	}
	if len(r.Addresses) > 1 && !r.Cluster {
		v.fail("quota.redis.addresses", "there is more than one", "write cluster: true if they are nodes of one cluster")
	}
	if r.Cluster && r.DB != 0 {
		v.fail("quota.redis.db", "means nothing with a cluster", "a cluster has the database 0 alone")
	}
	if strings.ContainsAny(r.Prefix, "{}") || r.Prefix == "" {
		v.fail("quota.redis.prefix", fmt.Sprintf("%q cannot begin a key", r.Prefix), "leave out { and }")
	}
	if r.TLS != nil {
		v.clientTLS("quota.redis.tls", r.TLS)
	}
}
