// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/penstock/penstock/internal/jsonedit"
)

// Member is a member of a JSON object, Value its JSON text.
type Member struct {
	Name  string
	Value []byte
}

// SetMembers sets members of the top level of a body: defaults where the client
// set none (null is none), overrides in any case. The rest keeps its bytes. A
// body that is no JSON object comes back as it is.
func SetMembers(body []byte, defaults, overrides []Member) []byte {
	if len(defaults) == 0 && len(overrides) == 0 {
		return body
	}
	s := jsonedit.NewScanner(body, 0)
	s.Peek()
	object := jsonedit.Span{Start: s.Pos()}
	if !s.Object() {
		return body
	}
	set := make([]bool, len(defaults)+len(overrides))
	var edits []jsonedit.Edit
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		name := key.Value(body)
		null := s.Peek() == jsonedit.Null
		value := s.Skip()
		if i := findMember(overrides, name); i >= 0 {
			set[len(defaults)+i] = true
			edits = append(edits, jsonedit.Edit{Span: value, Text: overrides[i].Value})
		} else if i := findMember(defaults, name); i >= 0 {
			if set[i] = true; null {
				edits = append(edits, jsonedit.Edit{Span: value, Text: defaults[i].Value})
			}
		}
	}
	if object.End = s.Pos(); s.Failed() {
		return body
	}
	var more []byte
	for i := range set {
		m := Member{}
		if i < len(defaults) {
			m = defaults[i]
		} else {
			m = overrides[i-len(defaults)]
		}
		if set[i] || i < len(defaults) && findMember(overrides, m.Name) >= 0 {
			continue
		}
		if len(more) > 0 {
			more = append(more, ',')
		}
		more = append(append(jsonedit.AppendString(more, m.Name), ':'), m.Value...)
	}
	if len(more) > 0 {
		edits = append(edits, jsonedit.Insert(body, object, string(more)))
	}
	if len(edits) == 0 {
		return body
	}
	return jsonedit.Apply(body, edits...)
}

func findMember(list []Member, name string) int {
	for i := range list {
		if list[i].Name == name {
			return i
		}
	}
	return -1
}

// openAIMembers are those of chat completions and completions that strict servers
// know, where they are not named otherwise there.
var openAIMembers = map[string]bool{
	"model": true, "messages": true, "stream": true, "stream_options": true, "max_tokens": true, "max_completion_tokens": true,
	"n": true, "stop": true, "temperature": true, "top_p": true, "seed": true, "logprobs": true, "top_logprobs": true,
	"logit_bias": true, "presence_penalty": true, "frequency_penalty": true, "tools": true, "tool_choice": true,
	"parallel_tool_calls": true, "functions": true, "function_call": true, "response_format": true, "reasoning_effort": true,
	"user": true, "metadata": true, "store": true, "service_tier": true, "modalities": true, "audio": true, "prediction": true,
	"prompt": true, "suffix": true, "echo": true, "best_of": true,
}

// adapt is a body for a server with quirks, and the names of what was left out.
// Members that stay keep the bytes of their values.
func (r *Request) adapt(body []byte, q *Quirks) (out []byte, dropped []string) {
	s := jsonedit.NewScanner(body, r.depth)
	if !s.Object() {
		return body, nil
	}
	out = append(make([]byte, 0, len(body)+64), '{')
	bound := q.MaxTokens && r.Op == OpChat
	wrote := false // the bound on output
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		name := key.Value(body)
		at := s
		value := s.Skip().Of(body)
		switch {
		case q.refuses(name), q.KnownOnly && !openAIMembers[name]:
			if name != "stream_options" && string(value) != "null" {
				dropped = append(dropped, cut(name, 64))
			}
			continue
		case bound && (name == "max_tokens" || name == "max_completion_tokens"):
			if wrote || string(value) == "null" {
				continue
			}
			wrote, name = true, "max_tokens"
			value = appendInt(nil, r.MaxTokens)
		case name == "seed" && q.RandomSeed:
			name = "random_seed"
		case name == "tool_choice" && q.RequiredAny && string(value) == `"required"`:
			value = []byte(`"any"`)
		case name == "messages" && (q.SystemRole || q.NoNames || q.ToolIDs):
			out = jsonedit.AppendString(appendComma(out), name)
			out, dropped = q.messages(append(out, ':'), &at, body, dropped)
			continue
		}
		out = append(jsonedit.AppendString(appendComma(out), name), ':')
		out = append(out, value...)
	}
	if !s.Finish() {
		return body, nil
	}
	if out = append(out, '}'); len(dropped) == 0 && sameJSON(out, body) {
		return body, nil
	}
	slices.Sort(dropped)
	return out, dropped[:min(len(dropped), maxDropped)]
}

// sameJSON says that two texts differ in white space at the most.
func sameJSON(a, b []byte) bool {
	var x, y bytes.Buffer
	return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}

// messages appends the messages as the server takes them.
func (q *Quirks) messages(out []byte, s *jsonedit.Scanner, body []byte, dropped []string) ([]byte, []string) {
	if !s.Array() {
		return append(out, s.Skip().Of(body)...), dropped
	}
	out = append(out, '[')
	for s.NextElement() {
		if out = appendComma(out); !s.Object() {
			out = append(out, s.Skip().Of(body)...)
			continue
		}
		out = append(out, '{')
		for {
			key, ok := s.NextMember()
			if !ok {
				break
			}
			name := key.Value(body)
			at := *s
			value := s.Skip().Of(body)
			if name == "name" && q.NoNames {
				if !slices.Contains(dropped, "messages.name") {
					dropped = append(dropped, "messages.name")
				}
				continue
			}
			out = append(jsonedit.AppendString(appendComma(out), name), ':')
			switch {
			case name == "role" && q.SystemRole && string(value) == `"developer"`:
				out = append(out, `"system"`...)
			case name == "tool_call_id" && q.ToolIDs && value[0] == '"':
				out = appendLit(out, q.toolID(value[1:len(value)-1]))
			case name == "tool_calls" && q.ToolIDs:
				out = q.calls(out, &at, body)
			default:
				out = append(out, value...)
			}
		}
		out = append(out, '}')
	}
	return append(out, ']'), dropped
}

// calls appends the calls of a message with ids that the server takes.
func (q *Quirks) calls(out []byte, s *jsonedit.Scanner, body []byte) []byte {
	if !s.Array() {
		return append(out, s.Skip().Of(body)...)
	}
	out = append(out, '[')
	for s.NextElement() {
		out = appendComma(out)
		s.Peek()
		from := s.Pos()
		whole := *s
		if !s.Object() {
			out = append(out, s.Skip().Of(body)...)
			continue
		}
		var id jsonedit.Text
		for {
			key, ok := s.NextMember()
			if !ok {
				break
			}
			if t, ok := s.Text(); !ok {
				s.Skip()
			} else if string(key.Of(body)) == "id" {
				id = t
			}
		}
		call := whole.Skip().Of(body)
		if id.Len() > 0 {
			edit := jsonedit.Edit{Span: jsonedit.Span{Start: id.Start - from, End: id.End - from}, Text: q.toolID(id.Of(body))}
			call = jsonedit.Apply(call, edit)
		}
		out = append(out, bytes.TrimSpace(call)...)
	}
	return append(out, ']')
}
