// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import "bytes"

// Signatures of thinking are good only at servers of the family that made them,
// and clients send them back with every later turn, perhaps to a server of
// another family. Those that a client of a dialect would not have got from a
// server of that dialect therefore bear the family's name. An unmarked one is
// the client's own family's.

// family is the dialect that stands for those which share signatures; the blocks
// of thinking in chat completions are Anthropic's.
func family(d Dialect) Dialect {
	if d == DialectResponses || d == DialectGemini {
		return d
	}
	return DialectAnthropic
}

// signTags mark signatures of a family, by [family].
var signTags = [...]string{DialectResponses: "responses:", DialectAnthropic: "anthropic:", DialectGemini: "gemini:"}

// tagSign marks a signature on its way to the client.
func tagSign(front, backend Dialect, sign lit) lit {
	from := family(backend)
	if from == family(front) || len(sign) == 0 {
		return sign
	}
	return append(lit(signTags[from]), sign...)
}

// untagSign takes a mark off and tells the family.
func untagSign(front Dialect, sign lit) (lit, Dialect) {
	for d, tag := range signTags {
		if tag != "" && bytes.HasPrefix(sign, []byte(tag)) {
			return sign[len(tag):], Dialect(d)
		}
	}
	return sign, family(front)
}

// ownSigns leaves those signatures of thinking that the backend can read. What
// is without one then is for the writer to leave out. Servers of chat completions
// take any, for it is not known what stands behind them.
func (c *chat) ownSigns(backend Dialect) {
	for i := range c.parts {
		p := &c.parts[i]
		if p.kind != partThinking && p.kind != partRedacted || p.sign == nil {
			continue
		}
		sign, from := untagSign(c.dialect, p.sign)
		if p.sign = sign; backend != DialectOpenAI && from != family(backend) {
			if p.sign = nil; p.kind == partRedacted {
				p.kind, p.name = partOther, lit("redacted_thinking")
			}
		}
	}
}
