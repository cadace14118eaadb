// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/penstock/penstock/auth"
)

// LimitPage is a part of the limits, in the order of their nodes.
type LimitPage struct {
	Limits []LimitStatus `json:"limits"`
	Next   string        `json:"next,omitempty"` // what to send as after for the next part; empty: this is the last
}

// LimitStatus is how much of one limit is in use. Amounts are in the unit, of money
// in US dollars.
type LimitStatus struct {
	Node     string  `json:"node"`  // acme, acme/search:ci, acme@END-USER, provider NAME/CREDENTIAL
	Limit    string  `json:"limit"` // 200000 tokens per 1m
	Unit     string  `json:"unit"`
	Shadow   bool    `json:"shadow,omitempty"` // it refuses nothing
	Amount   float64 `json:"amount"`
	Used     float64 `json:"used"`         // what is reserved included
	Reserved float64 `json:"reserved"`     // by requests under way
	Left     float64 `json:"left"`         // that may still be used
	Reset    float64 `json:"resetSeconds"` // until the limit is as if it were new
}

// LimitList is a page of the API: the limits of at most as many nodes as were
// asked for.
type LimitList struct {
	Items []LimitStatus `json:"items"`
	Next  string        `json:"next,omitempty"`
}

// listLimits answers /api/v1/limits.
func listLimits(c *call) (any, error) {
	p, err := c.page()
	if err != nil {
		return nil, err
	}
	unit := c.query.Get("unit")
	page, err := c.options.Limits(c.r.Context(), c.query.Get("tenant"), p.After, p.Limit)
	if err != nil {
		return nil, &auth.Fault{Kind: auth.Unreachable, Message: "the store of limits cannot be asked: " + err.Error(), Hint: "see quota.redis in the configuration"}
	}
	out := LimitList{Items: []LimitStatus{}}
	for _, l := range page.Limits {
		if unit == "" || l.Unit == unit {
			out.Items = append(out.Items, l)
		}
	}
	if page.Next != "" {
		out.Next = cursor(page.Next)
	}
	raw, err := json.Marshal(out)
	return json.RawMessage(raw), err
}

const (
	defaultLimits = 100 // nodes
	maxLimits     = 1000
)

func (s *server) limits(w http.ResponseWriter, r *http.Request) {
	q, n := r.URL.Query(), defaultLimits
	if text := q.Get("n"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > maxLimits {
			writeError(w, http.StatusBadRequest, "n is "+quote(text), fmt.Sprintf("a number from 1 to %d", maxLimits))
			return
		}
	}
	page, err := s.Limits(r.Context(), q.Get("tenant"), q.Get("after"), n)
	if err != nil {
		writeError(w, http.StatusServiceUnavailable, "the store of limits cannot be asked: "+err.Error(), "see quota.redis in the configuration")
		return
	}
	if page.Limits == nil {
		page.Limits = []LimitStatus{}
	}
	writeJSON(w, http.StatusOK, page)
}
