// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/penstock/penstock/config"
)

// modelDraft is a model to write.
type modelDraft struct {
	name      string
	path      string // where it comes from
	alias     string // "": it has targets
	targets   []*targetDraft
	weighted  bool
	fallbacks []*fallbackDraft
	retries   int // further attempts that the file asks for; negative: none
	attempts  int // retries.attempts to write; 0: none
	dropped   bool
}

// targetDraft is a target to write, made of one or more deployments.
type targetDraft struct {
	provider *providerDraft
	model    string
	priority int
	share    float64
	weight   int
	first    *deployment // defaults, capabilities and timeouts are its
	from     []int       // indexes in model_list
	dropped  bool
	bare     bool // without defaults, capabilities and timeouts, which are refused
}

// fallbackDraft is a fallback to write.
type fallbackDraft struct {
	path   string
	on     []config.FallbackClass
	model  string       // of the list
	target *targetDraft // or one deployment
}

// wildcard is a name with a * and its deployments.
type wildcard struct {
	name        string
	deployments []*deployment
}

// makeModels makes a model of each model_name.
func (im *litellmImport) makeModels() {
	groups := map[string][]*deployment{}
	var names []string
	for _, d := range im.deployments {
		if groups[d.group] == nil {
			names = append(names, d.group)
		}
		groups[d.group] = append(groups[d.group], d)
	}
	several := false
	for _, name := range names {
		group := groups[name]
		path := indexed("model_list", group[0].at) + ".model_name"
		switch strings.Count(name, "*") {
		case 0:
			m := im.model(name, path, group, func(d *deployment) string {
				if strings.Contains(d.model, "*") {
					return "" // the name that is asked for
				}
				return d.model
			})
			several = several || len(m.targets) > 1
		case 1:
			im.wildcard(name, path, group)
		default:
			im.lost(path, "a name may hold one * only")
		}
	}
	if several {
		im.different("model_list", "after a failure the next target is tried at once, each of them once before one is tried again, and then the fallbacks; LiteLLM pauses and draws anew among all that do not cool down")
	}
}

// model adds a model over deployments; upstream is their name for it.
func (im *litellmImport) model(name, path string, group []*deployment, upstream func(*deployment) string) *modelDraft {
	m := &modelDraft{name: name, path: path, retries: -1}
	ranks := rankOf(group)
	byKey := map[string]*targetDraft{}
	for _, d := range group {
		m.retries = max(m.retries, d.retries)
		key := fmt.Sprintf("%s %q %s", d.provider.name, upstream(d), d.serves())
		t := byKey[key]
		if t == nil {
			t = &targetDraft{provider: d.provider, model: upstream(d), first: d, priority: ranks[d]}
			byKey[key] = t
			m.targets = append(m.targets, t)
		}
		if t.from = append(t.from, d.at); d.effective >= 0 {
			t.share += d.effective
			m.weighted = true
		} else {
			t.share++
		}
	}
	if !m.weighted { // each deployment has the same chance, which one of several accounts is not
		m.weighted = slices.ContainsFunc(m.targets, func(t *targetDraft) bool { return t.share != m.targets[0].share }) && !im.options.sticky
	}
	if m.weighted {
		shares := make([]float64, len(m.targets))
		for i, t := range m.targets {
			shares[i] = t.share
		}
		list := weights(shares)
		for i := range list {
			m.targets[i].weight = list[i]
		}
		m.weighted = list != nil && m.draws()
	}
	return im.add(m)
}

// carries says that targets are asked for what the * of the name stands for.
func (m *modelDraft) carries() bool {
	return slices.ContainsFunc(m.targets, func(t *targetDraft) bool { return strings.Contains(t.model, "*") })
}

// draws says that some priority has more than one target.
func (m *modelDraft) draws() bool {
	seen := map[int]bool{}
	for _, t := range m.targets {
		if seen[t.priority] {
			return true
		}
		seen[t.priority] = true
	}
	return false
}

// rankOf are the priorities of deployments: those with an order by it, then the
// others.
func rankOf(group []*deployment) map[*deployment]int {
	orders := map[int]bool{}
	for _, d := range group {
		if d.ordered {
			orders[d.order] = true
		}
	}
	sorted := slices.Sorted(maps.Keys(orders))
	ranks := map[*deployment]int{}
	for _, d := range group {
		i := len(sorted)
		if d.ordered {
			i, _ = slices.BinarySearch(sorted, d.order)
		}
		ranks[d] = min(i, 1000)
	}
	return ranks
}

// wildcard adds a model for a name with a *. A target is asked for the name that
// the client wrote, for what the * stands for in it, or for one fixed name.
func (im *litellmImport) wildcard(name, path string, group []*deployment) {
	im.wildcards = append(im.wildcards, wildcard{name, group})
	im.model(name, path, group, func(d *deployment) string {
		if d.model == name {
			return ""
		}
		return d.model
	})
	var cut []*deployment // of one provider, which LiteLLM finds without the word in front too
	for _, d := range group {
		if d.model == "*" && name == d.word+"/*" {
			cut = append(cut, d)
		}
	}
	if len(cut) == 0 {
		return
	}
	for _, family := range litellmFamilies[cut[0].word] {
		taken := slices.ContainsFunc(im.deployments, func(d *deployment) bool { return d.group == family }) || im.find(family) != nil
		if !taken {
			im.model(family, path, cut, func(*deployment) string { return "" })
		}
	}
}

