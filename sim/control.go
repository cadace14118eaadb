// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/http"
	"strconv"
	"strings"
)

// isControl says that a path steers the simulation: it is never counted and
// never fails.
func isControl(path string) bool { return strings.HasPrefix(path, "/sim/") }

// control registers the paths that steer and watch the simulation.
func control(mux *http.ServeMux, faults *faultBox, stats func() Stats, set func(Faults) error) {
	mux.HandleFunc("GET /sim/stats", func(w http.ResponseWriter, r *http.Request) { statsPage(w, r, stats()) })
	mux.HandleFunc("GET /sim/faults", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, faults.get())
	})
	mux.HandleFunc("POST /sim/faults", func(w http.ResponseWriter, r *http.Request) {
		f, err := ReadFaults(r.Body)
		if err != nil {
			writeError(w, &apiError{Status: http.StatusBadRequest, Message: err.Error(), Type: "BadRequestError"})
			return
		}
		if err := faults.refuses(&f); err != nil {
			writeError(w, &apiError{Status: http.StatusBadRequest, Message: err.Error(), Type: "BadRequestError"})
			return
		}
		if f.Crash > 0 { // it would cut the answer
			writeJSON(w, http.StatusOK, f)
			_ = http.NewResponseController(w).Flush()
			_ = set(f) // was checked
			return
		}
		_ = set(f)
		writeJSON(w, http.StatusOK, f)
	})
}

func statsPage(w http.ResponseWriter, r *http.Request, s Stats) {
	last := keptRecords
	if v := r.URL.Query().Get("last"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 {
			writeError(w, invalid("last", "last must be a number"))
			return
		}
		last = n
	}
	s.Records = s.Records[max(0, len(s.Records)-last):]
	s.Seen = s.Seen[max(0, len(s.Seen)-last):]
	writeJSON(w, http.StatusOK, s)
}
