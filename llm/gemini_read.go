// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"encoding/base64"
	"strings"

	"github.com/penstock/penstock/internal/jsonedit"
)

// This file reads requests for Gemini's generateContent. Its servers take names
// in camel case and in snake case.

type geminiReader struct {
	requestReader
	calls   int           // so far, for the ids of those that have none
	pending []pendingCall // not answered yet
}

// pendingCall is a call that waits for its answer.
type pendingCall struct{ id, name lit }

func readGemini(c *chat, body []byte, depth int) *Error {
	r := &geminiReader{requestReader: *newRequestReader(c, body, depth)}
	r.object("body")
	var system, contents saved // the system prompt comes first, wherever it stands
	for {
		name, ok := r.next()
		if !ok {
			break
		}
		switch known := camel(name); {
		case r.null():
		case known == "contents":
			contents = r.save()
		case known == "systemInstruction":
			system = r.save()
		default:
			r.member(known, name)
		}
	}
	if system.is && r.err == nil {
		r.back(system)
		r.systemInstruction()
	}
	if contents.is && r.err == nil {
		r.back(contents)
		r.contents()
	}
	return r.err
}

// camel is a name in camel case.
func camel(name string) string {
	if strings.IndexByte(name, '_') < 1 {
		return name
	}
	out := make([]byte, 0, len(name))
	for i := 0; i < len(name); i++ {
		c := name[i]
		if c == '_' && i+1 < len(name) && name[i+1]-'a' <= 'z'-'a' {
			i++
			c = name[i] - 'a' + 'A'
		}
		out = append(out, c)
	}
	return string(out)
}

// member reads a member of the top level; name is as the client spelled it.
func (r *geminiReader) member(known, name string) {
	switch known {
	case "model":
		r.s.Skip() // the path has it
	case "tools":
		r.toolList(name)
	case "toolConfig":
		r.toolConfig(name)
	case "generationConfig":
		r.generationConfig(name)
	case "cachedContent":
		r.s.Skip()
		if r.err == nil {
			r.err = cannot(name, "is kept by another provider than this model's")
		}
	default:
		r.other("", name)
	}
}

func (r *geminiReader) systemInstruction() {
	const field = "systemInstruction"
	r.begin(roleSystem, -1)
	if t, ok := r.s.Text(); ok {
		r.add(part{kind: partText, text: t.Of(r.body), place: place{field, -1, -1, -1}})
		return
	}
	if !r.object(field) {
		return
	}
	for {
		key, ok := r.next()
		if !ok {
			return
		}
		if camel(key) == "parts" {
			r.partList(field+".parts", -1, roleSystem)
		} else {
			r.s.Skip() // the role
		}
	}
}

func (r *geminiReader) contents() {
	if r.s.Peek() == jsonedit.Object {
		r.content(0)
		return
	}
	if !r.array("contents") {
		return
	}
	for i := 0; r.element(); i++ {
		r.content(i)
	}
}

func (r *geminiReader) content(i int) {
	if !r.s.Object() {
		r.s.Skip()
		r.refuse(at("contents", i), "must be an object")
		return
	}
	var parts saved
	who := roleUser
	for {
		key, ok := r.next()
		if !ok {
			break
		}
		switch {
		case r.null():
		case key == "role":
			switch string(r.text("role")) {
			case "user", "function", "":
			case "model":
				who = roleAssistant
			case "system":
				who = roleSystem
			default:
				r.refuse("role", "must be user or model")
			}
		case key == "parts":
			parts = r.save()
		default:
			r.other("contents.", key)
		}
	}
	if r.err != nil {
		r.prefix(at("contents", i))
		return
	}
	after := r.s
	if n := len(r.turns); who == roleAssistant && (n == 0 || r.turns[n-1].role != roleAssistant) {
		r.pending = r.pending[:0]
	}
	r.begin(who, i)
	if parts.is {
		r.back(parts)
		r.partList("parts", i, who)
	}
	r.s = after
}

// partList reads the parts of a turn, or one part in their place.
func (r *geminiReader) partList(field string, turn int, who role) {
	if r.s.Peek() == jsonedit.Object {
		r.part(place{field, int32(turn), 0, -1}, who)
		return
	}
	if !r.s.Array() {
		r.refuse(r.path(place{field, int32(turn), -1, -1}), "must be an array")
		return
	}
	for j := 0; r.element(); j++ {
		r.part(place{field, int32(turn), int32(j), -1}, who)
	}
}

// geminiPart is a part, of which the member that has its content is read last.
type geminiPart struct {
	kind    string
	at      saved
	text    lit
	hasText bool
	thought bool
	sign    lit
}

