// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"fmt"
	"math"

	"github.com/penstock/penstock/internal/jsonedit"
)

// This file reads what the model is given: messages, items and prompts. What
// it does not know passes: engines differ in the parts that they take.

// maxPieces bounds the view of a prompt: three bytes of a body make a piece of
// forty, and nothing that is chosen by a prefix needs more of them. Those after
// it are counted and not viewed.
const maxPieces = 1 << 16

func (rd *reader) add(kind pieceKind, t jsonedit.Text) {
	if len(rd.prompt.pieces) < maxPieces {
		rd.prompt.pieces = append(rd.prompt.pieces, piece{kind: kind, text: t})
	}
	switch kind {
	case pieceMedia:
		rd.prompt.media++
	case pieceIDs: // the caller counts
	default:
		rd.prompt.textBytes += t.Size
	}
}

// messages reads an array of messages, or of items of the Responses API.
func (rd *reader) messages(list string, items bool) {
	if !rd.s.Array() {
		rd.wrongType(list, "must be an array")
		return
	}
	i := 0
	for rd.s.NextElement() {
		if rd.message(list, i, items); rd.err != nil {
			return
		}
		i++
	}
	if i == 0 {
		rd.refuse(list, "must not be empty")
	}
}

// input is the input of the Responses API: text or items.
func (rd *reader) input(name string) {
	switch rd.s.Peek() {
	case jsonedit.String:
		t, _ := rd.s.Text()
		rd.add(pieceRole, jsonedit.Text{})
		rd.add(pieceText, t)
	case jsonedit.Array:
		rd.messages(name, true)
	default:
		rd.wrongType(name, "must be a string or an array")
	}
}

// name is a member name. It is valid until the next call; one that is escaped
// and too long for a name known here comes out cut.
func (rd *reader) name(key jsonedit.Text) []byte {
	if !key.Escaped() {
		return key.Of(rd.body)
	}
	name, _ := jsonedit.Unescape(rd.buf[:0], key.Of(rd.body))
	return name
}

func at(list string, i int) string {
	if i < 0 {
		return list // which is no list
	}
	return fmt.Sprintf("%s[%d]", list, i)
}

// message reads one message. The role comes first in the view, wherever it
// stands in the object. An item of the Responses API need not have one.
func (rd *reader) message(list string, i int, item bool) {
	if !rd.s.Object() {
		rd.wrongType(at(list, i), "must be an object")
		return
	}
	role := len(rd.prompt.pieces)
	rd.add(pieceRole, jsonedit.Text{})
	hasRole := false
	for rd.err == nil {
		key, ok := rd.s.NextMember()
		if !ok {
			break
		}
		switch name := rd.name(key); {
		case string(name) == "role":
			t, ok := rd.s.Text()
			if !ok {
				rd.wrongType(at(list, i)+".role", "must be a string")
				return
			}
			if role < maxPieces {
				rd.prompt.pieces[role].text = t
			}
			rd.prompt.textBytes += t.Size
			hasRole = true
		case string(name) == "content":
			rd.content(list, i, "content")
		case item && string(name) == "output":
			rd.content(list, i, "output")
		case string(name) == "tool_calls" && rd.s.Peek() == jsonedit.Array:
			raw := rd.s.Skip()
			rd.add(pieceRaw, jsonedit.Text{Span: raw, Size: raw.Len()})
		case item && (string(name) == "name" || string(name) == "arguments") && rd.s.Peek() == jsonedit.String:
			t, _ := rd.s.Text()
			rd.add(pieceText, t)
		default:
			rd.s.Skip()
		}
	}
	if !hasRole && !item && !rd.s.Failed() {
		rd.refuse(at(list, i)+".role", "is missing")
	}
}

// content reads a string, null or an array of parts.
func (rd *reader) content(list string, i int, name string) {
	switch rd.s.Peek() {
	case jsonedit.String:
		t, _ := rd.s.Text()
		rd.add(pieceText, t)
	case jsonedit.Null:
		rd.s.Skip()
	case jsonedit.Array:
		rd.s.Array()
		for j := 0; rd.err == nil && rd.s.NextElement(); j++ {
			rd.part(list, i, name, j)
		}
	default:
		rd.wrongType(at(list, i)+"."+name, "must be a string or an array of parts")
	}
}

