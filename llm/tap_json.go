// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import "github.com/penstock/penstock/internal/jsonedit"

// jsonWalk follows a JSON object that comes in parts. It knows the members of
// the top level and of the first choice, counts brackets below, and keeps only
// the value that it is capturing. It does not validate: what is no JSON object
// passes and tells nothing.
type jsonWalk struct {
	op     Op
	depth  int      // open brackets
	kind   [12]byte // the bracket at each depth from 1 on; names further down are taken for content
	second int      // index of the element at depth 2, in an array
	top    topic    // the member of the top level that the walk is in

	inString bool
	escaped  bool
	isName   bool // the string is a member name
	about    bool // the string says something about the output, and is none
	wantName bool // the next string is a member name
	name     [nameRoom]byte
	nameSize int // may be more than the room: no name known here
	dead     bool

	capture topic
	at      int    // depth at which the captured value ends
	held    []byte // of the captured value, from earlier inputs

	content    int // bytes of the output's strings in choices or output
	incomplete bool
	errorLike  bool   // object is "error": vLLM's older form
	message    string // the top-level message
}

const nameRoom = 24

// topic is a value that the walk looks for.
type topic uint8

const (
	topicNone topic = iota
	topicModel
	topicUsage
	topicError
	topicFinish
	topicStatus
	topicIncomplete
	topicObject
	topicMessage
	topicFeedback // Gemini's on the prompt
	topicMeta     // Cohere's
	topicTier     // of service
	topicOutput   // choices, output: not captured
	topicChoices
)

// room bounds what is captured of a value; a longer one is passed over.
func (p topic) room() int {
	if p == topicUsage || p == topicError {
		return 64 << 10
	}
	return 4 << 10
}

// topicOf tells what the member that was named last stands for, at its depth.
func (w *jsonWalk) topicOf() topic {
	if w.nameSize > nameRoom {
		return topicNone
	}
	name := w.name[:w.nameSize]
	if w.depth == 3 {
		if w.top != topicChoices || w.second != 0 || w.kind[2] != '[' {
			return topicNone
		}
		if string(name) == "finish_reason" || w.op == OpGenerate && string(name) == "finishReason" {
			return topicFinish
		}
		return topicNone
	}
	if w.depth != 1 {
		return topicNone
	}
	switch string(name) {
	case "model":
		if w.op.Dialect() == DialectGemini {
			return topicNone // there it is modelVersion
		}
		return topicModel
	case "usage":
		return topicUsage
	case "error":
		return topicError
	case "status":
		return topicStatus
	case "incomplete_details":
		return topicIncomplete
	case "object":
		return topicObject
	case "message":
		return topicMessage
	case "service_tier":
		return topicTier
	case "choices":
		return topicChoices
	case "output":
		return topicOutput
	}
	switch word := string(name); {
	case w.op == OpMessages && word == "stop_reason":
		return topicFinish
	case w.op == OpMessages && word == "content":
		return topicOutput
	case w.op == OpGenerate && word == "modelVersion":
		return topicModel
	case w.op.Dialect() == DialectGemini && word == "usageMetadata":
		return topicUsage
	case w.op == OpGenerate && word == "candidates":
		return topicChoices
	case w.op == OpGenerate && word == "promptFeedback":
		return topicFeedback
	case w.op == OpRerank && word == "meta":
		return topicMeta
	}
	return topicNone
}

// structural are the bytes outside strings that move the walk.
var structural = [256]bool{'"': true, ':': true, ',': true, '{': true, '}': true, '[': true, ']': true}

func (t *Tap) feedJSON(in []byte) {
	w := &t.walk
	passed := 0 // in is in the output up to here
	begin := 0  // the captured value begins here, or earlier
	for i := 0; i < len(in) && !w.dead && !t.found.finished; i++ {
		if w.inString {
			i = w.text(in, i)
			continue
		}
		if w.depth > 0 {
			for i < len(in) && !structural[in[i]] {
				i++
			}
			if i == len(in) {
				break
			}
		}
		switch c := in[i]; c {
		case '"':
			if w.depth == 0 {
				w.dead = true
			}
			w.about = w.top >= topicOutput && !w.wantName && w.tells()
			w.inString, w.isName, w.nameSize = true, w.wantName, 0
		case ':':
			if !w.wantName {
				break
			}
			w.wantName = false
			if w.capture != topicNone {
				break
			}
			found := w.topicOf()
			if w.depth == 1 {
				w.top, w.second = found, 0
			}
			if found == topicNone || found >= topicOutput {
				break
			}
			w.capture, w.at, begin = found, w.depth, i+1
			w.held = w.held[:0]
			if t.holds() {
				t.pass(in[passed:begin])
				passed = begin
			}
		case '{', '[':
			w.depth++
			if w.depth == 1 && c != '{' {
				w.dead = true
			}
			if w.depth < len(w.kind) {
				w.kind[w.depth] = c
			}
			w.wantName = c == '{' && w.depth < len(w.kind)
		case '}', ']', ',':
			if w.capture != topicNone && w.depth == w.at {
				if t.holds() {
					passed = i
				}
				t.captured(in[begin:i])
			}
			if w.comma(c); w.depth == 0 {
				t.found.finished = !w.dead
				t.ended()
			}
		case ' ', '\t', '\r', '\n':
		default:
			w.dead = w.dead || w.depth == 0
		}
	}
	if w.capture != topicNone && t.hold(in[begin:]) {
		passed = len(in)
	}
	t.pass(in[passed:])
}

