// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import "bytes"

// gathered is an answer put together from its events, for writers of whole
// answers.
type gathered struct {
	id, model lit
	created   int64
	choices   []gatheredChoice
	usage     Usage
}

type gatheredChoice struct {
	blocks []block
	reason finish
	stop   lit // the stop sequence
}

// block is a stretch of an answer of one kind.
type block struct {
	kind eventKind // evText, evReasoning, evRedacted, evRefusal, evMedia or evToolStart
	tool int
	text lit // of a call: the JSON text of its arguments, as the text of a literal; of a medium: base64
	// probs of text, see logprobs.go
	probs []byte
	sign  lit
	id    lit
	name  lit
}

// take adds an event.
func (g *gathered) take(e *event) {
	switch e.kind {
	case evStart:
		g.id, g.model, g.created = clone(e.id), clone(e.name), e.created
		return
	case evUsage:
		g.usage = e.usage
		return
	case evPing, evError, evEnd:
		return
	}
	for len(g.choices) <= e.choice {
		g.choices = append(g.choices, gatheredChoice{})
	}
	c := &g.choices[e.choice]
	last := len(c.blocks) - 1
	switch e.kind {
	case evText, evReasoning, evRefusal:
		if last < 0 || c.blocks[last].kind != e.kind || c.blocks[last].sign != nil {
			c.blocks = append(c.blocks, block{kind: e.kind})
			last++
		}
		c.blocks[last].text = append(c.blocks[last].text, e.text...)
		c.blocks[last].probs = joinProbs(c.blocks[last].probs, e.probs)
	case evSignature:
		if last < 0 || c.blocks[last].kind != evReasoning || c.blocks[last].sign != nil {
			c.blocks = append(c.blocks, block{kind: evReasoning})
			last++
		}
		c.blocks[last].sign = append(lit{}, e.text...)
	case evMedia:
		c.blocks = append(c.blocks, block{kind: evMedia, name: clone(e.name), text: clone(e.text), id: clone(e.id)})
	case evRedacted:
		c.blocks = append(c.blocks, block{kind: evRedacted, sign: clone(e.text)})
	case evToolStart:
		c.blocks = append(c.blocks, block{kind: evToolStart, tool: e.tool, id: clone(e.id), name: clone(e.name), sign: clone(e.sign)})
	case evToolArgs:
		for i := last; i >= 0; i-- {
			if b := &c.blocks[i]; b.kind == evToolStart && b.tool == e.tool {
				b.text = append(b.text, e.text...)
				break
			}
		}
	case evFinish:
		c.reason, c.stop = e.reason, clone(e.text)
	}
}

func clone(l lit) lit {
	if l == nil {
		return nil
	}
	return append(lit{}, l...)
}

// has says whether the choice has a block of a kind.
func (c *gatheredChoice) has(kind eventKind) bool {
	for i := range c.blocks {
		if c.blocks[i].kind == kind {
			return true
		}
	}
	return false
}

// probs are those of all of the choice's text.
func (c *gatheredChoice) probs() (all []byte) {
	for i := range c.blocks {
		all = joinProbs(all, c.blocks[i].probs)
	}
	return all
}

// arguments are a call's, as JSON text; none are an empty object. It says no if
// they are no object.
func (b *block) arguments() ([]byte, bool) {
	args := bytes.TrimSpace([]byte(b.text.String()))
	if len(args) == 0 {
		return []byte("{}"), true
	}
	return args, isObject(args)
}
