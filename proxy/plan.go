// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/pool"
	"github.com/penstock/penstock/usage"
)

// This file decides who may serve a request, and in which order they are tried.

// plan is who is left to try. Every target is tried once before one is tried
// again.
type plan struct {
	next      []*target // that may serve the request, in order
	skipped   []usage.Skipped
	out       []*target  // put behind others because they were out
	chain     []fallback // that follow, in order
	taken     int        // fallbacks taken
	account   string     // the only one that may be used; "": any
	star      string     // what the * of the model's name stands for; "": nothing
	sealed    string     // the mark of the account that has made the newest reasoning; "": not known
	tried     []*target
	models    []*model // whose targets and fallbacks have been taken up
	here      int      // attempts at the target, a provider
	stale     int      // attempts over a kept connection that was closed: they do not count
	estimated int      // tokens of the prompt
	choices   int      // answers, or images, that are asked for
	most      int      // tokens that each of them may have; 0: the client does not say
	request   uint64   // tells it apart from others, for providers; 0: not made yet
	counted   counted
	headers   map[string]string // that conditions see; nil: not made yet
}

// maxFallbacks bounds the fallbacks of one request, those of other models that
// one leads to included.
const maxFallbacks = 5

// fallback is a compiled config.Fallback.
type fallback struct {
	on     []config.FallbackClass
	target *target // nil: model
	model  *model
	when   condition
}

// resolve finds the model, and who of its targets may serve the request. What
// the route or the key does not allow is answered like what does not exist.
func (x *exchange) resolve(asked string) *llm.Error {
	x.record.ModelAsked = asked
	m := x.table.model(asked)
	if m == nil || !x.route.allows(asked) || !x.mayAsk(asked) {
		return llm.ModelNotFound(asked)
	}
	x.model, x.service = m, &m.service
	x.plan.star, _ = config.MatchStar(m.name, asked)
	if m.name != asked && !m.wild {
		x.record.Alias = m.name
	}
	x.record.Stream, x.record.ServiceTier = x.req.Stream, x.req.ServiceTier
	x.plan.estimated, x.plan.choices, x.plan.most = x.req.Prompt.Tokens(), max(x.req.N, 1), x.req.MaxTokens
	x.plan.chain = m.fallbacks
	x.plan.models = append(x.plan.models, m)
	x.plan.next = x.eligible(m)
	if x.op.Further() && len(x.plan.next) == 0 && len(x.plan.skipped) == 0 {
		return llm.NotFound(x.r.URL.Path)
	}
	if fail := x.continues(); fail != nil {
		return fail
	}
	x.prefer()
	if !x.advance(nil) {
		return x.nobody()
	}
	return nil
}

// mayAsk says that the key may ask for a model by this name: that it is allowed,
// and that nothing it stands for is denied.
func (x *exchange) mayAsk(name string) bool {
	if !x.identity.Allows(name) {
		return false
	}
	for next, is := x.table.aliases[name]; is; next, is = x.table.aliases[next] {
		if x.identity.Denies(next) {
			return false
		}
	}
	return true
}

// eligible are the targets of m that can serve the request, best first. Those
// that cannot are noted with the reason.
func (x *exchange) eligible(m *model) []*target {
	var list []*target
	for _, tg := range m.targets {
		if why := x.unfit(tg); why == "" {
			list = append(list, tg)
		} else if why != notThisPath {
			x.plan.skipped = append(x.plan.skipped, usage.Skipped{Target: x.title(tg), Reason: why})
		}
	}
	if len(list) < 2 {
		return list
	}
	out := make([]*target, 0, len(list))
	for len(list) > 0 { // the targets are in the order of their priorities
		n := 1
		for n < len(list) && list[n].priority == list[0].priority {
			n++
		}
		out = append(out, x.order(m, list[:n:n])...)
		list = list[n:]
	}
	// Who is out comes last; if all are, the least bad is tried.
	works, rest := out[:0], []*target(nil)
	for _, tg := range out {
		if tg.out(x) {
			rest = append(rest, tg)
		} else {
			works = append(works, tg)
		}
	}
	x.plan.out = append(x.plan.out, rest...)
	return append(works, rest...)
}

// leftOut are the targets that were not asked for a reason of their own.
func (x *exchange) leftOut() []usage.Skipped {
	p := &x.plan
	list := append(p.skipped, x.barred...)
	for i, tg := range p.out {
		if !slices.ContainsFunc(p.tried, tg.sameAs) && !slices.ContainsFunc(p.out[:i], tg.sameAs) {
			list = append(list, usage.Skipped{Target: x.title(tg), Reason: "it was out: others come first"})
		}
	}
	return list
}

