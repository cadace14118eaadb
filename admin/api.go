// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/auth"
	"github.com/penstock/penstock/config"
)

// This file is the REST API: how a request is read and answered. What there is
// stands in one table, [routes], from which the API is served and its OpenAPI
// document is made.

// Tenancy is where tenants and keys are read and edited.
type Tenancy interface {
	auth.Reader
	auth.Editor
}

const (
	maxDocument  = 1 << 20
	defaultLimit = 100
	maxLimit     = 1000
)

// route is one operation of the API.
type route struct {
	method, path string // path as net/http has it
	id, summary  string
	role         Role
	query        []string     // parameters that it knows
	body         reflect.Type // nil: none
	status       int          // of success
	answer       reflect.Type // nil: none
	guarded      bool         // an edit of something that is there: If-Match must be given
	do           func(*call) (any, error)
}

// call is one request to the API.
type call struct {
	w       http.ResponseWriter
	r       *http.Request
	route   *route
	query   url.Values
	body    any // pointer to the route's body; nil: none
	caller  caller
	tenancy Tenancy
	options *Options
}

// api registers the routes.
func (s *server) api() {
	list := routes(&s.Options)
	byPath := map[string][]*route{}
	for i := range list {
		byPath[list[i].path] = append(byPath[list[i].path], &list[i])
	}
	done := map[string]bool{}
	for i := range list {
		rt := &list[i]
		s.paths = append(s.paths, path{rt.method, rt.path, rt.summary})
		if done[rt.path] {
			continue
		}
		done[rt.path] = true
		same := byPath[rt.path]
		s.mux.HandleFunc(rt.path, func(w http.ResponseWriter, r *http.Request) {
			var methods []string
			for _, rt := range same {
				if rt.method == r.Method || rt.method == http.MethodGet && r.Method == http.MethodHead {
					s.serveAPI(w, r, rt)
					return
				}
				methods = append(methods, rt.method)
			}
			w.Header().Set("Allow", strings.Join(methods, ", "))
			writeError(w, http.StatusMethodNotAllowed, r.Method+" is not served here", "use "+strings.Join(methods, " or "))
		})
	}
	s.handleAs(Viewer, http.MethodGet, "/api/openapi.json", "the OpenAPI document of the API", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, document(list, s.Version))
	})
}

func (s *server) serveAPI(w http.ResponseWriter, r *http.Request, rt *route) {
	who, in := s.admit(w, r, rt.role)
	if !in {
		return
	}
	c := &call{w: w, r: r, route: rt, caller: who, tenancy: s.Tenancy(), options: &s.Options}
	answer, err := c.run()
	if err != nil {
		s.refuse(w, err)
		return
	}
	if answer == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(rt.status)
	_, _ = w.Write(answer)
}

// run reads the request and gives the answer's body; nil: it has none.
func (c *call) run() ([]byte, error) {
	if err := c.readQuery(); err != nil {
		return nil, err
	}
	if c.route.body != nil {
		if err := c.readBody(); err != nil {
			return nil, err
		}
	}
	if c.route.guarded && c.r.Header.Get("If-Match") == "" {
		return nil, &httpFault{http.StatusPreconditionRequired, auth.Fault{Param: "If-Match", Message: "is missing",
			Hint: "send the ETag of what you have read, or * to change it whatever it is now"}}
	}
	doc, err := c.route.do(c)
	if err != nil || doc == nil {
		return nil, err
	}
	raw := config.EncodeJSON(doc)
	if x, is := doc.(json.RawMessage); is {
		raw = x
	}
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// httpFault is a fault with a status of its own.
type httpFault struct {
	status int
	auth.Fault
}

func (f *httpFault) Error() string { return f.Fault.Error() }

func invalid(param, message, hint string) error {
	return &auth.Fault{Kind: auth.Invalid, Param: param, Message: message, Hint: hint}
}

// readQuery takes the parameters that the route knows, each once.
func (c *call) readQuery() error {
	var err error
	if c.query, err = url.ParseQuery(c.r.URL.RawQuery); err != nil {
		return invalid("", "the query cannot be read: "+err.Error(), "")
	}
	for name, values := range c.query {
		switch {
		case !slices.Contains(c.route.query, name):
			hint := "it has none"
			if len(c.route.query) > 0 {
				hint = "it has " + strings.Join(c.route.query, ", ")
			}
			return invalid(name, "is no parameter of this request", hint)
		case len(values) > 1:
			return invalid(name, "is given twice", "keep one of them")
		}
	}
	if text := c.query.Get("dryRun"); text != "" && text != "true" && text != "false" {
		return invalid("dryRun", "is "+quote(text), "write true or false")
	}
	return nil
}

// readBody decodes the body as strictly as a configuration.
func (c *call) readBody() error {
	if kind, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return &httpFault{http.StatusUnsupportedMediaType, auth.Fault{Message: "the body must be JSON", Hint: "send Content-Type: application/json"}}
	}
	text, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxDocument))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return &httpFault{http.StatusRequestEntityTooLarge, auth.Fault{Message: fmt.Sprintf("the body is larger than %d bytes", tooLarge.Limit)}}
	case err != nil:
		return invalid("", "the body could not be read: "+err.Error(), "")
	}
	into := reflect.New(c.route.body)
	if err := config.DecodeJSON(text, into.Interface()); err != nil {
		return auth.FaultOf(err, "")
	}
	c.body = into.Interface()
	return nil
}

