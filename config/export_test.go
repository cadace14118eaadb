// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"reflect"

	"github.com/fsnotify/fsnotify"
)

// DecodeInto decodes text into any struct, as the front end does with Config.
func DecodeInto(name string, text []byte, env map[string]string, out any) Problems {
	root, ps := readTree(name, text)
	if root == nil {
		return ps
	}
	d := newDecoder(name, &expander{env: func(k string) (string, bool) { s, ok := env[k]; return s, ok }})
	d.decode(root, reflect.ValueOf(out).Elem(), scope{})
	return d.problems
}

// DiffAny is Diff over any two structs.
func DiffAny(a, b any) []string {
	var d differ
	d.compare("", reflect.ValueOf(a), reflect.ValueOf(b))
	return d.lines
}

// PrintAny is Redacted over any struct.
func PrintAny(a any) []byte { p := printer{defaults: true}; return p.document(reflect.ValueOf(a)) }

// Meanings is the table behind Reference.
var Meanings = meanings

// Settle is the loop of Watch, for virtual time.
func Settle(ctx context.Context, events <-chan fsnotify.Event, scan func() bool, changed func()) {
	settle(ctx, events, nil, scan, changed)
}

// Scanner is the look of Watch at the files behind path.
func Scanner(path string) func() bool { w := watched{path: path}; return w.scan }
