// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package llm_test

import (
	"encoding/binary"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/penstock/penstock/llm"
)

// framesOf makes a stream of frames of lines: the type of an event and its
// payload; the type of an exception after "!"; the code of an error after "?",
// with its message. A line that is JSON is left as it is.
func framesOf(lines string) string {
	var out []byte
	for line := range strings.Lines(lines) {
		line = strings.TrimSpace(line)
		kind, payload, _ := strings.Cut(line, " ")
		switch {
		case line == "":
		case line[0] == '{':
			out = append(out, line...)
		case line[0] == '!':
			out = append(out, frameOf(payload, ":message-type", "exception", ":exception-type", kind[1:], ":content-type", "application/json")...)
		case line[0] == '?':
			out = append(out, frameOf("", ":message-type", "error", ":error-code", kind[1:], ":error-message", payload)...)
		default:
			out = append(out, frameOf(payload, ":event-type", kind, ":content-type", "application/json", ":message-type", "event")...)
		}
	}
	return string(out)
}

// frameOf is a frame with headers, names and values in turn.
func frameOf(payload string, headers ...string) []byte {
	var h []byte
	for i := 0; i < len(headers); i += 2 {
		h = append(append(h, byte(len(headers[i]))), headers[i]...)
		h = append(binary.BigEndian.AppendUint16(append(h, 7), uint16(len(headers[i+1]))), headers[i+1]...)
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(16+len(h)+len(payload)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(h)))
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	b = append(append(b, h...), payload...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

// TestFrames: what is wrong with a stream of frames ends the answer.
func TestFrames(t *testing.T) {
	tr := translationTo(t, llm.DialectBedrock, true)
	good := framesOf(bedrockStream)
	var withTypes []byte // a frame with headers of all types
	h := []byte("\x01a\x00\x01b\x01\x01c\x02.\x01d\x03..\x01e\x04....\x01f\x05........\x01g\x06\x00\x02..\x01h\x08........\x01i\x09................\x0d:message-type\x07\x00\x05event")
	withTypes = binary.BigEndian.AppendUint32(withTypes, uint32(16+len(h)+2))
	withTypes = binary.BigEndian.AppendUint32(withTypes, uint32(len(h)))
	withTypes = binary.BigEndian.AppendUint32(withTypes, crc32.ChecksumIEEE(withTypes))
	withTypes = append(append(withTypes, h...), "{}"...)
	withTypes = binary.BigEndian.AppendUint32(withTypes, crc32.ChecksumIEEE(withTypes))
	flip := func(i int) string {
		b := []byte(good)
		b[i] ^= 1
		return string(b)
	}
	for name, c := range map[string]struct{ in, failed string }{
		"good":        {string(withTypes) + good, ""},
		"prelude":     {flip(3), "the server sent a frame whose prelude has another checksum"},
		"prelude CRC": {flip(9), "the server sent a frame whose prelude has another checksum"},
		"payload":     {flip(60), "the server sent a frame with another checksum"},
		"no type":     {string(frameOf("{}", ":event-type", "x")), "the server sent a frame of an unknown type"},
		"no JSON":     {string(frameOf("x", ":event-type", "x", ":message-type", "event")), "the server sent an event that is no JSON object"},
		"headers":     {string(badHeaders()), "the server sent a frame with malformed headers"},
		"short":       {string(lengthOnly(15)), "the server sent a frame of an impossible length"},
		"long":        {string(lengthOnly(1 << 25)), "the server sent a frame over the limit"},
	} {
		o := llm.AnswerOptions{Stream: true, RequestID: "r"}
		got := answerOf(tr, o, c.in)
		if got.Failed != c.failed || got.Finished != (c.failed == "") {
			t.Errorf("%s: failed %q, finished %v", name, got.Failed, got.Finished)
		}
		everyAnswerSplit(t, tr, o, c.in, got)
	}
	for cut := range len(good) {
		if got := answerOf(tr, llm.AnswerOptions{Stream: true}, good[:cut]); got.Failed != "" || got.Finished && !strings.Contains(good[:cut], "messageStop") {
			t.Fatalf("cut at %d: failed %q, finished %v", cut, got.Failed, got.Finished)
		}
	}
}

func lengthOnly(n uint32) []byte {
	b := binary.BigEndian.AppendUint32(nil, n)
	b = binary.BigEndian.AppendUint32(b, 0)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

func badHeaders() []byte {
	b := frameOf("", "", "")[:12]
	b = append(b, "\xff..."...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

const bedrockStream = `messageStart {"role":"assistant","p":"abcdef"}
contentBlockDelta {"contentBlockIndex":0,"delta":{"text":"Hello"},"p":"abc"}
contentBlockStop {"contentBlockIndex":0}
messageStop {"stopReason":"end_turn"}
metadata {"usage":{"inputTokens":3,"outputTokens":1,"totalTokens":4},"metrics":{"latencyMs":5}}
`

// translationTo is a translation of a small chat.
func translationTo(t testing.TB, d llm.Dialect, stream bool) *llm.Translation {
	t.Helper()
	body := `{"model":"m","messages":[{"role":"user","content":"x"}]}`
	if stream {
		body = `{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}`
	}
	req, err := llm.Read(llm.OpChat, "", []byte(body), llm.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := llm.Translate(req, llm.Backend{Dialect: d, Model: "served"})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}
