// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"strconv"

	"github.com/penstock/penstock/internal/jsonedit"
)

// This file translates embeddings between OpenAI's form, Gemini's, and that of
// Vertex AI's predict.

// embedRequest is a request for embeddings in the form where the dialects meet.
type embedRequest struct {
	inputs     []embedInput
	dimensions []byte // a number; nil: the model's own
	base64     bool   // the client wants vectors as base64 of float32
}

type embedInput struct {
	text        lit
	task, title lit // Gemini's
}

// embeddings writes the request for the backend of w.
func (t *Translation) embeddings(r *Request, w *requestWriter) {
	rd := &embedReader{requestReader: *newRequestReader(w.chat, r.body, r.depth)}
	rd.object("body")
	switch r.Op {
	case OpEmbeddings:
		rd.openAI()
	case OpEmbedContent:
		rd.gemini("", &embedInput{})
	default:
		rd.batch()
	}
	if w.err = rd.err; w.err != nil {
		return
	}
	t.vectors, t.base64 = len(rd.inputs), rd.base64
	switch w.backend.Dialect {
	case DialectGemini:
		w.embedGemini(&rd.embedRequest)
	case DialectPredict:
		w.embedPredict(&rd.embedRequest)
	default:
		w.embedOpenAI(&rd.embedRequest)
	}
}

type embedReader struct {
	requestReader
	embedRequest
}

func (r *embedReader) openAI() {
	for name := range r.members() {
		switch name {
		case "model", "stream":
			r.s.Skip()
		case "input":
			r.input(name)
		case "dimensions":
			r.dimensions = r.number(name)
		case "encoding_format":
			switch word := r.word(name); word {
			case "float":
			case "base64":
				r.base64 = true
			default:
				r.refuse(name, "must be float or base64")
			}
		default:
			r.other("", name)
		}
	}
}

// input reads a text or several. Token ids mean nothing to another model.
func (r *embedReader) input(name string) {
	one := func(path string) {
		if r.s.Peek() != jsonedit.String {
			r.s.Skip()
			if r.err == nil {
				r.err = cannot(path, "must be text: token ids are another model's")
			}
			return
		}
		r.inputs = append(r.inputs, embedInput{text: r.text(path)})
	}
	if !r.s.Array() {
		one(name)
		return
	}
	for i := 0; r.element(); i++ {
		one(at(name, i))
	}
}

func (r *embedReader) batch() {
	for name := range r.members() {
		if name != "requests" {
			r.skipModel("", name)
			continue
		}
		if !r.array(name) {
			return
		}
		for i := 0; r.element(); i++ {
			if path := at(name, i); r.object(path) {
				r.gemini(path+".", &embedInput{})
			}
		}
	}
}

// skipModel passes the name of the model, which the path has, and notes all else.
func (r *embedReader) skipModel(prefix, name string) {
	if name == "model" {
		r.s.Skip()
		return
	}
	r.other(prefix, name)
}

// gemini reads one request of Gemini's. prefix is where it stands.
func (r *embedReader) gemini(prefix string, in *embedInput) {
	var dimensions []byte
	for name := range r.members() {
		path := prefix + name
		switch camel(name) {
		case "content":
			r.content(path, in)
		case "taskType":
			in.task = r.text(path)
		case "title":
			in.title = r.text(path)
		case "outputDimensionality":
			dimensions = r.number(path)
		default:
			r.skipModel("", name)
		}
	}
	switch {
	case r.err != nil:
	case len(in.text) == 0:
		r.refuse(prefix+"content", "is missing")
	case len(r.inputs) > 0 && string(dimensions) != string(r.dimensions):
		r.err = cannot(prefix+"outputDimensionality", "must be the same in all requests for this server")
	}
	r.dimensions = dimensions
	r.inputs = append(r.inputs, *in)
}

