// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import "encoding/json"

// model is one entry of /v1/models. The gateway does not know when a model was
// made: created is 0, which the field's type requires to be there.
type model struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

// ModelObject is the answer of /v1/models/{id}.
func ModelObject(id string) []byte {
	b, _ := json.Marshal(model{ID: id, Object: "model", OwnedBy: "penstock"})
	return b
}

// ModelList is the answer of /v1/models.
func ModelList(ids []string) []byte {
	list := struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{Object: "list", Data: []model{}}
	for _, id := range ids {
		list.Data = append(list.Data, model{ID: id, Object: "model", OwnedBy: "penstock"})
	}
	b, _ := json.Marshal(list)
	return b
}
