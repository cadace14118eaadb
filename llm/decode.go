// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
)

const (
	// maxCodings bounds a Content-Encoding; more than one is rare.
	maxCodings = 4
	// maxWindow is what RFC 8878 section 3.1.1.1.2 asks decoders to support.
	maxWindow = 8 << 20
)

// Decode undoes a Content-Encoding (identity, gzip, deflate, zstd, or several)
// under max bytes: 413 beyond it, 415 for a coding it does not know, 400 for
// bad data. What it holds is at most max bytes for the result and as much for
// one step before, and the decoder's window.
func Decode(encoding string, body []byte, max int64) ([]byte, *Error) {
	return DecodeHolding(encoding, body, max, func(int64) *Error { return nil })
}

// DecodeHolding is Decode that asks hold before it takes n more bytes for a
// result, and ends with its refusal.
func DecodeHolding(encoding string, body []byte, max int64, hold func(n int64) *Error) ([]byte, *Error) {
	if int64(len(body)) > max {
		return nil, TooLarge(max)
	}
	var codings []string
	for coding := range strings.SplitSeq(encoding, ",") {
		coding = strings.ToLower(strings.TrimSpace(coding))
		if coding != "" && coding != "identity" {
			codings = append(codings, coding)
		}
	}
	if len(codings) > maxCodings {
		return nil, UnsupportedMediaType("too many codings in Content-Encoding")
	}
	for i := len(codings) - 1; i >= 0; i-- { // the last was applied last
		var err *Error
		if body, err = decode(codings[i], body, max, hold); err != nil {
			return nil, err
		}
	}
	return body, nil
}

func decode(coding string, body []byte, max int64, hold func(int64) *Error) ([]byte, *Error) {
	src := bytes.NewReader(body)
	r, release, err := decoder(coding, body, src)
	if err == errCoding {
		return nil, UnsupportedMediaType(fmt.Sprintf("Content-Encoding %q is not supported; send identity, gzip, deflate or zstd", coding))
	}
	if err == nil {
		var out []byte
		out, err = readBounded(r, len(body), max, hold)
		release()
		var refused *Error
		switch {
		case errors.As(err, &refused):
			return nil, refused
		case err == errTooLarge:
			return nil, TooLarge(max)
		case err == nil && src.Len() > 0:
			err = fmt.Errorf("data after its end")
		case err == nil:
			return out, nil
		}
	}
	return nil, InvalidRequest("", fmt.Sprintf("the body is not valid %s: %v", coding, err))
}

var (
	errCoding   = fmt.Errorf("unknown coding")
	errTooLarge = fmt.Errorf("too large")
)

// Decoders keep windows of up to maxWindow; the pools let requests share them.
var gzips, zlibs, flates, zstds sync.Pool

// nothing is an empty source: it lets a pooled decoder go of the body it read.
type nothing struct{}

func (nothing) Read([]byte) (int, error) { return 0, io.EOF }
func (nothing) ReadByte() (byte, error)  { return 0, io.EOF }

// decoder is a reader that undoes coding, and what gives it back.
func decoder(coding string, body []byte, src *bytes.Reader) (io.Reader, func(), error) {
	switch coding {
	case "gzip", "x-gzip":
		r, ok := gzips.Get().(*gzip.Reader)
		if !ok {
			r = new(gzip.Reader)
		}
		return r, func() { _ = r.Reset(nothing{}); gzips.Put(r) }, r.Reset(src)
	case "deflate":
		// RFC 9110 section 8.4.1.2 means zlib; some clients send bare deflate.
		if len(body) >= 2 && body[0]&0x0F == 8 && (int(body[0])<<8|int(body[1]))%31 == 0 {
			r, ok := zlibs.Get().(io.ReadCloser)
			var err error
			if ok {
				err = r.(zlib.Resetter).Reset(src, nil)
			} else {
				r, err = zlib.NewReader(src)
			}
			return r, func() { _ = r.(zlib.Resetter).Reset(nothing{}, nil); zlibs.Put(r) }, err
		}
		r, ok := flates.Get().(io.ReadCloser)
		if !ok {
			r = flate.NewReader(nothing{})
		}
		err := r.(flate.Resetter).Reset(src, nil)
		return r, func() { _ = r.(flate.Resetter).Reset(nothing{}, nil); flates.Put(r) }, err
	case "zstd":
		if r, ok := zstds.Get().(*zstd.Decoder); ok {
			return r, func() { putZstd(r) }, r.Reset(src)
		}
		// One at a time: the decoder then has no goroutine of its own.
		r, err := zstd.NewReader(src, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		return r, func() { putZstd(r) }, err
	}
	return nil, nil, errCoding
}

func putZstd(r *zstd.Decoder) {
	if r.Reset(nil) == nil { // lets go of the body
		zstds.Put(r)
	}
}

// readBounded reads all of r, but no more than max bytes. The first guess at
// the size is four times that of the compressed data.
func readBounded(r io.Reader, compressed int, max int64, hold func(int64) *Error) ([]byte, error) {
	first := min(int64(compressed)*4+512, max)
	if refused := hold(first); refused != nil {
		return nil, refused
	}
	out := make([]byte, 0, first)
	for {
		if len(out) == cap(out) {
			if int64(len(out)) >= max {
				var one [1]byte
				if n, err := io.ReadFull(r, one[:]); n > 0 {
					return nil, errTooLarge
				} else if err != io.EOF {
					return nil, err
				}
				return out, nil
			}
			size := min(int64(cap(out))*2, max)
			if refused := hold(size - int64(cap(out))); refused != nil {
				return nil, refused
			}
			grown := make([]byte, len(out), size)
			copy(grown, out)
			out = grown
		}
		n, err := r.Read(out[len(out):cap(out)])
		out = out[:len(out)+n]
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
