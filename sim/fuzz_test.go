// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"testing"

	"github.com/penstock/penstock/sim"
)

// FuzzRequest holds that no body breaks a request reader, and that what is
// accepted is within the bounds that the handlers rely on.
func FuzzRequest(f *testing.F) {
	paths := []string{"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/audio/transcriptions", "/sim/faults"}
	for _, body := range []string{
		chat("hello", 5, `,"n":2,"stop":["a","b "],"stream":true,"stream_options":{"include_usage":true}`),
		`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"weather in Rome"},{"type":"image_url","image_url":{"url":"x"}}]}],` +
			`"tools":[{"type":"function","function":{"name":"weather","parameters":{"properties":{"city":{"type":"string"},"é":{"enum":[1]}}}}}],"tool_choice":"required"}`,
		`{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}],"tool_choice":{"function":{"name":"f"}}}`,
		`{"model":"m","prompt":["a","b"],"min_tokens":3,"max_tokens":4}`,
		`{"model":"m","prompt":[1,2,3],"echo":true}`,
		`{"model":"m","prompt":[[1,2],[4294967295]]}`,
		`{"model":"m","input":"hi","instructions":"be brief","max_output_tokens":3}`,
		`{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]},{"type":"function_call","name":"f","arguments":"{}"},{"type":"function_call_output","output":"x"}]}`,
		"--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nxyz\r\n--b--\r\n",
		`{"refuse":"2s","slow":2,"rate":0.5,"status":503,"usage":"huge"}`,
		`{"model":"m","messages":[]}`, `[`, `null`, ``,
	} {
		for i := range paths {
			f.Add(i, []byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, path int, body []byte) {
		if path < 0 || path >= len(paths) {
			return
		}
		_ = sim.ParseBody(paths[path], body)
	})
}
