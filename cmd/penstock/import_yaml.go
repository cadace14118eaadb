// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ref is a text as it stands in a configuration: ${NAME} in it is a variable.
type ref string

// literal is a text that means itself.
func literal(s string) ref { return ref(strings.ReplaceAll(s, "${", "$${")) }

// variable stands for the value of an environment variable.
func variable(name string) ref { return ref("${" + name + "}") }

// The values of a document that is written. Package config prints without
// comments and hides secrets; here both are wanted as they are.
type (
	// yamlRaw is a scalar as it is written.
	yamlRaw string
	yamlMap struct {
		fields []yamlField
		block  bool // one key per line, even if it is short
	}
	yamlField struct {
		key     string
		value   any // ref, yamlRaw, *yamlMap, yamlList
		comment string
	}
	yamlList []yamlItem
	yamlItem struct {
		value   any
		comment string
	}
)

// add appends a field unless it is empty.
func (m *yamlMap) add(key string, value any) {
	switch v := value.(type) {
	case ref:
		if v == "" {
			return
		}
	case yamlRaw:
		if v == "" {
			return
		}
	case *yamlMap:
		if v == nil || len(v.fields) == 0 {
			return
		}
	case yamlList:
		if len(v) == 0 {
			return
		}
	}
	m.fields = append(m.fields, yamlField{key: key, value: value})
}

// words is a list of texts.
func words(list ...string) yamlList {
	var out yamlList
	for _, s := range list {
		out = append(out, yamlItem{value: literal(s)})
	}
	return out
}

func yamlInt(n int) yamlRaw { return yamlRaw(strconv.Itoa(n)) }

// yamlYes is true, or nothing.
func yamlYes(b bool) yamlRaw {
	if b {
		return "true"
	}
	return ""
}

var plainWord = regexp.MustCompile(`^[A-Za-z/][A-Za-z0-9_./-]*$`)

// quoted writes a text so that it is read as the same text.
func quoted(s ref) string {
	if !plainWord.MatchString(string(s)) {
		return doubleQuoted(string(s))
	}
	switch strings.ToLower(string(s)) {
	case "true", "false", "null", "yes", "no", "on", "off", "y", "n", "inf", "nan":
		return doubleQuoted(string(s))
	}
	return string(s)
}

// quotedKey is quoted for a key, in which nothing is expanded.
func quotedKey(key string) string {
	if key == "on" {
		return key // of fallbacks; package config takes it for text
	}
	return quoted(ref(key))
}

