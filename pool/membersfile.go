// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/penstock/penstock/config"
)

// ParseMembers reads a members file: a YAML list whose entries are
// "host:port" or {address: host:port, labels: {name: value}}. Unknown keys,
// bad and repeated addresses are errors. The empty list must be written as
// such, since an empty file is more likely one that is being written.
func ParseMembers(text []byte) ([]config.Member, error) {
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, fmt.Errorf("members file: %s", yaml.FormatError(err, false, false))
	}
	if len(file.Docs) != 1 || file.Docs[0].Body == nil {
		return nil, errNoList
	}
	list, ok := file.Docs[0].Body.(*ast.SequenceNode)
	if !ok {
		return nil, errNoList
	}
	members := make([]config.Member, 0, len(list.Values))
	lines := make(map[string]int, len(list.Values))
	for _, node := range list.Values {
		line := node.GetToken().Position.Line
		m, err := memberOf(node)
		if err != nil {
			return nil, fmt.Errorf("members file: line %d: %w", line, err)
		}
		if m.Address, err = canonicalAddress(m.Address); err != nil {
			return nil, fmt.Errorf("members file: line %d: %w", line, err)
		}
		if first, ok := lines[m.Address]; ok {
			return nil, fmt.Errorf("members file: line %d: %s is listed in line %d already", line, m.Address, first)
		}
		lines[m.Address] = line
		members = append(members, m)
	}
	return members, nil
}

// memberOf decodes one entry. Aliases are not followed: a list of addresses
// needs none, and expanding them has no bound.
func memberOf(node ast.Node) (config.Member, error) {
	if s, ok := node.(*ast.StringNode); ok {
		return config.Member{Address: s.Value}, nil
	}
	var m config.Member
	mapping, ok := node.(*ast.MappingNode)
	if !ok {
		return m, fmt.Errorf("a member is \"host:port\" or {address, labels}, not %s", node.Type())
	}
	for _, entry := range mapping.Values {
		switch key := entry.Key.String(); key {
		case "address":
			s, ok := entry.Value.(*ast.StringNode)
			if !ok {
				return m, fmt.Errorf("address is not text")
			}
			m.Address = s.Value
		case "labels":
			labels, ok := entry.Value.(*ast.MappingNode)
			if !ok {
				return m, fmt.Errorf("labels is not a mapping")
			}
			m.Labels = make(map[string]string, len(labels.Values))
			for _, l := range labels.Values {
				name, ok1 := l.Key.(*ast.StringNode)
				value, ok2 := l.Value.(*ast.StringNode)
				if !ok1 || !ok2 {
					return m, fmt.Errorf("labels: %s is not text; quote numbers and true or false", l.Key)
				}
				m.Labels[name.Value] = value.Value
			}
		default:
			return m, fmt.Errorf("unknown key %q; a member has address and labels", key)
		}
	}
	return m, nil
}