// text passes the part of a string that begins at i and returns the offset of
// the last byte it took.
func (w *jsonWalk) text(in []byte, i int) int {
	if w.escaped {
		w.escaped = false
		return i
	}
	end := jsonedit.EndOfRun(in, i)
	if w.isName {
		if w.nameSize+end-i <= nameRoom {
			copy(w.name[w.nameSize:], in[i:end])
		}
		w.nameSize += end - i
	} else if w.top >= topicOutput && !w.about {
		w.content += end - i
	}
	if end == len(in) {
		return end
	}
	if in[end] == '\\' {
		w.escaped = true
		w.nameSize += nameRoom + 1 // names known here need no escape
	} else {
		w.inString = false
	}
	return end
}

// tells says that the member that was named last is about the output.
func (w *jsonWalk) tells() bool {
	if w.depth >= len(w.kind) || w.kind[w.depth] != '{' || w.nameSize > nameRoom {
		return false
	}
	switch string(w.name[:w.nameSize]) {
	case "role", "type", "id", "call_id", "status", "object", "finish_reason", "finishReason", "signature", "thoughtSignature",
		"encrypted_content", "category", "probability":
		return true
	}
	return false
}

// comma follows a closing bracket or a comma.
func (w *jsonWalk) comma(c byte) {
	if c != ',' {
		w.depth--
		w.wantName = false
		w.dead = w.dead || w.depth < 0
		return
	}
	if w.depth == 2 && w.kind[2] == '[' {
		w.second++
	}
	w.wantName = w.depth > 0 && w.depth < len(w.kind) && w.kind[w.depth] == '{'
}

// holds says whether the captured value must not pass before it is whole.
func (t *Tap) holds() bool { return t.model != nil && t.walk.capture == topicModel }

// hold keeps a part of the captured value, the last in this input. It says
// whether that must not pass on yet.
func (t *Tap) hold(part []byte) bool {
	w := &t.walk
	if len(w.held)+len(part) > w.capture.room() {
		t.letGo()
		return false
	}
	w.held = append(w.held, part...)
	return t.holds()
}

// letGo ends a capture that came to nothing; what was held passes unedited.
func (t *Tap) letGo() {
	if t.holds() {
		t.pass(t.walk.held)
	}
	t.walk.capture, t.walk.held = topicNone, nil
}

// captured reads the value that has come to its end, with its last part.
func (t *Tap) captured(rest []byte) {
	w, a := &t.walk, &t.found
	if len(w.held)+len(rest) > w.capture.room() {
		held := t.holds()
		if t.letGo(); held {
			t.pass(rest)
		}
		return
	}
	value := rest
	if len(w.held) > 0 {
		w.held = append(w.held, rest...)
		value = w.held
	}
	s := jsonedit.NewScanner(value, 0)
	switch w.capture {
	case topicModel:
		t.renamed(&s, value)
	case topicUsage:
		switch t.op.Dialect() {
		case DialectAnthropic:
			t.messageUsage(&s, value)
		case DialectGemini:
			a.readGeminiUsage(&s, value)
		default:
			a.readUsage(&s, value)
		}
	case topicMeta:
		a.readMeta(&s, value)
	case topicTier:
		readText(&s, value, &a.tier)
	case topicFeedback:
		if s.Peek() == jsonedit.Object && a.finish == "" {
			member(&s, value, "blockReason", &a.finish)
		}
	case topicError:
		a.readError(&s, value)
	case topicFinish:
		readText(&s, value, &a.finish)
	case topicStatus:
		if t.op == OpResponses && !w.incomplete {
			a.readStatus(&s, value)
		}
	case topicIncomplete:
		if w.incomplete = s.Peek() == jsonedit.Object; w.incomplete {
			a.readReason(&s, value)
		}
	case topicObject:
		kind, ok := s.Text()
		w.errorLike = ok && string(kind.Of(value)) == "error"
	case topicMessage:
		readText(&s, value, &w.message)
	}
	w.capture = topicNone
	w.held = w.held[:0]
}

// renamed passes the value of model on, with the name that the client knows.
func (t *Tap) renamed(s *jsonedit.Scanner, value []byte) {
	name := t.found.readModel(s, value)
	if t.model == nil {
		return
	}
	if name.Start == 0 {
		t.pass(value)
		return
	}
	quoted := name.Quoted()
	t.pass(value[:quoted.Start])
	t.pass(t.model)
	t.pass(value[quoted.End:])
}

// ended is called at the end of the object.
func (t *Tap) ended() {
	if t.walk.errorLike {
		t.found.fail(t.walk.message)
	}
}

func (t *Tap) closeJSON() {
	t.letGo()
}