func (r *geminiReader) part(where place, who role) {
	if !r.s.Object() {
		r.s.Skip()
		r.refuse(r.path(where), "must be an object")
		return
	}
	var g geminiPart
	for {
		key, ok := r.next()
		if !ok {
			break
		}
		switch known := camel(key); {
		case r.null():
		case known == "text":
			g.text, g.hasText = r.text("text"), true
		case known == "thought":
			g.thought = truth(r.boolean("thought"))
		case known == "thoughtSignature":
			g.sign = r.text("thoughtSignature")
		case known == "inlineData" || known == "fileData" || known == "functionCall" || known == "functionResponse":
			g.kind, g.at = known, r.save()
		case known == "executableCode" || known == "codeExecutionResult" || known == "toolCall" || known == "toolResponse":
			r.s.Skip()
			if r.err == nil {
				r.err = cannot(key, "is of a tool that this model's server does not run")
			}
		default:
			r.other("contents.parts.", key)
		}
	}
	if r.err != nil {
		r.prefix(r.path(where))
		return
	}
	after := r.s
	p := part{place: where}
	media := false
	switch g.kind {
	case "inlineData", "fileData":
		media = true
		r.back(g.at)
		r.medium(&p, g.kind)
		r.add(p)
	case "functionCall":
		r.back(g.at)
		r.call(&p, g.sign)
	case "functionResponse":
		r.back(g.at)
		r.response(&p)
	default:
		if who == roleAssistant && (g.thought || g.sign != nil && !g.hasText) {
			r.thinking(&p, &g)
		} else if g.hasText {
			p.kind, p.text = partText, g.text
			if g.sign != nil {
				r.ignore("contents.parts.thoughtSignature", nil)
			}
			r.add(p)
		} else {
			r.refuse(r.path(where), "has no content that is known here")
		}
	}
	wrong := media && who != roleUser && (who != roleAssistant || p.kind != partImage) || g.kind == "functionCall" && who != roleAssistant || g.kind == "functionResponse" && who != roleUser
	if r.err == nil && wrong {
		r.refuse(r.path(where), "is not allowed in a content of this role")
	}
	r.s = after
}

// thinking reads a part of what was thought. Several in a row are one, up to the
// signature. Gemini's own signatures no other server can read.
func (r *geminiReader) thinking(p *part, g *geminiPart) {
	sign := clientSign(g.sign)
	if !g.hasText {
		if p.kind, p.sign = partRedacted, sign; sign != nil {
			r.add(*p)
		}
		return
	}
	t := &r.turns[len(r.turns)-1]
	if n := len(r.parts); n > t.from {
		if last := &r.parts[n-1]; last.kind == partThinking && last.sign == nil {
			last.text = append(last.text[:len(last.text):len(last.text)], g.text...)
			last.sign = sign
			return
		}
	}
	p.kind, p.text, p.sign = partThinking, g.text, sign
	r.add(*p)
}

// Signatures of other servers go to a client of Gemini's in base64 once more,
// since clients decode and encode them, perhaps in another alphabet.

// geminiSign is a signature of another server, as a client of Gemini's gets it.
func geminiSign(sign lit) lit {
	return base64.StdEncoding.AppendEncode(nil, []byte(sign.String()))
}

// clientSign undoes geminiSign; nil if there is none, or one of Gemini's own.
func clientSign(sign lit) lit {
	text := strings.TrimRight(strings.NewReplacer("-", "+", "_", "/").Replace(sign.String()), "=")
	raw, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return nil
	}
	for _, tag := range signTags {
		if tag != "" && strings.HasPrefix(string(raw), tag) {
			return literal(string(raw))
		}
	}
	return nil
}

// medium reads data or a URL.
func (r *geminiReader) medium(p *part, member string) {
	path := func(name string) string { return r.path(p.place) + "." + member + name }
	if !r.s.Object() {
		r.refuse(path(""), "must be an object")
		return
	}
	var url lit
	for {
		key, ok := r.next()
		if !ok {
			break
		}
		switch known := camel(key); {
		case r.null():
		case known == "mimeType":
			p.media = strings.ToLower(r.word("mimeType"))
		case known == "data":
			p.data = standardBase64(r.text("data"))
		case known == "fileUri":
			url = r.text("fileUri")
		case known == "displayName":
			p.name = r.text("displayName")
		default:
			r.other("contents.parts."+member+".", key)
		}
	}
	if r.err != nil {
		r.prefix(path(""))
		return
	}
	if p.media == "" && len(url) > 0 {
		p.media = mediaOfName(url.String())
	}
	switch mediumOf([]byte(p.media)) {
	case mediumImage:
		p.kind = partImage
	case mediumAudio:
		p.kind = partAudio
	default:
		p.kind = partFile
	}
	switch {
	case member == "inlineData":
		if len(p.data) == 0 {
			r.refuse(path(".data"), "is missing")
		}
	case len(url) == 0:
		r.refuse(path(".fileUri"), "is missing")
	case isWeb(url) && p.kind != partAudio && !isGeminiFile(url):
		p.url = url
	default:
		p.id = url
	}
	if p.kind == partAudio && p.data == nil {
		r.refuse(path(""), "cannot be fetched; send its data")
	}
}

