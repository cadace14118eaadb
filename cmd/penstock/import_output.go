// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/config"
)

// make writes what was read. What package config refuses is left out, with its
// reason, until it accepts the rest.
func (im *litellmImport) make() ([]byte, error) {
	im.effective()
	im.makeProviders()
	im.makeModels()
	im.makeAliases()
	im.makeFallbacks()
	im.leftovers()
	env := func(name string) (string, bool) { v, ok := im.use[name]; return v, ok }
	for range maxDeployments {
		if im.prune(); len(im.live()) == 0 {
			return nil, errors.New("no model of it can be carried; the table says why")
		}
		im.countAttempts()
		text := im.document()
		_, err := config.ParseWith("output", text, config.Options{Env: env})
		if err == nil {
			im.poolHints()
			im.report.variables = im.use
			return text, nil
		}
		problems := config.AsProblems(err)
		if len(problems) == 0 {
			return nil, err
		}
		providers, models := im.liveProviders(), im.live()
		for _, p := range problems {
			if p.Path == "" && strings.HasPrefix(p.What, "has more than") {
				return nil, fmt.Errorf("is too much for one configuration: the output %s", p.What)
			}
			if !im.leaveOut(p, providers, models) {
				return nil, fmt.Errorf("cannot be translated: %s: %s", p.Path, p.What)
			}
		}
	}
	return nil, errors.New("cannot be translated: too much of it is refused")
}

// live are the models that are written.
func (im *litellmImport) live() []*modelDraft {
	return slices.DeleteFunc(slices.Clone(im.models), func(m *modelDraft) bool { return m.dropped })
}

func (im *litellmImport) liveProviders() []*providerDraft {
	return slices.DeleteFunc(slices.Clone(im.providers), func(p *providerDraft) bool { return p.dropped })
}

// prune drops what leads to something that is dropped, and providers that
// nothing leads to.
func (im *litellmImport) prune() {
	for again := true; again; {
		again = false
		for _, m := range im.live() {
			m.targets = slices.DeleteFunc(m.targets, func(t *targetDraft) bool { return t.dropped || t.provider.dropped })
			m.fallbacks = slices.DeleteFunc(m.fallbacks, func(f *fallbackDraft) bool {
				gone := f.target != nil && (f.target.dropped || f.target.provider.dropped) || f.target == nil && (im.find(f.model) == nil || im.find(f.model).dropped)
				if gone {
					im.lost(f.path, "the model is not carried")
				}
				return gone
			})
			if end := im.behind(m); end == nil || end.dropped || m.alias == "" && len(m.targets) == 0 {
				m.dropped, again = true, true
				im.lost(m.path, "nothing that it leads to is carried")
			} else if m.weighted && !slices.ContainsFunc(m.targets, func(t *targetDraft) bool { return t.weight > 0 }) {
				m.weighted = false
			}
			m.evenOut()
		}
	}
	used := map[*providerDraft]bool{}
	for _, m := range im.live() {
		for _, t := range m.targets {
			used[t.provider] = true
		}
		for _, f := range m.fallbacks {
			if f.target != nil {
				used[f.target.provider] = true
			}
		}
	}
	for _, p := range im.providers {
		p.dropped = p.dropped || !used[p]
	}
}

// evenOut gives targets of a priority a weight where none has one: some of them
// must be tried.
func (m *modelDraft) evenOut() {
	sum := map[int]int{}
	for _, t := range m.targets {
		sum[t.priority] += t.weight
	}
	for _, t := range m.targets {
		if m.weighted && sum[t.priority] == 0 {
			t.weight = 1
		}
	}
}

var refusedPath = regexp.MustCompile(`^(providers|models)\[(\d+)\](?:\.(targets|fallbacks|credentials)\[(\d+)\])?(.*)$`)

