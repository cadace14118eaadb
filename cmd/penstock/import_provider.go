// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/config"
)

// providerDraft is a provider to write.
type providerDraft struct {
	name     string
	site     site
	accounts []*accountDraft
	serves   string // what each of its accounts serves
	dropped  bool
}

// accountDraft is a credential with the deployments that it is used for.
type accountDraft struct {
	account
	deployments []*deployment
	shares      []float64 // of the deployments
}

// effective finds the share of each deployment among those of its name: by
// weight if one of them has it, else by rpm, else by tpm. Whoever lacks what
// the others have gets nothing, as in LiteLLM.
func (im *litellmImport) effective() {
	groups := map[string][]*deployment{}
	for _, d := range im.deployments {
		d.effective = -1
		groups[d.group] = append(groups[d.group], d)
	}
	told := map[string]bool{}
	for _, d := range im.deployments {
		if told[d.group] {
			continue
		}
		told[d.group] = true
		group, by := groups[d.group], ""
		for _, key := range []string{"weight", "rpm", "tpm"} {
			if len(group) > 1 && im.options.weighted && by == "" && (key != "weight" || !im.options.limits) &&
				slices.ContainsFunc(group, func(d *deployment) bool { return d.share[key] > 0 }) {
				by = key
			}
		}
		for _, d := range group {
			if by != "" {
				d.effective = d.share[by]
			}
		}
		shareless(group)
		for _, d := range group {
			im.tellShares(d, by, len(group) > 1)
		}
	}
}

// tellShares says what becomes of the numbers of which by, if any, is the share.
func (im *litellmImport) tellShares(d *deployment, by string, several bool) {
	path := indexed("model_list", d.at) + ".litellm_params."
	if d.effective == 0 {
		im.different(path+by, "none is written, or 0, while others of the name have one: no share, as in LiteLLM; it is tried last")
	}
	for _, key := range []string{"weight", "rpm", "tpm"} {
		_, there := d.share[key]
		switch {
		case !there || key == "weight" && by == key:
		case key == by:
			im.different(path+key, "it is the share (weight), as in simple-shuffle, and no limit")
		case key != "weight":
			im.lost(path+key, noLimit)
		case several:
			im.lost(path+key, "the routing strategy makes no use of it")
		}
	}
}

// shareless gives deployments of one order a share where none of them has any:
// some of each order must be tried.
func shareless(group []*deployment) {
	sum := map[[2]int]float64{}
	key := func(d *deployment) [2]int {
		if d.ordered {
			return [2]int{1, d.order}
		}
		return [2]int{}
	}
	for _, d := range group {
		sum[key(d)] += max(d.effective, 0)
	}
	for _, d := range group {
		if d.effective == 0 && sum[key(d)] == 0 {
			d.effective = 1
		}
	}
}

// makeProviders joins deployments that are alike in everything but their keys.
func (im *litellmImport) makeProviders() {
	accounts := map[site][]*accountDraft{}
	var sites []site
	for _, d := range im.deployments {
		list, known := accounts[d.site]
		if !known {
			sites = append(sites, d.site)
		}
		i := slices.IndexFunc(list, func(a *accountDraft) bool { return a.account == d.account })
		if i < 0 {
			i = len(list)
			list = append(list, &accountDraft{account: d.account})
		}
		list[i].deployments = append(list[i].deployments, d)
		accounts[d.site] = list
	}
	for _, s := range sites {
		for _, a := range accounts[s] {
			im.join(s, a)
		}
	}
	im.nameProviders()
	for _, p := range im.providers {
		for _, a := range p.accounts {
			im.nameSecrets(p, a)
			for _, d := range a.deployments {
				d.provider = p
			}
		}
	}
}

// join adds an account to the provider that serves the same with other keys, or
// to a new one.
func (im *litellmImport) join(s site, a *accountDraft) {
	serves := make([]string, len(a.deployments))
	order := make([]int, len(a.deployments))
	for i, d := range a.deployments {
		order[i], serves[i] = i, d.serves()
	}
	slices.SortStableFunc(order, func(i, j int) int { return strings.Compare(serves[i], serves[j]) })
	for _, i := range order {
		a.shares = append(a.shares, a.deployments[i].effective)
	}
	slices.Sort(serves)
	all := fmt.Sprint(a.secret.none()) + strings.Join(serves, "\n")
	for _, p := range im.providers {
		first := p.accounts[0].shares
		if p.site == s && p.serves == all && len(p.accounts) < 100 && (slices.Equal(first, a.shares) || even(first) && even(a.shares)) {
			p.accounts = append(p.accounts, a)
			return
		}
	}
	im.providers = append(im.providers, &providerDraft{site: s, accounts: []*accountDraft{a}, serves: all})
}

func even(shares []float64) bool {
	return !slices.ContainsFunc(shares, func(f float64) bool { return f != shares[0] })
}

