// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"strings"

	"github.com/penstock/penstock/internal/jsonedit"
)

// Body returns the body to send upstream: the original slice when e changes
// nothing, else a copy with the edits spliced in at the byte offsets. Usage is
// asked for only where a stream takes the option: chat and completions.
func (r *Request) Body(e Edits) []byte {
	body, _ := r.Edited(e)
	return body
}

// Edited is Body, and the names of the members that it leaves out.
func (r *Request) Edited(e Edits) (body []byte, dropped []string) {
	var edits []jsonedit.Edit
	if e.Model != "" && e.Model != r.Model && r.offsets.model.Len() > 0 {
		text := []byte(e.Model)
		if !r.offsets.bare {
			text = jsonedit.AppendString(nil, e.Model)
		}
		edits = append(edits, jsonedit.Edit{Span: r.offsets.model, Text: text})
	}
	if e.Model != "" && e.Model != r.Model && len(r.offsets.inner) > 0 {
		text := jsonedit.AppendString(nil, collected(e.Model))
		for _, span := range r.offsets.inner {
			edits = append(edits, jsonedit.Edit{Span: span, Text: text})
		}
	}
	if e.IncludeUsage && !e.Quirks.NoStreamOptions && r.Stream && !r.IncludeUsage && (r.Op == OpChat || r.Op == OpCompletions) {
		edits = append(edits, r.askUsage())
		if n := len(edits); n == 2 && edits[1].Start < edits[0].Start {
			edits[0], edits[1] = edits[1], edits[0]
		}
	}
	body = r.body
	if len(edits) > 0 {
		body = jsonedit.Apply(r.body, edits...)
	}
	if e.Quirks != (Quirks{}) && (r.Op == OpChat || r.Op == OpCompletions) {
		body, dropped = r.adapt(body, &e.Quirks)
	}
	return body, dropped
}

// collected is the name of a model of Gemini's with its collection, as it stands
// in bodies.
func collected(model string) string {
	if strings.Contains(model, "/") {
		return model
	}
	return "models/" + model
}

// askUsage is the edit that sets stream_options.include_usage.
func (r *Request) askUsage() jsonedit.Edit {
	const member = `"include_usage":true`
	o := &r.offsets
	switch {
	case o.includeUsage.Len() > 0:
		return jsonedit.Edit{Span: o.includeUsage, Text: []byte("true")}
	case o.streamOptions.Len() == 0:
		return jsonedit.Insert(r.body, o.object, `"stream_options":{`+member+`}`)
	case r.body[o.streamOptions.Start] != '{': // null
		return jsonedit.Edit{Span: o.streamOptions, Text: []byte(`{` + member + `}`)}
	}
	return jsonedit.Insert(r.body, o.streamOptions, member)
}
