// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/penstock/penstock/config"
)

// Bounds on a file that is imported. They keep hostile text from taking memory
// or stack, and what comes out below the bounds of package config.
const (
	importMaxFile    = 4 << 20
	importMaxDepth   = 32
	importMaxKeys    = 20_000
	importMaxAnchors = 100
	importMaxAliases = 1_000
	importMaxNodes   = 200_000 // after aliases are followed
)

type treeKind int

const (
	treeNull treeKind = iota
	treeBool
	treeInt
	treeFloat
	treeText
	treeMap
	treeList
)

func (k treeKind) String() string {
	return [...]string{"nothing", "true or false", "a whole number", "a number", "text", "a mapping", "a list"}[k]
}

// treeNode is one value of an imported file. No two places share one, so that
// each remembers for itself what was read of it.
type treeNode struct {
	kind    treeKind
	line    int
	text    string // of a scalar
	entries []treeEntry
	items   []*treeNode
}

type treeEntry struct {
	key   string
	line  int
	value *treeNode
	read  bool // somebody has looked at it
}

// take is the value of a key, which then counts as read; nil where there is none,
// and where it is null.
func (n *treeNode) take(key string) *treeNode {
	if n == nil {
		return nil
	}
	for i := range n.entries {
		if e := &n.entries[i]; e.key == key {
			e.read = true
			if e.value.kind == treeNull {
				return nil
			}
			return e.value
		}
	}
	return nil
}

// is says that n is there and of the kind.
func (n *treeNode) is(k treeKind) bool { return n != nil && n.kind == k }

// number reads a number, one in quotes too.
func (n *treeNode) number() (float64, bool) {
	if n == nil || n.kind != treeInt && n.kind != treeFloat && n.kind != treeText {
		return 0, false
	}
	text := strings.ReplaceAll(strings.TrimSpace(n.text), "_", "")
	f, err := strconv.ParseFloat(text, 64)
	if err != nil && n.kind == treeInt {
		i, ierr := strconv.ParseInt(text, 0, 64)
		f, err = float64(i), ierr
	}
	return f, err == nil && !math.IsNaN(f) && !math.IsInf(f, 0)
}

// truth reads a boolean as YAML 1.1 has them, which LiteLLM is written in.
func (n *treeNode) truth() (value, ok bool) {
	if n == nil || n.kind != treeBool && n.kind != treeText {
		return false, false
	}
	switch strings.ToLower(n.text) {
	case "true", "yes", "on":
		return true, true
	case "false", "no", "off":
		return false, true
	}
	return false, false
}

// treeReader turns the parser's tree into nodes.
type treeReader struct {
	anchors  map[string]ast.Node
	problem  *config.Problem // the first
	nodes    int
	repeated []int // lines of keys that are there again
}

// readImport parses text. Lines of keys that come twice in a mapping are told;
// the later one counts.
func readImport(text []byte) (root *treeNode, repeated []int, err error) {
	// The parser is foreign code that meets arbitrary text here.
	defer func() {
		if r := recover(); r != nil {
			root, err = nil, &config.Problem{Line: 1, Col: 1, What: "is not YAML that can be read", Hint: "look for unbalanced quotes or brackets"}
		}
	}()
	if len(text) > importMaxFile {
		return nil, nil, &config.Problem{What: fmt.Sprintf("is larger than %s", config.Size(importMaxFile)), Hint: "split it"}
	}
	text = bytes.TrimPrefix(text, []byte("\xEF\xBB\xBF"))
	if line := strangeLine(text); line > 0 {
		return nil, nil, &config.Problem{Line: line, Col: 1, What: "is not text", Hint: "save the file as UTF-8, without control characters"}
	}
	tokens := lexer.Tokenize(string(text))
	bounds := config.TokenBounds{
		Depth: importMaxDepth, Keys: importMaxKeys, Anchors: importMaxAnchors, Aliases: importMaxAliases,
		KeysHint: "that is more than one configuration may have: split model_list",
	}
	if p := bounds.Check(tokens); p != nil {
		return nil, nil, p
	}
	file, perr := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if perr != nil {
		p := &config.Problem{Line: 1, Col: 1, What: "is not valid YAML"}
		var at yaml.Error
		if errors.As(perr, &at) && at.GetToken() != nil && at.GetToken().Position != nil {
			p.Line, p.Col = at.GetToken().Position.Line, max(at.GetToken().Position.Column, 1)
		}
		return nil, nil, p // the parser's own words may hold a part of the text, and thus a secret
	}
	r := treeReader{anchors: map[string]ast.Node{}}
	for _, d := range file.Docs {
		if d == nil || d.Body == nil || d.Body.Type() == ast.CommentGroupType {
			continue
		}
		if _, ok := d.Body.(*ast.DirectiveNode); ok {
			continue
		}
		if root != nil {
			return nil, nil, &config.Problem{Line: lineOf(d.Body), Col: 1, What: "holds a second document", Hint: "write one document per file"}
		}
		root = r.build(d.Body, 0)
	}
	switch {
	case r.problem != nil:
		return nil, nil, r.problem
	case root == nil:
		return nil, nil, &config.Problem{What: "is empty"}
	}
	return root, r.repeated, nil
}