// serves is everything about a deployment but its account and its share.
func (d *deployment) serves() string {
	return fmt.Sprintf("%q %q %d %t %s %v %v %d", d.group, d.model, d.order, d.ordered, canonical(&yamlMap{fields: d.defaults}), d.can, d.timeouts, d.retries)
}

// nameProviders derives names from what the provider is, where it is, and at
// last from the order.
func (im *litellmImport) nameProviders() {
	alike := map[string][]*providerDraft{}
	for _, p := range im.providers {
		alike[p.label()] = append(alike[p.label()], p)
	}
	used := map[string]bool{}
	for _, p := range im.providers {
		name := p.label()
		if group := alike[name]; len(group) > 1 {
			tail := p.tail()
			same := func(q *providerDraft) bool { return q != p && q.tail() == tail }
			switch {
			case tail == "" || slices.ContainsFunc(group, same):
			case strings.HasPrefix(tail, name):
				name = tail
			default:
				name += "-" + tail
			}
		}
		base := name
		for i := 2; used[name]; i++ {
			name = base + "-" + strconv.Itoa(i)
		}
		p.name, used[name] = name, true
	}
}

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

func nameOf(s string) string {
	s = strings.Trim(notInName.ReplaceAllString(strings.ToLower(s), "-"), "-")
	return strings.TrimRight(s[:min(len(s), 40)], "-")
}

func (p *providerDraft) label() string { return cmp.Or(nameOf(p.site.label), "provider") }

// tail tells providers of one kind apart: the region, or the host.
func (p *providerDraft) tail() string {
	if p.site.region != "" && !strings.Contains(string(p.site.region), "$") {
		return nameOf(string(p.site.region))[:min(len(nameOf(string(p.site.region))), 15)]
	}
	u, err := url.Parse(string(p.site.base))
	if err != nil || u.Host == "" || strings.Contains(string(p.site.base), "$") {
		return ""
	}
	tail := hostLabel(u.Hostname())
	if u.Port() != "" && privateHost(u.Hostname()) {
		tail += "-" + u.Port()
	}
	tail = nameOf(tail)
	return strings.TrimRight(tail[:min(len(tail), 20)], "-")
}

// nameSecrets gives secrets that stand in the file a variable each.
func (im *litellmImport) nameSecrets(p *providerDraft, a *accountDraft) {
	for _, s := range []struct {
		secret *secretText
		name   string
		key    string
	}{
		{&a.secret, "_KEY", secretKey(p.site.dialect, a)}, {&a.access, "_ACCESS_KEY_ID", "aws_access_key_id"}, {&a.session, "_SESSION_TOKEN", "aws_session_token"},
	} {
		if s.secret.none() || s.secret.variable != "" {
			continue
		}
		name, known := im.secrets[*s.secret]
		if !known {
			name = im.fresh(p.name+s.name, exampleText)
			im.secrets[*s.secret] = name
			why := fmt.Sprintf("a key stands in the file, and is not copied: set %s to it", name)
			if p.site.dialect == config.ProviderVertex {
				why = fmt.Sprintf("set %s to the JSON key of a service account, or write secret: file:/PATH", name)
			}
			im.todo(indexed("model_list", a.deployments[0].at)+".litellm_params."+s.key, why)
		}
		s.secret.variable = name
	}
}

// secretKey is where LiteLLM has the secret.
func secretKey(dialect config.ProviderKind, a *accountDraft) string {
	switch {
	case dialect == config.ProviderVertex:
		return "vertex_credentials"
	case dialect == config.ProviderBedrock && !a.access.none():
		return "aws_secret_access_key"
	}
	return "api_key"
}

// maxWeight is the largest weight that a configuration takes.
const maxWeight = 1_000_000

// weights are shares as whole numbers, as small as they can be; nil where they
// say nothing.
func weights(shares []float64) []int {
	var sum, most float64
	for _, f := range shares {
		sum, most = sum+f, max(most, f)
	}
	if sum == 0 || len(shares) < 2 {
		return nil
	}
	scale := 1.0
	for range 6 {
		if !slices.ContainsFunc(shares, func(f float64) bool { return math.Abs(f*scale-math.Round(f*scale)) > 1e-9*most*scale }) {
			break
		}
		scale *= 10
	}
	if most*scale > 1e15 {
		scale = 1e15 / most
	}
	out, divisor := make([]int, len(shares)), 0
	for i, f := range shares {
		out[i] = int(math.Round(f * scale))
		for a, b := out[i], divisor; ; a, b = b, a%b {
			if b == 0 {
				divisor = a
				break
			}
		}
	}
	if divisor == 0 {
		return nil
	}
	if scale == 1 && most <= 100 {
		divisor = 1 // as somebody wrote them
	}
	biggest := 0
	for i := range out {
		out[i] /= divisor
		biggest = max(biggest, out[i])
	}
	if biggest > maxWeight {
		for i := range out {
			if out[i] > 0 {
				out[i] = max(1, int(float64(out[i])/float64(biggest)*maxWeight))
			}
		}
	}
	return out
}