// part reads one content part by its members, whatever its type says, for
// engines have parts of their own.
func (rd *reader) part(list string, i int, content string, j int) {
	if t, ok := rd.s.Text(); ok {
		rd.add(pieceText, t)
		return
	}
	if !rd.s.Object() {
		rd.wrongType(at(at(list, i)+"."+content, j), "must be an object")
		return
	}
	medium, first := medium(0), len(rd.prompt.pieces)
	rd.low = false
	for rd.err == nil {
		key, ok := rd.s.NextMember()
		if !ok {
			break
		}
		switch name := rd.name(key); string(name) {
		case "text":
			t, ok := rd.s.Text()
			if !ok {
				rd.wrongType(at(at(list, i)+"."+content, j)+".text", "must be a string")
				return
			}
			rd.add(pieceText, t)
		case "refusal", "thinking":
			if t, ok := rd.s.Text(); ok {
				rd.add(pieceText, t)
			} else {
				rd.s.Skip()
			}
		case "image_url", "input_audio", "audio_url", "video_url", "file", "file_id", "file_url", "file_data", "source", "inlineData", "inline_data", "fileData":
			medium = max(medium, mediumOf(name))
			medium = max(medium, rd.medium())
		case "detail":
			rd.detail()
		case "type":
			if t, ok := rd.s.Text(); ok {
				medium = max(medium, mediumOf(t.Of(rd.body)))
			} else {
				rd.s.Skip()
			}
		case "input", "functionCall", "functionResponse", "function_call", "function_response": // of a tool
			raw := rd.s.Skip()
			rd.add(pieceRaw, jsonedit.Text{Span: raw, Size: raw.Len()})
		case "name": // of a tool, where calls are parts
			if t, ok := rd.s.Text(); ok && rd.req.Op == OpMessages {
				rd.add(pieceText, t)
			} else if !ok {
				rd.s.Skip()
			}
		case "content": // of a tool's result
			rd.inner(list, i, content, j)
		default:
			rd.s.Skip()
		}
	}
	if rd.low {
		for i := range rd.prompt.pieces[first:] {
			rd.prompt.pieces[first+i].low = true
		}
		rd.low = false
	}
	switch medium {
	case mediumImage:
		rd.req.Images++
	case mediumAudio:
		rd.req.Audio++
	case mediumFile:
		rd.req.Files++
	}
}

// inner reads what a tool answered: text, or parts without parts of their own.
func (rd *reader) inner(list string, i int, content string, j int) {
	if rd.nested || rd.s.Peek() != jsonedit.String && rd.s.Peek() != jsonedit.Array {
		rd.s.Skip()
		return
	}
	if t, ok := rd.s.Text(); ok {
		rd.add(pieceText, t)
		return
	}
	rd.nested = true
	rd.s.Array()
	for rd.err == nil && rd.s.NextElement() {
		rd.part(list, i, content, j)
	}
	rd.nested = false
}

// medium is what a part holds besides text. The greater one decides.
type medium uint8

const (
	mediumFile medium = iota + 1
	mediumAudio
	mediumImage
)

// mediumOf reads the type of a part, the name of its member or a media type.
func mediumOf(name []byte) medium {
	switch {
	case bytes.Contains(name, []byte("image")):
		return mediumImage
	case bytes.Contains(name, []byte("audio")):
		return mediumAudio
	case bytes.Contains(name, []byte("file")), string(name) == "document", bytes.HasSuffix(name, []byte("pdf")), string(name) == "inlineData", string(name) == "inline_data":
		return mediumFile
	}
	return 0
}

// detail notes that the picture of a part is wanted in low detail.
func (rd *reader) detail() {
	if t, ok := rd.s.Text(); ok {
		rd.low = string(t.Of(rd.body)) == "low"
	} else {
		rd.s.Skip()
	}
}