// isGeminiFile says that a URL is that of a file kept by Gemini's API.
func isGeminiFile(url lit) bool {
	return strings.HasPrefix(url.String(), "https://generativelanguage.googleapis.com/")
}

// standardBase64 is data in the alphabet that all dialects take.
func standardBase64(data lit) lit {
	for i, c := range data {
		if c != '-' && c != '_' {
			continue
		}
		out := append(lit{}, data...)
		for ; i < len(out); i++ {
			switch out[i] {
			case '-':
				out[i] = '+'
			case '_':
				out[i] = '/'
			}
		}
		return out
	}
	return data
}

func (r *geminiReader) call(p *part, sign lit) {
	path := func() string { return r.path(p.place) + ".functionCall" }
	if !r.s.Object() {
		r.refuse(path(), "must be an object")
		return
	}
	p.kind, p.sign, p.args = partToolCall, sign, []byte("{}")
	for {
		key, ok := r.next()
		if !ok {
			break
		}
		switch {
		case r.null():
		case key == "id":
			p.id = r.text("id")
		case key == "name":
			p.name = r.text("name")
		case key == "args":
			p.args = r.typed("args", jsonedit.Object)
		default:
			r.other("contents.parts.functionCall.", key)
		}
	}
	if len(p.name) == 0 {
		r.refuse("name", "is missing")
	}
	if r.err != nil {
		r.prefix(path())
		return
	}
	if r.calls++; len(p.id) == 0 {
		p.id = lit("call_" + string(appendInt(nil, r.calls)))
	}
	r.pending = append(r.pending, pendingCall{p.id, p.name})
	r.add(*p)
}

// response reads what a tool answered, by the id of the call or else the first
// of that name that waits.
func (r *geminiReader) response(p *part) {
	path := func() string { return r.path(p.place) + ".functionResponse" }
	if !r.s.Object() {
		r.refuse(path(), "must be an object")
		return
	}
	p.kind, p.from = partToolResult, len(r.inner)
	var answer, parts saved
	for {
		key, ok := r.next()
		if !ok {
			break
		}
		switch {
		case r.null():
		case key == "id":
			p.id = r.text("id")
		case key == "name":
			p.name = r.text("name")
		case key == "response":
			answer = r.save()
		case key == "parts":
			parts = r.save()
		default:
			r.other("contents.parts.functionResponse.", key)
		}
	}
	if len(p.name) == 0 {
		r.refuse("name", "is missing")
	}
	if r.err != nil {
		r.prefix(path())
		return
	}
	if !r.answers(p) {
		r.refuse(path(), "answers no call of the content before")
		return
	}
	if answer.is {
		r.back(answer)
		r.inner = append(r.inner, part{kind: partText, text: r.answerText(p), place: p.place})
	}
	if parts.is {
		r.back(parts)
		if !r.array(path() + ".parts") {
			return
		}
		for j := 0; r.element(); j++ {
			r.answerPart(p.place, j)
		}
	}
	p.to = len(r.inner)
	r.add(*p)
}

// answers finds the call that a part answers.
func (r *geminiReader) answers(p *part) bool {
	for i, call := range r.pending {
		if len(p.id) > 0 && string(p.id) == string(call.id) || len(p.id) == 0 && string(p.name) == string(call.name) {
			p.id = call.id
			r.pending = append(r.pending[:i], r.pending[i+1:]...)
			return true
		}
	}
	return false
}

// answerText is what a tool answered as text: the string in an object that holds
// nothing else, or the object.
func (r *geminiReader) answerText(p *part) lit {
	if r.s.Peek() != jsonedit.Object {
		r.refuse(r.path(p.place)+".functionResponse.response", "must be an object")
		return nil
	}
	raw := r.raw()
	s := jsonedit.NewScanner(raw, 0)
	var text lit
	name, members := "", 0
	s.Object()
	for {
		key, ok := s.NextMember()
		if !ok {
			break
		}
		members++
		if t, ok := s.Text(); ok {
			name, text = string(key.Of(raw)), t.Of(raw)
		} else {
			s.Skip()
		}
	}
	if members == 1 {
		switch name {
		case "error":
			p.isError = true
			return text
		case "output", "result", "content":
			return text
		}
	}
	return appendEscape(lit{}, raw)
}

func (r *geminiReader) answerPart(where place, j int) {
	where.field = at(where.field, int(where.index)) + ".functionResponse.parts"
	where.index = int32(j)
	if !r.object(r.path(where)) {
		return
	}
	for {
		key, ok := r.next()
		if !ok {
			return
		}
		if known := camel(key); known == "inlineData" || known == "fileData" {
			p := part{place: where}
			r.medium(&p, known)
			r.inner = append(r.inner, p)
		} else {
			r.other("contents.parts.functionResponse.parts.", key)
		}
	}
}
