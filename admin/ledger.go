// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Ledger is where answers about usage come from. They are asked of a database,
// and so may take as long as the request's context lasts.
type Ledger struct {
	// Export writes rows; it has written nothing when it fails at once. Its
	// error, and that of Options.Usage, may be a [*BadQuery].
	Export func(ctx context.Context, query url.Values, w io.Writer) error
	// Outcome notes how a task went.
	Outcome func(ctx context.Context, task string, o TaskOutcome) error
}

// TaskOutcome is the body of POST /tasks/{id}/outcome.
type TaskOutcome struct {
	Tenant  string `json:"tenant"`
	Outcome string `json:"outcome"` // success, failure
}

// BadQuery is a query that cannot be answered as it is.
type BadQuery struct{ Message string }

func (e *BadQuery) Error() string { return e.Message }

// ledgerTime bounds one answer.
const ledgerTime = time.Minute

func (s *server) ledger() {
	if s.Usage != nil {
		s.get("/usage", "who used how much; ?by=tenant,model&since=7d&until=…&top=100&order=cost&where=tenant:NAME&cursor=…", s.usage)
	}
	if s.Export != nil {
		s.get("/usage/rows", "rows of the ledger; ?since=7d&until=…&format=jsonl&where=tenant:NAME", s.export)
	}
	if s.Outcome != nil {
		s.handleAs(Operator, http.MethodPost, "/tasks/{id}/outcome", `how a task went: {"tenant": "NAME", "outcome": "success"}`, s.outcome)
	}
}

func (s *server) usage(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), ledgerTime)
	defer cancel()
	a, err := s.Usage(ctx, r.URL.Query())
	if err != nil {
		ledgerError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, a)
}

func ledgerError(w http.ResponseWriter, err error) {
	var bad *BadQuery
	if errors.As(err, &bad) {
		writeError(w, http.StatusBadRequest, bad.Message, "")
		return
	}
	writeError(w, http.StatusServiceUnavailable, err.Error(), "")
}

// begun remembers whether anything was written.
type begun struct {
	http.ResponseWriter
	yes bool
}

func (b *begun) Write(p []byte) (int, error) {
	b.yes = true
	return b.ResponseWriter.Write(p)
}

func (s *server) export(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	b := &begun{ResponseWriter: w}
	if err := s.Export(r.Context(), r.URL.Query(), b); err != nil {
		if b.yes {
			panic(http.ErrAbortHandler) // so that it does not look whole
		}
		ledgerError(w, err)
	}
}

func (s *server) outcome(w http.ResponseWriter, r *http.Request) {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10))
	dec.DisallowUnknownFields()
	var o TaskOutcome
	if err := dec.Decode(&o); err != nil {
		writeError(w, http.StatusBadRequest, "the body cannot be read: "+err.Error(), `send {"tenant": "NAME", "outcome": "success"}`)
		return
	}
	if err := s.Outcome(r.Context(), r.PathValue("id"), o); err != nil {
		ledgerError(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
