// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

var (
	durationType = reflect.TypeFor[Duration]()
	sizeType     = reflect.TypeFor[Size]()
	secretType   = reflect.TypeFor[Secret]()
	memberType   = reflect.TypeFor[Member]()
	anyType      = reflect.TypeFor[any]()
)

// decoder fills a Go value from a tree, strictly: what the type does not know
// is a problem. It goes on after a problem, so that all are found at once.
type decoder struct {
	file     string
	dir      string    // that paths in the file are relative to
	expand   *expander // nil: ${…} is plain text
	problems Problems
	// faulty are paths whose value is not to be believed, and those which a
	// misspelt key most likely meant: nothing is said about them again.
	faulty []string
}

// scope is what a field's tags say to the values below it.
type scope struct {
	path    string
	inherit bool
	file    string // the file tag
	private bool   // the private tag: no message shows the value
}

// confides says that a secret, or the digest of one, is a value of type t, or
// a member of it or of its items. Whoever writes text where such a value stands
// may have written the secret itself: no message shows it.
func confides(t reflect.Type) bool {
	for t != secretType && (t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map) {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return t == secretType
	}
	for i := range t.NumField() {
		if f := t.Field(i); f.Type == secretType || f.Tag.Get("private") != "" {
			return true
		}
	}
	return false
}

