// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"encoding/base64"

	"github.com/cespare/xxhash/v2"
)

// The encrypted reasoning of the Responses API can be read by the account alone
// that made it, and clients send it back with every later turn. On its way to the
// client it is marked with that account, so that any gateway of the same
// configuration knows where it belongs, without a memory of its own. The mark is
// no secret and no proof: the provider itself refuses what is not his.

// sealBegin begins a mark.
const sealBegin = "penstock:"

// sealSize is the length of a mark, with the colon behind it.
const sealSize = len(sealBegin) + 11 + 1

// Seal is the mark of an account.
func Seal(account string) string {
	sum := xxhash.Sum64String(account)
	raw := make([]byte, 8)
	for i := range raw {
		raw[i] = byte(sum >> (8 * i))
	}
	return sealBegin + base64.RawURLEncoding.EncodeToString(raw) + ":"
}

// sealOf is the mark of an encrypted content, "" if it has none.
func sealOf(content []byte) string {
	if len(content) < sealSize || !bytes.HasPrefix(content, []byte(sealBegin)) || content[sealSize-1] != ':' {
		return ""
	}
	return string(content[:sealSize])
}

// Sealed is the mark of the newest reasoning that a request of the Responses API
// sends back, "" if there is none with a mark.
func (r *Request) Sealed() string {
	if r.Op != OpResponses {
		return ""
	}
	const begin = `"` + sealBegin
	for body := r.body; ; {
		i := bytes.LastIndex(body, []byte(begin))
		if i < 0 {
			return ""
		}
		seal := sealOf(body[i+1:])
		if body = body[:i]; seal != "" && ofSealed(body) {
			return seal
		}
	}
}

// ofSealed says that the member whose value follows before is an encrypted
// content: what a string has of that name has other quotes around it.
func ofSealed(before []byte) bool {
	const space = " \t\r\n"
	name, ok := bytes.CutSuffix(bytes.TrimRight(before, space), []byte(":"))
	return ok && bytes.HasSuffix(bytes.TrimRight(name, space), []byte(sealedName))
}

// Opened is a body for a server of the client's own dialect that bears the mark
// seal: that mark is taken off, and reasoning that others have made is left out,
// which is then named.
func Opened(op Op, body []byte, seal string) ([]byte, []string) {
	body, foreign := withoutForeign(op.Dialect(), body, seal)
	if foreign {
		return body, []string{foreignThinking}
	}
	return body, nil
}

// Sealing marks the encrypted content in what r gives to the client. Nothing is
// held back for it. requestID is for an error inside the stream.
func Sealing(r Reader, seal, requestID string) Reader {
	return &sealer{Reader: r, seal: seal, requestID: requestID}
}

// sealer finds the member by its bytes: a quote that ends a string and has a
// colon behind it ends a name, and one inside a string is escaped.
type sealer struct {
	Reader
	seal, requestID string
	matched         int  // bytes of the name, and then of what follows
	colon           bool // seen behind the name
	out             []byte
}

const sealedName = `"encrypted_content"`

func (s *sealer) Feed(in []byte) []byte { return s.mark(s.Reader.Feed(in)) }
func (s *sealer) Close() []byte         { return s.mark(s.Reader.Close()) }

// Fail ends a stream; see the function of that name.
func (s *sealer) Fail(err *Error) []byte { return Fail(s.Reader, OpResponses, err, s.requestID) }

func (s *sealer) mark(p []byte) []byte {
	if s.out = s.out[:0]; cap(s.out) > keepOut {
		s.out = nil
	}
	done, edited := 0, false
	for i := 0; i < len(p); i++ {
		switch c := p[i]; {
		case s.matched > len(sealedName): // within the value
			if c != '"' { // else it is empty
				s.out = append(append(s.out, p[done:i]...), s.seal...)
				done, edited = i, true
			}
			s.matched = 0
		case s.matched == len(sealedName):
			switch {
			case c == ' ' || c == '\t' || c == '\r' || c == '\n':
			case c == ':' && !s.colon:
				s.colon = true
			case c == '"' && s.colon:
				s.matched++
			default:
				s.matched = 0
				if c == '"' {
					s.matched = 1
				}
			}
		case c == sealedName[s.matched]:
			s.matched++
			s.colon = false
		case c == '"':
			s.matched = 1
		case s.matched == 0:
			next := bytes.IndexByte(p[i:], '"')
			if next < 0 {
				i = len(p)
			} else {
				i += next - 1
			}
		default:
			s.matched = 0
		}
	}
	if !edited {
		return p
	}
	s.out = append(s.out, p[done:]...)
	return s.out
}
