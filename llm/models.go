// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"encoding/json"
	"net/http"
)

// Listed is a model as clients are told of it.
type Listed struct {
	ID    string
	Alias string // the model that the name stands for; "": itself
}

// listedModel is one entry of /v1/models. The gateway does not know when a model
// was made: created is 0, which the field's type requires to be there.
type listedModel struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	Alias   string `json:"alias,omitempty"`
}

// anthropicModel is the same for clients that send anthropic-version.
type anthropicModel struct {
	Type        string `json:"type"`
	ID          string `json:"id"`
	DisplayName string `json:"display_name"`
	CreatedAt   string `json:"created_at"`
	Alias       string `json:"alias,omitempty"`
}

func isAnthropic(h http.Header) bool { return h.Get("Anthropic-Version") != "" }

func (l Listed) entry(h http.Header) any {
	if isAnthropic(h) {
		return anthropicModel{Type: "model", ID: l.ID, DisplayName: l.ID, CreatedAt: "1970-01-01T00:00:00Z", Alias: l.Alias}
	}
	return listedModel{ID: l.ID, Object: "model", OwnedBy: "penstock", Alias: l.Alias}
}

// ModelObject is the answer of /v1/models/{id}, in OpenAI's form, or in
// Anthropic's for a request with the header anthropic-version.
func ModelObject(h http.Header, l Listed) []byte {
	b, _ := json.Marshal(l.entry(h))
	return b
}

// ModelList is the answer of /v1/models, likewise.
func ModelList(h http.Header, models []Listed) []byte {
	data := make([]any, len(models))
	for i, l := range models {
		data[i] = l.entry(h)
	}
	var list any = struct {
		Object string `json:"object"`
		Data   []any  `json:"data"`
	}{"list", data}
	if isAnthropic(h) {
		first, last := "", ""
		if n := len(models); n > 0 {
			first, last = models[0].ID, models[n-1].ID
		}
		list = struct {
			Data    []any  `json:"data"`
			HasMore bool   `json:"has_more"`
			FirstID string `json:"first_id"`
			LastID  string `json:"last_id"`
		}{data, false, first, last}
	}
	b, _ := json.Marshal(list)
	return b
}
