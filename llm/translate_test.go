// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/internal/golden"
	"github.com/penstock/penstock/llm"
)

// TestTranslateCases translates each request and each answer of it. Flags: path
// (the client's), to (the dialect of the server), model (there), max (MaxOutput),
// strict, quirks (names of fields, by commas), show (the model name for the
// client), usage (yes: AnswerOptions.IncludeUsage), server (whole or stream: what
// the server sends; default: what the client asked for), array (yes:
// AnswerOptions.JSONArray), images (yes: they can be fetched), frames
// (yes: see framesOf). Files: request N gives
// body N, or error N, and what was dropped; upstream N, for the last good
// request, gives client N. The line ends at the end of a body are not in it.
func TestTranslateCases(t *testing.T) {
	golden.Run(t, "testdata/translate/*.txtar", func(t *testing.T, c *golden.Case) map[string]string {
		out := map[string]string{}
		var last *llm.Translation
		for i := 1; c.Has(fmt.Sprint("request", i)); i++ {
			n := fmt.Sprint(i)
			tr, err := translateCase(t, c, strings.TrimSuffix(c.File(t, "request"+n), "\n"))
			if err != nil {
				out["error"+n] = showError(err)
				continue
			}
			last = tr
			out["body"+n] = indented(t, tr.Body)
			if len(tr.Dropped) > 0 {
				out["dropped"+n] = strings.Join(tr.Dropped, "\n") + "\n"
			}
		}
		for i := 1; c.Has(fmt.Sprint("upstream", i)); i++ {
			n := fmt.Sprint(i)
			o := llm.AnswerOptions{
				Stream: last.Stream, Model: c.Flag("show"), IncludeUsage: c.Flag("usage") == "yes",
				RequestID: "req_1", Created: 1700000000, JSONArray: c.Flag("array") == "yes",
			}
			if c.Has("server") || c.Flag("server") != "" {
				o.Stream = c.Flag("server") == "stream"
			}
			in := c.File(t, "upstream"+n)
			if c.Flag("frames") == "yes" {
				in = framesOf(in)
			}
			want := answerOf(last, o, in)
			everyAnswerSplit(t, last, o, in, want)
			out["found"+n] = want.String()
			out["client"+n] = want.Out
			if !last.Stream {
				out["client"+n] = indented(t, []byte(want.Out))
			}
		}
		return out
	})
}

func translateCase(t *testing.T, c *golden.Case, body string) (*llm.Translation, *llm.Error) {
	t.Helper()
	path := c.Flag("path")
	op := llm.OpOf(path)
	req, err := llm.ReadAt(op, path, "application/json", []byte(body), llm.Limits{})
	if err != nil {
		return nil, err
	}
	b := llm.Backend{Dialect: dialectNamed(t, c.Flag("to")), Model: c.Flag("model"), Strict: c.Flag("strict") == "yes"}
	fmt.Sscan(c.Flag("max"), &b.MaxOutput)
	if c.Flag("images") == "yes" {
		b.Images = func(url string) (string, []byte, error) {
			if strings.HasSuffix(url, "/gone") {
				return "", nil, errors.New("404 Not Found")
			}
			return "image/PNG; q=1", []byte("data of " + url), nil
		}
	}
	for name := range strings.SplitSeq(c.Flag("quirks"), ",") {
		if name = strings.TrimSpace(name); name != "" {
			reflect.ValueOf(&b.Quirks).Elem().FieldByName(name).SetBool(true)
		}
	}
	before := bytes.Clone([]byte(body))
	tr, err := llm.Translate(req, b)
	if !bytes.Equal(before, []byte(body)) {
		t.Error("the client's body was changed")
	}
	return tr, err
}

func dialectNamed(t testing.TB, name string) llm.Dialect {
	t.Helper()
	for d := llm.DialectOpenAI; d <= llm.DialectPredict; d++ {
		if d.String() == name {
			return d
		}
	}
	t.Fatalf("no dialect %q", name)
	return 0
}

// indented prints JSON for the reader, a member on each line.
func indented(t testing.TB, body []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Indent(&b, body, "", " "); err != nil {
		t.Errorf("%s: %v", body, err)
		return string(body)
	}
	return strings.TrimSuffix(b.String(), "\n") + "\n"
}

func answerOf(tr *llm.Translation, o llm.AnswerOptions, inputs ...string) tapped {
	r := tr.Answer(o)
	var out []byte
	for _, in := range inputs {
		out = append(out, r.Feed([]byte(in))...)
	}
	out = append(out, r.Close()...)
	return tapped{string(out), r.Usage(), r.Tokens(), r.Finished(), r.Failed(), r.FinishReason(), r.ServedModel()}
}

// everyAnswerSplit feeds an answer in two parts, in three, and byte by byte.
func everyAnswerSplit(t *testing.T, tr *llm.Translation, o llm.AnswerOptions, in string, want tapped) {
	t.Helper()
	check := func(parts ...string) {
		t.Helper()
		if got := answerOf(tr, o, parts...); got != want {
			t.Fatalf("fed as %q (-whole +split):\n%s", parts, cmp.Diff(want, got))
		}
	}
	for i := range len(in) {
		check(in[:i], in[i:])
		j := min(i+1+i%7, len(in))
		check(in[:i], in[i:j], in[j:])
	}
	single := make([]string, len(in))
	for i := range len(in) {
		single[i] = in[i : i+1]
	}
	check(single...)
}
