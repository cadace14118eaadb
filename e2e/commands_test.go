// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// patience bounds every wait for a process; it only decides how long a broken
// one takes to fail.
const patience = 30 * time.Second

type scriptCommand = func(ts *testscript.TestScript, neg bool, args []string)

func commands() map[string]scriptCommand {
	return map[string]scriptCommand{
		"ports":   cmdPorts,
		"expand":  cmdExpand,
		"listens": cmdListens,
		"exits":   cmdExits,
		"http":    cmdHTTP,
	}
}

// cmdPorts sets each variable to a port of 127.0.0.1 that is free.
//
//	ports GATEWAY ADMIN
func cmdPorts(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: ports NAME...")
	}
	ports, err := freePorts(len(args))
	ts.Check(err)
	for i, name := range args {
		ts.Setenv(name, ports[i])
	}
}

// freePorts holds all of them open at once, so that they differ.
func freePorts(n int) ([]string, error) {
	ports := make([]string, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports[i] = strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// cmdExpand replaces ${NAME} in files.
//
//	expand penstock.yaml
func cmdExpand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: expand FILE...")
	}
	for _, name := range args {
		text := os.Expand(ts.ReadFile(name), func(v string) string {
			if s := ts.Getenv(v); s != "" {
				return s
			}
			return "${" + v + "}"
		})
		ts.Check(os.WriteFile(ts.MkAbs(name), []byte(text), 0o600))
	}
}

// cmdListens waits until something accepts connections on the ports.
//
//	listens $GATEWAY
func cmdListens(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: listens PORT...")
	}
	for _, port := range args {
		ts.Check(waitListening("127.0.0.1:" + port))
	}
}

func waitListening(address string) error {
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			return c.Close()
		}
		if time.Now().After(end) {
			return fmt.Errorf("nothing listens on %s after %s: %w", address, patience, err)
		}
	}
}

// cmdExits runs a program and checks its exit code.
//
//	exits 2 penstock check -c missing.yaml
func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM [ARG...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// httpCall is what the arguments of http say.
type httpCall struct {
	method, url string
	status      int
	header      http.Header
	body        string
	until       *regexp.Regexp
}

// cmdHTTP sends a request. The body of the answer is its stdout, status line
// and header its stderr.
//
//	http [-status N] [-H 'name: value'] [-d BODY | -f FILE] [-until REGEXP] METHOD URL
//
// -status is 200 unless given. -until repeats the request until body or header
// match. A body is sent as application/json unless -H says otherwise.
func cmdHTTP(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("! http: use -status")
	}
	c := parseHTTP(ts, args)
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		status, head, body, err := c.send(client)
		done := err == nil && status == c.status && (c.until == nil || c.until.MatchString(body) || c.until.MatchString(head))
		if !done && c.until != nil && time.Now().Before(end) {
			continue
		}
		ts.Check(err)
		io.WriteString(ts.Stdout(), body)
		io.WriteString(ts.Stderr(), head)
		if !done {
			ts.Fatalf("%s %s: status %d, want %d\n%s%s", c.method, c.url, status, c.status, head, body)
		}
		return
	}
}

func parseHTTP(ts *testscript.TestScript, args []string) httpCall {
	c := httpCall{status: http.StatusOK, header: http.Header{}}
	for len(args) > 2 {
		value := args[1]
		switch args[0] {
		case "-status":
			n, err := strconv.Atoi(value)
			ts.Check(err)
			c.status = n
		case "-H":
			name, v, _ := strings.Cut(value, ":")
			c.header.Set(name, strings.TrimSpace(v))
		case "-d":
			c.body = value
		case "-f":
			c.body = ts.ReadFile(value)
		case "-until":
			re, err := regexp.Compile(value)
			ts.Check(err)
			c.until = re
		default:
			ts.Fatalf("http: unknown flag %s", args[0])
		}
		args = args[2:]
	}
	if len(args) != 2 {
		ts.Fatalf("usage: http [-status N] [-H 'name: value'] [-d BODY | -f FILE] [-until REGEXP] METHOD URL")
	}
	c.method, c.url = args[0], args[1]
	if c.body != "" && c.header.Get("Content-Type") == "" {
		c.header.Set("Content-Type", "application/json")
	}
	return c
}

func (c httpCall) send(client *http.Client) (status int, head, body string, err error) {
	req, err := http.NewRequest(c.method, c.url, strings.NewReader(c.body))
	if err != nil {
		return 0, "", "", err
	}
	req.Header = c.header.Clone()
	res, err := client.Do(req)
	if err != nil {
		return 0, "", "", err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", res.Proto, res.Status)
	_ = res.Header.Write(&b)
	return res.StatusCode, strings.ReplaceAll(b.String(), "\r\n", "\n"), string(raw), err
}
