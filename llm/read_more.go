// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"fmt"
	"math"

	"github.com/penstock/penstock/internal/jsonedit"
)

// This file reads what only some dialects have: the system prompt beside the
// messages, what a client asks for in so many words, and Gemini's names.

// system reads Anthropic's system prompt. Blocks are viewed as they were sent.
func (rd *reader) system(name string) {
	if rd.s.Peek() == jsonedit.Array {
		raw := rd.s.Skip()
		rd.prompt.instructions = jsonedit.Text{Span: raw, Size: raw.Len()}
		rd.prompt.textBytes += raw.Len()
		return
	}
	if t, ok := rd.literal(name); ok {
		rd.prompt.instructions = t
		rd.prompt.textBytes += t.Size
	}
}

// asks reads a field for what capabilities depend on it. Another type than the
// one expected asks for nothing here.
func (rd *reader) asks(f field) {
	if f == fieldReasoningEffort {
		if t, ok := rd.s.Text(); ok {
			rd.req.Reasoning = string(t.Of(rd.body)) != "none"
			return
		}
	}
	if !rd.s.Object() {
		rd.s.Skip()
		return
	}
	for rd.err == nil {
		key, ok := rd.s.NextMember()
		if !ok {
			return
		}
		switch name := string(rd.name(key)); {
		case f == fieldMetadata && name == "user_id" && rd.s.Peek() == jsonedit.String:
			rd.req.User = rd.text("metadata.user_id")
		case f == fieldResponseFormat && name == "type":
			rd.req.Structured = rd.not("text")
		case f == fieldText && name == "format", f == fieldOutputConfig && name == "format":
			rd.format()
		case f == fieldThinking && name == "type":
			rd.req.Reasoning = rd.not("disabled")
		case f == fieldReasoning && name == "effort", f == fieldOutputConfig && name == "effort":
			rd.req.Reasoning = rd.not("none") || rd.req.Reasoning
		default:
			rd.s.Skip()
		}
	}
}

// not says that the value is a string other than the one named.
func (rd *reader) not(word string) bool {
	t, ok := rd.s.Text()
	if !ok {
		rd.s.Skip()
		return false
	}
	return string(t.Of(rd.body)) != word
}

// format reads the type in an object that describes the output.
func (rd *reader) format() {
	if !rd.s.Object() {
		rd.s.Skip()
		return
	}
	for {
		key, ok := rd.s.NextMember()
		if !ok {
			return
		}
		if string(rd.name(key)) == "type" {
			rd.req.Structured = rd.not("text")
		} else {
			rd.s.Skip()
		}
	}
}

// gemini reads a member of a body for one of Gemini's methods.
func (rd *reader) gemini(name []byte) {
	switch word := string(name); {
	case rd.req.Op == OpGenerate:
		rd.generate(name)
	case rd.s.Peek() == jsonedit.Null:
		rd.s.Skip()
	case word == "model":
		rd.innerModel(word)
	case rd.req.Op == OpCountContents && camel(word) == "generateContentRequest":
		rd.inside(word, rd.generate)
	case rd.req.Op == OpCountContents:
		rd.generate(name)
	case rd.req.Op == OpEmbedContent:
		rd.embed(name)
	case word == "requests":
		rd.embeds(word)
	default:
		rd.s.Skip()
	}
}

// inside reads an object that repeats the model of the path.
func (rd *reader) inside(param string, member func(name []byte)) {
	if !rd.s.Object() {
		rd.wrongType(param, "must be an object")
		return
	}
	for rd.err == nil {
		key, ok := rd.s.NextMember()
		if !ok {
			return
		}
		var buf [maxFieldName + 4]byte
		if name, _ := foldName(&buf, key, rd.body); fields[string(name)] == fieldEngine {
			rd.err = engineField(param + "." + string(name))
			return
		}
		if name := rd.name(key); string(name) == "model" {
			rd.innerModel(param + ".model")
		} else {
			member(name)
		}
	}
}

// innerModel reads a name that must be that of the path: who may ask for it was
// decided by that.
func (rd *reader) innerModel(param string) {
	if rd.s.Peek() == jsonedit.Null {
		rd.s.Skip()
		return
	}
	t, ok := rd.literal(param)
	if !ok {
		return
	}
	if name := t.Value(rd.body); name != rd.req.Model && name != "models/"+rd.req.Model {
		rd.refuse(param, "must be the model of the path, models/"+rd.req.Model)
		return
	}
	rd.req.offsets.inner = append(rd.req.offsets.inner, t.Quoted())
}

// embed reads a member of a request for an embedding.
func (rd *reader) embed(name []byte) {
	if string(name) != "content" || rd.s.Peek() == jsonedit.Null {
		rd.s.Skip()
		return
	}
	rd.seen[fieldMessages] = true
	rd.oneContent("content", -1)
}

// maxEmbeds bounds the embeddings of one request; it is OpenAI's bound.
const maxEmbeds = 2048

