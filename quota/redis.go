// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	_ "embed" // the scripts
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/certs"
	"github.com/redis/go-redis/v9"
)

//go:embed lua/common.lua
var commonLua string

//go:embed lua/reserve.lua
var reserveLua string

//go:embed lua/settle.lua
var settleLua string

//go:embed lua/renew.lua
var renewLua string

//go:embed lua/retake.lua
var retakeLua string

//go:embed lua/usage.lua
var usageLua string

// shared is a store in Redis or Valkey. All keys of a group have the same hash tag
// and so lie in one slot of a cluster; each call is one script, and so one step.
type shared struct {
	client  redis.UniversalClient
	prefix  string
	name    string // of this gateway, in the ids of its reservations
	lease   time.Duration
	reserve *redis.Script
	settle  *redis.Script
	renew   *redis.Script
	retake  *redis.Script
	usage   *redis.Script
}

// Open is the store that the configuration asks for. Nothing is asked of it yet.
func Open(cfg config.Quota) (Store, error) {
	if cfg.Store != config.QuotaRedis {
		return NewMemory(), nil
	}
	secure, err := tlsOf(cfg.Redis.TLS)
	if err != nil {
		return nil, err
	}
	r := cfg.Redis
	o := &redis.UniversalOptions{
		Addrs: r.Addresses, IsClusterMode: r.Cluster, Username: r.Username, Password: r.Password.Reveal(), DB: r.DB, TLSConfig: secure,
		// Nothing is sent twice: whether it has come through would not be known.
		MaxRetries: -1, DialTimeout: r.Timeout.D(), ReadTimeout: r.Timeout.D(), WriteTimeout: r.Timeout.D(), PoolTimeout: r.Timeout.D(),
		DialerRetries: 1, ContextTimeoutEnabled: true, PoolSize: max(32, 16*runtime.GOMAXPROCS(0)), ClientName: "penstock",
	}
	quiet()
	var name [8]byte
	rand.Read(name[:])
	script := func(text string) *redis.Script { return redis.NewScript(commonLua + text) }
	return &shared{
		client: redis.NewUniversalClient(o), prefix: r.Prefix, name: hex.EncodeToString(name[:]), lease: cfg.Lease.D(),
		reserve: script(reserveLua), settle: script(settleLua), renew: script(renewLua), retake: script(retakeLua), usage: script(usageLua),
	}, nil
}

// quiet keeps the library from logging on its own: what fails is told to whoever
// asked.
var quiet = sync.OnceFunc(func() { redis.SetLogger(silence{}) })

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// tlsOf is a client's TLS; nil: none.
func tlsOf(c *config.ClientTLS) (*tls.Config, error) {
	if c == nil {
		return nil, nil
	}
	t, err := certs.Client{
		CA: c.CA, Cert: c.Cert, Key: c.Key, ServerName: c.ServerName, InsecureSkipVerify: c.InsecureSkipVerify,
		CAPEM: c.CAPEM, CertPEM: c.CertPEM, KeyPEM: c.KeyPEM.Reveal(), SubjectAltNames: c.SubjectAltNames, Pins: c.Pins,
	}.Config()
	if err != nil {
		return nil, fmt.Errorf("quota.redis.%w", err)
	}
	return t, nil
}

// base is the beginning of the keys of a group.
func (s *shared) base(group string) string {
	return s.prefix + ":{" + strings.NewReplacer("{", "(", "}", ")").Replace(group) + "}:"
}

func (s *shared) id(n uint64) string { return s.name + "." + strconv.FormatUint(n, 36) }

// keys are those of a group, and of limits in it.
func keys(base string, n int, limit func(int) *Limit) []string {
	out := make([]string, 3, n+3)
	out[0], out[1], out[2] = base+"open", base+"held", base+"lapsed"
	for i := range n {
		out = append(out, base+limit(i).hexID())
	}
	return out
}

func (l *Limit) hexID() string { return strconv.FormatUint(l.id, 16) }

// terms appends what a script has to know of a limit, see terms in common.lua.
func (l *Limit) terms(args []any, now time.Time) []any {
	args = append(args, l.hexID())
	switch l.kind {
	case config.WindowBucket:
		return append(args, "b", l.amount, l.length.Microseconds(), 0, 0, 0)
	case config.WindowSliding:
		return append(args, "s", l.amount, (l.length.Microseconds()+slots-1)/slots, 0, 0, 0)
	case config.WindowCalendar:
		p := l.periodAt(now)
		return append(args, "c", l.amount, p.previous*1e6, p.start*1e6, p.end*1e6, p.next*1e6)
	}
	return append(args, "n", l.amount, 0, 0, 0, 0)
}

var errAnswer = errors.New("the store has answered something else than was asked")

// run runs a script and takes its answer, n whole numbers.
func (s *shared) run(ctx context.Context, script *redis.Script, keys []string, args []any, n int) ([]int64, error) {
	out, err := script.Run(ctx, s.client, keys, args...).Int64Slice()
	if err != nil {
		return nil, err
	}
	if len(out) != n {
		return nil, errAnswer
	}
	return out, nil
}

