// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package redistest runs a real Redis, or Valkey, for tests.
package redistest

import (
	"crypto/tls"
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
	options Options
	cmd     *exec.Cmd
}

// Options are what a server has besides the usual.
type Options struct {
	Durable  bool   // what was written survives [Server.Kill]
	Password string // that it asks for; "": none
	Cluster  bool   // one node, of all slots
	// CA, Cert and Key are files: it speaks TLS alone, and asks for a certificate
	// of that authority. "": no TLS.
	CA, Cert, Key string
}

// Start runs a server until the test ends. Without the program the test is left
// out, aloud; in CI it fails. See e2e/redis/install.sh. Durable: what was written
// survives [Server.Kill].
func Start(t testing.TB, durable bool) *Server {
	t.Helper()
	return StartWith(t, Options{Durable: durable})
}

// StartWith is [Start] with options.
func StartWith(t testing.TB, o Options) *Server {
	t.Helper()
	s := &Server{t: t, program: find(), dir: t.TempDir(), options: o}
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
	if o.Cluster {
		s.Do("CLUSTER ADDSLOTSRANGE 0 16383")
		for range 500 {
			if strings.Contains(s.Do("CLUSTER INFO"), "cluster_state:ok") {
				return s
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatal("the cluster does not get ready")
	}
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
	o := &s.options
	if o.Durable {
		args = append(args, "--appendonly", "yes", "--appendfsync", "always")
	}
	if o.Password != "" {
		args = append(args, "--requirepass", o.Password)
	}
	if o.Cluster {
		args = append(args, "--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1")
	}
	if o.Cert != "" {
		args = append(args, "--port", "0", "--tls-port", port, "--tls-cert-file", o.Cert, "--tls-key-file", o.Key, "--tls-ca-cert-file", o.CA)
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
	answer, err := s.do("PING")
	if err == nil && !strings.HasPrefix(answer, "+PONG") {
		err = fmt.Errorf("answer %q", answer)
	}
	return err
}

// Do sends a command of words without spaces, and gives the beginning of the
// answer as it comes.
func (s *Server) Do(command string) string {
	s.t.Helper()
	answer, err := s.do(command)
	if err != nil || strings.HasPrefix(answer, "-") {
		s.t.Fatalf("%s: %q, %v", command, answer, err)
	}
	return answer
}

func (s *Server) do(command string) (string, error) {
	c, err := net.DialTimeout("tcp", s.Addr, time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	if o := &s.options; o.Cert != "" {
		pair, err := tls.LoadX509KeyPair(o.Cert, o.Key)
		if err != nil {
			return "", err
		}
		c = tls.Client(c, &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true}) // it is this test's own
	}
	answer := make([]byte, 4096)
	if p := s.options.Password; p != "" {
		if _, err := fmt.Fprintf(c, "AUTH %s\r\n", p); err != nil {
			return "", err
		}
		if n, err := c.Read(answer); err != nil || string(answer[:n]) != "+OK\r\n" {
			return "", fmt.Errorf("AUTH: %q, %w", answer[:n], err)
		}
	}
	if _, err := fmt.Fprintf(c, "%s\r\n", command); err != nil {
		return "", err
	}
	n, err := c.Read(answer)
	return string(answer[:n]), err
}

// Kill ends the server at once, by its process id.
func (s *Server) Kill() {
	if s.cmd != nil && s.cmd.Process != nil {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		s.cmd = nil
	}
}
