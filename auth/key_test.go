// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/penstock/penstock/config"
)

func TestSecretForm(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		s := NewSecret()
		if len(s) != 41 || !strings.HasPrefix(s, "pk_") || !WellFormed(s) || seen[s] {
			t.Fatalf("%q", s)
		}
		seen[s] = true
	}
	const good = "pk_00000000000000000000000000000000"
	good41 := good + checksum(strings.Repeat("0", 32))
	if !WellFormed(good41) {
		t.Fatal(good41)
	}
	for _, bad := range []string{"", "pk_", good, good41[:40], good41 + "0", strings.ToUpper(good41), "sk_" + good41[3:], good41[:10] + "_" + good41[11:], good41[:10] + "é" + good41[12:]} {
		if WellFormed(bad) {
			t.Errorf("%q is taken", bad)
		}
	}
	if crc("123456789") != 0xCBF43926 {
		t.Error("not CRC-32")
	}
	s := NewSecret() // each mistyped character, and each pair in the wrong order, is found
	for i := 3; i < len(s); i++ {
		for _, c := range base62 {
			if typo := s[:i] + string(c) + s[i+1:]; typo != s && WellFormed(typo) {
				t.Fatalf("%s for %s is taken", typo, s)
			}
		}
		if i+1 < len(s) && s[i] != s[i+1] {
			if typo := s[:i] + string(s[i+1]) + string(s[i]) + s[i+2:]; WellFormed(typo) {
				t.Fatalf("%s for %s is taken", typo, s)
			}
		}
	}
	if shown := Shown(s); shown != s[:7]+"…" {
		t.Error(shown)
	}
}

func TestPeppers(t *testing.T) {
	p := NewPeppers("first pepper 0123", []config.Secret{"older pepper 0123"})
	m := hmac.New(sha256.New, []byte("first pepper 0123"))
	m.Write([]byte("pk_x"))
	if got := p.Digest("pk_x"); string(m.Sum(nil)) != string(got[:]) || p.Digest("pk_x") != got {
		t.Error("the digest is not HMAC-SHA-256")
	}
	older := NewPeppers("older pepper 0123", nil)
	if !p.Has(older.Current()) || older.Has(p.Current()) || strings.Contains(p.Current(), "first") {
		t.Errorf("names %s, %s", p.Current(), older.Current())
	}
	secret := NewSecret()
	if n := testing.AllocsPerRun(100, func() { p.Digest(secret) }); n > 0 && !raced {
		t.Errorf("a digest takes %v allocations", n)
	}
}

// FuzzWellFormed: what is taken is of the form, and another last character is not.
func FuzzWellFormed(f *testing.F) {
	f.Add(NewSecret())
	f.Add("pk_")
	f.Add("pk_" + strings.Repeat("0", 38))
	f.Fuzz(func(t *testing.T, s string) {
		if !WellFormed(s) {
			return
		}
		random := s[len(keyPrefix) : keyLength-keyCheck]
		if len(s) != keyLength || keyPrefix+random+checksum(random) != s {
			t.Fatalf("%q", s)
		}
	})
}
