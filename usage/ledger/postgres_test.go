// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

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

	"github.com/penstock/penstock/config"
)

// postgres is a real server on a free port, with a directory of its own.
type postgres struct {
	dir  string
	port int
	cmd  *exec.Cmd
}

// programs is where the server's programs are, as e2e/postgres/install.sh finds
// or fetches them; "": nowhere.
func programs() string {
	if dir := os.Getenv("POSTGRES_BIN"); dir != "" {
		return dir
	}
	for _, root := range []string{"/usr", "../../.cache/postgres/usr"} {
		found, _ := filepath.Glob(root + "/lib/postgresql/*/bin/initdb")
		slices.Sort(found)
		if len(found) > 0 {
			dir, _ := filepath.Abs(filepath.Dir(found[len(found)-1]))
			return dir
		}
	}
	return ""
}

var once struct {
	sync.Once
	server *postgres
	err    error
}

func TestMain(m *testing.M) {
	if os.Getenv("LEDGER_TEST_CHILD") != "" {
		child()
		return
	}
	code := m.Run()
	if once.server != nil {
		once.server.stop()
	}
	os.Exit(code)
}

// database makes an empty database at the one server of this test process, and
// returns its address. Without a server the test is left out; in CI it fails.
func database(t testing.TB) string {
	t.Helper()
	bin := programs()
	if bin == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("there is no PostgreSQL: e2e/postgres/install.sh")
		}
		t.Skip("THERE IS NO POSTGRESQL, AND THIS TEST DOES NOT RUN: e2e/postgres/install.sh")
	}
	once.Do(func() { once.server, once.err = startPostgres(bin) })
	if once.err != nil {
		t.Fatal(once.err)
	}
	c, err := pgx.Connect(t.Context(), once.server.address("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	name := fmt.Sprintf("test_%d", time.Now().UnixNano())
	if _, err := c.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return once.server.address(name)
}

func (p *postgres) address(name string) string {
	return fmt.Sprintf("postgres://penstock@127.0.0.1:%d/%s?sslmode=disable", p.port, name)
}

// command runs a program as somebody who is not root, which the server demands.
func (p *postgres) command(name string, args ...string) *exec.Cmd {
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

func startPostgres(bin string) (*postgres, error) {
	dir, err := os.MkdirTemp("", "penstock-postgres-")
	if err != nil {
		return nil, err
	}
	p := &postgres{dir: dir}
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

// start runs the server; it is also how one that was stopped comes back.
func (p *postgres) start(bin string) error {
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

// halt ends the server, by its pid, and keeps its data.
func (p *postgres) halt() {
	p.cmd.Process.Signal(syscall.SIGINT) // fast shutdown
	p.cmd.Wait()
}

func (p *postgres) stop() {
	p.halt()
	os.RemoveAll(p.dir)
}

// both runs a test on SQLite and on PostgreSQL.
func both(t *testing.T, test func(t *testing.T, cfg config.Ledger)) {
	t.Run("sqlite", func(t *testing.T) { test(t, settings(t)) })
	t.Run("postgres", func(t *testing.T) {
		cfg := settings(t)
		cfg.Spool, cfg.Path, cfg.DSN = cfg.SpoolDir(), "", config.Secret(database(t))
		test(t, cfg)
	})
}
