// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import "github.com/penstock/penstock/internal/jsonedit"

// field is a top-level member that the gateway reads or refuses.
type field uint8

const (
	fieldNone field = iota
	fieldModel
	fieldStream
	fieldStreamOptions
	fieldN
	fieldMaxTokens
	fieldMaxCompletionTokens
	fieldMaxOutputTokens
	fieldUser
	fieldSafetyIdentifier
	fieldCacheSalt
	fieldTools
	fieldMessages
	fieldPrompt
	fieldPromptEmbeds
	fieldInput
	fieldInstructions
	fieldPreviousResponse
	fieldConversation
	fieldSystem
	fieldMetadata
	fieldServiceTier
	fieldResponseFormat
	fieldText
	fieldOutputConfig
	fieldReasoningEffort
	fieldReasoning
	fieldThinking
	fieldExtraArgs // vLLM's: it takes engine fields out of it
	fieldEngine    // steers the engine: never taken from a client
)

// fieldNames are the names of the fields; engine fields have a list of theirs.
var fieldNames = [...]string{
	fieldModel:               "model",
	fieldStream:              "stream",
	fieldStreamOptions:       "stream_options",
	fieldN:                   "n",
	fieldMaxTokens:           "max_tokens",
	fieldMaxCompletionTokens: "max_completion_tokens",
	fieldMaxOutputTokens:     "max_output_tokens",
	fieldUser:                "user",
	fieldSafetyIdentifier:    "safety_identifier",
	fieldCacheSalt:           "cache_salt",
	fieldTools:               "tools",
	fieldMessages:            "messages",
	fieldPrompt:              "prompt",
	fieldPromptEmbeds:        "prompt_embeds",
	fieldInput:               "input",
	fieldInstructions:        "instructions",
	fieldPreviousResponse:    "previous_response_id",
	fieldConversation:        "conversation",
	fieldSystem:              "system",
	fieldMetadata:            "metadata",
	fieldServiceTier:         "service_tier",
	fieldResponseFormat:      "response_format",
	fieldText:                "text",
	fieldOutputConfig:        "output_config",
	fieldReasoningEffort:     "reasoning_effort",
	fieldReasoning:           "reasoning",
	fieldThinking:            "thinking",
	fieldExtraArgs:           "vllm_xargs",
}

// in says whether the field means something in op. Members that do not may be
// spelled and repeated at will.
func (f field) in(op Op) bool {
	messages := op == OpMessages || op == OpCountTokens
	switch f {
	case fieldModel, fieldExtraArgs, fieldEngine:
		return true
	case fieldSystem, fieldMetadata, fieldOutputConfig, fieldThinking:
		return messages
	case fieldResponseFormat, fieldReasoningEffort:
		return op == OpChat
	case fieldText, fieldReasoning:
		return op == OpResponses
	case fieldServiceTier:
		return op == OpChat || op == OpCompletions || op == OpResponses || messages
	case fieldStream, fieldUser, fieldN:
		return op != OpOther && op != OpRerank && op != OpModerations
	}
	return f != fieldNone && op != OpOther && op < OpImages // Gemini's have names of their own
}

// engineFields move KV cache between servers or choose ranks and peers (vLLM,
// SGLang, TensorRT-LLM). A client that could set them would steer servers to
// addresses of its choice.
var engineFields = []string{
	"kv_transfer_params", "ec_transfer_params",
	"bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key",
	"disaggregated_params", "disagg_params",
	"data_parallel_rank", "data_parallel_ranks", "data_parallel_rank_decode",
	"dp_rank", "routed_dp_rank", "prefill_dp_rank", "decode_dp_rank", "disagg_prefill_dp_rank",
}

// fields finds the field that a folded member name stands for.
var fields = func() map[string]field {
	m := map[string]field{}
	for f, name := range fieldNames {
		if name != "" {
			m[name] = field(f)
		}
	}
	for _, name := range engineFields {
		m[name] = fieldEngine
	}
	return m
}()

// maxFieldName is longer than each name above.
const maxFieldName = 32

// foldName unescapes a member name into buf and folds its case the way that
// lenient parsers compare names: ASCII letters, and the two characters outside
// ASCII whose simple case folding is an ASCII letter. It gives nil for a name
// too long to matter. exact says that folding changed nothing.
func foldName(buf *[maxFieldName + 4]byte, key jsonedit.Text, body []byte) (name []byte, exact bool) {
	// The long s and the Kelvin sign take up to three bytes for a letter.
	if key.Size > 3*maxFieldName {
		return nil, true
	}
	var raw [3*maxFieldName + 4]byte
	unescaped, _ := jsonedit.Unescape(raw[:0], key.Of(body))
	return foldBytes(buf, unescaped)
}

func foldBytes(buf *[maxFieldName + 4]byte, s []byte) (name []byte, exact bool) {
	exact = true
	n := 0
	for i := 0; i < len(s); n++ {
		if n == len(buf) {
			return nil, true
		}
		c := s[i]
		switch {
		case c-'A' <= 'Z'-'A':
			c |= 0x20
			exact = false
		case c == 0xC5 && i+1 < len(s) && s[i+1] == 0xBF: // U+017F
			c, exact = 's', false
			i++
		case c == 0xE2 && i+2 < len(s) && s[i+1] == 0x84 && s[i+2] == 0xAA: // U+212A
			c, exact = 'k', false
			i += 2
		}
		buf[n] = c
		i++
	}
	return buf[:n], exact
}
