// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds on a document. They keep hostile text from taking memory or stack:
// the YAML parser recurses once per level and once per key of a mapping, and
// its work grows with the square of the keys of one mapping.
const (
	maxFile    = 4 << 20
	maxDepth   = 64
	maxKeys    = 200_000 // ten thousand models have half as many
	maxInOne   = 20_000  // keys of one mapping
	maxAnchors = 100
	maxAliases = 1_000
	maxNodes   = 500_000 // after aliases are followed
)

type kind int

const (
	nullKind kind = iota
	boolKind
	intKind
	floatKind
	textKind
	mappingKind
	sequenceKind
)

func (k kind) String() string {
	return [...]string{"nothing", "a boolean", "a whole number", "a number", "text", "a mapping", "a list"}[k]
}

// node is one value of a document with its place. Nodes are shared where an
// alias refers to an anchor, so they are never changed once built.
type node struct {
	kind      kind
	line, col int
	text      string // of a scalar, as written but without quotes
	quoted    bool
	entries   []entry // of a mapping, in file order, duplicates included
	items     []*node // of a sequence
	size      int     // nodes below and including this one
}

type entry struct {
	key       string
	line, col int
	value     *node
}

// get returns the last entry of that key, or nil.
func (n *node) get(key string) *entry {
	if n == nil {
		return nil
	}
	for i := len(n.entries) - 1; i >= 0; i-- {
		if n.entries[i].key == key {
			return &n.entries[i]
		}
	}
	return nil
}

// place finds line and column of a path: of a scalar its own, of a mapping or
// list its key's. A path that leads beyond the document gets the place of the
// last step that exists.
func (n *node) place(path string) (line, col int) {
	if n == nil {
		return 0, 0
	}
	line, col = n.line, n.col
	for _, s := range splitPath(path) {
		if s.index >= 0 {
			if n.kind != sequenceKind || s.index >= len(n.items) {
				return line, col
			}
			n = n.items[s.index]
			line, col = n.line, n.col
			continue
		}
		e := n.get(s.key)
		if e == nil {
			return line, col
		}
		n = e.value
		line, col = e.line, e.col
		if n.kind < mappingKind && n.kind != nullKind {
			line, col = n.line, n.col
		}
	}
	return line, col
}

// has says whether the document itself holds something at path.
func (n *node) has(path string) bool {
	for _, s := range splitPath(path) {
		switch {
		case n == nil:
			return false
		case s.index >= 0:
			if s.index >= len(n.items) {
				return false
			}
			n = n.items[s.index]
		default:
			e := n.get(s.key)
			if e == nil {
				return false
			}
			n = e.value
		}
	}
	return n != nil
}

// readTree parses text into a tree. A nil tree comes with a problem.
func readTree(file string, text []byte) (root *node, ps Problems) {
	fail := func(line, col int, what, hint string) (*node, Problems) {
		return nil, Problems{{File: file, Line: line, Col: col, What: what, Hint: hint}}
	}
	// The parser is foreign code that meets arbitrary text here: a fault of
	// its own must not end a running gateway at a reload.
	defer func() {
		if r := recover(); r != nil {
			root, ps = fail(1, 1, "is not YAML that can be read", "look for unbalanced quotes or brackets")
		}
	}()
	if len(text) > maxFile {
		return fail(1, 1, fmt.Sprintf("is larger than %s", Size(maxFile)), "")
	}
	text = bytes.TrimPrefix(text, []byte("\xEF\xBB\xBF")) // some editors begin a file with it
	if line, col, what := checkBytes(text); what != "" {
		return fail(line, col, what, "save the file as UTF-8 text")
	}
	tokens := lexer.Tokenize(string(text))
	bounds := TokenBounds{
		Depth: maxDepth, Keys: maxKeys, InOne: maxInOne, Anchors: maxAnchors, Aliases: maxAliases,
		KeysHint: "keep long lists of members in a file of their own (members.file), and write models of one kind as one pattern (openai/*)",
	}
	if p := bounds.Check(tokens); p != nil {
		p.File = file
		return nil, Problems{p}
	}
	doc, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var at yaml.Error
		if errors.As(err, &at) && at.GetToken() != nil {
			pos := at.GetToken().Position
			hint := ""
			switch line := lineAt(text, pos.Line); {
			case strings.Contains(line, "${"):
				hint = `inside { } and [ ] a variable must be in quotes: "${NAME}"`
			case strings.HasPrefix(strings.TrimLeft(line, " "), "\t"):
				hint = "indent with spaces"
			}
			what := strings.ReplaceAll(firstLine(at.GetMessage()), "'\t'", "tab")
			return fail(pos.Line, max(pos.Column, 1), "is not valid YAML: "+what, hint)
		}
		return fail(1, 1, "is not valid YAML", "")
	}
	var body ast.Node
	for _, d := range doc.Docs {
		if d == nil || d.Body == nil || d.Body.Type() == ast.CommentGroupType {
			continue
		}
		if _, ok := d.Body.(*ast.DirectiveNode); ok {
			continue
		}
		if body != nil {
			line, col := position(d.Body)
			return fail(line, col, "holds a second document", "write one document per file")
		}
		body = d.Body
	}
	if body == nil {
		return fail(1, 1, "is empty", "")
	}
	b := builder{anchors: map[string]*node{}}
	root = b.build(body, 0)
	for _, p := range b.problems {
		p.File = file
	}
	if len(b.problems) > 0 {
		return nil, b.problems
	}
	return root, nil
}

