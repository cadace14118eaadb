// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Redacted is the configuration as YAML, defaults filled in, secrets as
// placeholders. Without secrets, parsing it gives an equal Config.
func (c *Config) Redacted() []byte {
	p := printer{defaults: true}
	return p.document(reflect.ValueOf(c).Elem())
}

// Sparse is Redacted without the fields that have their default.
func (c *Config) Sparse() []byte {
	p := printer{}
	return p.document(reflect.ValueOf(c).Elem())
}

// printer writes YAML in block style, keys in the order of the types. Every
// string that plain YAML could read otherwise is quoted.
type printer struct {
	defaults bool // also fields that have their default
	out      bytes.Buffer
}

func (p *printer) document(v reflect.Value) []byte {
	p.fields(v, 0, false)
	return p.out.Bytes()
}

func (p *printer) indent(n int) { p.out.WriteString(strings.Repeat("  ", n)) }

// fields writes the fields of a struct that say something. inline: the first
// line stands behind a "- " already.
func (p *printer) fields(v reflect.Value, level int, inline bool) {
	if f, ok := v.Interface().(Field); ok {
		v = reflect.ValueOf(f.shown())
	}
	for i := range v.NumField() {
		f, x := v.Type().Field(i), v.Field(i)
		if f.Tag.Get("yaml") == "" || !p.says(f, x) {
			continue
		}
		if v.Type() == reflect.TypeFor[Picker]() && f.Name == "Config" && v.FieldByName("File").String() != "" {
			continue // the file holds it
		}
		if v.Type() == reflect.TypeFor[PriceFile]() && f.Name == "Text" && v.FieldByName("Path").String() != "" {
			continue // likewise
		}
		if !inline {
			p.indent(level)
		}
		inline = false
		p.out.WriteString(f.Tag.Get("yaml") + ":")
		p.value(x, level, f.Tag.Get("unset") == "inherit")
	}
}

// says tells whether leaving the field out would lose anything.
func (p *printer) says(f reflect.StructField, x reflect.Value) bool {
	def, hasDefault := f.Tag.Lookup("default")
	switch {
	case f.Tag.Get("unset") == "inherit":
		return !x.IsZero()
	case x.Kind() == reflect.Struct:
		return p.anySays(x)
	case hasDefault && p.defaults:
		return true
	case hasDefault:
		d := reflect.New(x.Type()).Elem()
		return setScalar(d, def) != nil || !reflect.DeepEqual(d.Interface(), x.Interface())
	}
	return !x.IsZero()
}

func (p *printer) anySays(v reflect.Value) bool {
	for i := range v.NumField() {
		if p.says(v.Type().Field(i), v.Field(i)) {
			return true
		}
	}
	return false
}

// value writes what follows "key:", with the line's end. sparse: a section
// whose zero fields are left out.
func (p *printer) value(v reflect.Value, level int, sparse bool) {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	switch {
	case v.Kind() == reflect.Struct && sparse:
		p.out.WriteByte('\n')
		for i := range v.NumField() {
			if !v.Field(i).IsZero() {
				p.indent(level + 1)
				p.out.WriteString(v.Type().Field(i).Tag.Get("yaml") + ":")
				p.value(v.Field(i), level+1, false)
			}
		}
	case v.Kind() == reflect.Struct && !p.anySays(v):
		p.out.WriteString(" {}\n")
	case v.Kind() == reflect.Struct:
		p.out.WriteByte('\n')
		p.fields(v, level+1, false)
	case v.Kind() == reflect.Slice && v.Len() == 0:
		p.out.WriteString(" []\n")
	case v.Kind() == reflect.Slice:
		p.out.WriteByte('\n')
		for i := range v.Len() {
			p.indent(level + 1)
			p.out.WriteByte('-')
			p.item(v.Index(i), level+1)
		}
	case v.Kind() == reflect.Map && v.Len() == 0:
		p.out.WriteString(" {}\n")
	case v.Kind() == reflect.Map:
		p.out.WriteByte('\n')
		p.table(v, level+1, false)
	case v.Kind() == reflect.Interface && !v.IsNil():
		p.value(v.Elem(), level, false)
	default:
		p.out.WriteString(" " + scalarText(v) + "\n")
	}
}

// item writes what follows a "-".
func (p *printer) item(v reflect.Value, level int) {
	for v.Kind() == reflect.Interface && !v.IsNil() {
		v = v.Elem()
	}
	switch {
	case v.Type() == memberType && v.FieldByName("Labels").IsNil():
		p.out.WriteString(" " + quote(v.FieldByName("Address").String()) + "\n")
	case v.Kind() == reflect.Struct && p.anySays(v):
		p.out.WriteByte(' ')
		p.fields(v, level+1, true)
	case v.Kind() == reflect.Map && v.Len() > 0:
		p.out.WriteByte(' ')
		p.table(v, level+1, true)
	default:
		p.value(v, level, false)
	}
}

func (p *printer) table(v reflect.Value, level int, inline bool) {
	keys := make([]string, 0, v.Len())
	for _, k := range v.MapKeys() {
		keys = append(keys, k.String())
	}
	slices.Sort(keys)
	for _, key := range keys {
		if !inline {
			p.indent(level)
		}
		inline = false
		p.out.WriteString(quoteKey(key) + ":")
		x := v.MapIndex(reflect.ValueOf(key))
		if x.Kind() == reflect.Interface && x.IsNil() {
			p.out.WriteString(" null\n")
			continue
		}
		p.value(x, level, false)
	}
}

func scalarText(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case Duration:
		return x.String()
	case Size:
		return x.String()
	case USD:
		return x.String()
	case Secret:
		return quote(x.String())
	}
	switch v.Kind() {
	case reflect.String:
		return quote(v.String())
	case reflect.Bool:
		return strconv.FormatBool(v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.FormatInt(v.Int(), 10)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return strconv.FormatUint(v.Uint(), 10)
	case reflect.Float32, reflect.Float64:
		return floatText(v.Float())
	case reflect.Interface, reflect.Invalid:
		return "null"
	}
	return quote(fmt.Sprint(v.Interface()))
}

// floatText always has a point, so that it is read as a float again.
func floatText(f float64) string {
	if math.IsInf(f, 0) || math.IsNaN(f) {
		return quote(fmt.Sprint(f))
	}
	s := strconv.FormatFloat(f, 'g', -1, 64)
	mantissa, exp, hasExp := strings.Cut(s, "e")
	if !strings.Contains(mantissa, ".") {
		mantissa += ".0"
	}
	if hasExp {
		return mantissa + "e" + exp
	}
	return mantissa
}

var plainText = regexp.MustCompile(`^[A-Za-z/][A-Za-z0-9_./-]*$`)

// quote writes a string so that the decoder reads the same one: quoted unless
// it is plainly a word, and with ${ kept from being expanded.
func quote(s string) string {
	switch strings.ToLower(s) {
	case "true", "false", "null", "yes", "no", "on", "off", "y", "n", "inf", "nan":
	default:
		if plainText.MatchString(s) {
			return s
		}
	}
	return doubleQuoted(strings.ReplaceAll(s, "${", "$${"))
}

// quoteKey is quote for a key of a mapping, in which nothing is expanded.
func quoteKey(s string) string {
	if plainText.MatchString(s) {
		return quote(s)
	}
	return doubleQuoted(s)
}

func doubleQuoted(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
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
		case r < 0x20 || r == 0x7F || r >= 0x80 && r < 0xA0:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r == 0x2028 || r == 0x2029 || r == 0xFEFF:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
		i += n
	}
	b.WriteByte('"')
	return b.String()
}
