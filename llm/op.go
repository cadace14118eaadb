// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"path"
	"strings"
)

// Dialect is one of the wire formats that generate text.
type Dialect uint8

// The dialects. OpenAI stands for chat completions and for all operations that
// have one form only (embeddings, images, rerank …).
const (
	DialectOpenAI    Dialect = iota + 1
	DialectResponses         // OpenAI Responses
	DialectAnthropic         // Messages
	DialectGemini            // generateContent
	DialectBedrock           // Converse
	DialectPredict           // Vertex AI's predict, for embeddings
)

// String is the dialect's name in records and messages.
func (d Dialect) String() string {
	switch d {
	case DialectOpenAI:
		return "openai"
	case DialectResponses:
		return "responses"
	case DialectAnthropic:
		return "anthropic"
	case DialectGemini:
		return "gemini"
	case DialectBedrock:
		return "bedrock"
	case DialectPredict:
		return "predict"
	}
	return "unknown"
}

// Op is what a request asks for.
type Op uint8

// The operations with a parser of their own; Other is any further path that a
// pool allows: its body is passed on, only the model is read.
const (
	OpUnknown Op = iota
	OpChat
	OpCompletions
	OpEmbeddings
	OpResponses
	OpModels
	OpOther
	OpMessages    // Anthropic
	OpCountTokens // Anthropic
	OpGenerate    // Gemini, whole and as a stream
	OpImages
	OpModerations
	OpRerank
	OpSpeech
	OpTranscription // and translation: a form
	OpCountContents // Gemini's countTokens
	OpEmbedContent  // Gemini
	OpEmbedContents // Gemini's batchEmbedContents
)

// OpOf tells the operation of a cleaned path (see [Paths]); those below
// /v1/models and /v1beta/models are OpModels, but for Gemini's methods, which stand there too; the
// rest is OpOther.
func OpOf(path string) Op {
	switch path {
	case "/v1/chat/completions":
		return OpChat
	case "/v1/completions":
		return OpCompletions
	case "/v1/embeddings":
		return OpEmbeddings
	case "/v1/responses":
		return OpResponses
	case "/v1/models", "/v1beta/models":
		return OpModels
	case "/v1/messages":
		return OpMessages
	case "/v1/messages/count_tokens":
		return OpCountTokens
	case "/v1/images/generations":
		return OpImages
	case "/v1/moderations":
		return OpModerations
	case "/v1/rerank", "/v2/rerank":
		return OpRerank
	case "/v1/audio/speech":
		return OpSpeech
	case "/v1/audio/transcriptions", "/v1/audio/translations":
		return OpTranscription
	}
	if strings.HasPrefix(path, "/v1beta/models/") || strings.HasPrefix(path, "/v1/models/") {
		if _, method, ok := geminiPath(path); ok {
			return method.op
		}
	}
	if strings.HasPrefix(path, "/v1/models/") || strings.HasPrefix(path, "/v1beta/models/") && !strings.Contains(path, ":") {
		return OpModels
	}
	return OpOther
}

// Paths are those that OpOf knows, but for the names below /v1/models and
// /v1beta/models.
func Paths() []string {
	return []string{
		"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/models", "/v1beta/models",
		"/v1/messages", "/v1/messages/count_tokens", "/v1/images/generations", "/v1/moderations",
		"/v1/rerank", "/v2/rerank", "/v1/audio/speech", "/v1/audio/transcriptions", "/v1/audio/translations",
	}
}

// OpUnder is OpOf for a path that may have a prefix, which only the routes of a
// gateway know.
func OpUnder(p string) Op {
	if strings.Contains(p, "//") || strings.Contains(p, "/.") {
		p = path.Clean(p)
	}
	op := OpOf(p)
	for _, version := range [...]string{"/v1/", "/v1beta/", "/v2/"} {
		if i := strings.LastIndex(p, version); op == OpOther && i > 0 {
			op = OpOf(p[i:])
		}
	}
	return op
}

// PathModel is the model in a path of Gemini's methods, and whether the answer
// is a stream: /v1beta/models/{model}:generateContent.
func PathModel(path string) (model string, stream, ok bool) {
	model, method, ok := geminiPath(path)
	return model, method.stream, ok
}

// geminiMethod is what stands behind a model in a path of Gemini's.
type geminiMethod struct {
	name   string
	op     Op
	stream bool
}

func geminiPath(path string) (model string, method geminiMethod, ok bool) {
	i, colon := strings.LastIndex(path, "/models/"), strings.LastIndexByte(path, ':')
	if i < 0 || colon <= i+len("/models/") {
		return "", geminiMethod{}, false
	}
	for _, m := range [...]geminiMethod{
		{"generateContent", OpGenerate, false}, {"streamGenerateContent", OpGenerate, true}, {"countTokens", OpCountContents, false},
		{"embedContent", OpEmbedContent, false}, {"batchEmbedContents", OpEmbedContents, false},
	} {
		if path[colon+1:] == m.name {
			return path[i+len("/models/") : colon], m, true
		}
	}
	return "", geminiMethod{}, false
}

// Dialect is that of the operation, in which its errors are told too.
func (o Op) Dialect() Dialect {
	switch o {
	case OpMessages, OpCountTokens:
		return DialectAnthropic
	case OpGenerate, OpCountContents, OpEmbedContent, OpEmbedContents:
		return DialectGemini
	case OpResponses:
		return DialectResponses
	}
	return DialectOpenAI
}

// Generates says that a model's own words are asked for, in a form that can be
// put into other dialects.
func (o Op) Generates() bool {
	return o == OpChat || o == OpResponses || o == OpMessages || o == OpGenerate
}

// Counts says that the tokens of a prompt are asked for.
func (o Op) Counts() bool { return o == OpCountTokens || o == OpCountContents }

// Embeds says that embeddings are asked for.
func (o Op) Embeds() bool {
	return o == OpEmbeddings || o == OpEmbedContent || o == OpEmbedContents
}

// Translates says that requests of this kind can be put into other dialects.
func (o Op) Translates() bool { return o.Generates() || o.Counts() || o.Embeds() }

// Further says that a pool serves the operation only at paths that its
// configuration names: OpOther and those that not every engine has.
func (o Op) Further() bool { return o >= OpOther }

// AnswersJSON says that an answer to the operation is a JSON object, or a
// stream, and nothing else.
func (o Op) AnswersJSON() bool {
	switch o {
	case OpCompletions, OpImages, OpModerations, OpRerank:
		return true
	}
	return o.Translates()
}

// takesForms says that the body may be a multipart form.
func (o Op) takesForms() bool { return o == OpOther || o == OpTranscription }

// String is the operation's name in records and metrics.
func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return "unknown"
}

var opNames = [...]string{
	OpUnknown: "unknown", OpChat: "chat", OpCompletions: "completions", OpEmbeddings: "embeddings",
	OpResponses: "responses", OpModels: "models", OpOther: "other", OpMessages: "messages",
	OpCountTokens: "count_tokens", OpGenerate: "generate", OpImages: "images", OpModerations: "moderations",
	OpRerank: "rerank", OpSpeech: "speech", OpTranscription: "transcription",
	OpCountContents: "count_contents", OpEmbedContent: "embed_content", OpEmbedContents: "embed_contents",
}
