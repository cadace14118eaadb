// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
)

// maxSecretFile bounds a file that holds one secret.
const maxSecretFile = 64 << 10

// expander fills in ${VARIABLE} in the text scalars of one document. What it
// fills in is never read as YAML.
type expander struct {
	env func(name string) (string, bool)
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// variables expands ${NAME} and ${NAME:-default}; $${ stands for ${ itself and
// any other dollar for itself. A default is plain text up to the next brace.
func (e *expander) variables(s string) (string, *Problem) {
	if !strings.Contains(s, "${") {
		return s, nil
	}
	var out strings.Builder
	for s != "" {
		switch {
		case strings.HasPrefix(s, "$${"):
			out.WriteString("${")
			s = s[3:]
		case strings.HasPrefix(s, "${"):
			inner, rest, ok := strings.Cut(s[2:], "}")
			if !ok {
				return "", &Problem{What: "has ${ without }", Hint: "write $${ for the characters themselves"}
			}
			name, def, hasDefault := strings.Cut(inner, ":-")
			if !variableName.MatchString(name) {
				return "", &Problem{What: fmt.Sprintf("%q is not the name of a variable", name), Hint: "write ${NAME}, ${NAME:-default}, or $${ for the characters themselves"}
			}
			value, set := e.env(name)
			switch {
			case hasDefault && value == "":
				value = def
			case !set:
				return "", &Problem{What: fmt.Sprintf("variable %s is not set", name), Hint: fmt.Sprintf("set it, or write ${%s:-default}", name)}
			}
			out.WriteString(value)
			s = rest
		default:
			out.WriteByte(s[0])
			s = s[1:]
		}
	}
	return out.String(), nil
}

// secret reads a Secret: from the text itself, whose variables are filled in,
// or from a file where the text, as written, begins with file:; without an
// expander it is the text. No message holds any part of the value.
func (d *decoder) secret(n *node, v reflect.Value, path string) {
	if n.kind >= mappingKind {
		d.failNode(n, path, "must be text, not "+describe(n), "write ${VARIABLE} or file:/path")
		return
	}
	if n.kind != textKind {
		d.failNode(n, path, "must be text", "put it in quotes, or write ${VARIABLE} or file:/path")
		return
	}
	text, ok := d.text(n, path)
	if !ok {
		return
	}
	if d.expand != nil && strings.HasPrefix(n.text, "file:") {
		s, err := ReadSecret(d.absolute(strings.TrimPrefix(text, "file:")))
		if err != nil {
			d.failNode(n, path, "secret file cannot be read: "+reason(err), "check the path and who may read it")
			return
		}
		text = s.Reveal()
	}
	if text == "" && d.expand != nil {
		d.failNode(n, path, "secret is empty", "")
		return
	}
	v.SetString(text)
}

// ReadSecret reads a file that holds one secret, without the line's end.
func ReadSecret(name string) (Secret, error) {
	raw, err := readRegular(name, maxSecretFile)
	if err != nil {
		return "", err
	}
	return Secret(strings.TrimRight(string(raw), "\r\n")), nil
}

// secretFile decodes an entry of the mapping n for a field with the tag as,
// which names the key of a field for the path: of "file:PATH" the path is kept
// there, for whoever reads the file again. false: the entry is another one, or
// a plain secret.
func (d *decoder) secretFile(n *node, e entry, f reflect.StructField, v reflect.Value, path string) bool {
	as := f.Tag.Get("as")
	if as == "" || d.expand == nil {
		return false
	}
	if _, both := firstOf(n.entries, as); both {
		d.fail(e.line, e.col, path, "is given beside "+as, "leave out one of them")
		return true
	}
	if e.value.kind != textKind || !strings.HasPrefix(e.value.text, "file:") {
		return false
	}
	read := reflect.New(secretType).Elem()
	d.secret(e.value, read, path)
	if read.String() != "" {
		text, _ := d.text(e.value, path)
		target, _ := fieldOf(v.Type(), as)
		v.FieldByIndex(target.Index).SetString(d.absolute(strings.TrimPrefix(text, "file:")))
	}
	return true
}

// absolute resolves a path that the file names, relative to the file.
func (d *decoder) absolute(name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(d.dir, name)
}

// readRegular reads a plain file up to limit bytes; a device or a pipe could
// block for ever.
func readRegular(name string, limit int64) ([]byte, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, errors.New("not a plain file")
	}
	if st.Size() > limit {
		return nil, fmt.Errorf("larger than %s", Size(limit))
	}
	raw, err := os.ReadFile(name)
	if err == nil && int64(len(raw)) > limit {
		err = fmt.Errorf("larger than %s", Size(limit))
	}
	return raw, err
}

// reason is an error without the path, which the message names already.
func reason(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}