const notThisPath = "the path is not served there"

// unfit says why tg cannot serve the request, "" if it can.
func (x *exchange) unfit(tg *target) string {
	switch {
	case tg.star != "" && x.plan.star == "":
		return "the name that is asked for has nothing for the * of " + tg.star
	case tg.provider == nil && !tg.serves(x):
		return notThisPath
	case !x.op.Counts() && !x.has(tg): // the gateway can count, if nobody else does
		return fmt.Sprintf("it has no %s", x.op)
	}
	if why := x.outside(tg); why != "" {
		return why
	}
	if ok, err := tg.when.holds(&view{x: x, tg: tg}); err != nil {
		return "its condition fails: " + err.Error()
	} else if !ok {
		return "its condition does not hold: " + tg.when.text
	}
	if why := x.incapable(tg); why != "" {
		return why
	}
	return x.tooDear(tg)
}

// has says that tg has the operation, in the client's dialect or another.
func (x *exchange) has(tg *target) bool {
	if tg.provider == nil {
		return !x.op.Translates() || !x.op.Further() || tg.paths[x.path] || llm.Speaks(x.op, llm.DialectOpenAI)
	}
	d, ok := tg.provider.SpeaksModel(x.op, tg.named(x))
	return ok && llm.Speaks(x.op, d)
}

// serves says that a pool's members serve the path.
func (tg *target) serves(x *exchange) bool {
	return !x.op.Further() || x.upgrades() || tg.paths[x.path] || x.op.Translates()
}

// outside says why the request may not be processed where tg is. No fallback
// overrides it: a target whose region is not known is outside of any.
func (x *exchange) outside(tg *target) string {
	allowed := x.identity.Regions
	if asked := x.r.Header.Get(regionHeader); asked != "" {
		if len(allowed) > 0 && !slices.Contains(allowed, asked) {
			return fmt.Sprintf("the tenant may not use region %s", asked)
		}
		allowed = []string{asked}
	}
	if len(allowed) == 0 {
		return ""
	}
	if len(tg.regions) == 0 {
		return "its region is not known, and only " + strings.Join(allowed, ", ") + " may be used"
	}
	for _, r := range tg.regions {
		if !slices.Contains(allowed, r) {
			return fmt.Sprintf("it is in %s, and only %s may be used", r, strings.Join(allowed, ", "))
		}
	}
	return ""
}

// incapable says what of the request the target cannot do.
func (x *exchange) incapable(tg *target) string {
	c, r := tg.can, x.req
	if c == nil {
		return ""
	}
	has := func(kind string) bool { return c.Modalities == nil || slices.Contains(c.Modalities, kind) }
	tokens := x.estimate(tg)
	switch {
	case c.Context > 0 && tokens > c.Context:
		return fmt.Sprintf("%s%d, and the request has about %d", tooLong, c.Context, tokens)
	case c.Output > 0 && r.MaxTokens > c.Output:
		return fmt.Sprintf("it answers with at most %d tokens, and %d are asked for", c.Output, r.MaxTokens)
	case r.Images > 0 && !has("image"):
		return "it takes no images"
	case r.Audio > 0 && !has("audio"):
		return "it takes no audio"
	case r.Files > 0 && !has("file"):
		return "it takes no files"
	case r.Tools > 0 && c.Tools != nil && !*c.Tools:
		return "it has no tools"
	case r.Structured && c.Structured != nil && !*c.Structured:
		return "it has no structured output"
	}
	return ""
}

const tooLong = "its context window is "

// order puts targets of one priority in the order of trying. Weights that are
// written are kept for each request; without them a prompt goes where prompts
// that begin like it went before, unless that one is much slower or busier than
// another, drawn at random, would be.
func (x *exchange) order(m *model, list []*target) []*target {
	if len(list) == 1 {
		return list
	}
	if m.weighted {
		return byWeight(list)
	}
	if m.affinity {
		key := x.affinity()
		slices.SortFunc(list, func(a, b *target) int {
			return cmp.Compare(rendezvous(key, b.label), rendezvous(key, a.label))
		})
	} else {
		rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	}
	// The power of two choices: the second is drawn at random from the rest.
	if i := 1 + rand.IntN(len(list)-1); list[0].load.worse(&list[i].load, m.affinity) {
		list[0], list[i] = list[i], list[0]
	}
	return list
}