// leaveOut takes out what a problem of package config is about: providers and
// models are those of the document. false: nothing can be taken out.
func (im *litellmImport) leaveOut(p *config.Problem, providers []*providerDraft, models []*modelDraft) bool {
	why := p.What
	if p.Hint != "" {
		why += "; " + p.Hint
	}
	if strings.HasPrefix(p.Path, "timeouts") && im.timeouts != (timeoutDraft{}) {
		im.timeouts = timeoutDraft{}
		im.lost("router_settings.timeout", why)
		return true
	}
	at := refusedPath.FindStringSubmatch(p.Path)
	if at == nil {
		return false
	}
	i, _ := strconv.Atoi(at[2])
	j, _ := strconv.Atoi(at[4])
	if at[1] == "providers" {
		if i >= len(providers) {
			return false
		}
		im.refuseProvider(providers[i], at[3], j, at[5], why)
		return true
	}
	if i >= len(models) {
		return false
	}
	switch m := models[i]; {
	case at[3] == "targets" && j < len(m.targets):
		t := m.targets[j]
		from := indexed("model_list", t.from[0])
		part := slices.ContainsFunc([]string{".defaults", ".capabilities", ".timeouts"}, func(s string) bool { return strings.HasPrefix(at[5], s) })
		if part && !t.bare {
			t.bare = true
			im.lost(from, "defaults, capabilities and timeouts: "+why)
		} else if !t.dropped {
			t.dropped = true
			im.lost(from, why)
		}
	case at[3] == "fallbacks" && j < len(m.fallbacks):
		f := m.fallbacks[j]
		if f.model == "" && f.target != nil && !f.target.bare {
			f.target.bare = true
			break
		}
		im.lost(f.path, why)
		f.target, f.model = &targetDraft{dropped: true}, ""
	case !m.dropped:
		m.dropped = true
		im.lost(m.path, why)
	}
	return true
}

func (im *litellmImport) refuseProvider(p *providerDraft, list string, j int, rest, why string) {
	from := indexed("model_list", p.accounts[0].deployments[0].at) + ".litellm_params"
	regional := p.site.dialect == config.ProviderBedrock || p.site.dialect == config.ProviderVertex
	switch {
	case strings.HasPrefix(rest, ".headers") && p.site.headers != "":
		p.site.headers = ""
		im.lost(from+".extra_headers", why)
	case rest == ".region" && !regional && p.site.region != "":
		p.site.region = ""
		im.lost(from+".region_name", why)
	case rest == ".apiVersion" && p.site.version != "":
		p.site.version = ""
		im.lost(from+".api_version", why)
	case list == "credentials" && rest == ".organization" && j < len(p.accounts) && p.accounts[j].organization != "":
		p.accounts[j].organization = ""
		im.lost(from+".organization", why)
	case !p.dropped:
		p.dropped = true
		im.lost(from, why)
	}
}

// document is the whole output.
func (im *litellmImport) document() []byte {
	doc := &yamlMap{block: true}
	listener := &yamlMap{}
	listener.add("name", ref("public"))
	if im.hash != "" {
		listener.add("address", ref(":4000"))
	} else {
		listener.add("address", ref("127.0.0.1:4000"))
		listener.add("anonymous", yamlRaw("true"))
	}
	doc.add("listeners", yamlList{{value: listener, comment: "LiteLLM's port, unless --port was given"}})
	if im.hash != "" {
		key := &yamlMap{fields: []yamlField{{key: "name", value: ref("master-key")}, {key: "hash", value: im.hash}}}
		tenant := &yamlMap{block: true}
		tenant.add("name", ref("imported"))
		tenant.add("keys", yamlList{{value: key}})
		doc.add("tenants", yamlList{{value: tenant}})
	}
	var providers, models yamlList
	for _, p := range im.liveProviders() {
		providers = append(providers, yamlItem{p.yaml(), indexes(p.from())})
	}
	doc.add("providers", providers)
	for _, m := range im.live() {
		models = append(models, yamlItem{im.modelYAML(m), ""})
	}
	doc.add("models", models)
	retries := &yamlMap{}
	if im.retries.attempts > 0 {
		retries.add("attempts", yamlInt(im.retries.attempts))
		retries.add("perTarget", yamlInt(im.retries.perTarget))
	}
	retries.add("backoff", spanText(im.retries.backoff))
	doc.add("retries", retries)
	doc.add("timeouts", im.timeouts.yaml(0))
	if im.body > 0 {
		doc.add("limits", &yamlMap{fields: []yamlField{{key: "body", value: ref(strconv.Itoa(im.body) + "MiB")}}})
	}
	if im.jsonLog {
		doc.add("log", &yamlMap{fields: []yamlField{{key: "format", value: ref("json")}}})
	}
	body := &yamlWriter{}
	for _, f := range doc.fields {
		body.WriteByte('\n')
		body.fields(&yamlMap{fields: []yamlField{f}}, 0, false, "")
		if f.key == "providers" {
			body.comment(0, im.pools())
		}
	}
	out := &yamlWriter{}
	out.comment(0, "Made of a LiteLLM configuration by penstock import litellm. Comments name the places in its model_list.")
	var names []string
	for _, name := range slices.Sorted(maps.Keys(im.use)) {
		if strings.Contains(body.String(), "${"+name+"}") {
			names = append(names, name)
		}
	}
	line := "Variables that must be set:"
	for i, name := range names {
		if i < len(names)-1 {
			name += ","
		}
		if len(line)+len(name) > flowWidth {
			out.comment(0, line)
			line = " "
		}
		line += " " + name
	}
	if len(names) > 0 {
		out.comment(0, line)
	}
	return []byte(out.String() + body.String())
}

