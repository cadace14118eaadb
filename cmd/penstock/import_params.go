// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
)

// routing reads what says how often and how long a deployment is asked.
func (p *params) routing(d *deployment) {
	p.weight(d)
	if at, n := p.get("order"); n != nil {
		if f, ok := n.number(); ok && f == float64(int32(f)) {
			d.order, d.ordered = int(f), true
		} else {
			p.im.lost(at, "it is no whole number")
		}
	}
	d.timeouts = p.im.readTimeouts(p.get)
	if at, n := p.get("num_retries", "max_retries"); n != nil {
		if retries, ok := p.im.count(at, n, 0, 99); ok {
			d.retries = retries
			p.im.different(at, "becomes retries.attempts of the model, one more, for all of its targets together")
		}
	}
	if at, n := p.get("drop_params"); n != nil {
		p.im.different(at, "what a target has no word for is always left out, and named in the header x-penstock-dropped")
	}
}

// weight reads the numbers that can be a share; which of them is one is known
// when every deployment of the name is.
func (p *params) weight(d *deployment) {
	for _, key := range []string{"weight", "rpm", "tpm"} {
		at, n := p.get(key)
		if n == nil {
			continue
		}
		if f, ok := n.number(); ok && f >= 0 && f <= 1e12 {
			d.share[key] = f
		} else {
			p.im.lost(at, "it is no number that can be a share")
		}
	}
}

// parameters reads the members of the body that every request to the deployment
// gets.
func (p *params) parameters(d *deployment) {
	for i := range p.own.entries {
		e := &p.own.entries[i]
		at := below(p.path, e.key)
		if e.key == "extra_body" && e.value.kind == treeMap {
			e.read = true
			for _, m := range e.value.entries {
				p.parameter(d, below(at, m.key), m.key, m.value)
			}
			continue
		}
		if bodyParameters[e.key] {
			e.read = true
			p.parameter(d, at, e.key, e.value)
		}
	}
}

func (p *params) parameter(d *deployment, at, key string, n *treeNode) {
	if n.kind == treeNull {
		return
	}
	if value, why := parameter(key, n); why != "" {
		p.im.lost(at, why)
	} else {
		p.im.variablesIn(n)
		d.setDefault(key, value, true)
	}
}

// variablesIn notes the variables of a value that is written.
func (im *litellmImport) variablesIn(n *treeNode) {
	if name, ok := environment(n.text); ok && n.kind == treeText {
		im.named(name, exampleText)
	}
	for _, e := range n.entries {
		im.variablesIn(e.value)
	}
	for _, item := range n.items {
		im.variablesIn(item)
	}
}

// parameter is a member of the body to write, or why it cannot be.
func parameter(key string, n *treeNode) (value any, why string) {
	switch {
	case slices.Contains([]string{"model", "stream", "messages", "input", "contents", "prompt"}, strings.ToLower(key)):
		return nil, "is not a parameter that a target may change"
	case key == "" || len(key) > 128:
		return nil, "it is no name of a parameter"
	case hidesSecret(key, n):
		return nil, "it looks like a secret, and bodies are no place for one"
	}
	value, ok := yamlOf(n)
	if !ok {
		return nil, "it holds a number that is not finite"
	}
	return value, ""
}

// hidesSecret says that n is, or holds, a text under the name of a secret.
func hidesSecret(key string, n *treeNode) bool {
	name := strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(key))
	if n.kind == treeText && slices.ContainsFunc([]string{"apikey", "secret", "password", "authorization", "accesstoken", "authtoken", "credential"}, func(s string) bool { return strings.Contains(name, s) }) {
		return true
	}
	for _, e := range n.entries {
		if hidesSecret(e.key, e.value) {
			return true
		}
	}
	return slices.ContainsFunc(n.items, func(item *treeNode) bool { return hidesSecret(key, item) })
}

// setDefault adds a member, or keeps the one that is there unless over.
func (d *deployment) setDefault(key string, value any, over bool) {
	i, there := slices.BinarySearchFunc(d.defaults, key, func(f yamlField, key string) int { return strings.Compare(f.key, key) })
	switch {
	case there && over:
		d.defaults[i].value = value
	case !there: // copies of one deployment share the array
		d.defaults = slices.Insert(slices.Clip(slices.Clone(d.defaults)), i, yamlField{key: key, value: value})
	}
}

// about reads model_info.
func (p *params) about(d *deployment, n *treeNode, path string) {
	if n == nil {
		return
	}
	if id := n.take("id"); id != nil && id.kind < treeMap {
		d.id = id.text
	}
	if mode := n.take("mode"); mode != nil && !slices.Contains([]string{"chat", "completion", "embedding", "rerank", "image_generation", "audio_transcription", "audio_speech", "moderation", "moderations", "responses"}, mode.text) {
		p.im.lost(path+".mode", "operations of this kind are not served")
	}
	if order := n.take("order"); order != nil && !d.ordered {
		if f, ok := order.number(); ok && f == float64(int32(f)) {
			d.order, d.ordered = int(f), true
		}
	}
	size := func(key string) int {
		size, _ := p.im.count(path+"."+key, n.take(key), 0, 1_000_000_000)
		return size
	}
	d.can.context, d.can.output = size("max_input_tokens"), size("max_output_tokens")
	if d.can.context > 0 && !p.im.options.checks {
		p.im.different(path+".max_input_tokens", "requests that do not fit are kept away from the target; LiteLLM does that with enable_pre_call_checks only")
	}
	if most := size("max_tokens"); d.can.output == 0 {
		d.can.output = most // as in LiteLLM's price table
	}
	if d.can.context > 0 && d.can.output > d.can.context {
		p.im.lost(path+".max_output_tokens", "an answer cannot be longer than the context (max_input_tokens)")
		d.can.output = 0
	}
	known := func(key string) string {
		v := n.take(key)
		if v == nil {
			return ""
		}
		on, ok := v.truth()
		if !ok {
			p.im.lost(path+"."+key, "it is neither true nor false")
			return ""
		}
		return fmt.Sprint(on)
	}
	d.can.tools, d.can.structured = known("supports_function_calling"), known("supports_response_schema")
	for _, m := range []struct{ key, kind string }{{"supports_vision", "image"}, {"supports_audio_input", "audio"}, {"supports_pdf_input", "file"}} {
		if known(m.key) == "false" {
			d.can.lacks += " " + m.kind + " "
		}
	}
	for i := range n.entries {
		e := &n.entries[i]
		if on, ok := e.value.truth(); ok && !e.read && strings.HasPrefix(e.key, "supports_") {
			e.read = true
			if !on {
				p.im.lost(below(path, e.key), "requests are not kept away for this")
			}
		}
	}
	switch at, cool := path+".cooldown_time", n.take("cooldown_time"); {
	case cool != nil:
		p.im.lost(at, "write it as cooldown of the provider")
	}
	p.im.rest(path, "model_info", n)
}

// yaml is what is written of the capabilities; nil: nothing is known.
func (c capabilities) yaml() *yamlMap {
	m := &yamlMap{}
	if c.context > 0 {
		m.add("context", yamlInt(c.context))
	}
	if c.output > 0 {
		m.add("output", yamlInt(c.output))
	}
	if c.lacks != "" {
		// What is not said to be missing stays allowed.
		var has []string
		for _, kind := range []string{"text", "image", "audio", "file"} {
			if !strings.Contains(c.lacks, " "+kind+" ") {
				has = append(has, kind)
			}
		}
		m.add("modalities", words(has...))
	}
	m.add("tools", yamlRaw(c.tools))
	m.add("structured", yamlRaw(c.structured))
	return m
}