// byWeight draws without putting back. Those of weight 0 come last.
func byWeight(list []*target) []*target {
	type drawn struct {
		tg  *target
		key float64
	}
	all := make([]drawn, len(list))
	for i, tg := range list {
		// Efraimidis and Spirakis: the order of exponential variates with the
		// weights for rates is that of drawing by weight.
		all[i] = drawn{tg, rand.ExpFloat64() / max(float64(tg.weight), 1e-9)}
	}
	slices.SortFunc(all, func(a, b drawn) int { return cmp.Compare(a.key, b.key) })
	for i := range all {
		list[i] = all[i].tg
	}
	return list
}

// stablePrefix is how many bytes of a prompt say that it begins like another:
// more than providers cache at the least, less than where conversations part.
const stablePrefix = 4 << 10

// affinity is a hash of who asks and how the prompt begins.
func (x *exchange) affinity() uint64 {
	h := xxhash.New()
	h.WriteString(x.identity.Tenant)
	h.Write([]byte{0})
	left := stablePrefix
	x.req.Prompt.Bytes(0, func(p []byte) bool {
		p = p[:min(len(p), left)]
		left -= len(p)
		h.Write(p)
		return left > 0
	})
	return h.Sum64()
}

// rendezvous is the score of a target for a key: each key has its own order of
// targets, and loses nothing of it when one comes or goes.
func rendezvous(key uint64, label string) uint64 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], key)
	h := xxhash.New()
	h.Write(b[:])
	h.WriteString(label)
	return h.Sum64()
}

// out says that nothing is to be hoped of tg: every account at the provider cools
// down, or no member of the pool is ready.
func (tg *target) out(x *exchange) bool {
	if tg.provider != nil {
		return !tg.provider.Ready(tg.named(x))
	}
	return !slices.ContainsFunc(tg.backend.Pool.Snapshot().Members, func(m *pool.Member) bool { return m.State() <= pool.Returning })
}

// advance makes the next target the one to be tried. last is why the one before
// brought no answer, nil at first. It says no when nobody is left.
func (x *exchange) advance(last *failure) bool {
	p := &x.plan
	class := config.FallbackGeneral
	if last != nil {
		if class = config.FallbackClass(last.class.Fallback()); class == "" {
			return false
		}
	} else if len(p.next) == 0 && x.everyoneIsTooShort() {
		class = config.FallbackContextWindow
	}
	for class == config.FallbackGeneral && len(p.next) > 0 {
		if p.next[0].out(x) && x.around(last) {
			return true
		}
		ok, tg := x.within(p.next), p.next[0]
		if p.next = p.next[1:]; ok {
			x.aim(tg)
			return true
		}
	}
	if last != nil {
		p.next = nil // what one of them refuses the others refuse
	}
	for {
		list, _ := x.follow(class, false)
		if len(list) == 0 {
			return false
		}
		if x.within(list) {
			x.fallBack(list, reasonOf(class, last))
			return true
		}
	}
}

// elsewhere says that advance would find a target that works.
func (x *exchange) elsewhere(last *failure) bool {
	class := config.FallbackClass(last.class.Fallback())
	if class == config.FallbackGeneral && len(x.plan.next) > 0 && !x.plan.next[0].out(x) {
		return true
	}
	before := x.plan
	list, _ := x.follow(class, true)
	x.plan = before // as if nobody had looked
	return len(list) > 0
}

// around goes to a fallback that works before the targets that are left, which
// are all out; they stay for when it fails, and fallbacks that are out after them.
func (x *exchange) around(last *failure) bool {
	before := x.plan
	list, out := x.follow(config.FallbackGeneral, true)
	if len(list) == 0 || !x.within(list) {
		x.plan = before // as if nobody had looked
		return false
	}
	for _, tg := range slices.Concat(before.next, out) {
		if !slices.ContainsFunc(list, tg.sameAs) {
			list = append(list, tg)
		}
	}
	x.plan.out = slices.Concat(x.plan.out, before.next, out)
	reason := "general: the targets of the model are out"
	if last != nil {
		reason = reasonOf(config.FallbackGeneral, last)
	}
	x.fallBack(list, reason)
	return true
}

// follow takes the first fallback of the class from the chain that has targets
// that may serve the request. Those of other classes stay for failures of these.
// working: the first of the targets must work; those of the fallbacks that were
// passed over are out.
func (x *exchange) follow(class config.FallbackClass, working bool) (list, out []*target) {
	p := &x.plan
	for i := 0; i < len(p.chain) && p.taken < maxFallbacks; {
		f := p.chain[i]
		been := f.model != nil && slices.Contains(p.models, f.model)
		if !been && !f.takes(class) {
			i++
			continue
		}
		p.chain = slices.Concat(p.chain[:i], p.chain[i+1:]) // it is the model's: copied
		if been {
			continue
		}
		if list = x.behind(&f); len(list) > 0 && (!working || !list[0].out(x)) {
			p.taken++
			return list, out
		}
		out = append(out, list...)
		i = 0 // the fallbacks of another model come first
	}
	return nil, out
}

