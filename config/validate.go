// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// validator checks a decoded configuration. Problems carry paths only; whoever
// knows the document adds the places.
type validator struct {
	c          *Config
	skip       func(path string) bool // nothing is to be said about path
	unlistened bool                   // see Options
	problems   Problems

	instructions int // of the regular expressions of the HTTP route that is looked at
}

func (v *validator) fail(path, what, hint string) {
	if !v.full() && !v.skip(path) {
		v.problems = append(v.problems, &Problem{Path: path, What: what, Hint: hint})
	}
}

// full says that enough is reported already.
func (v *validator) full() bool { return len(v.problems) >= maxProblems }

func (v *validator) all() {
	v.bounds(reflect.ValueOf(v.c).Elem(), "", false)
	v.listeners()
	v.pickers()
	v.pools()
	v.providers()
	v.models()
	v.tenants()
	v.quota()
	v.prices()
	v.routes()
	v.httpRoutes()
	v.timeouts("timeouts", v.c.Timeouts)
	if l := v.c.Limits; l.BodiesInFlight < l.Body {
		v.fail("limits.bodiesInFlight", fmt.Sprintf("is less than limits.body (%s)", l.Body), "one body must fit")
	}
	v.ledger()
	v.telemetry()
	v.slos()
	if v.c.Records.Path == "" {
		v.fail("records.path", "is empty", `write "off", "stdout" or a file`)
	}
}

// bounds holds every field to the enum, min and max of its tags.
func (v *validator) bounds(x reflect.Value, path string, inherit bool) {
	switch x.Kind() {
	case reflect.Pointer:
		if !x.IsNil() {
			v.bounds(x.Elem(), path, inherit)
		}
	case reflect.Slice:
		for i := range x.Len() {
			v.bounds(x.Index(i), joinIndex(path, i), inherit)
		}
	case reflect.Struct:
		for i := range x.NumField() {
			f, fv := x.Type().Field(i), x.Field(i)
			p := joinKey(path, f.Tag.Get("yaml"))
			if fv.Kind() == reflect.Pointer && !fv.IsNil() {
				fv = fv.Elem()
			}
			in := inherit || f.Tag.Get("unset") == "inherit"
			if fv.Kind() == reflect.Pointer || in && fv.IsZero() {
				continue
			}
			v.enum(f, fv, p)
			v.limits(f, fv, p)
			v.bounds(fv, p, in)
		}
	}
}

func (v *validator) enum(f reflect.StructField, x reflect.Value, path string) {
	enum, ok := f.Tag.Lookup("enum")
	if !ok {
		return
	}
	names := strings.Split(enum, "|")
	for _, name := range names {
		if x.String() == name {
			return
		}
	}
	if _, hasDefault := f.Tag.Lookup("default"); x.String() == "" && !hasDefault {
		return
	}
	hint := "use " + strings.Join(names, " or ")
	if len(names) > 2 {
		hint = "use one of " + strings.Join(names, ", ")
	}
	if name := closest(x.String(), names); name != "" {
		hint = fmt.Sprintf("did you mean %s?", name)
	}
	v.fail(path, fmt.Sprintf("%q is not known", x.String()), hint)
}

func (v *validator) limits(f reflect.StructField, x reflect.Value, path string) {
	compare := func(bound string) int {
		b := reflect.New(x.Type()).Elem()
		if p := setScalar(b, bound); p != nil {
			panic(fmt.Sprintf("config: bound of %s: %v", f.Name, p))
		}
		if x.Kind() == reflect.Float64 {
			return cmp.Compare(x.Float(), b.Float())
		}
		return cmp.Compare(x.Int(), b.Int())
	}
	if low, ok := f.Tag.Lookup("min"); ok && compare(low) < 0 {
		v.fail(path, "must be at least "+low, "")
	}
	if high, ok := f.Tag.Lookup("max"); ok && compare(high) > 0 {
		v.fail(path, "must be at most "+high, "")
	}
}

var nameForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

// name checks a name of ours: it becomes a metric label and part of a path.
func (v *validator) name(path, name string, seen map[string]string) {
	at := path + ".name"
	switch {
	case name == "":
		v.fail(at, "is missing", "every entry of this list needs a name")
	case len(name) > 63:
		v.fail(at, "is longer than 63 characters", "")
	case !nameForm.MatchString(name):
		v.fail(at, fmt.Sprintf("%q is not a name", name), "use letters, digits and . _ - inside")
	default:
		v.unique(at, name, seen)
	}
}

// unique remembers name and complains if it was there.
func (v *validator) unique(path, name string, seen map[string]string) {
	if first, ok := seen[name]; ok {
		v.fail(path, fmt.Sprintf("%q is there already, at %s", name, first), "names must differ")
		return
	}
	seen[name] = path
}

func (v *validator) timeouts(path string, t Timeouts) {
	if t.Connect > 0 && t.Total > 0 && t.Connect > t.Total {
		v.fail(path+".connect", fmt.Sprintf("is longer than the total of %s", t.Total), "")
	}
}

// dangling complains about a reference to nothing, unless the list that it
// points into could not be read.
func (v *validator) dangling(path, list, what, name string, names []string) {
	if v.full() || v.skip(list) {
		return
	}
	v.fail(path, fmt.Sprintf("there is no %s %q", what, name), didYouMean(name, names))
}

// names collects a field of a list.
func names[T any](list []T, name func(*T) string) []string {
	out := make([]string, 0, len(list))
	for i := range list {
		if n := name(&list[i]); n != "" {
			out = append(out, n)
		}
	}
	return out
}

