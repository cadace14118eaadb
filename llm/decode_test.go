// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm_test

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/penstock/penstock/llm"
)

// encode compresses data with one coding; "raw" is deflate without zlib.
func encode(t testing.TB, coding string, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	var err error
	switch coding {
	case "gzip":
		w, err = gzip.NewWriterLevel(&out, flate.BestSpeed)
	case "deflate":
		w, err = zlib.NewWriterLevel(&out, flate.BestSpeed)
	case "raw":
		w, err = flate.NewWriter(&out, flate.BestSpeed)
	case "zstd":
		w, err = zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestDecode(t *testing.T) {
	data := []byte(strings.Repeat(`{"model":"m"}`, 1000))
	size := int64(len(data))
	gz, zs := encode(t, "gzip", data), encode(t, "zstd", data)
	both := encode(t, "gzip", zs)
	for _, c := range []struct {
		name, encoding string
		body           []byte
		max            int64
		status         int // 0: data comes out
	}{
		{"identity", "", data, size, 0},
		{"identity named", "identity", data, size, 0},
		{"identity too large", "", data, size - 1, 413},
		{"gzip", "GZIP", gz, size, 0},
		{"gzip, exactly one too large", "gzip", gz, size - 1, 413},
		{"zlib", "deflate", encode(t, "deflate", data), size, 0},
		{"bare deflate", "deflate", encode(t, "raw", data), size, 0},
		{"zstd", "zstd", zs, size, 0},
		{"zstd too large", "zstd", zs, size - 1, 413},
		{"zstd in gzip", "zstd, identity, gzip", both, size, 0},
		{"the wrong order", "gzip, zstd", both, size, 400},
		{"unknown", "br", data, size, 415},
		{"too many", "gzip,gzip,gzip,gzip,gzip", gz, size, 415},
		{"cut off", "gzip", gz[:len(gz)-5], size, 400},
		{"data after its end", "deflate", append(encode(t, "raw", data), 'x'), size, 400},
	} {
		out, err := llm.Decode(c.encoding, c.body, c.max)
		switch {
		case c.status == 0 && (err != nil || !bytes.Equal(out, data)):
			t.Errorf("%s: %d bytes, %v", c.name, len(out), err)
		case c.status != 0 && (err == nil || err.Status != c.status):
			t.Errorf("%s: %v, want status %d", c.name, err, c.status)
		}
	}
}

// TestBombAllocatesLittle: a small body that would become a large one.
func TestBombAllocatesLittle(t *testing.T) {
	const limit, window = 256 << 10, 12 << 20 // window: what a zstd decoder may hold
	for _, coding := range []string{"gzip", "deflate", "zstd"} {
		bomb := encode(t, coding, make([]byte, 24<<20))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := llm.Decode(coding, bomb, limit)
		runtime.ReadMemStats(&after)
		if err == nil || err.Status != 413 {
			t.Errorf("%s: %v", coding, err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 3*limit+window {
			t.Errorf("%s: %d bytes allocated", coding, n)
		}
	}
}

func TestDecodersAreShared(t *testing.T) {
	var group sync.WaitGroup
	for i := range 8 {
		coding := []string{"gzip", "deflate", "zstd"}[i%3]
		data := bytes.Repeat([]byte{byte('a' + i)}, 50_000)
		body := encode(t, coding, data)
		group.Go(func() {
			for range 20 {
				if _, err := llm.Decode(coding, body[:len(body)/2], 1<<20); err == nil {
					t.Error("half a body decoded")
				}
				if out, err := llm.Decode(coding, body, 1<<20); err != nil || !bytes.Equal(out, data) {
					t.Errorf("%s: %v", coding, err)
				}
			}
		})
	}
	group.Wait()
}

func FuzzDecode(f *testing.F) {
	for _, coding := range []string{"gzip", "deflate", "raw", "zstd"} {
		f.Add(encode(f, coding, []byte(`{"model":"m","messages":[]}`)))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, coding := range []string{"gzip", "deflate", "zstd", "gzip,zstd"} {
			out, err := llm.Decode(coding, body, 1000)
			if err == nil && len(out) > 1000 || err != nil && err.Status != 400 && err.Status != 413 {
				t.Fatalf("%s: %d bytes, %v", coding, len(out), err)
			}
		}
	})
}

// What a result takes is asked for before it is taken.
func TestDecodeHolds(t *testing.T) {
	for _, coding := range []string{"gzip", "deflate", "zstd", "gzip, gzip"} {
		body := make([]byte, 1<<20)
		for c := range strings.SplitSeq(coding, ", ") {
			body = encode(t, c, body)
		}
		var held int64
		out, err := llm.DecodeHolding(coding, body, 2<<20, func(n int64) *llm.Error { held += n; return nil })
		if err != nil || held < int64(cap(out)) {
			t.Errorf("%s: %d held for %d bytes, %v", coding, held, cap(out), err)
		}
		held = 0
		full := func(n int64) *llm.Error {
			if held += n; held > 1<<18 {
				return llm.Unavailable("full", 0)
			}
			return nil
		}
		if _, err := llm.DecodeHolding(coding, body, 2<<20, full); err == nil || err.Status != 503 {
			t.Errorf("%s: %v, want the refusal", coding, err)
		}
	}
}
