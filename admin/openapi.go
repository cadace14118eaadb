// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"unicode"

	"github.com/penstock/penstock/config"
)

// This file makes the OpenAPI document of the routes, from their types.

// schemas collects the types of the documents.
type schemas map[string]any

// document is the OpenAPI document.
func document(list []route, version string) map[string]any {
	types := schemas{"Failure": map[string]any{
		"type": "object", "required": []string{"error"},
		"properties": map[string]any{"error": map[string]any{
			"type": "object", "required": []string{"message"},
			"properties": map[string]any{
				"message": text("what is wrong"), "param": text("the field at fault"), "code": text("invalid, not_found, exists, outdated, read_only, in_use or store_unreachable"), "hint": text("what to try"),
			},
		}},
	}}
	paths := map[string]any{}
	for i := range list {
		rt := &list[i]
		at := strings.ReplaceAll(rt.path, "...}", "}")
		item, _ := paths[at].(map[string]any)
		if item == nil {
			item = map[string]any{}
			paths[at] = item
		}
		item[strings.ToLower(rt.method)] = rt.operation(types)
	}
	return map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{
			"title": "Penstock admin API", "version": version,
			"description": "Tenants, keys and their limits, the audit trail, prices and usage. Documents are read as strictly as a configuration.",
		},
		"paths": paths,
		"components": map[string]any{
			"schemas":         types,
			"securitySchemes": map[string]any{"token": map[string]any{"type": "http", "scheme": "bearer"}, "certificate": map[string]any{"type": "mutualTLS"}},
		},
		"security": []any{map[string]any{"token": []any{}}, map[string]any{"certificate": []any{}}, map[string]any{}},
	}
}

func text(about string) map[string]any {
	return map[string]any{"type": "string", "description": about}
}

func (rt *route) operation(types schemas) map[string]any {
	op := map[string]any{"operationId": rt.id, "summary": rt.summary, "description": "Needs the role " + rt.role.String() + "."}
	var params []any
	param := func(name, in, about string, required bool) {
		params = append(params, map[string]any{"name": name, "in": in, "description": about, "required": required, "schema": map[string]any{"type": "string"}})
	}
	for rest := rt.path; ; {
		_, after, found := strings.Cut(rest, "{")
		if !found {
			break
		}
		name, tail, _ := strings.Cut(after, "}")
		about := "its id, or TENANT:NAME"
		if strings.HasSuffix(name, "...") {
			about = "path, such as acme/search; its slashes may stand as they are"
		}
		param(strings.TrimSuffix(name, "..."), "path", about, true)
		rest = tail
	}
	about := map[string]string{
		"limit": "how many at most, from 1 to " + strconv.Itoa(maxLimit) + "; " + strconv.Itoa(defaultLimit) + " unless given", "cursor": "next of the answer before",
		"dryRun": "true: everything is checked, and nothing is changed", "under": "path of a tenant", "tenant": "path of a tenant", "unit": "only limits of this unit, such as usd",
	}
	for _, name := range rt.query {
		param(name, "query", about[name], false)
	}
	if rt.method != http.MethodGet && (rt.guarded || strings.Contains(rt.path, "{id}")) {
		param("If-Match", "header", "the ETag of what was read; * for any", rt.guarded)
	}
	if params != nil {
		op["parameters"] = params
	}
	if rt.body != nil {
		op["requestBody"] = map[string]any{"required": true, "content": content(types.of(rt.body))}
	}
	answers := map[string]any{"default": map[string]any{"description": "what is wrong", "content": content(reference("Failure"))}}
	ok := map[string]any{"description": "done"}
	if rt.answer != nil {
		ok["content"] = content(types.of(rt.answer))
		if rt.answer.Kind() == reflect.Struct && single(rt.answer) {
			ok["headers"] = map[string]any{"ETag": map[string]any{"description": "the revision, for If-Match", "schema": map[string]any{"type": "string"}}}
		}
	}
	answers[strconv.Itoa(rt.status)] = ok
	op["responses"] = answers
	return op
}

// single says that an answer is one document with a revision.
func single(t reflect.Type) bool {
	_, has := t.FieldByName("Revision")
	return has
}

func content(schema map[string]any) map[string]any {
	return map[string]any{"application/json": map[string]any{"schema": schema}}
}

func reference(name string) map[string]any {
	return map[string]any{"$ref": "#/components/schemas/" + name}
}

// of is the schema of a type; that of a struct is collected.
func (s schemas) of(t reflect.Type) map[string]any {
	switch t {
	case reflect.TypeFor[config.Duration]():
		return map[string]any{"type": "string", "description": "a span with its unit, such as 500ms, 2s or 10m"}
	case reflect.TypeFor[config.Size]():
		return map[string]any{"type": "string", "description": "a size with its unit, such as 32MiB"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.of(t.Elem())
	case reflect.Struct:
		return s.object(t)
	case reflect.Slice:
		return map[string]any{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": s.of(t.Elem())}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.String:
		return map[string]any{"type": "string"}
	}
	return map[string]any{} // anything
}

func (s schemas) object(t reflect.Type) map[string]any {
	name := string(unicode.ToUpper(rune(t.Name()[0]))) + t.Name()[1:]
	if _, there := s[name]; there {
		return reference(name)
	}
	properties, required := map[string]any{}, []string{}
	object := map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
	s[name] = object // before its fields, which may refer to it
	for i := range t.NumField() {
		f := t.Field(i)
		key := f.Tag.Get("yaml")
		if key == "" { // encoded by encoding/json
			var option string
			if key, option, _ = strings.Cut(f.Tag.Get("json"), ","); key != "" && option == "" {
				required = append(required, key)
			}
		}
		if key == "" {
			continue
		}
		p := s.of(f.Type)
		if enum := f.Tag.Get("enum"); enum != "" {
			p["enum"] = strings.Split(enum, "|")
		}
		bound(p, "minimum", f.Tag.Get("min"))
		bound(p, "maximum", f.Tag.Get("max"))
		if def, has := f.Tag.Lookup("default"); has && p["type"] == "string" {
			p["default"] = def
		}
		properties[key] = p
	}
	if len(required) > 0 {
		object["required"] = required
	}
	return reference(name)
}

// bound adds a bound of a number.
func bound(p map[string]any, word, value string) {
	if n, err := strconv.ParseFloat(value, 64); err == nil && (p["type"] == "integer" || p["type"] == "number") {
		p[word] = n
	}
}
