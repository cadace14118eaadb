// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// This file is the form in which a configuration travels from a control plane
// to its gateways: JSON with the keys of the file form, secrets in clear. It
// differs from the file form where that is made for people: no variables, no
// secret files, no bound on the number of keys, and texts are taken as they are.

// Encode is c for [Decode]: whole and with its secrets, so for trusted eyes
// alone. Fields that have their default are left out. Equal values have equal
// encodings.
//
// That defaults travel as absence lets both ends be of different versions: an
// older reader meets a newer key only when it is used, and then refuses the
// whole; a newer reader gives what an older writer does not know its default.
// The file that a picker or prices came from does not travel, its content does.
func (c *Config) Encode() []byte {
	var e encoder
	e.value(reflect.ValueOf(c).Elem(), false)
	return e.out.Bytes()
}

// Decode reads what [Config.Encode] wrote, strictly: a key that this version
// does not know is an error. It does not validate; see [Config.Validate].
func Decode(text []byte) (*Config, error) {
	c := &Config{}
	setDefaults(reflect.ValueOf(c).Elem())
	if err := decodeWire(text, reflect.ValueOf(c).Elem()); err != nil {
		return nil, err
	}
	return c, nil
}

func decodeWire(text []byte, v reflect.Value) error {
	root, err := readJSON(text)
	if err != nil {
		return fmt.Errorf("encoded configuration: %w", err)
	}
	d := &decoder{}
	d.decode(root, v, scope{})
	if len(d.problems) > 0 {
		return d.problems
	}
	return nil
}

// encoder writes JSON, keys in the order of the types.
type encoder struct {
	out bytes.Buffer
}

// value writes v. sparse: within a section whose unset fields are inherited, in
// which absence means zero and not the default.
func (e *encoder) value(v reflect.Value, sparse bool) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			e.out.WriteString("null") // of a tree; a nil field is left out
			return
		}
		e.value(v.Elem(), sparse)
	case reflect.Struct:
		e.fields(v, sparse)
	case reflect.Slice:
		e.out.WriteByte('[')
		for i := range v.Len() {
			e.comma(i)
			e.value(v.Index(i), sparse)
		}
		e.out.WriteByte(']')
	case reflect.Map:
		e.out.WriteByte('{')
		keys := map[string]reflect.Value{}
		for k, x := range v.Seq2() {
			keys[k.String()] = x
		}
		for i, k := range slices.Sorted(maps.Keys(keys)) {
			e.comma(i)
			e.text(k)
			e.out.WriteByte(':')
			e.value(keys[k], false)
		}
		e.out.WriteByte('}')
	case reflect.String:
		e.text(v.String()) // of a Secret too
	default:
		if t := v.Type(); t == durationType || t == sizeType || t == usdType {
			e.text(scalarText(v))
			return
		}
		e.out.WriteString(scalarText(v))
	}
}

func (e *encoder) fields(v reflect.Value, sparse bool) {
	p := printer{}
	e.out.WriteByte('{')
	n := 0
	for i := range v.NumField() {
		f, x := v.Type().Field(i), v.Field(i)
		key := f.Tag.Get("yaml")
		if key == "" || v.Type() == reflect.TypeFor[Picker]() && f.Name == "File" || v.Type() == reflect.TypeFor[PriceFile]() && f.Name == "Path" {
			continue
		}
		if sparse && x.IsZero() || !sparse && !p.says(f, x) {
			continue
		}
		e.comma(n)
		n++
		e.text(key)
		e.out.WriteByte(':')
		e.value(x, sparse || f.Tag.Get("unset") == "inherit")
	}
	e.out.WriteByte('}')
}

func (e *encoder) comma(i int) {
	if i > 0 {
		e.out.WriteByte(',')
	}
}

func (e *encoder) text(s string) {
	raw, _ := json.Marshal(s) // a string always has a form
	e.out.Write(raw)
}

// readJSON is the tree of a JSON document. It has no positions: nobody wrote it.
func readJSON(text []byte) (*node, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	root, err := jsonNode(d, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more follows after its end")
	}
	return root, nil
}

func jsonNode(d *json.Decoder, depth int) (*node, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested more than %d levels deep", maxDepth)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case nil:
		return &node{kind: nullKind}, nil
	case bool:
		return &node{kind: boolKind, text: fmt.Sprint(t)}, nil
	case string:
		return &node{kind: textKind, text: t, quoted: true}, nil
	case json.Number:
		if strings.ContainsAny(t.String(), ".eE") {
			return &node{kind: floatKind, text: t.String()}, nil
		}
		return &node{kind: intKind, text: t.String()}, nil
	}
	n := &node{kind: sequenceKind}
	if t == json.Delim('{') {
		n.kind = mappingKind
	}
	for d.More() {
		var key string
		if n.kind == mappingKind {
			t, err := d.Token()
			if err != nil {
				return nil, err
			}
			key, _ = t.(string) // a key of JSON always is one
		}
		child, err := jsonNode(d, depth+1)
		if err != nil {
			return nil, err
		}
		if n.kind == mappingKind {
			n.entries = append(n.entries, entry{key: key, value: child})
		} else {
			n.items = append(n.items, child)
		}
	}
	_, err = d.Token()
	return n, err
}
