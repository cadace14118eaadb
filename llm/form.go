// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"mime"
	"net/textproto"
	"strings"
	"unicode/utf8"

	"github.com/penstock/penstock/internal/jsonedit"
)

const (
	maxBoundary    = 70      // RFC 2046 section 5.1.1
	maxPartHeader  = 8 << 10 // bytes of the header lines of one part
	maxPartsInForm = 1000
)

// readForm reads the model field of a multipart form (RFC 7578) and passes
// over the other parts, files among them, without looking inside. It is
// stricter than most parsers (CR LF only, no preamble, no empty header), so
// that no server can find another model in the same bytes.
func readForm(req *Request, boundary string) *Error {
	f := form{body: req.body, delimiter: []byte("\r\n--" + boundary)}
	seen := false
	for n := 0; ; n++ {
		if n == maxPartsInForm {
			return InvalidRequest("", "the form has too many parts")
		}
		header, content, last, fault := f.next()
		switch {
		case fault != "":
			return InvalidRequest("", "malformed multipart body: "+fault)
		case last && !seen:
			return missing("model")
		case last:
			return nil
		}
		name, encoded, ok := partName(header)
		if !ok {
			return InvalidRequest("", "malformed multipart body: a part without a readable name")
		}
		var buf [maxFieldName + 4]byte
		folded, exact := foldBytes(&buf, []byte(name))
		switch fields[string(folded)] {
		case fieldEngine:
			return engineField(string(folded))
		case fieldModel:
			value := content.Of(req.body)
			switch {
			case !exact:
				return InvalidRequest("model", "model "+otherCase)
			case seen:
				return InvalidRequest("model", "model "+twice)
			case encoded || !utf8.Valid(value):
				return InvalidRequest("model", "model must be plain UTF-8 text")
			case len(value) > maxModelName:
				return InvalidRequest("model", "model "+modelTooLong)
			}
			seen = true
			req.Model = string(value)
			req.offsets.model, req.offsets.bare = content, true
			if fault := modelFault(req.Model); fault != "" {
				return InvalidRequest("model", "model "+fault)
			}
		}
	}
}

// form is a cursor over the parts of a multipart body.
type form struct {
	body      []byte
	delimiter []byte // with the line end before it
	pos       int    // after the delimiter that begins the next part
}

// next is the next part's header lines and content, or last at the end of the
// form, or what is wrong.
func (f *form) next() (header []byte, content jsonedit.Span, last bool, fault string) {
	if f.pos == 0 {
		if !bytes.HasPrefix(f.body, f.delimiter[2:]) {
			return nil, content, false, "it does not begin with the boundary"
		}
		f.pos = len(f.delimiter) - 2
	}
	rest := f.body[f.pos:]
	if bytes.HasPrefix(rest, []byte("--")) {
		return nil, content, true, ""
	}
	padding := len(rest) - len(bytes.TrimLeft(rest, " \t"))
	if !bytes.HasPrefix(rest[padding:], []byte("\r\n")) {
		return nil, content, false, "no line end after a boundary"
	}
	start := f.pos + padding + 2
	window := f.body[start:min(len(f.body), start+maxPartHeader)]
	end := bytes.Index(window, []byte("\r\n\r\n"))
	if end < 0 {
		return nil, content, false, "the header of a part is too long or unfinished"
	}
	// The line end that closes the header may begin the delimiter no more:
	// content that is empty has a line end of its own.
	content.Start = start + end + 4
	from := content.Start
	for {
		i := bytes.Index(f.body[from:], f.delimiter)
		if i < 0 {
			return nil, content, false, "the last boundary is missing"
		}
		content.End = from + i
		f.pos = content.End + len(f.delimiter)
		if closes(f.body[f.pos:]) {
			return window[:end], content, false, ""
		}
		from = f.pos // a line that only begins like the boundary
	}
}

// closes says whether what follows the bytes of a delimiter makes it one.
func closes(rest []byte) bool {
	if bytes.HasPrefix(rest, []byte("--")) {
		return true
	}
	return bytes.HasPrefix(bytes.TrimLeft(rest, " \t"), []byte("\r\n"))
}

// unfit tells characters that have no place in a header line; a bare CR or LF
// is the end of a line to some parsers.
func unfit(r rune) bool { return r < ' ' && r != '\t' || r == 0x7F }

// noToken tells characters that have no place in a header's name (RFC 9110
// §5.6.2): parsers differ in what they make of a line with one.
func noToken(r rune) bool {
	return r <= ' ' || r >= 0x7F || strings.ContainsRune("\"(),/:;<=>?@[\\]{}", r)
}

// partName is the field name in a part's header lines. encoded says that the
// content is not the plain value: it is a file or has a transfer encoding.
func partName(header []byte) (name string, encoded, ok bool) {
	for line := range strings.SplitSeq(string(header), "\r\n") {
		key, value, colon := strings.Cut(line, ":")
		if !colon || key == "" || strings.ContainsFunc(key, noToken) || strings.ContainsFunc(line, unfit) {
			return "", false, false // folded lines too
		}
		switch textproto.CanonicalMIMEHeaderKey(key) {
		case "Content-Disposition":
			if ok {
				return "", false, false
			}
			kind, params, err := mime.ParseMediaType(value)
			name, ok = params["name"]
			if err != nil || kind != "form-data" || !ok {
				return "", false, false
			}
			_, file := params["filename"]
			encoded = encoded || file
		case "Content-Transfer-Encoding":
			switch strings.ToLower(strings.TrimSpace(value)) {
			case "7bit", "8bit", "binary":
			default:
				encoded = true
			}
		}
	}
	return name, encoded, ok
}
