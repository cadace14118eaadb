// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

func TestReadTrace(t *testing.T) {
	const id, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	good := "00-" + id + "-" + parent + "-01"
	for _, c := range []struct {
		name, header   string
		named, sampled bool
	}{
		{"sampled", good, true, true},
		{"not sampled", good[:53] + "00", true, false},
		{"other flags", good[:53] + "03", true, true},
		{"later version", "01" + good[2:], true, true},
		{"later version with more", "01" + good[2:] + "-what", true, true},
		{"none", "", false, false},
		{"version 00 with more", good + "-what", false, false},
		{"later version with glued text", "01" + good[2:] + "what", false, false},
		{"forbidden version", "ff" + good[2:], false, false},
		{"no trace id", "00-" + strings.Repeat("0", 32) + "-" + parent + "-01", false, false},
		{"no parent id", "00-" + id + "-" + strings.Repeat("0", 16) + "-01", false, false},
		{"upper case", strings.ToUpper(good), false, false},
		{"not hexadecimal", "00-" + strings.Repeat("z", 32) + "-" + parent + "-01", false, false},
		{"short", good[:54], false, false},
		{"dashes elsewhere", strings.ReplaceAll(good, "-", "_"), false, false},
	} {
		tr := ReadTrace(c.header, "a=b", 0, true)
		if named := tr.ID.String() == id && tr.Parent.String() == parent && tr.State == "a=b"; named != c.named || tr.Sampled != c.sampled {
			t.Errorf("%s: got %+v", c.name, tr)
		}
		if tr.ID == (TraceID{}) || tr.Span == (SpanID{}) || tr.Span == tr.Parent {
			t.Errorf("%s: ids are missing: %+v", c.name, tr)
		}
		if !c.named && (tr.Parent != SpanID{} || tr.State != "") {
			t.Errorf("%s: a new trace has a parent: %+v", c.name, tr)
		}
	}
	if tr := ReadTrace(good, strings.Repeat("a", maxTraceState+1), 0, true); tr.State != "" {
		t.Errorf("a long tracestate is passed on")
	}
	if tr := ReadTrace(good, "", 0, false); tr.Sampled {
		t.Errorf("the client's flag counts although it should not")
	}
}

// TestSampleShare draws 20,000 traces at a share of a quarter: five standard
// deviations are 306.
func TestSampleShare(t *testing.T) {
	const n, share = 20_000, .25
	sampled := 0.
	for range n {
		if ReadTrace("", "", share, true).Sampled {
			sampled++
		}
	}
	if math.Abs(sampled-n*share) > 5*math.Sqrt(n*share*(1-share)) {
		t.Errorf("%v of %d are sampled", sampled, n)
	}
	if ReadTrace("", "", 0, true).Sampled || !ReadTrace("", "", 1, true).Sampled {
		t.Errorf("shares of 0 and 1 are not exact")
	}
}

func TestTraceHeader(t *testing.T) {
	tr := ReadTrace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "", 0, true)
	one, two := tr.Child(1), tr.Child(2)
	if one == two || one == tr.Span || one != tr.Child(1) {
		t.Errorf("children are %v, %v of %v", one, two, tr.Span)
	}
	if got, want := tr.Header(one), "00-4bf92f3577b34da6a3ce929d0e0e4736-"+one.String()+"-01"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	back := ReadTrace(tr.Header(one), "", 0, true)
	if back.ID != tr.ID || back.Parent != one || !back.Sampled {
		t.Errorf("read back: %+v", back)
	}
	if b, _ := json.Marshal(Trace{}); string(b) != "{}" {
		t.Errorf("no trace is %s", b)
	}
	if b, _ := json.Marshal(tr); !strings.Contains(string(b), `"traceId":"4bf92f3577b34da6a3ce929d0e0e4736"`) {
		t.Errorf("JSON is %s", b)
	}
}

func FuzzReadTrace(f *testing.F) {
	f.Add("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "a=b")
	f.Add("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x", "")
	f.Fuzz(func(t *testing.T, parent, state string) {
		tr := ReadTrace(parent, state, 1, true)
		if back := ReadTrace(tr.Header(tr.Span), "", 0, true); back.ID != tr.ID || back.Parent != tr.Span || back.Sampled != tr.Sampled {
			t.Errorf("%q: %+v comes back as %+v", parent, tr, back)
		}
	})
}

func BenchmarkReadTrace(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		t := ReadTrace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "", .01, true)
		_ = t.Header(t.Child(1))
	}
}
