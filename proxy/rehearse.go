// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"slices"

	"github.com/penstock/penstock/auth"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/usage"
)

// Rehearsal is who would be asked to serve a request, without asking anybody.
// Where weights or loads decide, it is one draw of several.
type Rehearsal struct {
	Op      llm.Op
	Request *llm.Request
	Alias   string // the model that the name stands for; "": itself
	Steps   []Step // in the order of trying
	Skipped []usage.Skipped
}

// Step is one target.
type Step struct {
	Target string
	Pool   string // "": a provider
	Model  string // its name there
	// After is the class of failures after which it is tried; "": it is a target of
	// the model itself, tried in turn.
	After config.FallbackClass
	Out   bool // nothing is to be hoped of it now
}

// Rehearse says what would become of a request for model that id sends, as the
// configuration and the state of the targets are at this moment. Listeners and
// routes are not asked. body is that of the request; r has no more than its
// path and headers.
func (s *Server) Rehearse(r *http.Request, body []byte, model string, id *auth.Identity) (*Rehearsal, *llm.Error) {
	x := &exchange{server: s, table: s.table.Load(), r: r, route: &route{}, identity: id, account: account{record: &usage.Record{}}, path: r.URL.Path, op: llm.OpOf(r.URL.Path)}
	var fail *llm.Error
	if x.req, fail = llm.ReadAt(x.op, x.path, r.Header.Get("Content-Type"), body, x.table.readLimits); fail != nil {
		return nil, fail
	}
	if model == "" {
		model = x.req.Model
	}
	out := &Rehearsal{Op: x.op, Request: x.req}
	fail = x.resolve(model)
	out.Alias = x.record.Alias
	if fail == nil {
		class := config.FallbackClass("")
		if x.record.Fallback != "" {
			class = config.FallbackGeneral
		}
		out.add(x, class, x.target)
		out.add(x, class, x.plan.next...)
		out.Skipped = x.plan.skipped
		begun := x.plan
		begun.skipped = nil
		for _, class := range [...]config.FallbackClass{config.FallbackGeneral, config.FallbackContextWindow, config.FallbackContentPolicy} {
			x.plan = begun
			for list, _ := x.follow(class, false); len(list) > 0; list, _ = x.follow(class, false) {
				out.add(x, class, list...)
			}
			for _, s := range x.plan.skipped {
				if !slices.Contains(out.Skipped, s) {
					out.Skipped = append(out.Skipped, s)
				}
			}
		}
	} else if out.Skipped = x.plan.skipped; len(out.Skipped) == 0 {
		return nil, fail
	}
	return out, nil
}

func (h *Rehearsal) add(x *exchange, after config.FallbackClass, list ...*target) {
	for _, tg := range list {
		h.Steps = append(h.Steps, Step{Target: x.title(tg), Pool: tg.pool, Model: tg.named(x), After: after, Out: tg.out(x)})
	}
}
