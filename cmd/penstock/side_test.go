// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A client that takes no bytes does not hold a place of the ops interface.
func TestSideServerCutsClientsThatDoNotRead(t *testing.T) {
	ended := make(chan struct{})
	s, err := listenSide("127.0.0.1:0", 300*time.Millisecond, func(string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			defer close(ended)
			io.WriteString(w, strings.Repeat("x", 64<<20))
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	s.start()
	defer s.close()
	c, err := net.Dial("tcp", s.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("the answer still waits")
	}
}
