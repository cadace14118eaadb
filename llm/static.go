// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm

// Static is an answer that the gateway makes itself, in the dialect of op: text,
// whole or as a stream. nil: operations of this kind have no such answer.
func Static(op Op, stream bool, o AnswerOptions, text string) []byte {
	switch op {
	case OpChat, OpMessages, OpGenerate, OpResponses:
	default:
		return nil
	}
	front := codecs[op.Dialect()]
	if front.writeAnswer == nil {
		return nil
	}
	c := &answerContext{AnswerOptions: o}
	var w answerWriter
	if stream {
		w = front.writeStream(c)
	} else {
		w = front.writeAnswer(c)
	}
	var out []byte
	for _, e := range []event{
		{kind: evStart, name: literal(o.Model), created: o.Created},
		{kind: evText, text: literal(text)},
		{kind: evFinish, reason: finishStop},
		{kind: evUsage, usage: Usage{Source: Reported}},
		{kind: evEnd},
	} {
		out = w.write(out, &e)
	}
	return out
}
