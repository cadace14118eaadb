// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/golden"
)

// imported translates text, and has package config read what comes out.
func imported(t testing.TB, text []byte) (out, report string, err error) {
	t.Helper()
	made, r, err := importLiteLLM(text)
	if r != nil {
		var b bytes.Buffer
		r.print(&b)
		report = b.String()
	}
	if err != nil {
		if made != nil {
			t.Errorf("output beside an error:\n%s", made)
		}
		return "", report, err
	}
	if !bytes.HasSuffix(made, []byte("\n")) || bytes.HasSuffix(made, []byte("\n\n")) {
		t.Errorf("the output does not end with a line:\n%s", made)
	}
	env := func(name string) (string, bool) { v, ok := r.variables[name]; return v, ok }
	if _, err := config.ParseWith("penstock.yaml", made, config.Options{Env: env}); err != nil {
		t.Errorf("the output is refused: %v\n%s", err, made)
	}
	return string(made), report, nil
}

// Each case has the LiteLLM file as in.yaml, or names one with the flag file.
func TestImportLiteLLM(t *testing.T) {
	golden.Run(t, "testdata/import/*.txtar", func(t *testing.T, c *golden.Case) map[string]string {
		var text []byte
		if name := c.Flag("file"); name != "" {
			var err error
			if text, err = os.ReadFile(filepath.Join("testdata/import", name)); err != nil {
				t.Fatal(err)
			}
		} else {
			text = []byte(c.File(t, "in.yaml"))
		}
		out, report, err := imported(t, text)
		if again, told, _ := imported(t, text); again != out || told != report {
			t.Error("a second translation differs")
		}
		got := map[string]string{"report": report}
		if err != nil {
			got["error"] = inFile("in.yaml", err).Error() + "\n"
		} else {
			got["out.yaml"] = out
		}
		return got
	})
}

// What stands in the file as a secret is nowhere in what comes out.
func TestImportCopiesNoSecret(t *testing.T) {
	const secret = "hunter2-hunter2"
	in := strings.ReplaceAll(`
model_list:
  - {model_name: a, litellm_params: {model: openai/gpt-4o, api_key: SECRET, extra_headers: {Helicone-Auth: SECRET, Authorization: SECRET, X-Plain: yes}}}
  - {model_name: b, litellm_params: {model: bedrock/x, aws_region_name: us-east-1, aws_access_key_id: SECRET, aws_secret_access_key: SECRET1, aws_session_token: SECRET2}}
  - {model_name: c, litellm_params: {model: vertex_ai/gemini-2.5-pro, vertex_project: p, vertex_credentials: '{"private_key": "SECRET"}'}}
  - {model_name: d, litellm_params: {model: vertex_ai/gemini-2.5-pro, vertex_project: p, vertex_credentials: {private_key: SECRET}}}
  - {model_name: e, litellm_params: {model: azure/x, api_base: "https://u:SECRET@x.openai.azure.com", api_key: os.environ/KEY, azure_ad_token: SECRET, client_secret: SECRET}}
  - {model_name: f, litellm_params: {model: openai/x, api_key: SECRET, extra_body: {api_key: SECRET, nested: {password: SECRET}}, unheard: SECRET}}
  - {model_name: g, litellm_params: {model: openai/x, litellm_credential_name: shared}}
credential_list: [{credential_name: shared, credential_values: {api_key: SECRET, api_base: "https://x.example.com/v1"}}]
router_settings: {redis_password: SECRET, redis_url: "redis://:SECRET@r"}
litellm_settings: {cache_params: {password: SECRET}, ssl_verify: SECRET}
general_settings: {master_key: SECRET, database_url: "postgres://SECRET@db"}
environment_variables: {OPENAI_API_KEY: SECRET}
SECRET-free: {deep: [SECRET]}
`, "SECRET", secret)
	in = strings.Replace(in, secret+"-free", "unheard", 1)
	out, report, err := imported(t, []byte(in))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out, "hunter2") || strings.Contains(report, "hunter2") {
		t.Errorf("a secret is copied:\n%s\n%s", out, report)
	}
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		if !strings.Contains(out, "- name: "+name+"\n") {
			t.Errorf("model %s is not there:\n%s\n%s", name, out, report)
		}
	}
}