// medium reads a URL, data or an id, either bare or in an object.
func (rd *reader) medium() (kind medium) {
	if t, ok := rd.s.Text(); ok {
		rd.add(pieceMedia, t)
		return 0
	}
	if !rd.s.Object() {
		rd.s.Skip()
		return 0
	}
	for {
		key, ok := rd.s.NextMember()
		if !ok {
			return kind
		}
		switch string(rd.name(key)) {
		case "detail":
			rd.detail()
			continue
		case "mimeType", "mime_type":
			if t, ok := rd.s.Text(); ok {
				kind = mediumOf(t.Of(rd.body))
				continue
			}
		case "url", "data", "file_data", "file_id", "fileUri", "file_uri":
			if t, ok := rd.s.Text(); ok {
				rd.add(pieceMedia, t)
				continue
			}
		}
		rd.s.Skip()
	}
}

// prompts reads the four forms of prompt and input: text, an array of texts,
// an array of token ids, an array of those.
func (rd *reader) prompts(name string) {
	if t, ok := rd.s.Text(); ok {
		rd.add(piecePlain, t)
		return
	}
	rd.prompt.each = true
	start := rd.start()
	if n, ok := rd.s.Naturals(math.MaxInt32); ok {
		rd.prompt.ids += n
		rd.addIDs(start)
		return
	}
	if !rd.s.Array() {
		rd.wrongType(name, "must be a string or an array of strings or of token ids")
		return
	}
	first := jsonedit.Invalid
	i := 0
	for ; rd.err == nil && rd.s.NextElement(); i++ {
		kind := rd.s.Peek()
		if i == 0 {
			first = kind
		}
		switch {
		case kind != first:
			rd.wrongType(at(name, i), "is of another type than the first element")
		case kind == jsonedit.String:
			t, _ := rd.s.Text()
			rd.add(piecePlain, t)
		case kind == jsonedit.Number:
			rd.tokenID(name, i, -1)
		case kind == jsonedit.Array:
			rd.tokenIDs(name, i)
		default:
			rd.wrongType(at(name, i), "must be a string, a token id or an array of token ids")
		}
	}
	switch {
	case i == 0:
		rd.emptyArray(name)
	case first == jsonedit.Number:
		rd.addIDs(start)
	}
}

// tokenIDs reads prompt i of several, an array of token ids.
func (rd *reader) tokenIDs(name string, i int) {
	start := rd.start()
	if n, ok := rd.s.Naturals(math.MaxInt32); ok {
		rd.prompt.ids += n
		rd.addIDs(start)
		return
	}
	rd.s.Array()
	j := 0
	for ; rd.err == nil && rd.s.NextElement(); j++ {
		rd.tokenID(name, i, j)
	}
	if j == 0 {
		rd.emptyArray(at(name, i))
	}
	rd.addIDs(start)
}

// emptyArray refuses an array that ended without an element.
func (rd *reader) emptyArray(name string) {
	if !rd.s.Failed() {
		rd.refuse(name, "must not be empty")
	}
}

// tokenID reads element i of an array of token ids, or element j of array i.
func (rd *reader) tokenID(name string, i, j int) {
	const fault = "must be a token id"
	rd.prompt.ids++
	number, isNumber := rd.s.Number()
	id, ok := jsonedit.Int(number.Of(rd.body))
	if isNumber && ok && id >= 0 && id <= math.MaxInt32 || rd.s.Failed() {
		return
	}
	path := at(name, i)
	if j >= 0 {
		path = at(path, j)
	}
	if isNumber {
		rd.refuse(path, fault)
	} else {
		rd.wrongType(path, fault)
	}
}

// addIDs adds the array from start to the cursor as a prompt of token ids.
func (rd *reader) addIDs(start int) {
	span := jsonedit.Span{Start: start, End: rd.s.Pos()}
	rd.add(pieceIDs, jsonedit.Text{Span: span, Size: span.Len()})
}
