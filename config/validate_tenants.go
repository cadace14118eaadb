// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// Bounds on what is told about a tenant or key.
const (
	maxMetadata      = 16
	maxMetadataKey   = 64
	maxMetadataValue = 256
	maxRules         = 256 // patterns, regions or sources of one list
	minPepper        = 16  // bytes
	digestHint       = "write sha256: and 64 hexadecimal digits in lower case: printf %s KEY | sha256sum"
)

var (
	hashForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	metaForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]*$`)
)

func (v *validator) tenants() {
	byPath := map[string]*Tenant{}
	for i := range v.c.Tenants {
		byPath[v.c.Tenants[i].Path()] = &v.c.Tenants[i]
	}
	seen, hashes := map[string]map[string]string{}, map[string]string{} // names, by parent
	for i := range v.c.Tenants {
		t, path := &v.c.Tenants[i], joinIndex("tenants", i)
		if seen[t.Parent] == nil {
			seen[t.Parent] = map[string]string{}
		}
		v.name(path, t.Name, seen[t.Parent])
		v.parent(path, t, byPath)
		v.tenant(path, t)
		keys := map[string]string{}
		for j := range t.Keys {
			k, kp := &t.Keys[j], joinIndex(path+".keys", j)
			v.name(kp, k.Name, keys)
			v.digests(kp, k, hashes)
			v.key(kp, k)
			v.narrows(kp+".models", k.Models, t, byPath)
		}
	}
	v.keyStore()
}

// parent checks where t stands in the tree, and that it takes nothing that is
// not given there.
func (v *validator) parent(path string, t *Tenant, byPath map[string]*Tenant) {
	if t.Parent == "" {
		return
	}
	up := byPath[t.Parent]
	if up == nil { // a path is longer than its parent's: there are no circles
		var paths []string
		for p := range byPath {
			if p != t.Path() {
				paths = append(paths, p)
			}
		}
		slices.Sort(paths)
		v.dangling(path+".parent", "tenants", "tenant", t.Parent, paths)
		return
	}
	level, below := slices.Index(Kinds(), up.KindIn(byPath)), slices.Index(Kinds(), t.KindIn(byPath))
	switch {
	case level < 0 || below < 0:
		v.fail(path+".parent", fmt.Sprintf("%s is a %s, and nothing but keys is below that", t.Parent, Kinds()[2]), "the levels are organisation, team, project")
	case below <= level:
		v.fail(path+".kind", fmt.Sprintf("%s below %s is not the order", Kinds()[below], Kinds()[level]), "the levels are organisation, team, project")
	}
	for i, r := range t.Regions {
		if len(up.Regions) > 0 && !slices.Contains(up.Regions, r) {
			v.fail(joinIndex(path+".regions", i), fmt.Sprintf("%q is not allowed to the parent, %s", r, t.Parent), "regions there: "+strings.Join(up.Regions, ", "))
		}
	}
	v.narrows(path+".models", t.Models, up, byPath)
}

// KindIn is the tenant's kind: its own, or the one below its parent's. "": there
// is none below.
func (t *Tenant) KindIn(byPath map[string]*Tenant) string {
	if t.Kind != "" {
		return t.Kind
	}
	if up := byPath[t.Parent]; t.Parent != "" && up != nil {
		if i := slices.Index(Kinds(), up.KindIn(byPath)) + 1; i > 0 && i < len(Kinds()) {
			return Kinds()[i]
		}
		return ""
	}
	return Kinds()[0]
}

// narrows finds names in models that some tenant from up outwards does not allow.
func (v *validator) narrows(path string, models []string, up *Tenant, byPath map[string]*Tenant) {
	for range Kinds() {
		for i, m := range models {
			if strings.Contains(m, "*") {
				continue // what it stands for is not known
			}
			if MatchesAny(up.Deny, m) || len(up.Models) > 0 && !MatchesAny(up.Models, m) {
				v.fail(joinIndex(path, i), fmt.Sprintf("%q is not allowed to tenant %s", m, up.Path()), "what is below a tenant can only have less")
			}
		}
		next := byPath[up.Parent]
		if up.Parent == "" || next == nil {
			return
		}
		up = next
	}
}

// MatchesAny says that one of the patterns stands for name.
func MatchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return MatchName(p, name) })
}

// tenant checks what t says of itself.
func (v *validator) tenant(path string, t *Tenant) {
	v.rules(path, t.Models, t.Deny, t.Sources, t.Metadata)
	v.limitsOf(joinPath(path, "limits"), t.Limits)
	if t.Users != nil {
		v.users(joinPath(path, "users"), t.Users)
	}
	if len(t.Regions) > maxRules {
		v.fail(path+".regions", fmt.Sprintf("has more than %d entries", maxRules), "")
	}
}

// key checks what k says of itself, but for its digests.
func (v *validator) key(path string, k *Key) {
	v.rules(path, k.Models, k.Deny, k.Sources, k.Metadata)
	v.limitsOf(joinPath(path, "limits"), k.Limits)
	v.times(path, k.NotBefore, k.Expires)
}

// times checks two times, of which either may be missing.
func (v *validator) times(path, from, until string) {
	f, err := ParseTime(from)
	if from != "" && err != nil {
		v.fail(path+".notBefore", "is not a time", err.Error())
		return
	}
	u, err := ParseTime(until)
	switch {
	case until == "":
	case err != nil:
		v.fail(path+".expires", "is not a time", err.Error())
	case from != "" && !f.Before(u):
		v.fail(path+".expires", "is not after notBefore", "")
	}
}

func (v *validator) rules(path string, models, deny, sources []string, metadata map[string]string) {
	for _, list := range []struct {
		key    string
		values []string
	}{{"models", models}, {"deny", deny}, {"sources", sources}} {
		v.notEmpty(path+"."+list.key, list.values != nil, len(list.values), "no rule")
		if len(list.values) > maxRules {
			v.fail(path+"."+list.key, fmt.Sprintf("has more than %d entries", maxRules), "")
			continue
		}
		for i, s := range list.values {
			if at := joinIndex(path+"."+list.key, i); list.key == "sources" {
				if _, err := ParseSource(s); err != nil {
					v.fail(at, err.Error(), "write a CIDR block such as 10.0.0.0/8, or an address")
				}
			} else {
				v.pattern(at, s)
			}
		}
	}
	if len(metadata) > maxMetadata {
		v.fail(path+".metadata", fmt.Sprintf("has more than %d entries", maxMetadata), "")
		return
	}
	for k, s := range metadata {
		switch at := joinKey(path+".metadata", k); {
		case len(k) > maxMetadataKey || !metaForm.MatchString(k):
			v.fail(path+".metadata", fmt.Sprintf("%q is not a key", clip(k)), fmt.Sprintf("use at most %d letters, digits and . _ / -", maxMetadataKey))
		case len(s) > maxMetadataValue:
			v.fail(at, fmt.Sprintf("is longer than %d bytes", maxMetadataValue), "")
		}
	}
}

func clip(s string) string {
	if r := []rune(s); len(r) > maxMetadataKey {
		return string(r[:maxMetadataKey]) + "…"
	}
	return s
}

// ParseSource reads a CIDR block, or an address, which is a block of one.
func ParseSource(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return p, fmt.Errorf("%q is not a CIDR block", text)
	case p != p.Masked():
		return p, fmt.Errorf("%q has bits beyond its length: %s is meant, or %s", text, p.Masked(), p.Addr())
	}
	return p, nil
}

// digests checks those of a key. Nothing of them is shown: what stands there by
// mistake is the key itself.
func (v *validator) digests(path string, k *Key, seen map[string]string) {
	check := func(at, hash string) {
		switch {
		case hash == "":
			v.fail(at, "is missing", "write sha256: and the digest of the key in hex: printf %s KEY | sha256sum")
		case !hashForm.MatchString(hash):
			v.fail(at, "is not a digest", digestHint)
		default:
			v.unique(at, hash, seen)
		}
	}
	if k.Hash != "" || len(k.Secrets) == 0 {
		check(path+".hash", k.Hash)
	}
	for i := range k.Secrets {
		at := joinIndex(path+".secrets", i)
		check(at+".hash", k.Secrets[i].Hash)
		v.times(at, k.Secrets[i].NotBefore, k.Secrets[i].Expires)
	}
}

// keyStore checks where keys are kept that the admin API makes.
func (v *validator) keyStore() {
	k := &v.c.Keys
	switch k.Store {
	case KeysSQLite:
		if k.Path == "" {
			v.fail("keys.path", "is missing", "name the file in which keys are kept, on a disk of this machine")
		}
		if k.DSN != "" {
			v.fail("keys.dsn", "means nothing to SQLite", "write store: postgres, or leave it out")
		}
	case KeysPostgres:
		if k.DSN == "" {
			v.fail("keys.dsn", "is missing", "write postgres://user:password@host:5432/database, best as ${VARIABLE}")
		}
		if k.Path != "" {
			v.fail("keys.path", "means nothing to PostgreSQL", "write store: sqlite, or leave it out")
		}
	default:
		return
	}
	const how = "make one with openssl rand -hex 32, and keep it outside of the store: pepper: ${PENSTOCK_PEPPER} or file:/path"
	switch {
	case k.Pepper == "":
		v.fail("keys.pepper", "is missing", how)
	case len(k.Pepper) < minPepper:
		v.fail("keys.pepper", fmt.Sprintf("is shorter than %d bytes", minPepper), how)
	}
	if len(k.OldPeppers) > 3 {
		v.fail("keys.oldPeppers", "has more than 3 entries", "rotate the keys that were made under the oldest one")
	}
}

// CheckBranch is what is wrong with the last tenant of a branch, given with those
// above it, and with its keys, beside the configuration in. Paths begin at the
// tenant.
func CheckBranch(in *Config, branch []Tenant) Problems {
	last := len(branch) - 1
	v := validator{c: &Config{Quota: in.Quota, Tenants: branch}, skip: func(string) bool { return false }}
	v.bounds(reflect.ValueOf(&branch[last]).Elem(), joinIndex("tenants", last), false)
	v.tenants()
	var out Problems
	for _, p := range v.problems {
		if rest, below := strings.CutPrefix(p.Path, joinIndex("tenants", last)); below {
			p.Path = strings.TrimPrefix(rest, ".")
			out = append(out, p)
		}
	}
	return out
}
