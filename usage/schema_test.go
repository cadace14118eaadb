// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/golden"
)

// TestRecordSchema holds docs/record.schema.json to the type Record: names, types
// and what each field says of itself. A change of it is a change for everybody
// who reads records; write it with -update, and tell of it in CHANGELOG.md.
func TestRecordSchema(t *testing.T) {
	s := schema{comments: map[string]string{}}
	for _, dir := range []string{".", "../llm"} {
		s.readComments(t, dir)
	}
	root := s.of(t, reflect.TypeFor[Record]())
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "The record of one request"
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(root); err != nil {
		t.Fatal(err)
	}
	const path = "../docs/record.schema.json"
	if golden.Update() {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(have, b.Bytes()) {
		t.Errorf("%s is not what usage.Record says (%v): run go test ./usage -update, and read the change", path, err)
	}
}

// schema makes JSON Schema of Go types.
type schema struct {
	comments map[string]string // of fields, by Type.Field
}

// readComments takes what fields say of themselves, behind or above them.
func (s *schema) readComments(t *testing.T, dir string) {
	files, _ := filepath.Glob(filepath.Join(dir, "*.go"))
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			ts, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			st, ok := ts.Type.(*ast.StructType)
			if !ok {
				return true
			}
			for _, field := range st.Fields.List {
				text := field.Comment.Text()
				if text == "" {
					text = field.Doc.Text()
				}
				for _, id := range field.Names {
					s.comments[ts.Name.Name+"."+id.Name] = strings.Join(strings.Fields(text), " ")
				}
			}
			return true
		})
	}
}

func (s *schema) of(t *testing.T, typ reflect.Type) map[string]any {
	switch typ {
	case reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case reflect.TypeFor[Cost]():
		return map[string]any{"type": []string{"number", "null"}, "description": "USD; null: not known"}
	case reflect.TypeFor[TraceID]():
		return map[string]any{"type": "string", "pattern": "^[0-9a-f]{32}$"}
	case reflect.TypeFor[SpanID]():
		return map[string]any{"type": "string", "pattern": "^[0-9a-f]{16}$"}
	case reflect.TypeFor[Counts]().Field(0).Type: // int
		return map[string]any{"type": "integer"}
	}
	if _, ok := reflect.PointerTo(typ).MethodByName("MarshalText"); ok {
		return map[string]any{"type": "string"}
	}
	switch typ.Kind() {
	case reflect.Pointer:
		return s.of(t, typ.Elem())
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": s.of(t, typ.Elem())}
	case reflect.Struct:
		properties := map[string]any{}
		var required []string
		s.fields(t, typ, properties, &required)
		return map[string]any{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
	}
	t.Fatalf("the schema has no word for %s", typ)
	return nil
}

func (s *schema) fields(t *testing.T, typ reflect.Type, properties map[string]any, required *[]string) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			s.fields(t, f.Type, properties, required)
			continue
		case name == "-":
			continue
		}
		p := maps.Clone(s.of(t, f.Type))
		if text := s.comments[typ.Name()+"."+f.Name]; text != "" {
			if own, ok := p["description"].(string); ok {
				text += " (" + own + ")"
			}
			p["description"] = text
		}
		properties[name] = p
		if options == "" {
			*required = append(*required, name)
		}
	}
}
