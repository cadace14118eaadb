// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/config"
)

// filler puts a value into every field of every type that a configuration is
// made of: each at times, so that absence is met too.
type filler struct {
	random
	all bool // leave nothing out
}

func (f filler) fill(v reflect.Value) {
	if !f.all && f.IntN(4) == 0 {
		if f.IntN(2) == 0 && v.Kind() == reflect.Slice {
			v.Set(reflect.MakeSlice(v.Type(), 0, 0)) // empty is not nil
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if name := v.Type().Field(i).Name; v.Type() == reflect.TypeFor[config.Picker]() && name == "File" || v.Type() == reflect.TypeFor[config.PriceFile]() && name == "Path" {
				continue // its content travels, not its name
			}
			if tag := v.Type().Field(i).Tag.Get("file"); tag != "" && tag != "read" {
				v.Field(i).SetString("/some/" + fmt.Sprint(f.IntN(100)))
				continue
			}
			f.fill(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1+f.IntN(2), 2))
		for i := range v.Len() {
			f.fill(v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 1 + f.IntN(3) {
			x := reflect.New(v.Type().Elem()).Elem()
			f.fill(x)
			v.SetMapIndex(reflect.ValueOf(f.text()), x)
		}
	case reflect.Interface:
		values := []any{nil, true, f.IntN(1000), -f.IntN(1000), uint64(math.MaxUint64), f.Float64(), 3.0, 1e300, f.text(), []any{1, "a", nil}, map[string]any{"k": 1.5}}
		if x := values[f.IntN(len(values))]; x != nil {
			v.Set(reflect.ValueOf(x))
		}
	case reflect.String:
		v.SetString([]string{f.text(), "file:/etc/passwd", "${HOME}", "$${x}", "a\x00\u2028\n\"<&>", "true", "10"}[f.IntN(7)])
	case reflect.Bool:
		v.SetBool(f.all || f.IntN(2) == 0)
	case reflect.Int:
		v.SetInt(f.Int64N(2000) - 1000 + 1001*b2i(f.all))
	case reflect.Int64:
		v.SetInt(f.Int64() >> f.IntN(62))
	case reflect.Float64:
		v.SetFloat(f.Float64() * 100)
	default:
		panic("no value for " + v.Type().String())
	}
}

func b2i(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// Every field of every type arrives as it was, whatever it holds.
func TestEncodeIsExact(t *testing.T) {
	for seed := range uint64(300) {
		c := &config.Config{}
		f := filler{random{rand.New(rand.NewPCG(seed, 7))}, seed == 0}
		f.fill(reflect.ValueOf(c).Elem())
		if seed%3 == 0 {
			c.SetDefaults()
		}
		text := c.Encode()
		got, err := config.Decode(text)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text)
		}
		if !reflect.DeepEqual(c, got) {
			t.Fatalf("seed %d (-want +got):\n%s\n%s", seed, cmp.Diff(c, got), text)
		}
		if !bytes.Equal(text, got.Encode()) {
			t.Fatalf("seed %d: encodings differ", seed)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{"pools": [{"name": "a", "colour": "blue"}]}`, `pools[0].colour: unknown key`},
		{`{"pools": 3}`, "pools: must be a list; write"},
		{`{"pools": []} x`, "more follows after its end"},
		{`{"pools": []`, "EOF"},
		{``, "EOF"},
		{`[]`, "must be a mapping"},
		{strings.Repeat(`[`, 100), "nested more than 64 levels deep"},
		{`{"log": {"level": "info"}, "log": {}}`, "is given twice"},
		{`{"timeouts": {"idle": "5"}}`, "timeouts.idle: needs a unit"},
	} {
		_, err := config.Decode([]byte(c.in))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.in, err, c.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{ // small: a large one is minimised for minutes
		`{"pools":[{"name":"a","members":{"external":true},"apiKey":"k"}]}`,
		`{"models":[{"name":"m","targets":[{"pool":"a","weight":0}],"timeouts":{"idle":"5s"}}]}`,
		`{"pickers":[{"name":"p","config":{"plugins":[{"type":"t","parameters":{"a":[1,-2.5,true,null,{"b":"c"}]}}]}}]}`,
		`{"limits":{"body":"1MiB"},"listeners":[{"name":"l","tls":{"keyPEM":"x"},"http2":false}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := config.Decode(text)
		if err != nil {
			return
		}
		again, err := config.Decode(c.Encode())
		if err != nil {
			t.Fatalf("%v\n%s", err, c.Encode())
		}
		if !bytes.Equal(again.Encode(), c.Encode()) {
			t.Fatalf("not stable:\n%s\n%s", c.Encode(), again.Encode())
		}
	})
}
