// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/epp"
)

const (
	defaultPicks = 50
	maxPicks     = 1000
	maxBody      = 32 << 20 // of a dry run; the default limit of a listener
)

// Failure is the body of every answer that is not 2xx, but for /readyz.
type Failure struct {
	Error struct {
		Message string `json:"message"`
		Param   string `json:"param,omitempty"` // the field of a dry run's body
		Code    string `json:"code,omitempty"`  // likewise
		Hint    string `json:"hint,omitempty"`
	} `json:"error"`
}

func writeError(w http.ResponseWriter, status int, message, hint string) {
	var f Failure
	f.Error.Message, f.Error.Hint = message, hint
	writeJSON(w, status, f)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	// The client may be gone; there is nobody to tell.
	_ = enc.Encode(v)
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

func (s *server) index(w http.ResponseWriter, _ *http.Request) {
	var b strings.Builder
	b.WriteString("penstock admin\n\n")
	for _, p := range s.paths {
		if p.about != "" {
			fmt.Fprintf(&b, "%-4s  %-15s  %s\n", p.method, strings.TrimSuffix(p.pattern, "{$}"), p.about)
		}
	}
	writeText(w, http.StatusOK, b.String())
}

func (s *server) healthz(w http.ResponseWriter, _ *http.Request) {
	writeText(w, http.StatusOK, "ok\n")
}

func (s *server) readyz(w http.ResponseWriter, r *http.Request) {
	ready := s.Ready()
	status := http.StatusOK
	if !ready.Ready {
		status = http.StatusServiceUnavailable
	}
	switch {
	case r.URL.Query().Has("verbose"):
		ready.Listeners = list(ready.Listeners)
		ready.Pools = list(ready.Pools)
		writeJSON(w, status, ready)
	case ready.Ready:
		text := "ok\n"
		if c := ready.Controller; c != nil && !c.Connected {
			text += "the controller is out of reach since " + c.Since.UTC().Format(time.RFC3339) + "\n"
		}
		if k := ready.Keys; k != nil && !k.Reachable {
			text += "the store of keys is out of reach since " + k.Since.UTC().Format(time.RFC3339) + "\n"
		}
		writeText(w, status, text+refusedText(&ready))
	default:
		writeText(w, status, "not ready: "+ready.Reason+"\n"+refusedText(&ready))
	}
}

// refusedText says that the newest configuration is not in force, and why.
func refusedText(r *Readiness) string {
	if r.Config.Error == "" {
		return ""
	}
	text := "the newest configuration is refused, and an older one stays"
	if r.Config.ErrorAt != nil {
		text += ", since " + r.Config.ErrorAt.UTC().Format(time.RFC3339)
	}
	return text + ":\n" + strings.TrimSpace(r.Config.Error) + "\n"
}

func (s *server) config(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml; charset=utf-8")
	_, _ = w.Write(s.Config())
}

func (s *server) pools(w http.ResponseWriter, _ *http.Request) {
	pools := list(s.Pools())
	for i := range pools {
		pools[i].Status = list(pools[i].Status)
	}
	writeJSON(w, http.StatusOK, pools)
}

func (s *server) members(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("pool")
	if !s.knownPool(w, name) {
		return
	}
	members := []MemberStatus{}
	for _, p := range s.Pools() {
		if name == "" || p.Name == name {
			members = append(members, p.Status...)
		}
	}
	writeJSON(w, http.StatusOK, members)
}

func (s *server) pickers(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("pool")
	if !s.knownPool(w, name) {
		return
	}
	pickers := []PickerStatus{}
	for _, p := range s.Pools() {
		if p.Picker != nil && (name == "" || p.Name == name) {
			p.Picker.Replicas = list(p.Picker.Replicas)
			pickers = append(pickers, *p.Picker)
		}
	}
	writeJSON(w, http.StatusOK, pickers)
}

func (s *server) models(w http.ResponseWriter, _ *http.Request) {
	models := list(s.Models())
	for i := range models {
		models[i].Targets = list(models[i].Targets)
	}
	writeJSON(w, http.StatusOK, models)
}

func (s *server) targets(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("model")
	model, ok := s.knownModel(w, name)
	if !ok {
		return
	}
	targets := []TargetHealth{}
	for _, t := range s.Targets() {
		if model == "" || t.Model == model {
			targets = append(targets, t)
		}
	}
	writeJSON(w, http.StatusOK, targets)
}

func (s *server) picks(w http.ResponseWriter, r *http.Request) {
	n := defaultPicks
	if text := r.URL.Query().Get("n"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > maxPicks {
			writeError(w, http.StatusBadRequest, "n is "+quote(text), fmt.Sprintf("a number from 1 to %d", maxPicks))
			return
		}
	}
	name := r.URL.Query().Get("pool")
	if !s.knownPool(w, name) {
		return
	}
	writeJSON(w, http.StatusOK, list(s.Picks(name, n)))
}

// knownModel is the model that a name stands for. It answers 404 for one that is
// not there; no name is all models.
func (s *server) knownModel(w http.ResponseWriter, name string) (model string, ok bool) {
	if name == "" || s.Models == nil {
		return name, true
	}
	models := s.Models()
	stands := make(map[string]string, len(models)) // of each name; an alias may name another
	names := make([]string, len(models))
	for i, m := range models {
		names[i], stands[m.Name] = m.Name, m.Alias
	}
	if _, ok = stands[name]; !ok {
		writeError(w, http.StatusNotFound, "there is no model "+quote(name), "models: "+strings.Join(names, ", "))
		return "", false
	}
	for range models {
		name = cmp.Or(stands[name], name)
	}
	return name, true
}

// knownPool answers 404 for a pool that is not there; no name is all pools.
func (s *server) knownPool(w http.ResponseWriter, name string) bool {
	if name == "" || s.Pools == nil {
		return true
	}
	var names []string
	for _, p := range s.Pools() {
		if p.Name == name {
			return true
		}
		names = append(names, p.Name)
	}
	writeError(w, http.StatusNotFound, "there is no pool "+quote(name), "pools: "+strings.Join(names, ", "))
	return false
}

func (s *server) pick(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	d := Decision{Explanation: s.Find(id)}
	if d.Explanation != nil {
		d.Change = d.Explanation.Change()
	}
	if s.Route != nil {
		d.Route = s.Route(id)
	}
	if d.Explanation != nil || d.Route != nil {
		writeJSON(w, http.StatusOK, d)
		return
	}
	writeError(w, http.StatusNotFound, "nothing is kept of request "+quote(id),
		"one that was refused before a target was chosen has no decision, and only the newest are kept; its record (records.path) has the rest")
}

func (s *server) explain(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			writeError(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes", tooLarge.Limit), "")
			return
		}
		writeError(w, http.StatusBadRequest, "the body could not be read: "+err.Error(), "")
		return
	}
	q := r.URL.Query()
	name := q.Get("pool")
	if !s.knownPool(w, name) {
		return
	}
	run := DryRun{Pool: name, Model: q.Get("model"), Path: q.Get("path"), As: q.Get("as"), Header: r.Header.Clone(), Body: body}
	if run.Path == "" {
		run.Path = "/v1/chat/completions"
	}
	x, refused := s.Explain(r.Context(), run)
	if refused != nil {
		var f Failure
		f.Error.Message, f.Error.Param, f.Error.Code = refused.Message, refused.Param, refused.Code
		writeJSON(w, refused.Status, f)
		return
	}
	writeJSON(w, http.StatusOK, x)
}

// list makes an empty list print as [] and not null.
func list[T PoolStatus | ModelStatus | TargetStatus | MemberStatus | ListenerStatus | PoolSummary | ReplicaStatus | *epp.Explanation](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
