// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
)

// Endpoints that compute a prompt and generate no text: each input is a
// sequence of one output token, which is not counted as output.

const defaultDimensions = 64

func (a *api) embeddings(w http.ResponseWriter, r *http.Request, f Faults) {
	body, ok := a.body(w, r)
	if !ok {
		return
	}
	var req struct {
		Model      string     `json:"model"`
		Input      promptList `json:"input"`
		Dimensions *int       `json:"dimensions"`
		Encoding   string     `json:"encoding_format"`
	}
	if err := json.Unmarshal(body, &req); err != nil {
		a.refuse(w, badJSON(err))
		return
	}
	dimensions := defaultDimensions
	if req.Dimensions != nil {
		dimensions = *req.Dimensions
	}
	switch {
	case len(req.Input) == 0 || len(req.Input) > 2048:
		a.refuse(w, invalid("input", "input must have between 1 and 2048 entries"))
		return
	case dimensions < 1 || dimensions > 4096:
		a.refuse(w, invalid("dimensions", "dimensions must be between 1 and 4096"))
		return
	}
	x := a.score(w, r, f, req.Model, req.Input)
	if x == nil {
		return
	}
	defer x.end()
	if !x.complete() {
		return
	}
	type embedding struct {
		Object    string `json:"object"`
		Index     int    `json:"index"`
		Embedding any    `json:"embedding"`
	}
	data := make([]embedding, len(req.Input))
	for i, p := range req.Input {
		v := vector(p, dimensions)
		data[i] = embedding{Object: "embedding", Index: i, Embedding: v}
		if req.Encoding == "base64" {
			data[i].Embedding = packed(v)
		}
	}
	x.answer(map[string]any{"object": "list", "data": data, "model": req.Model, "usage": x.inputUsage()})
}

// score starts a job that only computes the prompts.
func (a *api) score(w http.ResponseWriter, r *http.Request, f Faults, model string, prompts promptList) *exchange {
	if model == "" {
		a.refuse(w, invalid("model", "model is required"))
		return nil
	}
	g := &generation{model: model, prompts: prompts, n: 1, silent: true, bounded: true, bounds: bounds{most: 1, ignoreEOS: true}}
	return a.begin(w, r, f, g, "emb")
}

// inputUsage is a usage without output; nil for none.
func (x *exchange) inputUsage() any {
	u := x.usage()
	if u == nil {
		return nil
	}
	return map[string]int{"prompt_tokens": u.PromptTokens, "total_tokens": u.PromptTokens}
}

// vector is a unit vector that depends on every byte of the input.
func vector(p tokens, dimensions int) []float32 {
	v := make([]float32, dimensions)
	h := HashText(0, []byte(p))
	norm := 0.0
	for i := range v {
		h = mix(h)
		v[i] = float32(int64(h)>>32) / (1 << 31)
		norm += float64(v[i]) * float64(v[i])
	}
	for i := range v {
		v[i] /= float32(math.Sqrt(norm) + 1e-9)
	}
	return v
}

func packed(v []float32) string {
	b := make([]byte, 0, 4*len(v))
	for _, f := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return base64.StdEncoding.EncodeToString(b)
}

// relevance is between 0 and 1 and higher for documents that share words with
// the query.
func relevance(query, document string) float64 {
	a, b := vectorOfWords(query), vectorOfWords(document)
	shared := 0
	for w := range a {
		if b[w] {
			shared++
		}
	}
	tie := float64(HashText(0, query+"\x00"+document)>>40) / (1 << 24) // below 1
	return (float64(shared) + 0.1*tie) / float64(len(a)+1)
}

func vectorOfWords(s string) map[string]bool {
	words := map[string]bool{}
	start := 0
	for i := 0; i <= len(s); i++ {
		if i == len(s) || s[i] == ' ' {
			if i > start {
				words[s[start:i]] = true
			}
			start = i + 1
		}
	}
	return words
}

func (a *api) rerank(w http.ResponseWriter, r *http.Request, f Faults) {
	body, ok := a.body(w, r)
	if !ok {
		return
	}
	var req struct {
		Model     string     `json:"model"`
		Query     string     `json:"query"`
		Documents stringList `json:"documents"`
		TopN      int        `json:"top_n"`
	}
	if err := json.Unmarshal(body, &req); err != nil {
		a.refuse(w, badJSON(err))
		return
	}
	if len(req.Documents) == 0 {
		a.refuse(w, invalid("documents", "documents must not be empty"))
		return
	}
	x := a.score(w, r, f, req.Model, pairs(req.Query, req.Documents))
	if x == nil {
		return
	}
	defer x.end()
	if !x.complete() {
		return
	}
	type result struct {
		Index    int               `json:"index"`
		Document map[string]string `json:"document"`
		Score    float64           `json:"relevance_score"`
	}
	results := make([]result, len(req.Documents))
	for i, d := range req.Documents {
		results[i] = result{i, map[string]string{"text": d}, relevance(req.Query, d)}
	}
	slices.SortStableFunc(results, func(a, b result) int {
		switch {
		case a.Score > b.Score:
			return -1
		case a.Score < b.Score:
			return 1
		}
		return 0
	})
	if req.TopN > 0 {
		results = results[:min(req.TopN, len(results))]
	}
	x.answer(map[string]any{"id": x.g.id, "model": req.Model, "results": results, "usage": x.inputUsage()})
}

