// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package redistest runs a real Redis, or Valkey, for tests.
package redistest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Server is one server of a test, on loopback, with a file that outlives a kill.
type Server struct {
	Addr string

	t       testing.TB
	program string
	dir     string
	durable bool
	cmd     *exec.Cmd
}

// Start runs a server until the test ends. Without the program the test is left
// out, aloud; in CI it fails. See e2e/redis/install.sh. Durable: what was written
// survives [Server.Kill].
func Start(t testing.TB, durable bool) *Server {
	t.Helper()
	s := &Server{t: t, program: find(), dir: t.TempDir(), durable: durable}
	if s.program == "" {
		const what = "there is no redis-server: run e2e/redis/install.sh, or set REDIS_SERVER"
		if os.Getenv("CI") == "true" {
			t.Fatal(what)
		}
		t.Skip("*** NOT RUN: " + what + " ***")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.Addr = l.Addr().String()
	l.Close()
	t.Cleanup(s.Kill)
	s.Run()
	return s
}

// find is the program, "" if there is none.
func find() string {
	if p := os.Getenv("REDIS_SERVER"); p != "" {
		return p
	}
	for _, name := range []string{"redis-server", "valkey-server"} {
		if p, err := exec.LookPath(name); err == nil {
			return p
		}
	}
	for dir, err := os.Getwd(); err == nil && dir != "/"; dir = filepath.Dir(dir) {
		if p := filepath.Join(dir, ".cache/redis/usr/bin/redis-server"); executable(p) {
			return p
		}
	}
	return ""
}

func executable(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode()&0o111 != 0
}

// Run starts the server again after [Server.Kill].
func (s *Server) Run() {
	s.t.Helper()
	_, port, _ := net.SplitHostPort(s.Addr)
	args := []string{"--port", port, "--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--appendonly", "no", "--daemonize", "no"}
	if s.durable {
		args = append(args, "--appendonly", "yes", "--appendfsync", "always")
	}
	s.cmd = exec.Command(s.program, args...)
	var out strings.Builder
	s.cmd.Stdout, s.cmd.Stderr = &out, &out
	if root, _, unpacked := strings.Cut(s.program, "/usr/bin/"); unpacked && root != "" { // its libraries are there too
		a, _ := filepath.Glob(root + "/usr/lib/*-linux-gnu*")
		b, _ := filepath.Glob(root + "/lib/*-linux-gnu*")
		s.cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(append(a, b...), ":"))
	}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	for range 500 {
		if s.ping() == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.Kill()
	s.t.Fatalf("%s does not answer:\n%s", s.program, &out)
}

// ping asks the server whether it is there and has read its file.
func (s *Server) ping() error {
	c, err := net.DialTimeout("tcp", s.Addr, time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	answer := make([]byte, 64)
	n, err := c.Read(answer)
	if err == nil && !strings.HasPrefix(string(answer[:n]), "+PONG") {
		err = fmt.Errorf("answer %q", answer[:n])
	}
	return err
}

// Kill ends the server at once, by its process id.
func (s *Server) Kill() {
	if s.cmd != nil && s.cmd.Process != nil {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		s.cmd = nil
	}
}
