// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestSimCommand(t *testing.T) {
	tests := []struct {
		args  []string
		lines int
		path  string // to ask the last server for
		want  string // in its answer
	}{
		{[]string{"--servers", "2", "--adapters", "sql"}, 2, "/v1/models", `"id":"sql"`},
		{[]string{"--engine", "sglang", "--kv-blocks", "512"}, 1, "/metrics", `num_pages="512"`},
		{[]string{"--faults", `{"status":429}`}, 1, "/sim/faults", `{"status":429}`},
		{[]string{"--provider", "--api-key", "k"}, 1, "/v1/models", `"type":"invalid_request_error"`},
		{[]string{"--provider", "--shape", "anthropic", "--api-key", "k"}, 1, "/v1/models", `"type":"authentication_error"`},
		{[]string{"--provider", "--shape", "gemini", "--model", "gemini-sim"}, 1, "/v1beta/models", `"name":"models/gemini-sim"`},
		{[]string{"--provider", "--shape", "bedrock", "--access-key", "AKIA:s"}, 1, "/model/x/converse", "Missing Authentication Token"},
		{[]string{"--provider", "--faults", `{"script":[{"cut":"headers"}]}`}, 1, "/sim/faults", `{"script":[{"cut":"headers"}]}`},
	}
	for _, tt := range tests {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			out, in := io.Pipe()
			cmd := newSimCommand()
			cmd.SetArgs(append(tt.args, "--port", "0"))
			cmd.SetOut(in)
			ended := make(chan error, 1)
			go func() { ended <- cmd.ExecuteContext(ctx) }()
			lines := bufio.NewScanner(out)
			url := ""
			for range tt.lines {
				if !lines.Scan() {
					t.Fatal("it says too little")
				}
				url, _, _ = strings.Cut(lines.Text(), " ")
			}
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			res, err := client.Get(url + tt.path)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if !strings.Contains(string(text), tt.want) {
				t.Errorf("GET %s: %s, want %s", tt.path, text, tt.want)
			}
			stop()
			if err := <-ended; err != nil {
				t.Errorf("it ended with %v", err)
			}
		})
	}
}

func TestSimCommandRefuses(t *testing.T) {
	for _, args := range []string{
		"--preset gpt", "--engine tgi", "--servers 0", `--faults {"x":1}`, "--metric-names newest", "--port 70000",
		"--adapters a --max-loras 0", "--provider --shape soap", "--provider --quirk odd", "--provider --access-key a:b",
		"--shape gemini", "--api-key k --rpm 3", `--faults {"cut":"headers"}`, `--provider --faults {"cut":"somewhere"}`,
	} {
		cmd := newSimCommand()
		cmd.SetArgs(strings.Fields(args))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); err == nil {
			t.Errorf("%s: accepted", args)
		} else if !strings.Contains(fmt.Sprint(err), "sim: ") {
			t.Errorf("%s: %v does not say whose error it is", args, err)
		}
	}
}
