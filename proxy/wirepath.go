// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/url"
	"path"
	"strings"
)

// wirePath is a request's path as HTTP routes see it and as it goes on.
//
// Routes see it decoded, without dot segments, and with runs of slashes as one,
// since a server may read it so: were the bytes compared, /%61dmin, //admin and
// /x/../admin would pass by a rule for /admin. A backend gets the client's own
// bytes, but for dot segments, which are resolved before: both ends must read
// them alike. What servers read in two ways, a slash or backslash in an element or
// a parameter after ";", is looked up both ways; where that leads to two rules the
// request is refused.
type wirePath struct {
	match string
	other string // the second reading; "": there is none
	send  string // escaped
}

// readPath says false for a path that no route takes.
func readPath(u *url.URL) (w wirePath, ok bool) {
	p := u.Path
	if p == "" || p[0] != '/' || strings.IndexByte(p, 0) >= 0 {
		return w, false
	}
	if u.RawPath == "" && !strings.Contains(p, "//") && !strings.Contains(p, "/.") && !strings.ContainsAny(p, `\;`) {
		return wirePath{match: p, send: u.EscapedPath()}, true
	}
	w.match, w.send = p, u.EscapedPath()
	second := withoutParameters(strings.ReplaceAll(p, `\`, "/"))
	if slash := encodedSlash(w.send); slash || second != p {
		if hasDots(second) {
			return w, false // two readings and dot segments: no telling where it leads
		}
		w.other = merged(second)
		if slash {
			// Kept encoded in the first reading, so that it is part of an element.
			kept := strings.NewReplacer("%2F", "%252F", "%2f", "%252f").Replace(w.send)
			first, err := url.PathUnescape(kept)
			if err != nil {
				return w, false
			}
			w.match = first
		}
		w.match = merged(w.match)
		return w, true
	}
	w.match = merged(p)
	if hasDots(p) {
		w.send = (&url.URL{Path: w.match}).EscapedPath()
	}
	return w, true
}

func encodedSlash(escaped string) bool {
	return strings.Contains(escaped, "%2F") || strings.Contains(escaped, "%2f")
}

// withoutParameters is p as servers see it that take ";x" out of elements, so
// that "..;x" is "..".
func withoutParameters(p string) string {
	if strings.IndexByte(p, ';') < 0 {
		return p
	}
	var out strings.Builder
	for element := range strings.SplitAfterSeq(p, "/") {
		name, _, cut := strings.Cut(element, ";")
		out.WriteString(name)
		if cut && strings.HasSuffix(element, "/") {
			out.WriteByte('/')
		}
	}
	return out.String()
}

// hasDots says that p has an element "." or "..".
func hasDots(p string) bool {
	for rest := p; ; {
		i := strings.Index(rest, "/.")
		if i < 0 {
			return false
		}
		rest = rest[i+1:]
		element, _, _ := strings.Cut(rest, "/")
		if element == "." || element == ".." {
			return true
		}
	}
}

// merged is p with runs of slashes as one and dot segments resolved; a last
// slash stays.
func merged(p string) string {
	c := path.Clean(p)
	if c != "/" && (strings.HasSuffix(p, "/") || strings.HasSuffix(p, "/.") || strings.HasSuffix(p, "/..")) {
		c += "/"
	}
	return c
}

// afterPrefix is what follows the prefix, which the path has matched, in its
// escaped form: "" or "/rest". false: the bytes cannot be cut there.
func (w *wirePath) afterPrefix(prefix string) (rest string, ok bool) {
	prefix = strings.TrimRight(prefix, "/")
	rest = w.send
	for n := strings.Count(prefix, "/"); n > 0; n-- {
		rest = strings.TrimLeft(rest, "/")
		i := strings.IndexByte(rest, '/')
		if i < 0 {
			i = len(rest)
		}
		rest = rest[i:]
	}
	head, err := url.PathUnescape(w.send[:len(w.send)-len(rest)])
	if err != nil || strings.TrimRight(merged("/"+head), "/") != prefix {
		return "", false
	}
	return rest, true
}

// replacePrefix puts with in the place of prefix. One slash joins the two parts.
func (w *wirePath) replacePrefix(prefix, with string) (escaped string, ok bool) {
	rest, ok := w.afterPrefix(prefix)
	if !ok {
		return "", false
	}
	with = strings.TrimRight(escape(with), "/")
	if rest != "" && with != "" {
		rest = "/" + strings.TrimLeft(rest, "/")
	}
	if out := with + rest; out != "" {
		return out, true
	}
	return "/", true
}

// escape is a path from the configuration as it goes out: what is escaped stays.
func escape(p string) string {
	if u, err := url.Parse(p); err == nil && u.Host == "" && u.Scheme == "" && u.RawQuery == "" && u.Fragment == "" && u.Path != "" {
		return u.EscapedPath()
	}
	return (&url.URL{Path: p}).EscapedPath()
}
