// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

// Dialect is the wire format of an API, of its requests, answers and errors.
type Dialect uint8

// The dialects.
const (
	DialectOpenAI    Dialect = iota + 1 // chat completions, completions, embeddings, images, audio, moderations, rerank
	DialectResponses                    // OpenAI's Responses API
	DialectAnthropic                    // Messages
	DialectGemini                       // generateContent
	DialectBedrock                      // Converse
)
