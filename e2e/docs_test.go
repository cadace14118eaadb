// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/api/v1alpha1"
)

// block is one fenced block of a page.
type block struct {
	line int // of its text
	info []string
	text string
}

func blocks(t *testing.T, page string) []block {
	t.Helper()
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var list []block
	var open *block
	for i, line := range strings.Split(string(raw), "\n") {
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && open == nil:
			open = &block{line: i + 2, info: strings.Fields(info)}
		case fence:
			list = append(list, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		}
	}
	if open != nil {
		t.Fatalf("%s:%d: the block does not end", page, open.line)
	}
	return list
}

func pages(t *testing.T) []string {
	t.Helper()
	list := []string{"../README.md", "../ARCHITECTURE.md", "../CONTRIBUTING.md"}
	for _, glob := range []string{"../docs/*.md", "../docs/adr/*.md"} {
		more, err := filepath.Glob(glob)
		if err != nil || len(more) == 0 {
			t.Fatalf("no pages match %s (%v)", glob, err)
		}
		list = append(list, more...)
	}
	return list
}

// TestExamplesRun runs what the pages tell a reader to type: a block marked
// "yaml config FILE" is checked and written, one marked "yaml manifests FILE" is
// the text of that file and is written by its base name, the lines of a
// "console" block that begin with $ run in order. Ports are replaced by free
// ones.
func TestExamplesRun(t *testing.T) {
	ran := 0
	for _, page := range pages(t) {
		list := blocks(t, page)
		if !slices.ContainsFunc(list, func(b block) bool { return b.kind() != "" }) {
			continue
		}
		ran++
		t.Run(filepath.Base(page), func(t *testing.T) {
			s := newSession(t)
			for _, b := range list {
				at := fmt.Sprintf("%s:%d", page, b.line)
				switch b.kind() {
				case "config":
					s.config(at, b)
				case "manifests":
					s.manifests(at, b)
				case "console":
					for line := range strings.Lines(b.text) {
						if command, ok := strings.CutPrefix(strings.TrimSpace(line), "$ "); ok {
							s.run(at, command)
						}
					}
				}
			}
		})
	}
	if ran < 3 {
		t.Errorf("only %d pages have examples", ran)
	}
}

func (b block) kind() string {
	switch {
	case len(b.info) >= 2 && b.info[0] == "yaml" && b.info[1] == "config":
		return "config"
	case len(b.info) == 3 && b.info[0] == "yaml" && b.info[1] == "manifests":
		return "manifests"
	case len(b.info) > 0 && b.info[0] == "console":
		return "console"
	}
	return ""
}

// session is a reader who follows a page in an empty folder.
type session struct {
	t     *testing.T
	dir   string
	ports *strings.Replacer
	env   []string
}

func newSession(t *testing.T) *session {
	free, err := freePorts(4)
	if err != nil {
		t.Fatal(err)
	}
	first := consecutivePorts(t, 4)
	pairs := []string{":8080", ":" + free[0], ":9901", ":" + free[1], ":9902", ":" + free[2], "--port 8001", "--port " + strconv.Itoa(first), "--port 8003", "--port " + strconv.Itoa(first+2), "port: 80,", "port: " + free[0] + ",",
		":8443", ":" + free[3], "port: 443\n", "port: " + free[3] + "\n"}
	for i := range 4 {
		pairs = append(pairs, ":"+strconv.Itoa(8001+i), ":"+strconv.Itoa(first+i))
	}
	return &session{
		t: t, dir: t.TempDir(), ports: strings.NewReplacer(pairs...),
		env: append(os.Environ(),
			"PATH="+binDir+string(os.PathListSeparator)+os.Getenv("PATH"),
			"PENSTOCK_ADMIN=127.0.0.1:"+free[1]),
	}
}

// consecutivePorts finds n free ports in a row and returns the first.
func consecutivePorts(t *testing.T, n int) int {
	t.Helper()
	for range 100 {
		var held []net.Listener
		first := 0
		for i := range n {
			l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(map[bool]int{true: 0, false: first + i}[i == 0]))
			if err != nil {
				break
			}
			if held = append(held, l); i == 0 {
				first = l.Addr().(*net.TCPAddr).Port
			}
		}
		for _, l := range held {
			l.Close()
		}
		if len(held) == n {
			return first
		}
	}
	t.Fatalf("no %d free ports in a row", n)
	return 0
}

func (s *session) config(at string, b block) {
	s.t.Helper()
	name := "penstock.yaml"
	if len(b.info) > 2 {
		name = b.info[2]
	}
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(s.ports.Replace(b.text)), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if out, err := s.command("penstock check -c " + name).CombinedOutput(); err != nil {
		s.t.Fatalf("%s: penstock check: %v\n%s", at, err, out)
	}
}

func (s *session) manifests(at string, b block) {
	s.t.Helper()
	file := filepath.Join("../docs", b.info[2])
	text, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatalf("%s: %v", at, err)
	}
	if diff := cmp.Diff(string(text), b.text); diff != "" {
		s.t.Errorf("%s is not %s (-file +page):\n%s", at, file, diff)
	}
	if err := os.WriteFile(filepath.Join(s.dir, filepath.Base(file)), []byte(s.ports.Replace(b.text)), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *session) command(line string) *exec.Cmd {
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", line)
	cmd.Dir, cmd.Env = s.dir, s.env
	return cmd
}

