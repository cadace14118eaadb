// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"hash/crc32"
	"strings"
	"sync"

	"github.com/penstock/penstock/config"
)

// A secret that Penstock makes is
//
//	pk_ and 32 characters of base62, drawn at random (190 bits), and 6 more,
//	their CRC-32 (IEEE) in base62, most significant first.
//
// The prefix and the checksum let scanners find one that was left somewhere, and
// let the gateway refuse a mistyped or foreign one without looking for it.
const (
	keyPrefix = "pk_"
	keyRandom = 32
	keyCheck  = 6
	keyLength = len(keyPrefix) + keyRandom + keyCheck
	base62    = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// NewSecret draws a secret.
func NewSecret() string {
	random := randomText(keyRandom)
	return keyPrefix + random + checksum(random)
}

// NewID draws the name by which a stored key is known, which is no secret.
func NewID(prefix string) string { return prefix + randomText(14) }

// randomText is n characters of base62, each as likely as any other.
func randomText(n int) string {
	out := make([]byte, 0, n)
	var buf [64]byte
	for len(out) < n {
		_, _ = rand.Read(buf[:]) // it never fails
		for _, b := range buf {
			if b < 248 && len(out) < n { // 4 × 62: the rest would be unfair
				out = append(out, base62[b%62])
			}
		}
	}
	return string(out)
}

func checksum(random string) string {
	n := crc(random)
	var out [keyCheck]byte
	for i := keyCheck - 1; i >= 0; i-- {
		out[i] = base62[n%62]
		n /= 62
	}
	return string(out[:])
}

// crc is CRC-32 (IEEE) of a text, of which the library's wants a copy.
func crc(text string) uint32 {
	n := ^uint32(0)
	for i := range len(text) {
		n = crc32.IEEETable[byte(n)^text[i]] ^ n>>8
	}
	return ^n
}

// WellFormed says that text is a secret which Penstock may have made: of its
// form, with the right checksum.
func WellFormed(text string) bool {
	if len(text) != keyLength || !strings.HasPrefix(text, keyPrefix) {
		return false
	}
	for i := len(keyPrefix); i < keyLength; i++ {
		c := text[i]
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return false
		}
	}
	n := crc(text[len(keyPrefix) : keyLength-keyCheck])
	for i := keyLength - 1; i >= keyLength-keyCheck; i-- {
		if text[i] != base62[n%62] {
			return false
		}
		n /= 62
	}
	return true
}

// Shown is what is kept of a secret for people to tell it from others: 24 of its
// 190 random bits.
func Shown(secret string) string { return secret[:len(keyPrefix)+4] + "…" }

// Digest is what is stored of a secret.
type Digest [sha256.Size]byte

// Peppers make the digests of secrets, HMAC-SHA-256. The first is the one for
// new secrets, the others are tried for older ones.
type Peppers struct {
	list []pepper
}

type pepper struct {
	id   string
	macs *sync.Pool
}

// mac is one computation with its room, so that none is allocated for a request.
type mac struct {
	hash hash.Hash
	text []byte
	sum  Digest
}

// NewPeppers are those of the configuration.
func NewPeppers(current config.Secret, old []config.Secret) *Peppers {
	p := &Peppers{}
	for _, s := range append([]config.Secret{current}, old...) {
		key := []byte(s.Reveal())
		p.list = append(p.list, pepper{id: pepperID(key), macs: &sync.Pool{
			New: func() any { return &mac{hash: hmac.New(sha256.New, key)} },
		}})
	}
	return p
}

// pepperID names a pepper without telling it: 32 bits of a digest of its own.
func pepperID(key []byte) string {
	m := hmac.New(sha256.New, key)
	m.Write([]byte("penstock pepper id"))
	return hex.EncodeToString(m.Sum(nil)[:4])
}

// Current is the name of the pepper for new secrets.
func (p *Peppers) Current() string { return p.list[0].id }

// Has says that secrets made under the pepper of that name can be known.
func (p *Peppers) Has(id string) bool {
	for _, x := range p.list {
		if x.id == id {
			return true
		}
	}
	return false
}

// Digest is that of a secret under the current pepper.
func (p *Peppers) Digest(secret string) Digest { return p.list[0].digest(secret) }

func (p *pepper) digest(secret string) Digest {
	m := p.macs.Get().(*mac)
	m.hash.Reset()
	m.text = append(m.text[:0], secret...)
	m.hash.Write(m.text)
	m.hash.Sum(m.sum[:0])
	clear(m.text)
	sum := m.sum
	p.macs.Put(m)
	return sum
}
