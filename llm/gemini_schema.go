// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"strings"

	"github.com/penstock/penstock/internal/jsonedit"
)

// This file knows the two forms of schemas that Gemini takes: a subset of that
// of OpenAPI 3.0, in which types are in capitals and null is a mark, and JSON
// Schema in members of other names.

// subsetWords are the keywords of Gemini's subset.
var subsetWords = map[string]bool{
	"type": true, "format": true, "title": true, "description": true, "nullable": true, "enum": true, "items": true,
	"maxItems": true, "minItems": true, "properties": true, "required": true, "minProperties": true, "maxProperties": true,
	"minLength": true, "maxLength": true, "pattern": true, "example": true, "anyOf": true, "propertyOrdering": true,
	"default": true, "minimum": true, "maximum": true,
}

// subsetFormats are the formats that Gemini does not refuse.
var subsetFormats = map[string]bool{
	"enum": true, "date-time": true, "float": true, "double": true, "int32": true, "int64": true,
}

// inSubset says that a schema can be said in the subset as it stands.
func inSubset(schema []byte) bool {
	s := jsonedit.NewScanner(schema, 0)
	return subset(&s, schema) && !s.Failed()
}

func subset(s *jsonedit.Scanner, data []byte) bool {
	if !s.Object() {
		return false
	}
	for {
		key, ok := s.NextMember()
		if !ok {
			return true
		}
		name := string(key.Of(data))
		fits := subsetWords[name]
		switch name {
		case "type", "format":
			t, isText := s.Text()
			if fits = isText && (name == "type" || subsetFormats[string(t.Of(data))]); !isText {
				s.Skip()
			}
		case "items":
			fits = subset(s, data)
		case "properties":
			if fits = s.Object(); !fits {
				break
			}
			for {
				if _, ok := s.NextMember(); !ok {
					break
				}
				if !subset(s, data) {
					return false
				}
			}
		case "anyOf":
			if fits = s.Array(); !fits {
				break
			}
			for s.NextElement() {
				if !subset(s, data) {
					return false
				}
			}
		case "enum":
			if fits = s.Array(); !fits {
				break
			}
			for s.NextElement() {
				if _, isText := s.Text(); !isText {
					return false
				}
			}
		default:
			s.Skip()
		}
		if !fits {
			return false
		}
	}
}

// isEmptySchema says that a schema is that of an object without properties,
// which Gemini refuses in its subset.
func isEmptySchema(schema []byte) bool {
	s := jsonedit.NewScanner(schema, 0)
	if !s.Object() {
		return false
	}
	for {
		key, ok := s.NextMember()
		if !ok {
			return true
		}
		switch string(key.Of(schema)) {
		case "properties":
			if !s.Object() {
				return false
			}
			if _, some := s.NextMember(); some {
				return false
			}
		case "type", "title", "description", "additionalProperties", "required", "$schema":
			s.Skip()
		default:
			return false
		}
	}
}

// jsonSchema is a schema in the subset as JSON Schema. One that is JSON Schema
// already stays what it is.
func jsonSchema(schema []byte) []byte {
	s := jsonedit.NewScanner(schema, 0)
	out := appendSchema(make([]byte, 0, len(schema)+16), &s, schema)
	if s.Failed() {
		return schema
	}
	return out
}

// appendSchema appends the schema at the cursor.
func appendSchema(b []byte, s *jsonedit.Scanner, data []byte) []byte {
	ahead := *s
	nullable := isNullable(&ahead, data)
	if !s.Object() {
		return append(b, s.Skip().Of(data)...)
	}
	b = append(b, '{')
	for {
		key, ok := s.NextMember()
		if !ok {
			return append(b, '}')
		}
		name := string(key.Of(data))
		switch name {
		case "nullable", "propertyOrdering", "example":
			s.Skip()
			continue
		}
		b = appendMember(b, name)
		t, isText := s.Text()
		switch name {
		case "type":
			if !isText {
				b = append(b, s.Skip().Of(data)...)
				continue
			}
			b = appendType(b, strings.ToLower(t.Value(data)), nullable)
		case "properties", "$defs", "definitions":
			if !s.Object() {
				b = append(b, s.Skip().Of(data)...)
				continue
			}
			b = append(b, '{')
			for {
				key, ok := s.NextMember()
				if !ok {
					break
				}
				b = append(appendLit(appendComma(b), key.Of(data)), ':')
				b = appendSchema(b, s, data)
			}
			b = append(b, '}')
		case "anyOf", "oneOf", "allOf", "prefixItems":
			if !s.Array() {
				b = append(b, s.Skip().Of(data)...)
				continue
			}
			b = append(b, '[')
			for s.NextElement() {
				b = appendSchema(appendComma(b), s, data)
			}
			b = append(b, ']')
		case "items", "additionalProperties":
			b = appendSchema(b, s, data)
		default:
			switch isCount := strings.HasPrefix(name, "min") || strings.HasPrefix(name, "max"); {
			case isText && isCount && t.Len() > 0 && len(bytes.Trim(t.Of(data), "0123456789")) == 0:
				b = append(b, t.Of(data)...) // numbers of 64 bits are strings there
			case isText:
				b = appendLit(b, t.Of(data))
			default:
				b = append(b, s.Skip().Of(data)...)
			}
		}
	}
}

func appendType(b []byte, name string, nullable bool) []byte {
	if nullable {
		b = append(b, '[')
	}
	b = appendLit(b, literal(name))
	if nullable {
		b = append(b, `,"null"]`...)
	}
	return b
}

func isNullable(s *jsonedit.Scanner, data []byte) bool {
	if !s.Object() {
		return false
	}
	for {
		key, ok := s.NextMember()
		if !ok {
			return false
		}
		if string(key.Of(data)) == "nullable" && s.Peek() == jsonedit.True {
			return true
		}
		s.Skip()
	}
}