// lineAt is the text of a line, counted from 1.
func lineAt(text []byte, n int) string {
	for line := range strings.Lines(string(text)) {
		if n--; n == 0 {
			return line
		}
	}
	return ""
}

func firstLine(s string) string { s, _, _ = strings.Cut(s, "\n"); return s }

// checkBytes finds the first byte that no text holds.
func checkBytes(text []byte) (line, col int, what string) {
	line, col = 1, 1
	for i, r := range string(text) {
		switch {
		case r == '\n':
			line, col = line+1, 1
			continue
		case r == '\uFFFD' && text[i] != 0xEF:
			return line, col, "is not UTF-8"
		case r < 0x20 && r != '\t' && r != '\r', r == 0x7F:
			return line, col, "holds a control character"
		}
		col++
	}
	return 0, 0, ""
}

// TokenBounds are bounds on YAML text that must be known before a parser
// recurses.
type TokenBounds struct {
	Depth, Keys, Anchors, Aliases int
	InOne                         int    // keys of one mapping, and of those that stand like it in a list; 0: no bound of its own
	KeysHint                      string // what to do about too many keys
}

// level is a mapping that is open, in block style with its indentation.
type level struct{ indent, keys int }

// enter counts a key, or an entry of a list, on a line that begins at indent. Of
// entries that is no key.
func enter(open []level, indent, keys int) []level {
	for len(open) > 0 && open[len(open)-1].indent > indent {
		open = open[:len(open)-1]
	}
	if len(open) == 0 || open[len(open)-1].indent < indent {
		open = append(open, level{indent: indent})
	}
	open[len(open)-1].keys += keys
	return open
}

// Check says what is beyond the bounds; nil: nothing.
func (b TokenBounds) Check(tokens token.Tokens) *Problem {
	var keys, anchors, aliases, line, inLine, from, indent, most int
	var flow, block []level
	for _, t := range tokens {
		what, hint := "", ""
		if t.Position.Line != from && t.Type != token.CommentType {
			from, indent = t.Position.Line, t.Position.Column-1
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			flow = append(flow, level{})
		case token.SequenceEndType, token.MappingEndType:
			flow = flow[:max(len(flow)-1, 0)]
		case token.SequenceEntryType, token.MappingKeyType, token.TagType:
			if t.Type == token.SequenceEntryType && len(flow) == 0 {
				block = enter(block, indent, 0)
			}
			// Each of these on one line may open a level.
			if t.Position.Line != line {
				line, inLine = t.Position.Line, 0
			}
			inLine++
		case token.MappingValueType:
			keys++
			if n := len(flow); n > 0 {
				flow[n-1].keys++
				most = max(most, flow[n-1].keys)
			} else {
				block = enter(block, indent, 1)
				most = max(most, block[len(block)-1].keys)
			}
		case token.AnchorType:
			anchors++
		case token.AliasType:
			aliases++
		}
		switch {
		case len(flow) > b.Depth || inLine > b.Depth || len(block) > b.Depth:
			what = fmt.Sprintf("is nested more than %d levels deep", b.Depth)
		case keys > b.Keys:
			what, hint = fmt.Sprintf("has more than %d keys", b.Keys), b.KeysHint
		case b.InOne > 0 && most > b.InOne:
			what = fmt.Sprintf("has more than %d keys in one mapping", b.InOne)
		case anchors > b.Anchors:
			what = fmt.Sprintf("has more than %d anchors", b.Anchors)
		case aliases > b.Aliases:
			what = fmt.Sprintf("has more than %d aliases", b.Aliases)
		default:
			continue
		}
		return &Problem{Line: t.Position.Line, Col: max(t.Position.Column, 1), What: what, Hint: hint}
	}
	return nil
}

// builder turns the parser's tree into nodes.
type builder struct {
	anchors  map[string]*node
	problems Problems
	nodes    int
}

