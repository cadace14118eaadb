// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"

	"github.com/penstock/penstock/internal/jsonedit"
)

// This file reads and writes how likely the tokens of a text were. Between dialects
// they are elements of OpenAI's list, parted by commas: {"token", "logprob",
// "bytes", "top_logprobs"}. Chat completions and Responses have the same ones.

// probsOf are the elements of a list; nil: there are none.
func probsOf(s *jsonedit.Scanner, data []byte) []byte {
	if s.Peek() != jsonedit.Array {
		s.Skip()
		return nil
	}
	raw := s.Skip()
	if s.Failed() {
		return nil
	}
	raw.Start, raw.End = raw.Start+1, raw.End-1
	if inner := bytes.TrimSpace(raw.Of(data)); len(inner) > 0 {
		return inner
	}
	return nil
}

// chatProbs reads the logprobs of a choice of chat completions.
func chatProbs(s *jsonedit.Scanner, data []byte) (probs []byte) {
	if !s.Object() {
		s.Skip()
		return nil
	}
	for {
		key, ok := s.NextMember()
		if !ok {
			return probs
		}
		if string(key.Of(data)) == "content" {
			probs = probsOf(s, data)
		} else {
			s.Skip()
		}
	}
}

// appendChatProbs appends the logprobs of a choice of chat completions.
func appendChatProbs(out, probs []byte) []byte {
	out = appendLine(append(out, `{"content":[`...), probs)
	return append(out, `],"refusal":null}`...)
}

// joinProbs adds elements to those before them.
func joinProbs(before, more []byte) []byte {
	if len(more) == 0 {
		return before
	}
	if len(before) > 0 {
		before = append(before, ',')
	}
	return appendLine(before, more)
}

// geminiProbs reads Gemini's logprobsResult, in which the tokens that were chosen
// and the likeliest ones stand in two lists of the same order.
func geminiProbs(s *jsonedit.Scanner, data []byte) (probs []byte) {
	if !s.Object() {
		s.Skip()
		return nil
	}
	var chosen, top jsonedit.Scanner
	var hasChosen, hasTop bool
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		switch string(key.Of(data)) {
		case "chosenCandidates":
			chosen, hasChosen = *s, s.Peek() == jsonedit.Array
		case "topCandidates":
			top, hasTop = *s, s.Peek() == jsonedit.Array
		}
		s.Skip()
	}
	if s.Failed() || !hasChosen {
		return nil
	}
	hasTop = hasTop && top.Array()
	for chosen.Array(); chosen.NextElement(); {
		probs = appendGeminiProb(appendComma(probs), &chosen, data)
		probs = append(probs[:len(probs)-1], `,"top_logprobs":[`...)
		if hasTop = hasTop && top.NextElement(); hasTop && top.Object() {
			for {
				key, ok := top.NextMember()
				if !ok {
					break
				}
				if string(key.Of(data)) != "candidates" || !top.Array() {
					top.Skip()
					continue
				}
				for top.NextElement() {
					probs = appendGeminiProb(appendComma(probs), &top, data)
				}
			}
		} else if hasTop {
			top.Skip()
		}
		probs = append(probs, `]}`...)
	}
	return probs
}

// prob is one token and how likely it was.
type prob struct {
	token lit
	log   []byte // a number
}

// readProb reads one of either dialect. top is where the likeliest ones stand.
func readProb(s *jsonedit.Scanner, data []byte) (p prob, top jsonedit.Scanner, hasTop bool) {
	p.log = []byte("0")
	if !s.Object() {
		s.Skip()
		return p, top, false
	}
	for {
		key, ok := s.NextMember()
		if !ok {
			return p, top, hasTop
		}
		switch name := string(key.Of(data)); {
		case name == "token" && s.Peek() == jsonedit.String:
			t, _ := s.Text()
			p.token = t.Of(data)
		case (name == "logprob" || name == "logProbability") && s.Peek() == jsonedit.Number:
			n, _ := s.Number()
			p.log = n.Of(data)
		case name == "top_logprobs":
			top, hasTop = *s, s.Peek() == jsonedit.Array
			s.Skip()
		default:
			s.Skip()
		}
	}
}

func appendGeminiProb(out []byte, s *jsonedit.Scanner, data []byte) []byte {
	p, _, _ := readProb(s, data)
	out = appendText(append(out, '{'), "token", p.token)
	out = append(appendMember(out, "logprob"), p.log...)
	return append(out, `,"bytes":null}`...)
}

// appendGeminiProbs appends a logprobsResult.
func appendGeminiProbs(out, probs []byte) []byte {
	list := append(append([]byte{'['}, probs...), ']')
	one := func(out []byte, p prob) []byte {
		out = appendText(append(appendComma(out), '{'), "token", p.token)
		return append(append(appendMember(out, "logProbability"), p.log...), '}')
	}
	var tops []byte
	out = append(out, `{"chosenCandidates":[`...)
	s := jsonedit.NewScanner(list, 0)
	for s.Array(); s.NextElement(); {
		p, top, has := readProb(&s, list)
		out = one(out, p)
		tops = append(appendComma(tops), `{"candidates":[`...)
		if has {
			for top.Array(); top.NextElement(); {
				t, _, _ := readProb(&top, list)
				tops = one(tops, t)
			}
		}
		tops = append(tops, "]}"...)
	}
	out = append(append(out, `],"topCandidates":[`...), tops...)
	return append(out, "]}"...)
}
