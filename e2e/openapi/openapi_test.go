// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package openapi holds the admin API to its OpenAPI document, with a validator
// of OpenAPI 3.1 that knows nothing of Penstock. It is a module of its own, so that
// nobody else depends on that.
package openapi

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/errors"
)

// exchange is a request of the tests of package admin with its answer, as they
// write it.
type exchange struct {
	Document             string // of the API that was asked
	Method, Target, Body string
	Header               http.Header
	Status               int
	AnswerHeader         http.Header
	Answer               string
}

// transcript runs the tests of package admin and reads what they have written.
func transcript(t *testing.T) (out []exchange) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "transcript.jsonl")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "./admin")
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "PENSTOCK_ADMIN_TRANSCRIPT="+file)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go test ./admin: %v\n%s", err, text)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return out
		}
		var x exchange
		if err != nil || json.Unmarshal(line, &x) != nil {
			t.Fatalf("%v: %.200s", err, line)
		}
		out = append(out, x)
	}
}

// TestAdminAPI: each document is a valid one, each answer is as its document says,
// and each request that was granted is one that it allows.
func TestAdminAPI(t *testing.T) {
	list := transcript(t)
	judges := map[string]validator.Validator{}
	held, refusals := 0, 0
	for i := range list {
		x := &list[i]
		v := judges[x.Document]
		if v == nil {
			doc, err := libopenapi.NewDocument([]byte(x.Document))
			if err != nil {
				t.Fatal(err)
			}
			var faults []error
			if v, faults = validator.NewValidator(doc); len(faults) > 0 {
				t.Fatal(faults)
			}
			if ok, errs := v.ValidateDocument(); !ok {
				t.Errorf("the document: %s", texts(errs))
			}
			judges[x.Document] = v
		}
		name := x.Method + " " + x.Target
		ok, errs := v.ValidateHttpResponse(x.request(t), x.response())
		switch {
		case !ok && missing(errs):
			if x.Status != http.StatusNotFound && x.Status != http.StatusMethodNotAllowed {
				t.Errorf("%s: %d, and the document does not have it", name, x.Status)
			}
			continue
		case !ok:
			t.Errorf("%s: %d %s\n%s", name, x.Status, x.Answer, texts(errs))
		}
		held++
		if x.Status >= 300 {
			refusals++
			continue
		}
		if ok, errs := v.ValidateHttpRequest(x.request(t)); !ok {
			t.Errorf("%s %s: granted, and the document forbids it: %s", name, x.Body, texts(errs))
		}
	}
	t.Logf("%d documents, %d answers, %d of them refusals", len(judges), held, refusals)
	if held < 60 || refusals < 20 {
		t.Errorf("%d answers, %d of them refusals: too few to say anything", held, refusals)
	}
}

// request is the request as OpenAPI can describe it: a path in a parameter has no
// slashes there.
func (x *exchange) request(t *testing.T) *http.Request {
	t.Helper()
	target := x.Target
	if rest, is := strings.CutPrefix(target, "/api/v1/tenants/"); is {
		path, query, asked := strings.Cut(rest, "?")
		if target = "/api/v1/tenants/" + strings.ReplaceAll(path, "/", "%2F"); asked {
			target += "?" + query
		}
	}
	r, err := http.NewRequest(x.Method, "http://127.0.0.1:9901"+target, strings.NewReader(x.Body))
	if err != nil {
		t.Fatal(err)
	}
	if x.Header != nil {
		r.Header = x.Header.Clone()
	}
	return r
}

func (x *exchange) response() *http.Response {
	return &http.Response{StatusCode: x.Status, Header: x.AnswerHeader, Body: io.NopCloser(bytes.NewReader([]byte(x.Answer)))}
}

// missing says that the document has no such path, or not with the method.
func missing(errs []*errors.ValidationError) bool {
	for _, e := range errs {
		if e.IsPathMissingError() || e.IsOperationMissingError() {
			return true
		}
	}
	return false
}

func texts(errs []*errors.ValidationError) string {
	var out strings.Builder
	for _, e := range errs {
		out.WriteString(e.Error())
		for _, s := range e.SchemaValidationErrors {
			out.WriteString("; " + s.Reason)
		}
		out.WriteByte('\n')
	}
	return out.String()
}