// plain says that the pool is there and has no model servers.
func (v *validator) plain(pool string) bool {
	return slices.ContainsFunc(v.c.Pools, func(p Pool) bool { return p.Name == pool && p.Plain })
}

// maybeEmpty says that the configuration is one of HTTP routes, whose lists come
// and go: where there is no route yet, there need be no pool and no listener.
func (v *validator) maybeEmpty() bool { return v.c.HTTPRoutes != nil || v.skip("httpRoutes") }

func setOf(names []string) map[string]bool {
	out := make(map[string]bool, len(names))
	for _, n := range names {
		out[n] = true
	}
	return out
}

func (v *validator) modelName(path, name string) {
	switch {
	case name == "":
		v.fail(path, "is missing", "")
	case len(name) > 256:
		v.fail(path, "is longer than 256 bytes", "")
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7F || r == '*' || r == '"' || r == '\\' }):
		v.fail(path, fmt.Sprintf("%q is not a model name", name), "no spaces, quotes, backslashes or *")
	}
}

func (v *validator) alias(path string, m *Model, byName map[string]*Model, known []string) {
	if m.Targets != nil || m.Fallbacks != nil || m.Degraded != nil || m.ReportModel != "" || m.Affinity != "" || m.Timeouts != (Timeouts{}) || m.Retries != (Retries{}) {
		v.fail(path+".alias", "an alias has nothing else of its own", "set targets, timeouts and the rest at the model it points to")
	}
	trail := []string{m.Name}
	for at := m; at.Alias != ""; {
		next, ok := byName[at.Alias]
		if !ok {
			if at == m { // a longer chain is reported at its broken link
				v.dangling(path+".alias", "models", "model", m.Alias, known)
			}
			return
		}
		trail = append(trail, next.Name)
		if next == m {
			v.fail(path+".alias", "goes round in a circle: "+strings.Join(trail, " → "), "let one of them have targets")
			return
		}
		if at = next; len(trail) > len(known)+1 {
			return // into a circle that is reported where it closes
		}
	}
}

func (v *validator) routes() {
	seen := map[string]string{}
	same := map[string]string{}
	listeners := names(v.c.Listeners, func(l *Listener) string { return l.Name })
	models := names(v.c.Models, func(m *Model) string { return m.Name })
	isListener, isModel := setOf(listeners), setOf(models)
	for i := range v.c.Routes {
		r, path := &v.c.Routes[i], joinIndex("routes", i)
		if r.Name != "" {
			v.name(path, r.Name, seen)
		}
		v.notEmpty(path+".listeners", r.Listeners != nil, len(r.Listeners), "every listener")
		v.notEmpty(path+".hosts", r.Hosts != nil, len(r.Hosts), "every host")
		v.notEmpty(path+".models", r.Models != nil, len(r.Models), "every model")
		for j, l := range r.Listeners {
			listener, section, sectioned := strings.Cut(l, "/")
			if sectioned && isListener[listener] {
				v.sectionRef(joinIndex(path+".listeners", j), listener, section)
			} else if !isListener[listener] {
				v.dangling(joinIndex(path+".listeners", j), "listeners", "listener", l, listeners)
			}
		}
		for j, h := range r.Hosts {
			v.host(joinIndex(path+".hosts", j), h)
		}
		if what, hint := checkPath(r.PathPrefix); what != "" {
			v.fail(path+".pathPrefix", what, hint)
		}
		for j, m := range r.Models {
			at := joinIndex(path+".models", j)
			prefix, glob := strings.CutSuffix(m, "*")
			switch {
			case m == "" || strings.Contains(prefix, "*"):
				v.fail(at, fmt.Sprintf("%q is not a model pattern", m), "write a name, or a beginning followed by *")
			case glob && !hasPrefix(models, prefix):
				v.dangling(at, "models", "model that matches", m, nil)
			case !glob && !isModel[m]:
				v.dangling(at, "models", "model", m, models)
			}
		}
		v.sameMatch(path, r, same)
	}
}

func (v *validator) sectionRef(path, listener, section string) {
	i := slices.IndexFunc(v.c.Listeners, func(l Listener) bool { return l.Name == listener })
	known := names(v.c.Listeners[i].Sections, func(s *Section) string { return s.Name })
	if !slices.Contains(known, section) {
		v.dangling(path, joinIndex("listeners", i), "section", section, known)
	}
}

// sameMatch finds two routes that match the very same requests.
func (v *validator) sameMatch(path string, r *Route, same map[string]string) {
	orAll := func(list []string) []string {
		if list == nil {
			return []string{"*"}
		}
		return list
	}
	for _, l := range orAll(r.Listeners) {
		for _, h := range orAll(r.Hosts) {
			if len(same) > maxInOne {
				return // far more than a person writes
			}
			key := strconv.Quote(l) + strconv.Quote(h) + r.PathPrefix
			if first, ok := same[key]; ok && first != path {
				v.fail(path, "matches the same listener, host and path as "+first, "join them, or let them differ in host or pathPrefix")
				return
			}
			same[key] = path
		}
	}
}

func hasPrefix(names []string, prefix string) bool {
	for _, n := range names {
		if strings.HasPrefix(n, prefix) {
			return true
		}
	}
	return false
}

func (v *validator) notEmpty(path string, given bool, n int, all string) {
	if given && n == 0 {
		v.fail(path, "is an empty list, which matches nothing", "leave the key out for "+all)
	}
}