// maybeSecret says that an unknown key may be a secret that stands in the wrong
// place: it is longer than words are, or has signs and digits that keys do not,
// and is long or where secrets belong.
func maybeSecret(key string, t reflect.Type) bool {
	const short, long = 8, 16
	signs := strings.ContainsFunc(key, func(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') })
	return len(key) > 2*long || signs && (len(key) >= long || len(key) >= short && confides(t))
}

// not says what n is where a value of type t is wanted.
func not(n *node, t reflect.Type) string {
	if n.kind < mappingKind && n.kind != nullKind && confides(t) {
		return ""
	}
	return ", not " + describe(n)
}

// maxProblems bounds what one load reports, and the work for it.
const maxProblems = 100

func (d *decoder) fail(line, col int, path, what, hint string) {
	if len(d.problems) >= maxProblems {
		return
	}
	d.problems = append(d.problems, &Problem{File: d.file, Line: line, Col: col, Path: path, What: what, Hint: hint})
	d.faulty = append(d.faulty, path)
}

func (d *decoder) failNode(n *node, path, what, hint string) { d.fail(n.line, n.col, path, what, hint) }

// describe is the value as written, for a message: never an expanded one.
func describe(n *node) string {
	switch n.kind {
	case nullKind, mappingKind, sequenceKind:
		return n.kind.String()
	}
	text := n.text
	if r := []rune(text); len(r) > 40 {
		text = string(r[:40]) + "…"
	}
	if n.kind == textKind {
		return strconv.Quote(text)
	}
	return text
}

func (d *decoder) decode(n *node, v reflect.Value, c scope) {
	t := v.Type()
	if n.kind == nullKind && t != anyType {
		d.failNode(n, c.path, "has no value", "give one or leave the key out")
		return
	}
	switch {
	case t == memberType && n.kind == textKind:
		if s, ok := d.text(n, c.path); ok {
			v.Set(reflect.ValueOf(Member{Address: s}))
		}
		return
	case t == secretType:
		d.secret(n, v, c.path)
		return
	}
	switch t.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		if t.Elem().Kind() == reflect.Struct && !c.inherit {
			setDefaults(v.Elem())
		}
		d.decode(n, v.Elem(), c)
	case reflect.Struct:
		d.object(n, v, c)
	case reflect.Slice:
		d.list(n, v, c)
	case reflect.Map:
		d.table(n, v, c)
	case reflect.Interface:
		if x := d.tree(n, c.path); x != nil {
			v.Set(reflect.ValueOf(x))
		}
	default:
		d.scalar(n, v, c)
	}
}

// maxKeysNamed is how many keys a hint lists.
const maxKeysNamed = 8

func (d *decoder) object(n *node, v reflect.Value, c scope) {
	names := keysOf(v.Type())
	if c.private && n.kind < mappingKind {
		d.failNode(n, c.path, "must be a mapping", "write {hash: …}; "+digestHint)
		return
	}
	if n.kind != mappingKind {
		hint := "write key: value pairs"
		switch {
		case v.Type() == memberType:
			hint = `write "host:port" or {address: "host:port", labels: {…}}`
		case n.kind == textKind && slices.Contains(names, "address") && !confides(v.Type()):
			hint = fmt.Sprintf("write %s: {address: %q}", c.path[strings.LastIndexByte(c.path, '.')+1:], n.text)
		case c.path != "" && len(names) <= maxKeysNamed:
			hint += "; keys here: " + strings.Join(names, ", ")
		}
		d.failNode(n, c.path, "must be a mapping"+not(n, v.Type()), hint)
		return
	}
	for i, e := range n.entries {
		path := joinKey(c.path, e.key)
		f, ok := fieldOf(v.Type(), e.key)
		if !ok && maybeSecret(e.key, v.Type()) && closest(e.key, names) == "" {
			d.fail(e.line, e.col, strings.TrimPrefix(c.path+".…", "."), "unknown key, not shown since it may be a secret", didYouMean("", names))
			continue
		}
		if first, ok := firstOf(n.entries[:i], e.key); ok {
			d.fail(e.line, e.col, path, fmt.Sprintf("is given twice%s", firstAt(first)), "keep one of them")
			continue
		}
		if !ok {
			if len(d.problems) >= maxProblems {
				continue
			}
			d.fail(e.line, e.col, path, "unknown key", didYouMean(e.key, names))
			if meant := closest(e.key, names); meant != "" {
				d.faulty = append(d.faulty, joinKey(c.path, meant))
			}
			continue
		}
		if d.secretFile(n, e, f, v, path) {
			continue
		}
		d.decode(e.value, v.FieldByIndex(f.Index), scope{
			path:    path,
			inherit: c.inherit || f.Tag.Get("unset") == "inherit",
			file:    f.Tag.Get("file"),
			private: c.private || f.Tag.Get("private") != "",
		})
	}
}

func firstOf(entries []entry, key string) (entry, bool) {
	for _, e := range entries {
		if e.key == key {
			return e, true
		}
	}
	return entry{}, false
}

func (d *decoder) list(n *node, v reflect.Value, c scope) {
	if n.kind != sequenceKind && c.private {
		d.failNode(n, c.path, "must be a list", "write [{hash: …}]; "+digestHint)
		return
	}
	if n.kind != sequenceKind {
		d.failNode(n, c.path, "must be a list"+not(n, v.Type()), "write [a, b] or one - per line")
		return
	}
	out := reflect.MakeSlice(v.Type(), len(n.items), len(n.items))
	v.Set(out)
	for i, item := range n.items {
		elem := out.Index(i)
		if elem.Kind() == reflect.Struct && !c.inherit {
			setDefaults(elem)
		}
		d.decode(item, elem, scope{path: joinIndex(c.path, i), inherit: c.inherit, private: c.private})
	}
}

func (d *decoder) table(n *node, v reflect.Value, c scope) {
	if n.kind != mappingKind {
		d.failNode(n, c.path, "must be a mapping"+not(n, v.Type()), "write key: value pairs")
		return
	}
	if v.Type().Elem() == anyType {
		if m, ok := d.tree(n, c.path).(map[string]any); ok {
			v.Set(reflect.ValueOf(m))
		}
		return
	}
	out := reflect.MakeMapWithSize(v.Type(), len(n.entries))
	v.Set(out)
	for i, e := range n.entries {
		path := joinKey(c.path, e.key)
		if first, ok := firstOf(n.entries[:i], e.key); ok {
			d.fail(e.line, e.col, path, fmt.Sprintf("is given twice%s", firstAt(first)), "keep one of them")
			continue
		}
		elem := reflect.New(v.Type().Elem()).Elem()
		d.decode(e.value, elem, scope{path: path})
		out.SetMapIndex(reflect.ValueOf(e.key), elem)
	}
}

// tree is n as plain Go values: nil, bool, int (uint64 beyond it), float64,
// string, []any and map[string]any.
func (d *decoder) tree(n *node, path string) any {
	switch n.kind {
	case nullKind:
		return nil
	case mappingKind:
		m := make(map[string]any, len(n.entries))
		for i, e := range n.entries {
			p := joinKey(path, e.key)
			if first, ok := firstOf(n.entries[:i], e.key); ok {
				d.fail(e.line, e.col, p, fmt.Sprintf("is given twice%s", firstAt(first)), "keep one of them")
				continue
			}
			m[e.key] = d.tree(e.value, p)
		}
		return m
	case sequenceKind:
		s := make([]any, len(n.items))
		for i, item := range n.items {
			s[i] = d.tree(item, joinIndex(path, i))
		}
		return s
	}
	text, ok := d.text(n, path)
	if !ok {
		return nil
	}
	k := n.kind
	if k == textKind && !n.quoted && text != n.text {
		k = resolve(text) // ${N} alone may stand for a number
	}
	switch k {
	case boolKind:
		return strings.EqualFold(text, "true")
	case intKind:
		if i, err := parseInt(text); err == nil {
			return int(i)
		}
		if u, err := strconv.ParseUint(strings.ReplaceAll(text, "_", ""), 0, 64); err == nil {
			return u
		}
		fallthrough
	case floatKind:
		f, err := strconv.ParseFloat(strings.ReplaceAll(text, "_", ""), 64)
		if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			d.failNode(n, path, "is not a finite number", "")
			return nil
		}
		return f
	}
	return text
}

// resolve is the kind that plain text has in YAML's core schema.
func resolve(text string) kind {
	if strings.EqualFold(text, "true") || strings.EqualFold(text, "false") {
		return boolKind
	}
	if _, err := parseInt(text); err == nil {
		return intKind
	}
	if text != "" && strings.Trim(text, "0123456789+-.eE") == "" {
		if _, err := strconv.ParseFloat(text, 64); err == nil {
			return floatKind
		}
	}
	return textKind
}