// fallBack makes the first of list the target, the rest those that follow.
func (x *exchange) fallBack(list []*target, reason string) {
	if x.record.Fallback == "" {
		x.record.Fallback = reason
	}
	x.plan.next = list[1:]
	x.aim(list[0])
}

func reasonOf(class config.FallbackClass, last *failure) string {
	if last == nil {
		return string(class) + ": no target can serve the request"
	}
	return string(class) + ": " + last.class.String()
}

func (f *fallback) takes(class config.FallbackClass) bool {
	if f.on == nil {
		return class == config.FallbackGeneral
	}
	return slices.Contains(f.on, class)
}

// behind are the targets of a fallback that may serve the request and have not
// been tried. Whoever asks must be allowed to ask for the model itself.
func (x *exchange) behind(f *fallback) []*target {
	var list []*target
	if f.target != nil {
		if why := x.unfit(f.target); why != "" {
			x.plan.skipped = append(x.plan.skipped, usage.Skipped{Target: x.title(f.target), Reason: why})
			return nil
		}
		list = []*target{f.target}
	} else {
		if ok, err := f.when.holds(&view{x: x}); err != nil || !ok {
			x.plan.skipped = append(x.plan.skipped, usage.Skipped{Target: f.model.name, Reason: "its condition does not hold: " + f.when.text})
			return nil
		}
		if !x.mayAsk(f.model.name) || !x.route.allows(f.model.name) {
			x.plan.skipped = append(x.plan.skipped, usage.Skipped{Target: f.model.name, Reason: "the key may not ask for that model"})
			return nil
		}
		x.plan.models = append(x.plan.models, f.model)
		list = x.eligible(f.model)
		x.plan.chain = append(slices.Clone(f.model.fallbacks), x.plan.chain...)
	}
	return slices.DeleteFunc(list, func(tg *target) bool {
		return slices.ContainsFunc(x.plan.tried, tg.sameAs)
	})
}

// sameAs says that both are one place under one name.
func (tg *target) sameAs(other *target) bool { return tg.label == other.label }

// aim makes tg the target.
func (x *exchange) aim(tg *target) {
	if x.pick != nil { // of another pool
		x.settlePick()
	}
	p := &x.plan
	p.tried = append(p.tried, tg)
	x.target, x.edited, x.translation, x.record.Dropped, p.here = tg, nil, nil, nil, 0
	p.estimated = x.req.Prompt.TokensBy(tg.media)
	x.record.Pool, x.record.Provider, x.record.ModelUsed = tg.pool, "", tg.named(x)
	if tg.provider != nil {
		x.record.Provider = tg.provider.Name()
	}
}

// everyoneIsTooShort says that all targets were left out for their context.
func (x *exchange) everyoneIsTooShort() bool {
	return len(x.plan.skipped) > 0 && !slices.ContainsFunc(x.plan.skipped, func(s usage.Skipped) bool { return !strings.HasPrefix(s.Reason, tooLong) })
}

// nobody is the error when no target can serve the request: it says why each of
// them cannot.
func (x *exchange) nobody() *llm.Error {
	var b strings.Builder
	fmt.Fprintf(&b, "no target of the model %q can serve this request:", x.record.ModelAsked)
	for i, s := range x.plan.skipped {
		if i > 0 {
			b.WriteByte(';')
		}
		fmt.Fprintf(&b, " %s: %s", s.Target, s.Reason)
	}
	e := &llm.Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Code: "no_eligible_target", Message: b.String()}
	if x.everyoneIsTooShort() {
		e.Code, e.Param = "context_length_exceeded", "messages"
	}
	return e
}

// title is the target as headers and records have it.
func (x *exchange) title(tg *target) string {
	if tg.model == "" && x.rule == nil {
		return tg.where() + "/" + tg.named(x)
	}
	return tg.label
}

// named is the model's name at the target.
func (tg *target) named(x *exchange) string {
	if tg.star != "" {
		return strings.Replace(tg.star, "*", x.plan.star, 1)
	}
	return cmp.Or(tg.model, x.record.ModelAsked)
}

// countsAs is the model that limits count what tg serves as: a target of a model is
// that model, whatever its name there; one that is fallen back to is another.
func (tg *target) countsAs(x *exchange) string { return cmp.Or(tg.of, tg.named(x)) }

// where is the pool or provider, as metrics have it.
func (tg *target) where() string {
	if tg.provider != nil {
		return tg.provider.Name()
	}
	return tg.pool
}
