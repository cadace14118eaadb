// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm_test

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/llm"
)

// What is encrypted is marked on its way out wherever its bytes are parted, and
// nothing else is: not a text that looks like it, nor an empty value.
func TestSealing(t *testing.T) {
	seal := llm.Seal("one\x001")
	in := `data: {"type":"response.output_item.done","item":{"type":"reasoning","encrypted_content":"abc\"d"},"also":{"encrypted_content" : "x"}}` + "\n\n" +
		`data: {"delta":"\"encrypted_content\":\"no\"","encrypted_content":"","include":["encrypted_content","a"],"a":"encrypted_content"}` + "\n\n" +
		`data: {"encrypted_content":null,"_encrypted_content":"no","x":"","encrypted_content":"y"}` + "\n\n"
	want := strings.NewReplacer(`"abc\"d"`, `"`+seal+`abc\"d"`, `"x"}`, `"`+seal+`x"}`, `"y"`, `"`+seal+`y"`).Replace(in)
	feed := func(parts ...string) string {
		r := llm.Sealing(llm.NewTap(llm.TapOptions{Op: llm.OpResponses, Stream: true}), seal, "id")
		var out strings.Builder
		for _, p := range parts {
			out.Write(r.Feed([]byte(p)))
		}
		out.Write(r.Close())
		return out.String()
	}
	for i := range len(in) {
		j := min(i+1+i%5, len(in))
		if got := feed(in[:i], in[i:j], in[j:]); got != want {
			t.Fatalf("parted at %d and %d:\n%s\nwant\n%s", i, j, got, want)
		}
	}
	if got := feed(strings.Split(in, "")...); got != want {
		t.Errorf("by byte:\n%s", got)
	}
}

// A maker gets back what it has made, and nothing of others; what is encrypted
// and no reasoning stays.
func TestOpened(t *testing.T) {
	mine, other := llm.Seal("mine"), llm.Seal("other")
	body := `{"model":"m","input":[{"type":"reasoning","encrypted_content":"` + other + `1"}, {"type":"message","content":"` + other + `"},` +
		`{"encrypted_content":"` + mine + `2","type":"reasoning"},{"type":"reasoning","encrypted_content":"3"},{"type":"compaction","encrypted_content":"` + other + `4"}]}`
	want := `{"model":"m","input":[{"type":"message","content":"` + other + `"},` +
		`{"encrypted_content":"2","type":"reasoning"},{"type":"reasoning","encrypted_content":"3"},{"type":"compaction","encrypted_content":"4"}]}`
	got, dropped := llm.Opened(llm.OpResponses, []byte(body), mine)
	if string(got) != want || len(dropped) != 1 {
		t.Errorf("%s\n%v", got, dropped)
	}
	r, fail := llm.Read(llm.OpResponses, "application/json", []byte(body), llm.Limits{})
	if fail != nil || r.Sealed() != other {
		t.Errorf("newest: %v", fail)
	}
	for _, text := range []string{
		`{"model":"m","input":"penstock:"}`, `{"model":"m","input":"penstock:short:"}`, `{"model":"m","input":"x"}`,
		`{"model":"m","input":"` + mine + `"}`, `{"model":"m","input":"\"encrypted_content\":\"` + mine + `"}`, // a user's own text
	} {
		if r, fail := llm.Read(llm.OpResponses, "application/json", []byte(text), llm.Limits{}); fail != nil || r.Sealed() != "" {
			t.Errorf("%s: %v", text, fail)
		}
	}
}

// Whatever passes, marks are put in and nothing else is changed, wherever it is
// parted.
func FuzzSealing(f *testing.F) {
	f.Add([]byte(`{"encrypted_content" : "a","b":"\"encrypted_content\":"}`), 3)
	f.Add([]byte(`""encrypted_content":"""encrypted_content":"x`), 20)
	seal := llm.Seal("a")
	f.Fuzz(func(t *testing.T, in []byte, at int) {
		if strings.Contains(string(in), seal) {
			return
		}
		feed := func(parts ...[]byte) (out string) {
			r := llm.Sealing(llm.NewTap(llm.TapOptions{Op: llm.OpResponses, Stream: true}), seal, "id")
			for _, p := range parts {
				out += string(r.Feed(p))
			}
			return out + string(r.Close())
		}
		whole := feed(in)
		if strings.ReplaceAll(whole, seal, "") != string(in) {
			t.Fatalf("%q became %q", in, whole)
		}
		at = min(max(at, 0), len(in))
		if got := feed(in[:at], in[at:]); got != whole {
			t.Fatalf("parted: %q, whole: %q", got, whole)
		}
	})
}