// revision is the one that If-Match names; 0: any.
func (c *call) revision() (int, error) {
	text := c.r.Header.Get("If-Match")
	if text == "" || text == "*" {
		return 0, nil
	}
	quoted, is := strings.CutPrefix(text, `"`)
	inner, closed := strings.CutSuffix(quoted, `"`)
	n, err := strconv.Atoi(inner)
	if !is || !closed || err != nil || n < 1 {
		return 0, invalid("If-Match", "is "+quote(text), `send the ETag as it came, such as "3"`)
	}
	return n, nil
}

// edit makes an edit in the name of the caller.
func (c *call) edit(e auth.Edit) (*auth.Outcome, error) {
	revision, err := c.revision()
	if err != nil {
		return nil, err
	}
	e.Revision, e.Actor, e.Role, e.DryRun = revision, c.caller.name, c.caller.role.String(), c.query.Get("dryRun") == "true"
	return c.tenancy.Do(c.r.Context(), e)
}

// tag sets the ETag of a document; a file's has none.
func (c *call) tag(revision int) {
	if revision > 0 {
		c.w.Header().Set("ETag", strconv.Quote(strconv.Itoa(revision)))
	}
}

// page reads limit and cursor.
func (c *call) page() (auth.Page, error) {
	p := auth.Page{Limit: defaultLimit}
	if text := c.query.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxLimit {
			return p, invalid("limit", "is "+quote(text), fmt.Sprintf("a number from 1 to %d", maxLimit))
		}
		p.Limit = n
	}
	after, err := base64.RawURLEncoding.DecodeString(c.query.Get("cursor"))
	if err != nil || len(after) > 1024 {
		return p, invalid("cursor", "is none that was given out", "take next from the answer before, or leave it out")
	}
	p.After = string(after)
	return p, nil
}

// cursor names the last one of a page.
func cursor(last string) string { return base64.RawURLEncoding.EncodeToString([]byte(last)) }

// refuse answers with what is wrong.
func (s *server) refuse(w http.ResponseWriter, err error) {
	var own *httpFault
	var fault *auth.Fault
	status := http.StatusInternalServerError
	switch {
	case errors.As(err, &own):
		status, fault = own.status, &own.Fault
	case errors.As(err, &fault):
		status = statusOf(fault.Kind)
	default:
		s.Log.Error("the admin API failed", "error", err)
		fault = &auth.Fault{Message: "the gateway failed; its log has the reason"}
	}
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "5")
	}
	var f Failure
	f.Error.Message, f.Error.Param, f.Error.Hint = fault.Message, fault.Param, fault.Hint
	if own == nil && status != http.StatusInternalServerError {
		f.Error.Code = codeOf(fault.Kind)
	}
	writeJSON(w, status, f)
}

func statusOf(k auth.FaultKind) int {
	return map[auth.FaultKind]int{
		auth.Invalid: http.StatusBadRequest, auth.NotFound: http.StatusNotFound, auth.Exists: http.StatusConflict, auth.Outdated: http.StatusPreconditionFailed,
		auth.ReadOnly: http.StatusConflict, auth.InUse: http.StatusConflict, auth.Unreachable: http.StatusServiceUnavailable,
	}[k]
}

func codeOf(k auth.FaultKind) string {
	return map[auth.FaultKind]string{
		auth.Invalid: "invalid", auth.NotFound: "not_found", auth.Exists: "exists", auth.Outdated: "outdated",
		auth.ReadOnly: "read_only", auth.InUse: "in_use", auth.Unreachable: "store_unreachable",
	}[k]
}
