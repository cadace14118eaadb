// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
)

// Audit recounts the references and the free list of an engine.
func Audit(e *Engine) error {
	refs := make([]int32, len(e.blocks.refs))
	for _, s := range e.running {
		if s.computed > s.tokens() || len(s.blocks) < e.blocksFor(s.computed) {
			return fmt.Errorf("sequence %d: %d tokens computed of %d in %d blocks", s.req.ID, s.computed, s.tokens(), len(s.blocks))
		}
		for _, b := range s.blocks {
			refs[b]++
		}
	}
	for _, s := range e.waiting {
		if s.blocks != nil {
			return fmt.Errorf("waiting sequence %d holds blocks", s.req.ID)
		}
	}
	free := map[int32]bool{}
	head := int32(len(refs))
	for b := e.blocks.next[head]; b != head; b = e.blocks.next[b] {
		free[b] = true
	}
	if len(free) != e.blocks.free {
		return fmt.Errorf("%d blocks in the free list, counted %d", len(free), e.blocks.free)
	}
	for b, n := range refs {
		if n != e.blocks.refs[b] || free[int32(b)] != (n == 0) {
			return fmt.Errorf("block %d: %d references, recorded %d, free %v", b, n, e.blocks.refs[b], free[int32(b)])
		}
	}
	named := 0
	for i, h := range e.blocks.byHash.keys {
		if h == 0 {
			continue
		}
		named++
		if b := e.blocks.byHash.blocks[i]; e.blocks.hash[b] != h {
			return fmt.Errorf("hash %x names block %d, which holds %x", h, b, e.blocks.hash[b])
		}
	}
	for b, h := range e.blocks.hash {
		if h == 0 {
			continue
		}
		named--
		if found, ok := e.blocks.lookup(h); !ok || found != int32(b) {
			return fmt.Errorf("block %d holds %x, which names block %d, %v", b, h, found, ok)
		}
	}
	if named != 0 {
		return fmt.Errorf("%d more hashes than blocks that hold one", named)
	}
	if len(e.byID) != len(e.running)+len(e.waiting) {
		return fmt.Errorf("%d ids, %d running, %d waiting", len(e.byID), len(e.running), len(e.waiting))
	}
	return nil
}

// ParseProviderBody reads the body of a request to a provider, makes the answer
// and checks what the handlers rely on.
func ParseProviderBody(p *Provider, shape string, body []byte) error {
	var t *turn
	var bad *problem
	c := &call{p: p, body: body, r: httptest.NewRequest("POST", "/", nil)}
	switch shape {
	case "anthropic":
		t, bad = readAnthropic(body, &p.maker.secret, false)
	case "bedrock":
		t, bad = readConverse(body, "m", &p.maker.secret)
	case "gemini":
		t, _, bad = readGemini(body, "gemini-3-m", &p.maker.secret)
	case "openai":
		t, bad = p.readChat(body, "")
	case "completions":
		t, _, bad = p.readCompletion(body, "")
	case "responses":
		_, t, bad = c.readResponse()
	case "rerank":
		if _, bad = readRerank(body, "return_documents"); bad == nil {
			return nil
		}
	}
	if bad != nil {
		for _, name := range Shapes() {
			_, v := newShape(name).wording(http.Header{}, bad, "id")
			encode(v)
		}
		return errors.New(bad.message)
	}
	if t.n < 1 || t.n > 128 || t.bounded && t.bounds.most < 1 || len(t.messages) == 0 && len(t.prompts) == 0 {
		panic(fmt.Sprintf("accepted %+v", t))
	}
	t.bounds.most = min(max(1, t.bounds.most), 4096)
	t.bounds.least, t.n = min(t.bounds.least, t.bounds.most), 1
	prompt, marks := t.render()
	p.cache.look("", prompt, marks, t.marked)
	for _, a := range p.maker.answers(t, prompt, "id", true) {
		if n, _ := a.count(); n > t.bounds.most {
			panic(fmt.Sprintf("%d tokens, at most %d", n, t.bounds.most))
		}
	}
	return nil
}

// Canonical reads a signed request as the check of signatures does.
func Canonical(authorization, path, query string) {
	_, signed, _, ok := parseAuthorization(authorization)
	r := httptest.NewRequest("POST", "/", nil)
	r.URL.Path, r.URL.RawQuery = path, query
	if ok {
		canonicalRequest(r, signed, nil)
	}
}

// Sign is the signature that the check expects.
func Sign(secret string, scope []string, date string, r *http.Request, signed []string, body []byte) string {
	return sign(secret, scope, date, canonicalRequest(r, signed, body))
}

// ParseBody reads the body of a request to an endpoint and checks what the
// handlers rely on.
func ParseBody(path string, body []byte) error {
	var g *generation
	var bad *apiError
	switch path {
	case "/v1/chat/completions":
		g, bad = parseChat(body)
	case "/v1/completions":
		g, bad = parseCompletion(body)
	case "/v1/responses":
		g, _, _, bad = parseResponses(body, &storedResponses{})
	case "/v1/audio/transcriptions":
		_, _, err := readUpload(bytes.NewReader(body), "multipart/form-data; boundary=b")
		return err
	case "/sim/faults":
		_, err := ReadFaults(bytes.NewReader(body))
		return err
	}
	if bad != nil {
		encode(bad)
		return errors.New(bad.Message)
	}
	if g.model == "" || g.n < 1 || g.n > 128 || g.bounds.most < 1 || len(g.prompts) == 0 {
		panic(fmt.Sprintf("accepted %+v", g))
	}
	for _, p := range g.prompts {
		if len(p)%bytesPerToken != 0 || len(p) > 16*len(body) {
			panic(fmt.Sprintf("prompt of %d bytes from a body of %d", len(p), len(body)))
		}
		p.chain(g.salt, 16)
	}
	b := g.bounds
	b.most = min(b.most, 4096)
	b.least = min(b.least, b.most)
	a := &api{}
	out := a.compose(g, 1, b)
	if len(out.pieces) < 1 || len(out.pieces) > b.most {
		panic(fmt.Sprintf("%d pieces, bound %d", len(out.pieces), b.most))
	}
	return nil
}
