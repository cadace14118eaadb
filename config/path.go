// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strconv"
	"strings"
)

// step is one part of a path: a key, or an index when index is not negative.
type step struct {
	key   string
	index int
}

// splitPath reads pools[0].members.labels["a.b"]. It accepts any text; what
// makes no sense leads nowhere.
func splitPath(path string) []step {
	var out []step
	for path != "" {
		switch {
		case path[0] == '.':
			path = path[1:]
		case strings.HasPrefix(path, `["`):
			q, err := strconv.QuotedPrefix(path[1:])
			if err != nil {
				return append(out, step{key: path, index: -1})
			}
			key, _ := strconv.Unquote(q)
			out = append(out, step{key: key, index: -1})
			path = strings.TrimPrefix(path[1+len(q):], "]")
		case path[0] == '[':
			digits, rest, ok := strings.Cut(path[1:], "]")
			i, err := strconv.Atoi(digits)
			if !ok || err != nil || i < 0 {
				return append(out, step{key: path, index: -1})
			}
			out = append(out, step{index: i})
			path = rest
		default:
			end := strings.IndexAny(path, ".[")
			if end < 0 {
				end = len(path)
			}
			out = append(out, step{key: path[:end], index: -1})
			path = path[end:]
		}
	}
	return out
}

// joinKey is path with a key below it; a key that splitPath would misread is
// quoted.
func joinKey(path, key string) string {
	if key == "" || strings.ContainsAny(key, ".[]\" \t\n") {
		return path + "[" + strconv.Quote(key) + "]"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

func joinIndex(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// joinPath puts a relative path below path.
func joinPath(path, rel string) string {
	switch {
	case path == "" || rel == "":
		return path + rel
	case rel[0] == '[':
		return path + rel
	}
	return path + "." + rel
}

// within says whether path is base or lies below it.
func within(path, base string) bool {
	rest, ok := strings.CutPrefix(path, base)
	return ok && (rest == "" || base == "" || rest[0] == '.' || rest[0] == '[')
}
