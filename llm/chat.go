// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"fmt"
	"strings"

	"github.com/penstock/penstock/internal/jsonedit"
)

// This file is the form in which the requests of all dialects meet. A dialect
// has one reader into it and one writer out of it; no code knows two dialects.
//
// Strings stay what they were in the client's JSON: lit is the text of a string
// literal without its quotes, escapes and all. Most of a conversation is thus
// copied from body to body without being looked at again.

// lit is a string literal without its quotes; nil: there is none. Two joined
// are the literal of the two strings joined.
type lit []byte

// literal is the literal of s.
func literal(s string) lit {
	quoted := jsonedit.AppendString(nil, s)
	return quoted[1 : len(quoted)-1]
}

// String is what the literal stands for.
func (l lit) String() string {
	if len(l) == 0 {
		return ""
	}
	out, _ := jsonedit.Unescape(make([]byte, 0, len(l)+8), l)
	return string(out)
}

// blank says that the string has nothing but white space.
func (l lit) blank() bool {
	for i := 0; i < len(l); i++ {
		switch c := l[i]; {
		case c == ' ':
		case c == '\\' && i+1 < len(l) && strings.IndexByte("nrt", l[i+1]) >= 0:
			i++
		default:
			return false
		}
	}
	return true
}

// chat is a request in the form where the dialects meet.
type chat struct {
	dialect Dialect // of the front: names places in the body
	turns   []turn
	parts   []part // of all turns
	inner   []part // of what tools answered
	tools   []tool

	params [paramCount]param // what was set, as it was sent
	others []param           // members that no dialect but the front's has

	stop      []lit
	choice    choice
	format    format
	reasoning reasoning
	n         int  // choices; at least 1
	maxTokens int  // 0: not set
	legacy    bool // functions and function_call, the older form of tools (OpenAI)
	stream    bool
	usage     bool   // the client wants usage in the stream
	echo      []byte // members of the request that a response repeats (Responses)
}

// param is a member of the request that a writer must use or name as dropped.
type param struct {
	name string // in the client's words; "": not set
	raw  []byte // JSON, in the range and form of OpenAI's chat
}

// paramKind is a member that more than one dialect has. Those with a field of
// their own in chat are here to be counted as used.
type paramKind uint8

const (
	paramTemperature paramKind = iota
	paramTopP
	paramTopK
	paramSeed
	paramPresencePenalty
	paramFrequencyPenalty
	paramLogitBias
	paramLogprobs    // true or false
	paramTopLogprobs // a number
	paramN
	paramStop
	paramMaxTokens
	paramFormat
	paramReasoning
	paramChoice
	paramParallel // true or false
	paramUser     // a string
	paramTier     // service_tier, a string
	paramMetadata // an object of strings
	paramStore    // true or false
	paramVerbosity
	paramCacheKey // prompt_cache_key, a string
	paramModalities
	paramCache // cache_control at the top level
	paramCount
)

type role uint8

const (
	roleSystem role = iota + 1
	roleUser        // what tools answered is the user's too
	roleAssistant
)

// turn is one message. Turns of the same role may follow one another.
type turn struct {
	role     role
	from, to int // its parts
	name     lit // of the participant
	place    int // index in the list of the body
}

type partKind uint8

const (
	partText partKind = iota + 1
	partRefusal
	partThinking // text and, unless lost on the way, a signature
	partRedacted // thinking that only the server can read: signature
	partImage
	partFile // a PDF or another document
	partAudio
	partToolCall
	partToolResult
	partOther // of a dialect, and of no other: name is its type
)

// part is a piece of a turn.
type part struct {
	kind    partKind
	isError bool // the tool failed
	place   place
	text    lit    // of a file: its content as text
	id      lit    // of a call, of the call that a result answers, of a file
	name    lit    // of a function, of a file
	args    []byte // of a call: a JSON object
	sign    lit    // signature of thinking or of a call
	media   string // image/png
	data    lit    // base64
	url     lit
	cache   []byte // cache_control as it was sent
	from    int    // of a result: its parts in inner
	to      int
}

// place is where a part stands in the client's body, for errors: for instance
// messages[turn].field[index].content[sub]. -1: no such level; turn -1: beside
// the messages.
type place struct {
	field       string
	turn, index int32
	sub         int32
}