// content reads the texts of a content, which are one input.
func (r *embedReader) content(path string, in *embedInput) {
	if !r.object(path) {
		return
	}
	for name := range r.members() {
		switch {
		case name == "role":
			r.s.Skip()
		case name != "parts":
			r.other("content.", name)
		case r.s.Peek() == jsonedit.Object:
			r.part(path+".parts", in)
		case r.array(path + ".parts"):
			for i := 0; r.element(); i++ {
				r.part(at(path+".parts", i), in)
			}
		}
	}
	if len(in.text) == 0 {
		r.refuse(path, "has no text")
	}
}

func (r *embedReader) part(path string, in *embedInput) {
	if !r.object(path) {
		return
	}
	for name := range r.members() {
		if name == "text" {
			in.text = append(in.text[:len(in.text):len(in.text)], r.text(path+".text")...)
			continue
		}
		r.s.Skip()
		if r.err == nil {
			r.err = cannot(path+"."+name, "must be text for this server")
		}
	}
}

func (w *requestWriter) embedOpenAI(e *embedRequest) {
	w.out = append(w.out, '{')
	w.quoted("model", literal(w.backend.Model))
	w.member("input")
	w.out = append(w.out, '[')
	for i := range e.inputs {
		w.out = appendLit(appendComma(w.out), e.inputs[i].text)
		w.dropGemini(&e.inputs[i])
	}
	w.out = append(w.out, ']')
	if e.dimensions != nil {
		w.raw("dimensions", e.dimensions)
	}
	w.out = append(w.out, '}')
}

// dropGemini names what only Gemini knows of an input.
func (w *requestWriter) dropGemini(in *embedInput) {
	if in.task != nil {
		w.drop("taskType")
	}
	if in.title != nil {
		w.drop("title")
	}
}

func (w *requestWriter) embedGemini(e *embedRequest) {
	w.out = append(w.out, `{"requests":[`...)
	for i := range e.inputs {
		w.open()
		w.quoted("model", literal(collected(w.backend.Model)))
		w.out = appendText(append(appendMember(w.out, "content"), `{"parts":[{`...), "text", e.inputs[i].text)
		w.out = append(w.out, `}]}`...)
		if e.dimensions != nil {
			w.raw("outputDimensionality", e.dimensions)
		}
		w.out = append(w.out, '}')
	}
	w.out = append(w.out, `]}`...)
}

func (w *requestWriter) embedPredict(e *embedRequest) {
	w.out = append(w.out, `{"instances":[`...)
	for i := range e.inputs {
		in := &e.inputs[i]
		w.open()
		w.quoted("content", in.text)
		if in.task != nil {
			w.quoted("task_type", in.task)
		}
		if in.title != nil {
			w.quoted("title", in.title)
		}
		w.out = append(w.out, '}')
	}
	w.out = append(w.out, ']')
	if e.dimensions != nil {
		w.out = append(appendMember(w.out, "parameters"), `{"outputDimensionality":`...)
		w.out = append(append(w.out, e.dimensions...), '}')
	}
	w.out = append(w.out, '}')
}

// embeddings reads vectors of any dialect and writes them in the client's; nil: they
// are not what was asked for.
func (c *converted) embeddings() []byte {
	vectors, n := make([][]byte, c.t.vectors), 0
	s := jsonedit.NewScanner(c.body, 0)
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		switch name := string(key.Of(c.body)); name {
		case "data", "embeddings", "predictions":
			if !s.Array() {
				s.Skip()
				continue
			}
			for ; s.NextElement(); n++ {
				index := n
				v := c.vector(&s, &index)
				if index >= len(vectors) || vectors[index] != nil || v == nil {
					return nil
				}
				vectors[index] = v
			}
		case "model":
			c.found.readModel(&s, c.body)
		case "usage":
			c.found.readUsage(&s, c.body)
		case "usageMetadata":
			c.found.readGeminiUsage(&s, c.body)
		case "error":
			c.found.readError(&s, c.body)
		default:
			s.Skip()
		}
	}
	if n != len(vectors) || n == 0 {
		return nil
	}
	return c.write(vectors)
}