// embeds reads the requests for several embeddings.
func (rd *reader) embeds(list string) {
	if !rd.s.Array() {
		rd.wrongType(list, "must be an array")
		return
	}
	i := 0
	for ; rd.err == nil && rd.s.NextElement(); i++ {
		if i == maxEmbeds {
			rd.refuse(list, fmt.Sprintf("has more than %d elements", maxEmbeds))
			return
		}
		rd.inside(at(list, i), rd.embed)
	}
	if i == 0 {
		rd.emptyArray(list)
	}
}

// generate reads a member of Gemini's generateContent, in either of the two
// spellings that its servers take.
func (rd *reader) generate(name []byte) {
	f := fieldNone
	switch string(name) {
	case "contents":
		f = fieldMessages
	case "systemInstruction", "system_instruction":
		f = fieldSystem
	case "generationConfig", "generation_config":
		f = fieldOutputConfig
	case "tools":
		f = fieldTools
	}
	if f == fieldNone || rd.s.Peek() == jsonedit.Null {
		rd.s.Skip()
		return
	}
	param := string(name)
	if rd.admit(f, true); rd.err != nil {
		rd.err.Param, rd.err.Message = param, param+" "+twice
		return
	}
	switch f {
	case fieldMessages:
		rd.contents(param)
	case fieldSystem:
		raw := rd.s.Skip()
		rd.prompt.instructions = jsonedit.Text{Span: raw, Size: raw.Len()}
		rd.prompt.textBytes += raw.Len()
	case fieldTools:
		rd.declarations(param)
	case fieldOutputConfig:
		rd.generationConfig(param)
	}
}

// contents reads Gemini's messages. A content without a role is the user's.
func (rd *reader) contents(list string) {
	if !rd.s.Array() {
		rd.wrongType(list, "must be an array")
		return
	}
	i := 0
	for ; rd.err == nil && rd.s.NextElement(); i++ {
		rd.oneContent(list, i)
	}
	if i == 0 {
		rd.emptyArray(list)
	}
}

// oneContent reads an element of list, or what stands alone if i is negative.
func (rd *reader) oneContent(list string, i int) {
	if !rd.s.Object() {
		rd.wrongType(at(list, i), "must be an object")
		return
	}
	role := len(rd.prompt.pieces)
	rd.add(pieceRole, jsonedit.Text{})
	for rd.err == nil {
		key, ok := rd.s.NextMember()
		if !ok {
			return
		}
		switch string(rd.name(key)) {
		case "role":
			t, ok := rd.s.Text()
			if !ok {
				rd.s.Skip()
			} else if role < maxPieces {
				rd.prompt.pieces[role].text = t
			}
		case "parts":
			if rd.s.Peek() == jsonedit.Object {
				rd.part(list, i, "parts", 0)
				continue
			}
			rd.content(list, i, "parts")
		default:
			rd.s.Skip()
		}
	}
}

// declarations counts the functions in Gemini's tools; a tool of the server
// counts as one.
func (rd *reader) declarations(param string) {
	start := rd.start()
	if !rd.s.Array() {
		rd.wrongType(param, "must be an array")
		return
	}
	for i := 0; rd.err == nil && rd.s.NextElement(); i++ {
		if !rd.s.Object() {
			rd.wrongType(at(param, i), "must be an object")
			return
		}
		for {
			key, ok := rd.s.NextMember()
			if !ok {
				break
			}
			name := string(rd.name(key))
			if (name == "functionDeclarations" || name == "function_declarations") && rd.s.Array() {
				for rd.s.NextElement() {
					rd.s.Skip()
					rd.req.Tools++
				}
				continue
			}
			rd.s.Skip()
			rd.req.Tools++
		}
	}
	if rd.req.Tools > 0 {
		rd.prompt.tools = jsonedit.Span{Start: start, End: rd.s.Pos()}
		rd.prompt.textBytes += rd.prompt.tools.Len()
	}
}

func (rd *reader) generationConfig(param string) {
	if !rd.s.Object() {
		rd.wrongType(param, "must be an object")
		return
	}
	for rd.err == nil {
		key, ok := rd.s.NextMember()
		if !ok {
			return
		}
		name := string(rd.name(key))
		if rd.s.Peek() == jsonedit.Null {
			rd.s.Skip()
			continue
		}
		switch name {
		case "maxOutputTokens", "max_output_tokens":
			rd.req.MaxTokens = max(rd.req.MaxTokens, rd.integer(param+"."+name, 0, math.MaxInt32))
		case "candidateCount", "candidate_count":
			rd.req.N = rd.integer(param+"."+name, 1, maxChoices)
		case "responseMimeType", "response_mime_type":
			rd.req.Structured = rd.not("text/plain") || rd.req.Structured
		case "responseSchema", "response_schema", "responseJsonSchema", "response_json_schema":
			rd.req.Structured = true
			rd.s.Skip()
		case "thinkingConfig", "thinking_config":
			rd.req.Reasoning = true
			rd.s.Skip()
		default:
			rd.s.Skip()
		}
	}
}
