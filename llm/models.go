// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"encoding/json"
	"net/http"
	"strings"
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

// geminiModel is the same for clients of Gemini's.
type geminiModel struct {
	Name        string   `json:"name"`
	Version     string   `json:"version"`
	DisplayName string   `json:"displayName"`
	Methods     []string `json:"supportedGenerationMethods"`
	Alias       string   `json:"alias,omitempty"`
}

// listDialect is that in which a client wants to be told of models. The path is
// Gemini's own, or one that it shares with the others; then the headers tell.
func listDialect(path string, h http.Header) Dialect {
	switch {
	case strings.HasPrefix(path, "/v1beta/"), h.Get("X-Goog-Api-Key") != "", h.Get("X-Goog-Api-Client") != "":
		return DialectGemini
	case h.Get("Anthropic-Version") != "":
		return DialectAnthropic
	}
	return DialectOpenAI
}

func (l Listed) entry(d Dialect) any {
	switch d {
	case DialectAnthropic:
		return anthropicModel{Type: "model", ID: l.ID, DisplayName: l.ID, CreatedAt: "1970-01-01T00:00:00Z", Alias: l.Alias}
	case DialectGemini:
		return geminiModel{Name: "models/" + l.ID, DisplayName: l.ID, Methods: []string{"generateContent", "countTokens"}, Alias: l.Alias}
	}
	return listedModel{ID: l.ID, Object: "model", OwnedBy: "penstock", Alias: l.Alias}
}

// ListedID is the model that a path of OpModels names, "" for all.
func ListedID(path string) string {
	if id, ok := strings.CutPrefix(path, "/v1beta/models/"); ok {
		return id
	}
	id, _ := strings.CutPrefix(path, "/v1/models/")
	if id == path {
		return ""
	}
	return id
}

// ModelObject is the answer of /v1/models/{id}, in OpenAI's form, in Anthropic's
// for a request with the header anthropic-version, or in Gemini's below /v1beta
// and for its clients.
func ModelObject(path string, h http.Header, l Listed) []byte {
	b, _ := json.Marshal(l.entry(listDialect(path, h)))
	return b
}

// ModelList is the answer of /v1/models, likewise.
func ModelList(path string, h http.Header, models []Listed) []byte {
	d := listDialect(path, h)
	data := make([]any, len(models))
	for i, l := range models {
		data[i] = l.entry(d)
	}
	var list any = struct {
		Object string `json:"object"`
		Data   []any  `json:"data"`
	}{"list", data}
	switch d {
	case DialectGemini:
		list = struct {
			Models []any `json:"models"`
		}{data}
	case DialectAnthropic:
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
