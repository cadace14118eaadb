// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Diff says in lines what changed, for the log (never a secret's value).
// Entries of a list go by their name, so that an insertion is one line. A nil
// Config is an empty one.
func Diff(old, new *Config) []string {
	if old == nil {
		old = &Config{}
	}
	if new == nil {
		new = &Config{}
	}
	var d differ
	d.compare("", reflect.ValueOf(old).Elem(), reflect.ValueOf(new).Elem())
	return d.lines
}

type differ struct{ lines []string }

func (d *differ) say(path, format string, args ...any) {
	if path == "" {
		path = "configuration"
	}
	d.lines = append(d.lines, path+": "+fmt.Sprintf(format, args...))
}

func (d *differ) compare(path string, a, b reflect.Value) {
	if reflect.DeepEqual(a.Interface(), b.Interface()) {
		return
	}
	switch a.Kind() {
	case reflect.Pointer:
		switch {
		case a.IsNil():
			d.say(path, "set%s", brief(b.Elem()))
		case b.IsNil():
			d.say(path, "unset")
		default:
			d.compare(path, a.Elem(), b.Elem())
		}
	case reflect.Struct:
		if f, ok := a.Interface().(Field); ok {
			g := b.Interface().(Field)
			if a, b = reflect.ValueOf(f.shown()), reflect.ValueOf(g.shown()); f.shown() == g.shown() {
				d.say(joinKey(path, "value"), "changed")
				return
			}
		}
		for i := range a.NumField() {
			key := a.Type().Field(i).Tag.Get("yaml")
			if a.Type() == reflect.TypeFor[PriceFile]() && key == "text" {
				if a.Field(i).String() != b.Field(i).String() {
					d.say(path, "the content changed")
				}
				continue
			}
			if key != "" {
				d.compare(joinKey(path, key), a.Field(i), b.Field(i))
			}
		}
	case reflect.Slice:
		d.list(path, a, b)
	case reflect.Map:
		d.table(path, a, b)
	default:
		if a.Type() == secretType {
			d.say(path, "changed")
			return
		}
		d.say(path, "%s → %s", plain(a), plain(b))
	}
}

// list compares by name. What has no name of its own goes by its index.
func (d *differ) list(path string, a, b reflect.Value) {
	if a.IsNil() != b.IsNil() && a.Len() == b.Len() {
		d.say(path, "%s → %s", listText(a), listText(b))
		return
	}
	keysA, keysB := entryNames(a), entryNames(b)
	for i, key := range keysA {
		if !slices.Contains(keysB, key) {
			if a.Index(i).Kind() == reflect.Struct && a.Index(i).Type() != memberType {
				d.say(path+"["+key+"]", "removed")
			} else {
				d.say(path, "removed %s", key)
			}
		}
	}
	for j, key := range keysB {
		i := slices.Index(keysA, key)
		structured := b.Index(j).Kind() == reflect.Struct && b.Index(j).Type() != memberType
		switch {
		case i < 0 && structured:
			d.say(path+"["+key+"]", "added%s", brief(b.Index(j)))
		case i < 0:
			d.say(path, "added %s", key)
		default:
			d.compare(path+"["+key+"]", a.Index(i), b.Index(j))
		}
	}
	common := func(keys, other []string) []string {
		return slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return !slices.Contains(other, k) })
	}
	if !slices.Equal(common(keysA, keysB), common(keysB, keysA)) {
		d.say(path, "order is now %s", strings.Join(keysB, ", "))
	}
}

func listText(v reflect.Value) string {
	if v.IsNil() {
		return "unset"
	}
	return "[]"
}

// entryNames are the names by which entries of a list are told apart; they
// differ from each other.
func entryNames(v reflect.Value) []string {
	out := make([]string, v.Len())
	seen := make(map[string]bool, v.Len())
	for i := range v.Len() {
		name := entryName(v.Index(i))
		if name == "" {
			name = strconv.Itoa(i)
		}
		for base, n := name, 2; seen[name]; n++ {
			name = fmt.Sprintf("%s#%d", base, n)
		}
		seen[name] = true
		out[i] = name
	}
	return out
}

func entryName(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case string:
		return x
	case Member:
		return x.Address
	case Target:
		if x.Model != "" {
			return x.Pool + "/" + x.Model
		}
		return x.Pool
	case Limit:
		return strings.TrimSpace(x.Unit() + " " + x.Per + " " + strings.Join(x.Models, ","))
	case PluginRef:
		return x.PluginRef
	case Plugin:
		if x.Name == "" {
			return x.Type
		}
	}
	if v.Kind() == reflect.Struct {
		if f := v.FieldByName("Name"); f.IsValid() && f.Kind() == reflect.String {
			return f.String()
		}
	}
	return ""
}

func (d *differ) table(path string, a, b reflect.Value) {
	var keys []string
	for _, m := range []reflect.Value{a, b} {
		for _, k := range m.MapKeys() {
			keys = append(keys, k.String())
		}
	}
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		k := reflect.ValueOf(key)
		x, y, at := a.MapIndex(k), b.MapIndex(k), joinKey(path, key)
		switch {
		case !x.IsValid():
			d.say(at, "added %s", plain(y))
		case !y.IsValid():
			d.say(at, "removed")
		case reflect.DeepEqual(x.Interface(), y.Interface()):
		case x.Type() == secretType:
			d.say(at, "changed")
		default:
			d.say(at, "%s → %s", plain(x), plain(y))
		}
	}
}

// brief adds what an added entry is about, if it has one main field.
func brief(v reflect.Value) string {
	if v.Kind() != reflect.Struct {
		return " " + plain(v)
	}
	for _, field := range []string{"Address", "Alias"} {
		if f := v.FieldByName(field); f.IsValid() && f.Kind() == reflect.String && f.String() != "" {
			return " (" + f.String() + ")"
		}
	}
	return ""
}

// plain is a value on one line.
func plain(v reflect.Value) string {
	for v.Kind() == reflect.Interface && !v.IsNil() {
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Map, reflect.Slice, reflect.Struct:
		return fmt.Sprint(v.Interface())
	case reflect.String:
		if v.String() == "" {
			return `""`
		}
	}
	s := scalarText(v)
	if r := []rune(s); len(r) > 120 {
		s = string(r[:120]) + "…"
	}
	return s
}