// strangeLine is the line of the first byte that no text holds; 0: there is none.
func strangeLine(text []byte) int {
	line := 1
	for i, r := range string(text) {
		switch {
		case r == '\n':
			line++
		case r == '\uFFFD' && text[i] != 0xEF, r < 0x20 && r != '\t' && r != '\r', r == 0x7F:
			return line
		}
	}
	return 0
}

func (r *treeReader) fail(n ast.Node, what string) *treeNode {
	if r.problem == nil {
		r.problem = &config.Problem{Line: lineOf(n), Col: 1, What: what}
	}
	return &treeNode{line: lineOf(n)}
}

func (r *treeReader) build(n ast.Node, depth int) *treeNode {
	if r.problem != nil {
		return &treeNode{}
	}
	if depth > importMaxDepth {
		return r.fail(n, fmt.Sprintf("is nested more than %d levels deep", importMaxDepth))
	}
	if r.nodes++; r.nodes > importMaxNodes {
		return r.fail(n, fmt.Sprintf("has more than %d values, those that aliases stand for included", importMaxNodes))
	}
	out := &treeNode{line: lineOf(n)}
	switch n := n.(type) {
	case *ast.AnchorNode:
		out = r.build(n.Value, depth+1)
		r.anchors[n.Name.GetToken().Value] = n.Value
	case *ast.AliasNode:
		target, ok := r.anchors[n.Value.GetToken().Value]
		if !ok {
			return r.fail(n, "holds an alias that has no anchor before it")
		}
		return r.build(target, depth+1)
	case *ast.TagNode:
		if n.Start.Value != "!!str" {
			return r.fail(n, "holds a tag that is not known")
		}
		if out = r.build(n.Value, depth+1); out.kind < treeMap {
			out.kind = treeText
		}
	case *ast.MappingNode:
		out.kind = treeMap
		r.mapping(out, n.Values, depth)
	case *ast.MappingValueNode:
		out.kind = treeMap
		r.mapping(out, []*ast.MappingValueNode{n}, depth)
	case *ast.SequenceNode:
		out.kind = treeList
		for _, v := range n.Values {
			out.items = append(out.items, r.build(v, depth+1))
		}
	default:
		r.scalar(out, n)
		// YAML 1.1, by which LiteLLM reads, has more words for true and false.
		if s, ok := n.(*ast.StringNode); ok && s.Token.Type == token.StringType {
			if on, ok := out.truth(); ok {
				out.kind, out.text = treeBool, strconv.FormatBool(on)
			}
		}
	}
	return out
}

func (r *treeReader) scalar(out *treeNode, n ast.Node) {
	if n == nil {
		return
	}
	out.text = n.GetToken().Value
	switch n := n.(type) {
	case *ast.NullNode:
	case *ast.BoolNode:
		out.kind = treeBool
	case *ast.IntegerNode:
		out.kind = treeInt
	case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		out.kind = treeFloat
	case *ast.StringNode:
		out.kind, out.text = treeText, n.Value
	case *ast.LiteralNode:
		out.kind, out.text = treeText, n.Value.Value
	default:
		r.fail(n, "holds something that is not a value")
	}
}

// mapping adds values to out. A merge key (<<) adds what out does not have.
func (r *treeReader) mapping(out *treeNode, values []*ast.MappingValueNode, depth int) {
	seen := map[string]int{}
	var merged []treeEntry
	for _, v := range values {
		value := r.build(v.Value, depth+1)
		if v.Key.IsMergeKey() {
			sources := []*treeNode{value}
			if value.kind == treeList {
				sources = value.items
			}
			for _, s := range sources {
				if s.kind != treeMap {
					r.fail(v.Value, "holds a merge key (<<) of something that is not a mapping")
					return
				}
				merged = append(merged, s.entries...)
			}
			continue
		}
		key := &treeNode{}
		if r.scalar(key, v.Key); key.kind == treeNull {
			r.fail(v.Key, "holds a key that is not text")
			return
		}
		e := treeEntry{key: key.text, line: lineOf(v.Key), value: value}
		if i, again := seen[e.key]; again {
			r.repeated = append(r.repeated, e.line)
			out.entries[i] = e
			continue
		}
		seen[e.key] = len(out.entries)
		out.entries = append(out.entries, e)
	}
	for _, e := range merged {
		if _, there := seen[e.key]; !there {
			seen[e.key] = len(out.entries)
			out.entries = append(out.entries, e)
		}
	}
}

// lineOf is where n begins.
func lineOf(n ast.Node) int {
	for n != nil {
		switch m := n.(type) {
		case *ast.MappingNode:
			if !m.IsFlowStyle && len(m.Values) > 0 {
				n = m.Values[0].Key
				continue
			}
		case *ast.MappingValueNode:
			n = m.Key
			continue
		}
		if t := n.GetToken(); t != nil && t.Position != nil {
			return t.Position.Line
		}
		break
	}
	return 1
}

// below is path with a key under it.
func below(path, key string) string {
	if r := []rune(key); len(r) > 64 {
		key = string(r[:64]) + "…"
	}
	if key == "" || strings.ContainsFunc(key, func(r rune) bool { return strings.ContainsRune(".[]\"#", r) || !strconv.IsPrint(r) || r == ' ' }) {
		return path + "[" + strconv.Quote(key) + "]"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

func indexed(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }
