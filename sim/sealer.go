// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
)

// sealer signs and encrypts what a provider wants back unchanged: signatures of
// reasoning, encrypted reasoning. Only the maker can check them.
type sealer struct{ key [32]byte }

func newSealer(name string, seed uint64) sealer {
	return sealer{sha256.Sum256(fmt.Appendf(nil, "sim sealer %s %d", name, seed))}
}

func (s *sealer) mac(text string) []byte {
	h := hmac.New(sha256.New, s.key[:])
	h.Write([]byte(text))
	return h.Sum(nil)
}

// sign is a signature of a text.
func (s *sealer) sign(text string) string { return base64.StdEncoding.EncodeToString(s.mac(text)) }

// verify says whether sign made the signature.
func (s *sealer) verify(text, signature string) bool {
	return hmac.Equal([]byte(s.sign(text)), []byte(signature))
}

func (s *sealer) cipher() cipher.AEAD {
	block, err := aes.NewCipher(s.key[:])
	if err != nil {
		panic("sim: " + err.Error()) // the key has the right length
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		panic("sim: " + err.Error())
	}
	return gcm
}

// seal encrypts a text; equal texts give equal results.
func (s *sealer) seal(text string) string {
	gcm := s.cipher()
	nonce := s.mac(text)[:gcm.NonceSize()]
	return base64.StdEncoding.EncodeToString(gcm.Seal(nonce, nonce, []byte(text), nil))
}

var errNotSealedHere = errors.New("sealed by another")

// open decrypts what seal made.
func (s *sealer) open(sealed string) (string, error) {
	b, err := base64.StdEncoding.DecodeString(sealed)
	gcm := s.cipher()
	if err != nil || len(b) < gcm.NonceSize() {
		return "", errNotSealedHere
	}
	text, err := gcm.Open(nil, b[:gcm.NonceSize()], b[gcm.NonceSize():], nil)
	if err != nil {
		return "", errNotSealedHere
	}
	return string(text), nil
}
