// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"
)

// The stores of keys.
const (
	KeysOff      = "off"
	KeysSQLite   = "sqlite"
	KeysPostgres = "postgres"
)

// Keys is where tenants and keys live that the admin API makes. They are data
// and never part of a [Config].
type Keys struct {
	Store string `yaml:"store" default:"off" enum:"off|sqlite|postgres"`
	Path  string `yaml:"path" file:"path"` // of the SQLite file, on a disk of this machine
	DSN   Secret `yaml:"dsn"`              // of PostgreSQL: postgres://user:password@host:5432/database
	// Pepper keys the digests under which secrets are stored. Without it a copy
	// of the store lets nobody try keys.
	Pepper Secret `yaml:"pepper"`
	// OldPeppers are those of secrets that were made before Pepper changed.
	OldPeppers []Secret `yaml:"oldPeppers"`
	Refresh    Duration `yaml:"refresh" default:"500ms" min:"20ms" max:"1m"` // how often the store is asked for changes
	// MaxStale is how long keys are believed while the store cannot be asked; 0: for ever.
	MaxStale Duration `yaml:"maxStale" default:"0s" min:"0s" max:"720h"`
	// Failures a minute from one address (a /64 of IPv6), above which wrong keys
	// are answered late and with 429.
	Failures int `yaml:"failures" default:"60" min:"1" max:"1000000"`
}

// Path is the name of a tenant with those above it: acme/search.
func (t *Tenant) Path() string {
	if t.Parent == "" {
		return t.Name
	}
	return t.Parent + "/" + t.Name
}

// Kinds are the levels of the tree, outermost first.
func Kinds() []string { return []string{"organisation", "team", "project"} }

// ParseTime reads a time of RFC 3339, or a date, which is its midnight in UTC.
func ParseTime(text string) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	if t, err := time.Parse(time.DateOnly, text); err == nil {
		return t, nil
	}
	return time.Time{}, errors.New("write a time such as 2027-01-31T18:00:00Z, or a date")
}

// DecodeJSON reads a document of an API into the struct that v points to, as
// strictly as a file: what the type does not know, a key that is given twice or
// a value of another type are [Problems], with paths and without places. No text
// is expanded.
func DecodeJSON(text []byte, v any) error {
	if !utf8.Valid(text) {
		return Problems{{What: "is not UTF-8"}}
	}
	root, err := readJSON(text)
	if err != nil {
		return Problems{{What: "is not JSON: " + strings.TrimPrefix(err.Error(), "json: ")}}
	}
	x := reflect.ValueOf(v).Elem()
	setDefaults(x)
	d := &decoder{}
	d.decode(root, x, scope{})
	if len(d.problems) > 0 {
		return d.problems
	}
	return nil
}

// EncodeJSON is a struct with the keys of its yaml tags; fields that have their
// default are left out. It prints secrets: v must hold none.
func EncodeJSON(v any) []byte {
	var e encoder
	x := reflect.ValueOf(v)
	if x.Kind() == reflect.Pointer {
		x = x.Elem()
	}
	e.value(x, false)
	return e.out.Bytes()
}