// vector reads one: an object with the values at some depth, or with a string of
// base64. It gives the JSON that the client wants, nil if there is none.
func (c *converted) vector(s *jsonedit.Scanner, index *int) (v []byte) {
	if !s.Object() {
		s.Skip()
		return nil
	}
	for {
		key, ok := s.NextMember()
		if !ok {
			return v
		}
		switch name := string(key.Of(c.body)); {
		case name == "index":
			*index, _ = count(s, c.body, *index, false)
		case name == "token_count": // of one instance, in its statistics
			var n number
			n.read(s, c.body)
			u := &c.found.usage
			if u.Input += n.n; n.odd {
				u.Source, u.NoPrompt = Estimated, true
			} else if u.Source == Nothing {
				u.Source = Reported
			}
		case (name == "embedding" || name == "values") && s.Peek() == jsonedit.Array:
			v = c.numbers(s.Skip().Of(c.body))
		case name == "embedding" && s.Peek() == jsonedit.String:
			t, _ := s.Text()
			v = c.packed(t.Of(c.body))
		case name == "embedding" || name == "embeddings" || name == "statistics":
			inner := *index
			if deeper := c.vector(s, &inner); deeper != nil {
				v = deeper
			}
		default:
			s.Skip()
		}
	}
}

// numbers is a vector that came as a list.
func (c *converted) numbers(raw []byte) []byte {
	if !c.t.base64 {
		return raw
	}
	var bits []byte
	s := jsonedit.NewScanner(raw, 0)
	for s.Array(); s.NextElement(); {
		n, ok := s.Number()
		if !ok {
			return nil
		}
		f, err := strconv.ParseFloat(string(n.Of(raw)), 32)
		if err != nil {
			return nil
		}
		bits = binary.LittleEndian.AppendUint32(bits, math.Float32bits(float32(f)))
	}
	out := base64.StdEncoding.AppendEncode([]byte{'"'}, bits)
	return append(out, '"')
}

// packed is a vector that came as base64.
func (c *converted) packed(text lit) []byte {
	if c.t.base64 {
		return appendLit(nil, text)
	}
	bits, err := base64.StdEncoding.DecodeString(text.String())
	if err != nil || len(bits)%4 != 0 {
		return nil
	}
	out := []byte{'['}
	for ; len(bits) > 0; bits = bits[4:] {
		f := float64(math.Float32frombits(binary.LittleEndian.Uint32(bits)))
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return nil
		}
		out = strconv.AppendFloat(appendComma(out), f, 'g', -1, 32)
	}
	return append(out, ']')
}

// write writes the vectors in the client's dialect.
func (c *converted) write(vectors [][]byte) []byte {
	u := c.found.usage
	if c.t.Op.Dialect() == DialectGemini {
		lead, tail := []byte(`{"embeddings":[`), "]"
		if c.t.Op == OpEmbedContent {
			lead, tail = []byte(`{"embedding":`), ""
		}
		out := lead
		for _, v := range vectors {
			out = append(append(append(appendComma(out), `{"values":`...), v...), '}')
		}
		if out = append(out, tail...); u.Told() {
			out = appendInt(append(out, `,"usageMetadata":{"promptTokenCount":`...), u.Prompt())
			out = append(out, '}')
		}
		return append(out, '}')
	}
	out := []byte(`{"object":"list","data":[`)
	for i, v := range vectors {
		out = appendInt(append(appendComma(out), `{"object":"embedding","index":`...), i)
		out = append(append(append(out, `,"embedding":`...), v...), '}')
	}
	model := c.o.Model
	for _, name := range [...]string{c.found.served, c.t.model} {
		if model == "" {
			model = name
		}
	}
	out = appendText(append(out, ']'), "model", literal(model))
	if !u.Told() {
		u.Input = c.o.InputTokens
	}
	out = appendInt(append(out, `,"usage":{"prompt_tokens":`...), u.Prompt())
	out = appendInt(append(out, `,"total_tokens":`...), u.Prompt())
	return append(out, "}}"...)
}
