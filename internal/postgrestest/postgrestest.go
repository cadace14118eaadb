// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package postgrestest runs a real PostgreSQL for tests.
package postgrestest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Server is the one server of a test process, on loopback, with a directory of its
// own. It starts with the first database that is asked for. The zero value is ready;
// TestMain calls Stop.
type Server struct {
	once    sync.Once
	process *process
	err     error
}

// Database makes an empty database, and returns its address. Without the server's
// programs the test is left out, aloud; in CI it fails. See e2e/postgres/install.sh.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	bin := programs()
	if bin == "" {
		const what = "there is no PostgreSQL: run e2e/postgres/install.sh, or set POSTGRES_BIN"
		if os.Getenv("CI") == "true" {
			t.Fatal(what)
		}
		t.Skip("*** NOT RUN: " + what + " ***")
	}
	s.once.Do(func() { s.process, s.err = initialise(bin) })
	if s.err != nil {
		t.Fatal(s.err)
	}
	c, err := pgx.Connect(t.Context(), s.process.address("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	name := fmt.Sprintf("test_%d", time.Now().UnixNano())
	if _, err := c.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return s.process.address(name)
}

// Stop ends the server, by its pid, and takes its data away.
func (s *Server) Stop() {
	if s.process != nil {
		s.process.stop()
	}
}

// programs is where the server's programs are, as e2e/postgres/install.sh finds
// or fetches them; "": nowhere.
func programs() string {
	if dir := os.Getenv("POSTGRES_BIN"); dir != "" {
		return dir
	}
	roots := []string{"/usr"}
	for dir, err := os.Getwd(); err == nil && dir != "/"; dir = filepath.Dir(dir) {
		roots = append(roots, filepath.Join(dir, ".cache/postgres/usr"))
	}
	for _, root := range roots {
		found, _ := filepath.Glob(root + "/lib/postgresql/*/bin/initdb")
		slices.Sort(found)
		if len(found) > 0 {
			return filepath.Dir(found[len(found)-1])
		}
	}
	return ""
}

// process is a server on a free port.
type process struct {
	dir  string
	port int
	cmd  *exec.Cmd
}

func (p *process) address(name string) string {
	return fmt.Sprintf("postgres://penstock@127.0.0.1:%d/%s?sslmode=disable", p.port, name)
}

// command runs a program as somebody who is not root, which the server demands.
func (p *process) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	if root, _, ok := strings.Cut(name, "/usr/lib/postgresql/"); ok && root != "" { // unpacked, with its libraries
		libs, _ := filepath.Glob(root + "/usr/lib/*-linux-gnu*")
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+strings.Join(libs, ":"))
	}
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	return cmd
}

func initialise(bin string) (*process, error) {
	dir, err := os.MkdirTemp("", "penstock-postgres-")
	if err != nil {
		return nil, err
	}
	p := &process{dir: dir}
	if os.Getuid() == 0 {
		if err := os.Chown(dir, 65534, 65534); err != nil {
			return nil, err
		}
	}
	data := filepath.Join(dir, "data")
	if out, err := p.command(filepath.Join(bin, "initdb"), "-D", data, "-U", "penstock", "-A", "trust", "-E", "UTF8", "--no-sync").CombinedOutput(); err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p.port = l.Addr().(*net.TCPAddr).Port
	l.Close()
	return p, p.start(bin)
}

// start runs the server.
func (p *process) start(bin string) error {
	p.cmd = p.command(filepath.Join(bin, "postgres"), "-D", filepath.Join(p.dir, "data"), "-p", strconv.Itoa(p.port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=")
	if err := p.cmd.Start(); err != nil {
		return err
	}
	var err error
	for range 300 {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		var c *pgx.Conn
		if c, err = pgx.Connect(ctx, p.address("postgres")); err == nil {
			c.Close(ctx)
		}
		cancel()
		if err == nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	p.stop()
	return fmt.Errorf("PostgreSQL does not come up: %w", err)
}

func (p *process) stop() {
	p.cmd.Process.Signal(syscall.SIGINT) // fast shutdown
	p.cmd.Wait()
	os.RemoveAll(p.dir)
}