// run does one line. A line that ends in & runs until the page does; any other
// is tried again for a while, since a reader waits for a server to be up too.
func (s *session) run(at, line string) {
	s.t.Helper()
	if strings.HasPrefix(line, "make ") {
		return // building is what TestMain has done
	}
	line = s.ports.Replace(line)
	if background, ok := strings.CutSuffix(line, "&"); ok {
		s.start(at, strings.TrimSpace(background))
		return
	}
	for end := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		out, err := s.command(line).CombinedOutput()
		if err == nil {
			if len(out) == 0 && !strings.Contains(line, "grep -q") {
				s.t.Errorf("%s: %s prints nothing", at, line)
			}
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("%s: %s: %v\n%s", at, line, err, out)
		}
	}
}

// start runs a line in the background and interrupts it at the end, which it
// must take with exit code 0.
func (s *session) start(at, line string) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "bash", "-c", "exec "+line)
	cmd.Dir, cmd.Env = s.dir, s.env
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = patience
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		cancel()
		s.t.Fatalf("%s: %s: %v", at, line, err)
	}
	s.t.Cleanup(func() {
		cancel()
		if err := cmd.Wait(); err != nil && cmd.ProcessState.ExitCode() != 0 {
			s.t.Errorf("%s: %s ends with %v\n%s", at, line, err, &out)
		}
	})
}

// TestExampleFilesAreValid checks every file of examples/.
func TestExampleFilesAreValid(t *testing.T) {
	files, err := filepath.Glob("../examples/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d examples (%v)", len(files), err)
	}
	for _, file := range files {
		if out, err := exec.Command(filepath.Join(binDir, "penstock"), "check", "-c", file).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	}
}

// TestGeneratedPages compares the pages that the binary prints with those that
// are committed.
func TestGeneratedPages(t *testing.T) {
	for _, name := range []string{"cli", "config"} {
		out, err := exec.Command(filepath.Join(binDir, "penstock"), "docs", name).Output()
		if err != nil {
			t.Fatalf("penstock docs %s: %v", name, err)
		}
		page := "../docs/" + name + ".md"
		if *update {
			if err := os.WriteFile(page, out, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		committed, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(committed), string(out)); diff != "" {
			t.Errorf("%s is old; make docs (-committed +printed):\n%s", page, diff)
		}
	}
}

// TestModelsPage holds the page of Model and GatewayPolicy to their types: every
// field is named, and no other in its tables.
func TestModelsPage(t *testing.T) {
	fieldsPage(t, "../docs/models-in-kubernetes.md", nil, v1alpha1.ModelSpec{}, v1alpha1.GatewayPolicySpec{})
	fieldsPage(t, "../docs/tenants-in-kubernetes.md", []string{"timeouts.", "credentials[].limits[]."}, v1alpha1.ProviderSpec{}, v1alpha1.TenantSpec{}, v1alpha1.KeySpec{})
}

// fieldsPage holds the tables of a page to the fields of types. elsewhere are
// prefixes of those that are told in another place.
func fieldsPage(t *testing.T, page string, elsewhere []string, types ...any) {
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-zA-Z0-9.\\[\\]]+)` \\|").FindAllStringSubmatch(string(raw), -1) {
		named[m[1]] = true
	}
	want := map[string]bool{}
	for _, o := range types {
		for _, name := range fields(reflect.TypeOf(o), "") {
			if slices.ContainsFunc(elsewhere, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
				continue
			}
			if want[name] = true; !named[name] {
				t.Errorf("%s: no row of a table is about %s", page, name)
			}
		}
	}
	for name := range named {
		if !want[name] && name != "timeouts" && name != "retries" {
			t.Errorf("%s: a row is about %s, which is no field", page, name)
		}
	}
}

// fields are the paths of the fields below a type of ours; what is of others is
// one field.
func fields(t reflect.Type, path string) (out []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			out = append(out, fields(f.Type, path)...)
			continue
		}
		name = path + name
		at := f.Type
		if at.Kind() == reflect.Slice {
			at, name = at.Elem(), name+"[]"
		}
		if at.Kind() == reflect.Pointer {
			at = at.Elem()
		}
		leaf := strings.HasSuffix(name, "Ref") || at.Kind() != reflect.Struct || at.PkgPath() != t.PkgPath()
		if leaf || strings.HasSuffix(name, "[]") {
			out = append(out, strings.TrimSuffix(name, "[]"))
		}
		if !leaf {
			out = append(out, fields(at, name+".")...)
		}
	}
	return out
}

// TestLinks checks that every link to a file of the repository leads somewhere,
// and that a link named after a method leads to the file that has it.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\[([^\]]*)\]\(([^)#:\s]+)\)`)
	method := regexp.MustCompile("^`[A-Za-z]+\\.([A-Za-z]+)`$")
	found := 0
	for _, page := range pages(t) {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(raw), -1) {
			found++
			target := filepath.Join(filepath.Dir(page), m[2])
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which is not there", page, m[2])
				continue
			}
			name := method.FindStringSubmatch(m[1])
			if name == nil {
				continue
			}
			text, err := os.ReadFile(target)
			if err != nil {
				t.Fatal(err)
			}
			if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + name[1] + `\(`).Match(text) {
				t.Errorf("%s: %s is not in %s", page, m[1], m[2])
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d links found", found)
	}
}