// indexes are places in model_list.
func indexes(list []int) string {
	var b strings.Builder
	b.WriteString("model_list")
	list = slices.Compact(slices.Sorted(slices.Values(list)))
	for i, n := range list {
		if i == 12 {
			fmt.Fprintf(&b, " and %d more", len(list)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "[%d]", n)
	}
	return b.String()
}

func spanText(d time.Duration) yamlRaw {
	if d == 0 {
		return ""
	}
	return yamlRaw(config.Duration(d).String())
}

func (p *providerDraft) from() (list []int) {
	for _, a := range p.accounts {
		for _, d := range a.deployments {
			list = append(list, d.at)
		}
	}
	return list
}

func (p *providerDraft) yaml() *yamlMap {
	m, s := &yamlMap{block: true}, p.site
	m.add("name", ref(p.name))
	if s.dialect != config.ProviderOpenAI {
		m.add("dialect", ref(s.dialect))
	}
	m.add("baseURL", s.base)
	m.add("quirks", ref(s.quirks))
	m.add("region", s.region)
	m.add("project", s.project)
	m.add("apiVersion", s.version)
	m.add("credentials", p.credentials())
	if s.headers != "" {
		headers := &yamlMap{}
		for line := range strings.SplitSeq(s.headers, "\n") {
			name, value, _ := strings.Cut(line, ":")
			headers.fields = append(headers.fields, yamlField{key: name, value: ref(value)})
		}
		m.add("headers", headers)
	}
	m.add("allowHTTP", yamlYes(s.allowHTTP))
	m.add("allowPrivate", yamlYes(s.allowPrivate))
	cooldown := &yamlMap{}
	if s.cooldown.after > 0 {
		cooldown.add("after", yamlInt(s.cooldown.after))
	}
	cooldown.add("for", spanText(s.cooldown.duration))
	if s.cooldown.duration > 5*time.Minute { // the default of max
		cooldown.add("max", spanText(s.cooldown.duration))
	}
	m.add("cooldown", cooldown)
	return m
}

func (p *providerDraft) credentials() (list yamlList) {
	shares := make([]float64, len(p.accounts))
	for i, a := range p.accounts {
		shares[i] = max(a.shares[0], 0)
	}
	var each []int
	if !even(shares) {
		each = weights(shares)
	}
	for i, a := range p.accounts {
		if a.secret.none() {
			continue
		}
		c := &yamlMap{}
		if !a.access.none() {
			c.add("accessKeyID", variable(a.access.variable))
		}
		c.add("secret", variable(a.secret.variable))
		if !a.session.none() {
			c.add("sessionToken", variable(a.session.variable))
		}
		c.add("organization", a.organization)
		if each != nil {
			c.add("weight", yamlInt(each[i]))
		}
		list = append(list, yamlItem{value: c})
	}
	return list
}

func (im *litellmImport) modelYAML(m *modelDraft) *yamlMap {
	out := &yamlMap{block: true}
	out.fields = append(out.fields, yamlField{key: "name", value: literal(m.name)})
	if m.alias != "" {
		out.fields = append(out.fields, yamlField{key: "alias", value: literal(m.alias)})
		out.block = false
		return out
	}
	var targets, fallbacks yamlList
	for _, t := range m.targets {
		targets = append(targets, yamlItem{im.targetYAML(t, m.weighted), indexes(t.from)})
	}
	out.add("targets", targets)
	for _, f := range m.fallbacks {
		item := &yamlMap{}
		if len(f.on) != 1 || f.on[0] != config.FallbackGeneral {
			var on []string
			for _, class := range f.on {
				on = append(on, string(class))
			}
			item.add("on", words(on...))
		}
		if f.target != nil {
			item.fields = append(item.fields, im.targetYAML(f.target, false).fields...)
			fallbacks = append(fallbacks, yamlItem{item, indexes(f.target.from)})
			continue
		}
		item.add("virtualModel", literal(f.model))
		fallbacks = append(fallbacks, yamlItem{value: item})
	}
	out.add("fallbacks", fallbacks)
	if m.draws() && !m.weighted && !im.options.sticky {
		out.add("affinity", ref("none"))
	}
	if m.attempts > 0 {
		retries := &yamlMap{}
		retries.add("attempts", yamlInt(m.attempts))
		if m.retries >= 0 {
			retries.add("perTarget", yamlInt(m.retries+1))
		}
		out.add("retries", retries)
	}
	return out
}

func (im *litellmImport) targetYAML(t *targetDraft, weighted bool) *yamlMap {
	m := &yamlMap{}
	m.add("provider", ref(t.provider.name))
	m.add("model", literal(t.model))
	if weighted {
		m.add("weight", yamlInt(t.weight))
	}
	if t.priority > 0 {
		m.add("priority", yamlInt(t.priority))
	}
	if t.bare {
		return m
	}
	m.add("defaults", &yamlMap{fields: t.first.defaults})
	m.add("capabilities", t.first.can.yaml())
	m.add("timeouts", t.first.timeouts.yaml(im.timeouts.total))
	return m
}

// Defaults of config.Timeouts.
const (
	defaultConnect = 2 * time.Second
	defaultTotal   = 30 * time.Minute
)

// yaml is what is written of the timeouts, below those with the total above.
func (t timeoutDraft) yaml(above time.Duration) *yamlMap {
	if above == 0 {
		above = defaultTotal
	}
	total, first := t.total, t.first
	if total == 0 && first > above {
		total = first
	} else if total > 0 {
		first = min(first, total)
	}
	m := &yamlMap{}
	if total > 0 && total < defaultConnect {
		m.add("connect", spanText(total))
	}
	m.add("firstToken", spanText(first))
	m.add("idle", spanText(t.idle))
	m.add("total", spanText(total))
	return m
}

// hosted are the addresses of a model's own servers, which could be a pool.
type hosted struct {
	members  []string
	protocol string
	apiKey   ref
}

// servers finds them: vLLM at the root of a server. The members of a pool know
// the model by one name and get one key: those that differ from the first in
// that are left out.
func (m *modelDraft) servers() (h hosted, from []int) {
	model := ""
	for _, t := range m.targets {
		u, err := url.Parse(string(t.provider.site.base))
		if err != nil || t.provider.site.quirks != "vllm" || u.Path != "/v1" || u.Hostname() == "" || len(h.members) >= 20 {
			continue
		}
		port := u.Port()
		switch {
		case port == "" && u.Scheme == "https":
			port = "443"
		case port == "":
			port = "80"
		}
		one := hosted{}
		if u.Scheme == "https" {
			one.protocol = "https"
		}
		if a := t.provider.accounts[0]; !a.secret.none() {
			one.apiKey = variable(a.secret.variable)
		}
		switch {
		case len(h.members) == 0:
			h, model = one, t.model
		case t.model != model || one.protocol != h.protocol || one.apiKey != h.apiKey:
			continue
		}
		h.members = append(h.members, net.JoinHostPort(u.Hostname(), port))
		from = append(from, t.from...)
	}
	return h, from
}

// pools is a comment that shows own servers as pools.
func (im *litellmImport) pools() string {
	var list yamlList
	for _, m := range im.live() {
		h, _ := m.servers()
		if name := nameOf(m.name); len(h.members) > 0 && name != "" {
			p := &yamlMap{block: true}
			p.add("name", ref(name))
			members := yamlField{key: "static", value: words(h.members...)}
			if host, _, _ := net.SplitHostPort(h.members[0]); len(h.members) == 1 && net.ParseIP(host) == nil {
				members = yamlField{key: "dns", value: literal(h.members[0])} // every server that the name stands for
			}
			p.add("members", &yamlMap{fields: []yamlField{members}})
			p.add("protocol", ref(h.protocol))
			p.add("engine", ref("vllm"))
			p.add("apiKey", h.apiKey)
			list = append(list, yamlItem{value: p})
		}
	}
	if len(list) == 0 {
		return ""
	}
	w := &yamlWriter{}
	w.fields(&yamlMap{fields: []yamlField{{key: "pools", value: list}}}, 0, false, "")
	return "Servers of your own could be pools, whose members are picked by load and by the prompts that they have in their caches.\n" +
		"A target is then {pool: NAME, model: …} in place of {provider: …}:\n" + w.String()
}

func (im *litellmImport) poolHints() {
	for _, m := range im.live() {
		if _, from := m.servers(); len(from) > 0 {
			im.different(indexed("model_list", from[0]), "a server of your own becomes a provider; it could be a member of a pool, as a comment in the output shows")
		}
	}
}