func TestImportBad(t *testing.T) {
	deep := strings.Repeat("[", 40) + strings.Repeat("]", 40)
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for i := 'b'; i < 'j'; i++ {
		bomb += fmt.Sprintf("%c: &%c [%s]\n", i, i, strings.TrimSuffix(strings.Repeat("*"+string(i-1)+",", 9), ","))
	}
	many := "model_list:\n" + strings.Repeat("  - {model_name: m, litellm_params: {model: openai/m}}\n", 100_000)
	long := "model_list:\n" + strings.Repeat("- {model_name: m, litellm_params: &p {model: openai/m, organization: [a]}}\n", 1) +
		strings.Repeat("- {model_name: m, litellm_params: {model: openai/m}}\n", 2_500)
	for _, c := range []struct{ in, err string }{
		{"", "is empty"},
		{"# nothing\n", "is empty"},
		{"just text", "must be a mapping, not text"},
		{"[1, 2]", "must be a mapping, not a list"},
		{"a: [", "is not valid YAML"},
		{"a: b: c\n", "is not valid YAML"},
		{"a: 1\n---\nb: 2\n", "holds a second document"},
		{"a: \x00", "is not text"},
		{"a: \xff", "is not text"},
		{"a: *nobody", "no anchor"},
		{"a: &a [*a]", "no anchor"},
		{"a: !!python/object:os.system x", "tag that is not known"},
		{"a: " + deep, "nested more than 32"},
		{bomb, "has more than 200000 values"},
		{many, "is larger than 4MiB"},
		{many[:2_000_000], "has more than 20000 keys"},
		{long, "has more than 2000 deployments"},
		{"include: [models.yaml]\nmodel_list: []", "include: names other files; join them"},
		{"general_settings: {}", "has no model_list"},
		{"model_list: []", "has no model_list"},
		{"model_list: null", "has no model_list"},
		{"model_list: {a: b}", "model_list: must be a list, not a mapping"},
		{"model_list: [a]", "model_list[0]: must be a mapping, not text"},
		{"model_list: [{model_name: a, litellm_params: b}]", "model_list[0].litellm_params: must be a mapping, not text"},
		{"model_list: [{model_name: a, litellm_params: {model: openai/a}, model_info: 3}]", "model_list[0].model_info: must be a mapping, not a whole number"},
		{"model_list: [{model_name: a, litellm_params: {model: openai/a}}]\nrouter_settings: [a]", "router_settings: must be a mapping, not a list"},
		{"model_list: [{model_name: a}]", "no model of it can be carried"},
		{"model_list: [{model_name: a, litellm_params: {model: replicate/a}}]", "no model of it can be carried"},
	} {
		_, _, err := imported(t, []byte(c.in))
		if err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%.60q: error %v, want %q", c.in, err, c.err)
		}
	}
}

func TestImportCommand(t *testing.T) {
	dir := t.TempDir()
	in, out := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "penstock.yaml")
	text, err := os.ReadFile("testdata/import/example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(in, text, 0o600); err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(dir, "plain.yaml")
	if err := os.WriteFile(plain, []byte("model_list: [{model_name: a, litellm_params: {model: openai/a, api_key: os.environ/K}}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args           []string
		stdin          string
		code           int
		stdout, stderr string // parts
	}{
		{args: []string{in}, stdout: "\nproviders:\n", stderr: "response caching is not there yet"},
		{args: []string{in, "-o", out}, stderr: "SETTING"},
		{args: []string{in, "--strict"}, code: 1, stdout: "\nproviders:\n", stderr: "SETTING"},
		{args: []string{plain, "--strict"}, stdout: "provider: openai"},
		{args: []string{"-"}, stdin: "model_list: 3", code: 1, stderr: "standard input:1:"},
		{args: []string{filepath.Join(dir, "none")}, code: 2, stderr: "no such file"},
		{args: []string{in, "-o", in}, code: 2, stderr: "is the file that is imported"},
		{args: []string{}, code: 2},
	} {
		var stdout, stderr bytes.Buffer
		root := newImportCommand()
		root.SetIn(strings.NewReader(c.stdin))
		root.SetOut(&stdout)
		root.SetErr(&stderr)
		root.SetArgs(append([]string{"litellm"}, c.args...))
		code := 0
		if err := root.Execute(); err != nil {
			code = exitUsage
			var coded *exitError
			if errors.As(err, &coded) {
				code = coded.code
			}
			stderr.WriteString(err.Error())
		}
		if code != c.code || !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) {
			t.Errorf("%v: code %d\n%s\n%s", c.args, code, &stdout, &stderr)
		}
	}
	if made, err := os.ReadFile(out); err != nil || !bytes.Contains(made, []byte("providers:")) {
		t.Errorf("%s: %v", made, err)
	}
	if kept, _ := os.ReadFile(in); !bytes.Equal(kept, text) {
		t.Error("the imported file was written over")
	}
}

// Whatever comes in, nothing panics, and what comes out is a configuration.
func FuzzImportLiteLLM(f *testing.F) {
	example, err := os.ReadFile("testdata/import/example.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(example)
	cases, err := filepath.Glob("testdata/import/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range cases {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		if _, in, ok := bytes.Cut(text, []byte("-- in.yaml --\n")); ok {
			in, _, _ = bytes.Cut(in, []byte("\n-- "))
			f.Add(in)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		_, report, err := imported(t, text)
		if err != nil && strings.Contains(err.Error(), "cannot be translated") {
			t.Errorf("%v\n%s", err, report)
		}
	})
}

func TestWeights(t *testing.T) {
	for _, c := range []struct {
		shares []float64
		want   string
	}{
		{[]float64{2, 4}, "[2 4]"}, {[]float64{600, 300, 100}, "[6 3 1]"}, {[]float64{0.9, 0.1}, "[9 1]"}, {[]float64{0, 0}, "[]"},
		{[]float64{3}, "[]"}, {[]float64{0, 5}, "[0 5]"}, {[]float64{1e12, 1}, "[1000000 1]"}, {[]float64{1.0 / 3, 2.0 / 3}, "[333333 666667]"},
		{[]float64{1e-9, 1}, "[0 1]"},
	} {
		if got := fmt.Sprint(weights(c.shares)); got != c.want {
			t.Errorf("%v: %s, want %s", c.shares, got, c.want)
		}
	}
}