// parts of a turn.
func (c *chat) partsOf(t *turn) []part { return c.parts[t.from:t.to] }

// partsOfResult are the parts of what a tool answered.
func (c *chat) partsOfResult(p *part) []part { return c.inner[p.from:p.to] }

// list is the name of what holds the messages.
func (c *chat) list() string {
	switch c.dialect {
	case DialectResponses:
		return "input"
	case DialectGemini:
		return "contents"
	}
	return "messages"
}

// path names a place in the client's words.
func (c *chat) path(p place) string {
	list := c.list()
	if p.field == "content" && c.dialect == DialectGemini {
		p.field = "parts"
	}
	path := p.field // of what stands beside the messages
	if p.turn >= 0 {
		path = at(list, int(p.turn))
		if p.field != "" {
			path += "." + p.field
		}
	}
	if p.index >= 0 {
		path = at(path, int(p.index))
	}
	if p.sub >= 0 {
		path = at(path+".content", int(p.sub))
	}
	return path
}

type toolKind uint8

const (
	toolFunction toolKind = iota + 1
	toolCustom            // takes text in place of JSON (OpenAI)
	toolServer            // runs at the provider, of which only the front's dialect knows
)

type tool struct {
	kind   toolKind
	name   lit
	about  lit    // description
	schema []byte // JSON schema of the arguments; nil: none
	strict []byte // true or false
	cache  []byte
	path   string // in the client's body; "": tools[index]
	index  int
	label  string // of a server's tool: its type
}

// where the tool stands in the client's body.
func (t *tool) where() string {
	if t.path != "" {
		return t.path
	}
	return at("tools", t.index)
}

type choiceMode uint8

const (
	choiceUnset choiceMode = iota
	choiceAuto
	choiceNone
	choiceAny
	choiceTool // the one named
)

// choice is which tools the model may or must call.
type choice struct {
	mode    choiceMode
	name    lit
	allowed []lit // only these; nil: all
	single  bool  // no calls in parallel
}

type formatKind uint8

const (
	formatText formatKind = iota
	formatJSON
	formatSchema
)

type format struct {
	kind   formatKind
	name   lit
	about  lit
	schema []byte
	strict []byte
}

// reasoning is how much the model is to think before it answers.
type reasoning struct {
	effort   string // none, minimal, low, medium, high, xhigh, max; "": not set
	budget   int    // tokens; 0: not set
	adaptive bool   // as much as the model likes
	off      bool
}

// efforts have the budgets that stand for them where only tokens can be said.
var efforts = [...]struct {
	name   string
	budget int
}{{"minimal", 1024}, {"low", 1024}, {"medium", 2048}, {"high", 4096}, {"xhigh", 8192}, {"max", 16384}}

// tokens is the budget that the reasoning asks for; 0: none is said.
func (r *reasoning) tokens() int {
	if r.budget > 0 {
		return r.budget
	}
	for _, e := range efforts {
		if e.name == r.effort {
			return e.budget
		}
	}
	return 0
}

// word is the effort that the reasoning asks for; "": none is said.
func (r *reasoning) word() string {
	switch {
	case r.off:
		return "none"
	case r.effort != "" || r.budget == 0:
		return r.effort
	case r.budget <= 1024:
		return "low"
	case r.budget <= 2048:
		return "medium"
	}
	return "high"
}

// set notes a member of the body.
func (c *chat) set(k paramKind, name string, raw []byte) { c.params[k] = param{name, raw} }

// begin opens a turn; the parts that are added next are its own.
func (c *chat) begin(r role, index int) *turn {
	c.turns = append(c.turns, turn{role: r, from: len(c.parts), to: len(c.parts), place: index})
	return &c.turns[len(c.turns)-1]
}

// add adds a part to the last turn.
func (c *chat) add(p part) *part {
	c.parts = append(c.parts, p)
	c.turns[len(c.turns)-1].to = len(c.parts)
	return &c.parts[len(c.parts)-1]
}

// refusal of a body that cannot be translated.
func cannot(path, what string) *Error {
	err := InvalidRequest(path, fmt.Sprintf("%s %s", path, what))
	err.Code = "unsupported_value"
	return err
}