func doubleQuoted(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		i += n
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case r < 0x20 || r >= 0x7F && r < 0xA0:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r == 0x2028 || r == 0x2029 || r == 0xFEFF:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// flowWidth is how long a mapping or list on one line may be.
const flowWidth = 110

// flow is a value on one line; false: it wants several.
func flow(value any) (string, bool) {
	if wantsLines(value) {
		return "", false
	}
	text := canonical(value)
	return text, len(text) <= flowWidth || !strings.ContainsAny(text[:1], "[{")
}

// wantsLines says that something in value cannot stand on one line with others.
func wantsLines(value any) bool {
	switch v := value.(type) {
	case *yamlMap:
		return v.block || slices.ContainsFunc(v.fields, func(f yamlField) bool { return f.comment != "" || wantsLines(f.value) })
	case yamlList:
		maps := 0
		for _, item := range v {
			if _, ok := item.value.(*yamlMap); ok {
				maps++
			}
			if maps > 1 || item.comment != "" || wantsLines(item.value) {
				return true
			}
		}
	}
	return false
}

// canonical is a value on one line, however long.
func canonical(value any) string {
	var parts []string
	switch v := value.(type) {
	case ref:
		return quoted(v)
	case yamlRaw:
		return string(v)
	case *yamlMap:
		for _, f := range v.fields {
			parts = append(parts, quotedKey(f.key)+": "+canonical(f.value))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case yamlList:
		for _, item := range v {
			parts = append(parts, canonical(item.value))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	panic(fmt.Sprintf("penstock: no YAML form for %T", value))
}

// yamlWriter writes a document in block style, what is short on one line.
type yamlWriter struct{ strings.Builder }

func (w *yamlWriter) indent(level int) { w.WriteString(strings.Repeat("  ", level)) }

// comment writes lines of a comment.
func (w *yamlWriter) comment(level int, text string) {
	for line := range strings.Lines(text) {
		w.indent(level)
		w.WriteString("# " + strings.TrimRight(line, "\n") + "\n")
	}
}

func (w *yamlWriter) end(comment string) {
	if comment != "" {
		w.WriteString("   # " + comment)
	}
	w.WriteByte('\n')
}

// fields writes a mapping; inline: its first line stands behind a "- ".
func (w *yamlWriter) fields(m *yamlMap, level int, inline bool, comment string) {
	for _, f := range m.fields {
		if !inline {
			w.indent(level)
		}
		w.WriteString(quotedKey(f.key) + ":")
		own := f.comment
		if inline && own == "" {
			own = comment
		}
		inline = false
		w.value(f.value, level, own)
	}
}

// value writes what follows "key:".
func (w *yamlWriter) value(value any, level int, comment string) {
	if text, ok := flow(value); ok {
		w.WriteString(" " + text)
		w.end(comment)
		return
	}
	w.end(comment)
	switch v := value.(type) {
	case *yamlMap:
		w.fields(v, level+1, false, "")
	case yamlList:
		w.items(v, level+1)
	}
}

func (w *yamlWriter) items(list yamlList, level int) {
	for _, item := range list {
		w.indent(level)
		w.WriteByte('-')
		if text, ok := flow(item.value); ok {
			w.WriteString(" " + text)
			w.end(item.comment)
			continue
		}
		switch v := item.value.(type) {
		case *yamlMap:
			w.WriteByte(' ')
			w.fields(v, level+1, true, item.comment)
		case yamlList:
			w.end(item.comment)
			w.items(v, level+1)
		}
	}
}

// yamlOf is a value of an imported file as a value to write; false: it holds a
// number that no configuration takes.
func yamlOf(n *treeNode) (any, bool) {
	switch n.kind {
	case treeNull:
		return yamlRaw("null"), true
	case treeBool:
		return yamlRaw(strings.ToLower(n.text)), true
	case treeInt:
		text := strings.ReplaceAll(n.text, "_", "")
		if digits := strings.TrimLeft(text, "+-"); len(digits) > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9' {
			text = strings.TrimSuffix(text, digits) + strings.TrimLeft(digits[:len(digits)-1], "0") + digits[len(digits)-1:]
		}
		if i, err := strconv.ParseInt(text, 0, 64); err == nil {
			return yamlRaw(strconv.FormatInt(i, 10)), true
		}
		fallthrough
	case treeFloat:
		f, ok := n.number()
		if !ok {
			return nil, false
		}
		return yamlRaw(yamlFloat(f)), true
	case treeMap:
		m := &yamlMap{}
		for _, e := range n.entries {
			v, ok := yamlOf(e.value)
			if !ok {
				return nil, false
			}
			m.fields = append(m.fields, yamlField{key: e.key, value: v})
		}
		return m, true
	case treeList:
		list := yamlList{}
		for _, item := range n.items {
			v, ok := yamlOf(item)
			if !ok {
				return nil, false
			}
			list = append(list, yamlItem{value: v})
		}
		return list, true
	}
	if name, ok := environment(n.text); ok {
		return variable(name), true
	}
	return literal(n.text), true
}

// yamlFloat always has a point, so that it is read as a float again.
func yamlFloat(f float64) string {
	mantissa, exp, hasExp := strings.Cut(strconv.FormatFloat(f, 'g', -1, 64), "e")
	if !strings.Contains(mantissa, ".") {
		mantissa += ".0"
	}
	if hasExp {
		return mantissa + "e" + exp
	}
	return mantissa
}
