// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net"
	"net/http"
	"strconv"
)

// mostFrame bounds what goes out as one frame, in bytes: larger pieces gain
// nothing over net/http's own way.
const mostFrame = 4 << 10

// frames writes the chunks of an HTTP/1.1 answer onto the client's connection
// (RFC 9112, section 7.1), each with one system call and past the two buffers
// that net/http keeps before it: a stream of tokens is thousands of small
// chunks. The head, the last chunk, trailers and all else stay net/http's. Its
// buffers must be empty at each call.
type frames struct {
	conn net.Conn
	buf  []byte // as large as the largest frame was
}

// framesFor returns nil where the answer is not sent in chunks, or is
// encrypted. The head must have gone out.
func framesFor(w http.ResponseWriter, r *http.Request, status int) *frames {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(local)
	switch {
	case !ok || r.TLS != nil || r.ProtoMajor != 1 || r.ProtoMinor < 1 || r.Method == http.MethodHead:
		return nil
	case status < 200 || status == http.StatusNoContent || status == http.StatusNotModified || w.Header().Get("Content-Length") != "":
		return nil
	}
	return &frames{conn: addr.conn}
}

// Write sends p, which is not empty, as one chunk. It returns the bytes of p
// that are sure to have been written.
func (f *frames) Write(p []byte) (int, error) {
	f.buf = strconv.AppendUint(f.buf[:0], uint64(len(p)), 16)
	f.buf = append(f.buf, "\r\n"...)
	f.buf = append(f.buf, p...)
	f.buf = append(f.buf, "\r\n"...)
	if _, err := f.conn.Write(f.buf); err != nil {
		return 0, err
	}
	return len(p), nil
}

// local is the address of the gateway's end of a client connection. net/http
// hands it to each request, and the connection comes with it.
type local struct {
	net.Addr
	conn net.Conn
}