// find is the model of that name.
func (im *litellmImport) find(name string) *modelDraft {
	return im.byName[name]
}

func (im *litellmImport) add(m *modelDraft) *modelDraft {
	im.models = append(im.models, m)
	im.byName[m.name] = m
	return m
}

// reach is the model that a name of the file leads to, made from a wildcard if
// it must be: fallbacks and aliases lead to names, not to patterns. nil: none.
func (im *litellmImport) reach(name, path string) *modelDraft {
	if m := im.find(name); m != nil {
		return m
	}
	var best *wildcard
	for i := range im.wildcards {
		if w := &im.wildcards[i]; config.MatchName(w.name, name) && !strings.Contains(name, "*") && (best == nil || len(w.name) > len(best.name)) {
			best = w
		}
	}
	if best == nil {
		return nil
	}
	before, after, _ := strings.Cut(best.name, "*")
	part := name[len(before) : len(name)-len(after)]
	return im.model(name, path, best.deployments, func(d *deployment) string { return strings.Replace(d.model, "*", part, 1) })
}

// makeAliases reads model_group_alias.
func (im *litellmImport) makeAliases() {
	path, n := im.setting("model_group_alias")
	if n == nil {
		return
	}
	if n.kind != treeMap {
		im.lost(path, "it is no mapping")
		return
	}
	for _, e := range n.entries {
		at, to := below(path, e.key), e.value
		if to.kind == treeMap {
			if hidden, _ := to.take("hidden").truth(); hidden {
				im.lost(at+".hidden", "an alias is listed in /v1/models like every model")
			}
			to = to.take("model")
		}
		switch {
		case to == nil || to.kind >= treeMap || to.kind == treeNull:
			im.lost(at, "it names no model")
		case im.find(e.key) != nil:
			im.lost(at, "model_list has a model of this name, which LiteLLM would never ask: take one of them out")
		case to.text == e.key || im.reach(to.text, at) == nil:
			im.lost(at, "the model that it stands for is not carried")
		case im.find(to.text).carries():
			im.lost(at, "it stands for a pattern: list an alias for each name")
		default:
			im.add(&modelDraft{name: e.key, path: at, alias: to.text, retries: -1})
		}
	}
}

// behind is the model that an alias stands for, or m itself.
func (im *litellmImport) behind(m *modelDraft) *modelDraft {
	for range im.models {
		if m == nil || m.alias == "" {
			break
		}
		m = im.find(m.alias)
	}
	return m
}

// listed is one list of fallbacks: of a model, by its name.
type listed struct {
	path, name string
	names      []step
}

// step is a name in it.
type step struct{ path, name string }

// readFallbacks reads [{a: [b, c]}, …].
func (im *litellmImport) readFallbacks(key string) (out []listed) {
	path, n := im.setting(key)
	if n == nil {
		return nil
	}
	if n.kind != treeList {
		im.lost(path, "it is no list")
		return nil
	}
	for i, item := range n.items {
		at := indexed(path, i)
		if item.kind != treeMap {
			im.lost(at, "it is no mapping of a model to its fallbacks")
			continue
		}
		for _, e := range item.entries {
			out = append(out, listed{below(at, e.key), e.key, im.steps(below(at, e.key), e.value)})
		}
	}
	return out
}

func (im *litellmImport) steps(path string, n *treeNode) (out []step) {
	if n.kind == treeText {
		return []step{{path, n.text}}
	}
	if n.kind != treeList {
		im.lost(path, "it is no list of models")
		return nil
	}
	const most = 20
	if len(n.items) > most {
		im.lost(path, fmt.Sprintf("five fallbacks of a request are tried at most; those after the first %d are left out", most))
	}
	for i, item := range n.items[:min(len(n.items), most)] {
		at := indexed(path, i)
		if item.kind == treeMap {
			model := item.take("model")
			im.rest(at, "fallback", item)
			if item = model; item == nil {
				im.lost(at, "it names no model")
				continue
			}
		}
		if item.kind >= treeMap || item.kind == treeNull {
			im.lost(at, "it is no name of a model")
			continue
		}
		out = append(out, step{at, item.text})
	}
	return out
}