// parseInt reads YAML's decimal, 0x, 0o and 0b forms.
func parseInt(text string) (int64, error) {
	text = strings.ReplaceAll(text, "_", "")
	trimmed := strings.TrimLeft(text, "+-")
	if len(trimmed) > 1 && trimmed[0] == '0' && trimmed[1] >= '0' && trimmed[1] <= '9' {
		return strconv.ParseInt(text, 10, 64) // 010 is ten in YAML 1.2
	}
	return strconv.ParseInt(text, 0, 64)
}

// text is the scalar with its variables filled in.
func (d *decoder) text(n *node, path string) (string, bool) {
	if n.kind != textKind || d.expand == nil {
		return n.text, true
	}
	s, p := d.expand.variables(n.text)
	if p != nil {
		d.failNode(n, path, p.What, p.Hint)
		return "", false
	}
	return s, true
}

func (d *decoder) scalar(n *node, v reflect.Value, c scope) {
	if n.kind >= mappingKind {
		d.failNode(n, c.path, fmt.Sprintf("must be %s, not %s", wanted(v.Type()), describe(n)), "")
		return
	}
	if c.private && n.kind != textKind {
		d.failNode(n, c.path, "is not a digest", digestHint)
		return
	}
	text, ok := d.text(n, c.path)
	if !ok {
		return
	}
	expanded := text != n.text
	// A variable may stand for a number though YAML wants quotes around it
	// inside braces.
	plain := n.kind != textKind || expanded
	wrong := func(hint string) {
		d.failNode(n, c.path, fmt.Sprintf("must be %s, not %s", wanted(v.Type()), describe(n)), hint)
	}
	if v.Kind() == reflect.String {
		if n.kind != textKind {
			wrong(fmt.Sprintf("put it in quotes: %q", n.text))
			return
		}
		if c.file != "" && (c.file != "sink" || text != "off" && text != "stdout") {
			text = d.absolute(text)
		}
		v.SetString(text)
		return
	}
	if !plain && v.Type() != durationType && v.Type() != sizeType && v.Type() != usdType {
		hint := ""
		switch {
		case n.quoted && resolve(n.text) != textKind:
			hint = "leave out the quotes"
		case !n.quoted:
			hint = inFull(n.text)
		}
		wrong(hint)
		return
	}
	if p := setScalar(v, text); p != nil {
		if p.What == "" {
			if p.Hint == "" && !expanded {
				p.Hint = inFull(n.text)
			}
			wrong(p.Hint)
			return
		}
		d.failNode(n, c.path, p.What, p.Hint)
		return
	}
	if c.inherit && v.IsZero() && v.CanConvert(reflect.TypeFor[float64]()) {
		hint := "leave the key out to take the general value"
		if v.Kind() == reflect.Float64 {
			hint += ", or write attempts: 1 for no retries"
		}
		d.failNode(n, c.path, "must be more than 0", hint)
	}
}

// inFull is the hint for a whole number that is written as 1e3 or 4.0; "": it is
// none.
func inFull(text string) string {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return ""
	}
	return "write " + strconv.FormatFloat(f, 'f', -1, 64)
}

func wanted(t reflect.Type) string {
	switch {
	case t == durationType:
		return "a time span"
	case t == sizeType:
		return "a size"
	case t == usdType:
		return "an amount of USD"
	}
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Float64:
		return "a number"
	}
	return "a whole number"
}

// setScalar reads text into a value that is not a string. A problem without
// What says that the text is of the wrong type.
func setScalar(v reflect.Value, text string) *Problem {
	switch v.Type() {
	case durationType:
		x, p := parseDuration(text)
		v.SetInt(int64(x))
		return p
	case sizeType:
		x, p := parseSize(text)
		v.SetInt(int64(x))
		return p
	case usdType:
		x, p := parseUSD(text)
		v.SetInt(int64(x))
		return p
	}
	switch v.Kind() {
	case reflect.Bool:
		if !strings.EqualFold(text, "true") && !strings.EqualFold(text, "false") {
			return &Problem{Hint: "write true or false"}
		}
		v.SetBool(strings.EqualFold(text, "true"))
	case reflect.Int:
		i, err := parseInt(text)
		if err != nil {
			return &Problem{}
		}
		v.SetInt(i)
	case reflect.Float64:
		f, err := strconv.ParseFloat(strings.ReplaceAll(text, "_", ""), 64)
		if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			return &Problem{}
		}
		v.SetFloat(f)
	case reflect.String:
		v.SetString(text)
	default:
		panic("config: no scalar form for " + v.Type().String())
	}
	return nil
}

// keysOf are the keys that a struct type knows, in order.
func keysOf(t reflect.Type) []string {
	var out []string
	for i := range t.NumField() {
		if key := t.Field(i).Tag.Get("yaml"); key != "" {
			out = append(out, key)
		}
	}
	return out
}

func fieldOf(t reflect.Type, key string) (reflect.StructField, bool) {
	for i := range t.NumField() {
		if f := t.Field(i); key != "" && f.Tag.Get("yaml") == key {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// firstAt says where a key was given first, where a document has lines.
func firstAt(first entry) string {
	if first.line == 0 {
		return ""
	}
	return fmt.Sprintf("; first in line %d", first.line)
}
