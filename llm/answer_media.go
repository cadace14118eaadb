// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/penstock/penstock/internal/jsonedit"
)

// This file knows the images and the sound of answers, and the images of earlier
// answers in requests. Chat completions have a
// member of their own for sound; for images there is the member images, in which
// OpenRouter and LiteLLM agree. Responses have an item for images, as their own
// tool makes it. Messages have neither.

// NoPlace is the failure of an answer that holds what answers of the client's
// API cannot. It is no fault of the server.
const NoPlace = "the model's answer holds an image, sound or the like, for which answers of this API have no place"

// carries says that an answer of the client's dialect can hold a medium.
func (r *relay) carries(e *event) bool {
	switch r.op.Dialect() {
	case DialectGemini:
		return true
	case DialectOpenAI:
		return isImage(e.name) || isSound(e.name) && len(e.text) > 0
	case DialectResponses:
		return isImage(e.name) && len(e.text) > 0
	}
	return false
}

// media are written as they came, so that a type may have its slash escaped.
func isImage(media lit) bool { return strings.HasPrefix(media.String(), "image/") }
func isSound(media lit) bool { return strings.HasPrefix(media.String(), "audio/") }

// mediaOf reads a URL of an image into an event: data, or an address.
func mediaOf(url lit) event {
	e := event{kind: evMedia, name: lit("image/png"), id: url}
	head, data, ok := bytes.Cut(url, []byte(";base64,"))
	if ok && bytes.HasPrefix(head, []byte("data:")) {
		e.name, e.text, e.id = lit(head[len("data:"):]), data, nil
	}
	return e
}

// images reads a list of images, {"type":"image_url","image_url":{"url":…}}.
func (r *openAIEvents) images(s *jsonedit.Scanner, data []byte, index int, to *relay) {
	if !s.Array() {
		return
	}
	for s.NextElement() {
		if !s.Object() {
			s.Skip()
			continue
		}
		for {
			key, ok := s.NextMember()
			if !ok {
				break
			}
			if string(key.Of(data)) != "image_url" || !s.Object() {
				s.Skip()
				continue
			}
			for {
				key, ok := s.NextMember()
				if !ok {
					break
				}
				if t, ok := s.Text(); !ok {
					s.Skip()
				} else if string(key.Of(data)) == "url" && t.Len() > 0 {
					e := mediaOf(t.Of(data))
					e.choice = index
					r.tell(to, &e)
				}
			}
		}
	}
}

// inline reads {"mimeType":…,"data":…} of Gemini.
func (r *geminiEvents) inline(s *jsonedit.Scanner, data []byte, index int, to *relay) {
	e := event{kind: evMedia, choice: index}
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		t, ok := s.Text()
		switch name := string(key.Of(data)); {
		case !ok:
			s.Skip()
		case name == "mimeType":
			e.name = t.Of(data)
		case name == "data":
			e.text = t.Of(data)
		}
	}
	if len(e.text) > 0 {
		r.choices[index].output = true
		to.emit(&e)
	}
}

// withoutShown takes the images of earlier answers out of a request, for servers
// that take none from the model.
func (w *requestWriter) withoutShown() {
	for i := range w.turns {
		parts := w.partsOf(&w.turns[i])
		for j := range parts {
			if parts[j].kind == partImage && w.turns[i].role == roleAssistant {
				parts[j] = part{kind: partOther, name: lit("images"), place: parts[j].place}
			}
		}
	}
}

// appendImage appends an image of chat completions.
func appendImage(b []byte, media, data, url lit, index int) []byte {
	b = append(b, `{"type":"image_url","image_url":{"url":"`...)
	if len(data) > 0 {
		b = append(append(b, "data:"...), media...)
		b = append(append(b, ";base64,"...), data...)
	} else {
		b = append(b, url...)
	}
	b = strconv.AppendInt(append(b, `"},"index":`...), int64(index), 10)
	return append(b, '}')
}

// appendSound appends the sound of chat completions, which have no word for the
// type: the client has asked for one, and Gemini gives samples of 16 bits.
func appendSound(b []byte, o *answerContext, data lit) []byte {
	b = appendText(append(b, '{'), "id", literal("audio_"+o.RequestID))
	b = appendText(b, "data", data)
	b = strconv.AppendInt(append(b, `,"expires_at":`...), o.Created, 10)
	return append(b, `,"transcript":""}`...)
}

// appendMediaOf appends the images and the sound of a message.
func appendMediaOf(out []byte, o *answerContext, c *gatheredChoice) []byte {
	images := 0
	var sound []byte
	for i := range c.blocks {
		b := &c.blocks[i]
		switch {
		case b.kind != evMedia:
		case isSound(b.name):
			if piece, err := base64.StdEncoding.DecodeString(b.text.String()); err == nil {
				sound = append(sound, piece...)
			}
		default:
			if images == 0 {
				out = append(out, `,"images":[`...)
			}
			out = appendImage(appendComma(out), b.name, b.text, b.id, images)
			images++
		}
	}
	if images > 0 {
		out = append(out, ']')
	}
	if sound != nil {
		out = appendSound(append(out, `,"audio":`...), o, lit(base64.StdEncoding.EncodeToString(sound)))
	}
	return out
}

// appendGeminiMedium appends a part of Gemini's.
func appendGeminiMedium(b []byte, media, data, url lit) []byte {
	b = appendComma(b)
	if len(data) == 0 {
		return append(appendText(append(b, `{"fileData":{`...), "fileUri", url), "}}"...)
	}
	b = appendText(append(b, `{"inlineData":{`...), "mimeType", media)
	return append(appendText(b, "data", data), "}}"...)
}