// makeFallbacks gives the models their fallbacks. Where LiteLLM has no list for
// a class of failures at all, the general one serves for it.
func (im *litellmImport) makeFallbacks() {
	general := im.readFallbacks("fallbacks")
	context, policy := im.readFallbacks("context_window_fallbacks"), im.readFallbacks("content_policy_fallbacks")
	if path, n := im.setting("default_fallbacks"); n != nil {
		general = append(general, listed{path, "*", im.steps(path, n)})
	}
	on := []config.FallbackClass{config.FallbackGeneral}
	if len(context) == 0 {
		on = append(on, config.FallbackContextWindow)
	}
	if len(policy) == 0 {
		on = append(on, config.FallbackContentPolicy)
	}
	if len(general)+len(context)+len(policy) > 0 {
		first := slices.Concat(general, context, policy)[0].path
		section, key, _ := strings.Cut(first, ".")
		key, _, _ = strings.Cut(key, "[")
		im.different(section+"."+key, "they follow failures that another model may do better (docs/models.md); other answers 4xx, for which LiteLLM falls back too, are told to the client. "+
			"The fallbacks of a fallback follow as well, five in all, and only those that the key may ask for")
	}
	var all *listed
	own := map[*modelDraft]bool{} // models with a general list of their own
	for i := range general {
		if l := &general[i]; l.name == "*" {
			if all == nil {
				all = l
			}
		} else if m := im.fallbacksOf(l, on); m != nil {
			own[m] = true
		}
	}
	for _, l := range context {
		im.fallbacksOf(&l, []config.FallbackClass{config.FallbackContextWindow})
	}
	for _, l := range policy {
		im.fallbacksOf(&l, []config.FallbackClass{config.FallbackContentPolicy})
	}
	if all == nil {
		return
	}
	for _, s := range all.names { // before the models are counted
		im.reach(s.name, s.path)
	}
	told := map[string]bool{}
	for _, m := range slices.Clone(im.models) {
		if m.alias == "" && !own[m] {
			for _, s := range all.names {
				if s.name != m.name {
					im.addFallback(m, s, on, told)
				}
			}
		}
	}
}

// fallbacksOf adds a list to the model that it is for.
func (im *litellmImport) fallbacksOf(l *listed, on []config.FallbackClass) *modelDraft {
	if l.name == "*" {
		for _, m := range slices.Clone(im.models) {
			if m.alias == "" {
				im.fallbacksOf(&listed{l.path, m.name, l.names}, on)
			}
		}
		return nil
	}
	m := im.reach(l.name, l.path)
	if m == nil {
		im.lost(l.path, "no such model is carried")
		return nil
	}
	if end := im.behind(m); m.alias != "" && end != nil { // an alias has nothing of its own
		copied := *end
		copied.name, copied.path, copied.fallbacks, copied.targets = m.name, m.path, nil, slices.Clone(end.targets)
		*m = copied
	}
	told := map[string]bool{}
	for _, s := range l.names {
		im.addFallback(m, s, on, told)
	}
	return m
}

func (im *litellmImport) addFallback(m *modelDraft, s step, on []config.FallbackClass, told map[string]bool) {
	f := &fallbackDraft{path: s.path, on: on}
	if to := im.reach(s.name, s.path); to != nil && to != m && to.carries() && !strings.Contains(m.name, "*") {
		im.lost(s.path, "a name cannot fall back to a pattern: write the name of a model")
		return
	} else if to != nil && to != m {
		f.model = to.name
	} else if i := slices.IndexFunc(im.deployments, func(d *deployment) bool { return d.id != "" && d.id == s.name }); i >= 0 && to == nil && !strings.Contains(im.deployments[i].model, "*") {
		d := im.deployments[i]
		f.target = &targetDraft{provider: d.provider, model: d.model, first: d, from: []int{d.at}}
	} else {
		if !told[s.path] {
			told[s.path] = true
			why := "no such model is carried"
			if to == m {
				why = "a model cannot be its own fallback"
			}
			im.lost(s.path, why)
		}
		return
	}
	if !slices.ContainsFunc(m.fallbacks, func(g *fallbackDraft) bool { return g.model == f.model && f.model != "" && slices.Equal(g.on, f.on) }) {
		m.fallbacks = append(m.fallbacks, f)
	}
}

// countAttempts makes room for fallbacks: every target and every fallback can be
// tried once, where LiteLLM counts anew at each model.
func (im *litellmImport) countAttempts() {
	for _, m := range im.models {
		if m.alias != "" {
			continue
		}
		base := max(im.retries.attempts, 0)
		if base == 0 {
			base = defaultAttempts
		}
		if m.retries >= 0 {
			base = m.retries + 1
		}
		need := 0
		for _, class := range []config.FallbackClass{config.FallbackGeneral, config.FallbackContextWindow, config.FallbackContentPolicy} {
			n := 0
			for _, f := range m.fallbacks {
				if !slices.Contains(f.on, class) {
					continue
				}
				n++
				if to := im.behind(im.find(f.model)); f.model != "" && to != nil {
					n += max(len(to.targets)-1, 0)
				}
			}
			need = max(need, n)
		}
		if need > 0 {
			need += max(base, len(m.targets))
		} else if m.retries >= 0 {
			need = base
		}
		if need > 0 && (need != im.retries.attempts || m.retries >= 0) {
			m.attempts = min(need, 100)
		}
	}
}

// defaultAttempts is that of config.Retries.
const defaultAttempts = 3