func pairs(query string, documents []string) promptList {
	var l promptList
	for _, d := range documents {
		l = append(l, tokens(nil).segment(query).segment("\n").segment(d))
	}
	return l
}

func (a *api) scores(w http.ResponseWriter, r *http.Request, f Faults) {
	body, ok := a.body(w, r)
	if !ok {
		return
	}
	var req struct {
		Model string     `json:"model"`
		Text1 stringList `json:"text_1"`
		Text2 stringList `json:"text_2"`
	}
	if err := json.Unmarshal(body, &req); err != nil {
		a.refuse(w, badJSON(err))
		return
	}
	if len(req.Text1) != 1 || len(req.Text2) == 0 {
		a.refuse(w, invalid("text_1", "one text_1 and one text_2 or more are required"))
		return
	}
	x := a.score(w, r, f, req.Model, pairs(req.Text1[0], req.Text2))
	if x == nil {
		return
	}
	defer x.end()
	if !x.complete() {
		return
	}
	data := make([]any, len(req.Text2))
	for i, d := range req.Text2 {
		data[i] = map[string]any{"index": i, "object": "score", "score": relevance(req.Text1[0], d)}
	}
	x.answer(map[string]any{"id": x.g.id, "object": "list", "created": x.g.created, "model": req.Model, "data": data, "usage": x.inputUsage()})
}

// secondsPerByte is the length of 16 kHz, 16 bit, mono audio.
const secondsPerByte = 1.0 / 32000

// transcribe reads multipart form data part by part; the model may come after
// the file.
func (a *api) transcribe(w http.ResponseWriter, r *http.Request, f Faults) {
	model, size, err := readUpload(http.MaxBytesReader(w, r.Body, mostBody), r.Header.Get("Content-Type"))
	switch {
	case err != nil:
		a.refuse(w, &apiError{Status: http.StatusBadRequest, Message: err.Error(), Type: "BadRequestError"})
		return
	case size == 0:
		a.refuse(w, invalid("file", "file is required"))
		return
	}
	g := &generation{
		model: model, n: 1, bounded: true, bounds: bounds{most: max(1, min(448, int(size/8000)))},
		prompts: promptList{tokens(nil).segment(fmt.Sprintf("<|audio %d|>", size))},
	}
	if model == "" {
		a.refuse(w, invalid("model", "model is required"))
		return
	}
	x := a.begin(w, r, f, g, "trsc")
	if x == nil {
		return
	}
	defer x.end()
	if !x.complete() {
		return
	}
	answer := map[string]any{"text": x.job.choices[0].out.text(math.MaxInt)}
	if f.Usage != "missing" {
		answer["usage"] = map[string]any{"type": "duration", "seconds": math.Ceil(float64(size) * secondsPerByte)}
	}
	x.answer(answer)
}

func readUpload(body io.Reader, contentType string) (model string, size int64, err error) {
	form, err := readForm(body, contentType)
	return form.fields["model"], form.size, err
}

// uploadForm is multipart form data with a file, of which only the size counts.
type uploadForm struct {
	fields map[string]string
	size   int64
}

const mostFormFields = 64

func readForm(body io.Reader, contentType string) (f uploadForm, err error) {
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil || kind != "multipart/form-data" {
		return f, errors.New("the body is not multipart form data")
	}
	f.fields = map[string]string{}
	parts := multipart.NewReader(body, params["boundary"])
	for {
		part, err := parts.NextPart()
		if err == io.EOF {
			return f, nil
		}
		if err != nil {
			return f, fmt.Errorf("multipart: %w", err)
		}
		if part.FormName() == "file" {
			f.size, err = io.Copy(io.Discard, part)
		} else if len(f.fields) < mostFormFields {
			var value []byte
			value, err = io.ReadAll(io.LimitReader(part, 4096))
			f.fields[part.FormName()] = string(value)
		}
		if err != nil {
			return f, fmt.Errorf("multipart: %w", err)
		}
	}
}