func (b *builder) fail(n ast.Node, what, hint string) *node {
	line, col := position(n)
	if len(b.problems) == 0 { // what follows the first is mostly its consequence
		b.problems = Problems{{Line: line, Col: col, What: what, Hint: hint}}
	}
	return &node{kind: nullKind, line: line, col: col, size: 1}
}

func (b *builder) build(n ast.Node, depth int) *node {
	if depth > maxDepth {
		return b.fail(n, fmt.Sprintf("is nested more than %d levels deep", maxDepth), "")
	}
	if len(b.problems) > 0 {
		return &node{size: 1}
	}
	var out *node
	switch n := n.(type) {
	case *ast.AnchorNode:
		out = b.build(n.Value, depth+1)
		b.anchors[n.Name.GetToken().Value] = out
		return out
	case *ast.AliasNode:
		name := n.Value.GetToken().Value
		out, ok := b.anchors[name]
		if !ok {
			return b.fail(n, fmt.Sprintf("alias *%s has no anchor before it", name), "")
		}
		if b.nodes += out.size; b.nodes > maxNodes {
			return b.fail(n, fmt.Sprintf("aliases expand to more than %d values", maxNodes), "")
		}
		return out
	case *ast.TagNode:
		if tag := n.Start.Value; tag != "!!str" {
			return b.fail(n, fmt.Sprintf("tag %s is not known", tag), "leave it out")
		}
		out = b.build(n.Value, depth+1)
		if out.kind >= mappingKind {
			return b.fail(n, "tag !!str is for a single value", "leave it out")
		}
		c := *out
		c.kind, c.quoted = textKind, true
		return &c
	case *ast.MappingNode:
		out = &node{kind: mappingKind}
		b.mapping(out, n.Values, depth)
	case *ast.MappingValueNode:
		out = &node{kind: mappingKind}
		b.mapping(out, []*ast.MappingValueNode{n}, depth)
	case *ast.SequenceNode:
		out = &node{kind: sequenceKind, size: 1}
		for _, v := range n.Values {
			item := b.build(v, depth+1)
			out.items = append(out.items, item)
			out.size += item.size
		}
	default:
		out = b.scalar(n)
	}
	if b.nodes++; b.nodes > maxNodes {
		return b.fail(n, fmt.Sprintf("has more than %d values", maxNodes), "")
	}
	out.line, out.col = position(n)
	return out
}

func (b *builder) scalar(n ast.Node) *node {
	if n == nil {
		return &node{size: 1}
	}
	out := &node{size: 1, text: n.GetToken().Value}
	switch n := n.(type) {
	case *ast.NullNode:
		out.kind = nullKind
	case *ast.BoolNode:
		out.kind = boolKind
	case *ast.IntegerNode:
		out.kind = intKind
	case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		out.kind = floatKind
	case *ast.StringNode:
		out.kind, out.text = textKind, n.Value
		out.quoted = n.Token.Type == token.DoubleQuoteType || n.Token.Type == token.SingleQuoteType
	case *ast.LiteralNode:
		out.kind, out.text, out.quoted = textKind, n.Value.Value, true
	default:
		return b.fail(n, "is not a value", "")
	}
	return out
}

// mapping adds values to out. A merge key (<<) adds what out does not have.
func (b *builder) mapping(out *node, values []*ast.MappingValueNode, depth int) {
	out.size = 1
	var merged []entry
	for _, v := range values {
		value := b.build(v.Value, depth+1)
		if v.Key.IsMergeKey() {
			sources := []*node{value}
			if value.kind == sequenceKind {
				sources = value.items
			}
			for _, s := range sources {
				if s.kind != mappingKind {
					b.fail(v.Value, "a merge key needs a mapping", "write <<: *anchor")
					return
				}
				merged = append(merged, s.entries...)
				b.nodes += s.size
			}
			continue
		}
		key := b.scalar(v.Key)
		if key.kind >= mappingKind || key.kind == nullKind && len(b.problems) == 0 {
			b.fail(v.Key, "a key must be text", "")
			return
		}
		line, col := position(v.Key)
		out.entries = append(out.entries, entry{key: key.text, line: line, col: col, value: value})
		out.size += value.size
	}
	for _, e := range merged {
		if out.get(e.key) == nil {
			out.entries = append(out.entries, e)
			out.size += e.value.size
		}
	}
}

// position is where n begins.
func position(n ast.Node) (line, col int) {
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
		t := n.GetToken()
		if t == nil || t.Position == nil {
			return 1, 1
		}
		return t.Position.Line, max(t.Position.Column, 1)
	}
	return 1, 1
}