const (
	flagShadow = 1 << iota
	flagDebt
	flagMoney
)

// Reserve implements [Store].
func (s *shared) Reserve(ctx context.Context, r *Reservation) (*Refusal, error) {
	if r.retake {
		return nil, s.takeAgain(ctx, r)
	}
	base, now := s.base(r.group), time.Now()
	args := make([]any, 0, 3+9*len(r.entries))
	args = append(args, base, s.id(r.id), s.lease.Microseconds())
	for i := range r.entries {
		e := &r.entries[i]
		flags := 0
		if e.limit.shadow {
			flags |= flagShadow
		}
		if e.limit.debt {
			flags |= flagDebt
		}
		if e.limit.unit == USD {
			flags |= flagMoney
		}
		args = append(e.limit.terms(args, now), e.amount, flags)
	}
	const each = 5
	out, err := s.run(ctx, s.reserve, keys(base, len(r.entries), func(i int) *Limit { return r.entries[i].limit }), args, 1+each*len(r.entries))
	if err != nil {
		return nil, err
	}
	var refusal *Refusal
	for i := range r.entries {
		e, o := &r.entries[i], out[1+each*i:]
		wait := time.Duration(max(o[1], 0)) * time.Microsecond
		e.used, e.window, e.reset = o[2], o[3], time.Duration(o[4])*time.Microsecond
		if e.over = o[0] == 0; e.over && !e.limit.shadow {
			refusal = refusal.or(&Refusal{Limit: e.limit, Needed: e.amount, Left: max(e.limit.amount-e.used, 0), Wait: wait, TooLarge: o[1] < 0})
		}
	}
	if (out[0] == 0) != (refusal != nil) {
		return nil, errAnswer
	}
	return refusal, nil
}

func (s *shared) takeAgain(ctx context.Context, r *Reservation) error {
	base, now := s.base(r.group), time.Now()
	args := append(make([]any, 0, 3+9*len(r.entries)), base, s.id(r.id), s.lease.Microseconds())
	for i := range r.entries {
		e := &r.entries[i]
		args = append(e.limit.terms(args, now), e.amount, e.window)
	}
	return s.retake.Run(ctx, s.client, keys(base, len(r.entries), func(i int) *Limit { return r.entries[i].limit }), args...).Err()
}

// Settle implements [Store].
func (s *shared) Settle(ctx context.Context, t *Settlement) error {
	base, now := s.base(t.group), time.Now()
	mode := "first"
	switch {
	case t.charge:
		mode = "charge"
	case t.undo:
		mode = "undo"
	case t.again:
		mode = "again"
	}
	args := make([]any, 0, 3+8*len(t.entries))
	args = append(args, base, s.id(t.id), mode)
	for i := range t.entries {
		args = append(t.entries[i].limit.terms(args, now), t.actual[i])
	}
	counted, err := s.settle.Run(ctx, s.client, keys(base, len(t.entries), func(i int) *Limit { return t.entries[i].limit }), args...).Int()
	t.lost = counted == 2
	return err
}

// mostRenewed is how many leases one call renews: a script keeps everybody else
// waiting.
const mostRenewed = 500

// Renew implements [Store]. Without leases it asks whether the store is there.
func (s *shared) Renew(ctx context.Context, leases []Lease) (gone []Lease, err error) {
	if len(leases) == 0 {
		return nil, s.client.Ping(ctx).Err()
	}
	byGroup := map[string][]Lease{}
	for i := range leases {
		g := leases[i].group
		byGroup[g] = append(byGroup[g], leases[i])
	}
	for g, list := range byGroup {
		for some := range slices.Chunk(list, mostRenewed) {
			args := []any{s.lease.Microseconds()}
			for i := range some {
				args = append(args, s.id(some[i].id))
			}
			places, err := s.renew.Run(ctx, s.client, []string{s.base(g) + "open"}, args...).Int64Slice()
			if err != nil {
				return nil, err
			}
			for _, place := range places {
				if place < 1 || place > int64(len(some)) {
					return nil, errAnswer
				}
				gone = append(gone, some[place-1])
			}
		}
	}
	return gone, nil
}

// Usage implements [Store].
func (s *shared) Usage(ctx context.Context, group string, limits []*Limit) ([]State, error) {
	base, now := s.base(group), time.Now()
	args := append(make([]any, 0, 1+7*len(limits)), base)
	for _, l := range limits {
		args = l.terms(args, now)
	}
	const each = 3
	out, err := s.run(ctx, s.usage, keys(base, len(limits), func(i int) *Limit { return limits[i] }), args, each*len(limits))
	if err != nil {
		return nil, err
	}
	states := make([]State, len(limits))
	for i, l := range limits {
		o := out[each*i:]
		states[i] = State{Limit: l, Used: o[0], Reserved: o[1], Reset: time.Duration(o[2]) * time.Microsecond}
	}
	return states, nil
}

// Close implements [Store].
func (s *shared) Close() error { return s.client.Close() }
