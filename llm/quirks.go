// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// Quirks are where a server that is compatible with chat completions differs
// from OpenAI's own. The zero value is OpenAI's.
type Quirks struct {
	MaxTokens       bool // the bound on output is max_tokens, not max_completion_tokens
	NoStreamOptions bool // stream_options is refused
	SystemRole      bool // the role developer is not known: system
	NoN             bool // n must not be set
	NoLogprobs      bool // logprobs, top_logprobs and logit_bias must not be set
	NoNames         bool // messages must not have a name
	NoStore         bool // store, metadata, service_tier, verbosity, prompt_cache_key must not be set
	RequiredAny     bool // tool_choice required is spelled any
	RandomSeed      bool // seed is spelled random_seed
	TopK            bool // top_k is known
	NoEffort        bool // reasoning_effort is refused
	KnownOnly       bool // members that not every such server knows are refused
	ToolIDs         bool // ids of calls are nine letters or digits (Mistral)
	Reasoning       bool // reasoning_content and thinking_blocks are wanted back in messages
	CacheControl    bool // cache_control is known on parts and tools
	RepeatedArgs    bool // the last delta of a call repeats all of its arguments
}

// bound is the name of the bound on output.
func (q *Quirks) bound() string {
	if q.MaxTokens {
		return "max_tokens"
	}
	return "max_completion_tokens"
}

// refuses says that the server does not take a member.
func (q *Quirks) refuses(name string) bool {
	switch name {
	case "store", "metadata", "service_tier", "verbosity", "prompt_cache_key":
		return q.NoStore
	case "logprobs", "top_logprobs", "logit_bias":
		return q.NoLogprobs
	case "n":
		return q.NoN
	case "reasoning_effort":
		return q.NoEffort
	case "stream_options":
		return q.NoStreamOptions
	}
	return false
}

// callID is the id of a call as the server takes it, where the client's dialect
// is another. OpenAI's takes no more than 40 bytes.
func (q *Quirks) callID(id lit) lit {
	if len(id) > maxCallID && !q.ToolIDs {
		return lit(newCallID(id.String()))
	}
	return q.toolID(id)
}

const maxCallID = 40

// newCallID is an id that stands for a longer one, or for what has none. The same
// comes out for the same.
func newCallID(of string) string { return fmt.Sprintf("call_%016x", xxhash.Sum64String(of)) }

// toolID is the id of a call as the server takes it. The same id always comes
// out the same, so that a call and its result still meet.
func (q *Quirks) toolID(id lit) lit {
	if !q.ToolIDs || isToolID(id) {
		return id
	}
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	hash := xxhash.Sum64String(id.String())
	short := make(lit, toolIDSize)
	for i := range short {
		short[i] = letters[hash%uint64(len(letters))]
		hash /= uint64(len(letters))
	}
	return short
}

const toolIDSize = 9

func isToolID(id lit) bool {
	for _, c := range id {
		if c-'0' > 9 && c|0x20-'a' > 'z'-'a' {
			return false
		}
	}
	return len(id) == toolIDSize
}
