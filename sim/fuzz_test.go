// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"context"
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

// FuzzProviderRequest holds the same of the readers of a provider.
func FuzzProviderRequest(f *testing.F) {
	shapes := []string{"anthropic", "bedrock", "gemini", "openai", "completions", "responses", "rerank"}
	for _, s := range speakers() {
		for _, more := range []string{"", "tools", "think", "bound"} {
			_, body := s.send(true, "use tools", more)
			for i := range shapes {
				f.Add(i, []byte(body))
			}
		}
	}
	for _, body := range []string{
		`{"model":"m","query":"q","documents":["a",{"text":"b"}],"top_n":1}`,
		`{"model":"m","max_tokens":3,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"u"}},{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"x"}]}]}]}`,
		`{"messages":[{"role":"user","content":[{"image":{"format":"png","source":{"bytes":"AAAA"}}},{"cachePoint":{"type":"default"}}]}]}`,
		`{"contents":[{"parts":[{"inline_data":{"mime_type":"image/png","data":"AAAA"}},{"thought_signature":"x","function_call":{"name":"f","args":{"a_b":1}}}]}]}`,
		`{"model":"m","input":[{"type":"reasoning","id":"rs_1","encrypted_content":"AAAA"},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}]}`,
		`{"$defs":{"a":{"$ref":"#/a"}},"model":"m","messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}}}}}`,
	} {
		for i := range shapes {
			f.Add(i, []byte(body))
		}
	}
	p := sim.NewProvider(sim.ProviderConfig{})
	f.Cleanup(func() { _ = p.Close(context.Background()) })
	f.Fuzz(func(_ *testing.T, shape int, body []byte) {
		if shape < 0 || shape >= len(shapes) {
			return
		}
		_ = sim.ParseProviderBody(p, shapes[shape], body)
	})
}

// FuzzSignature holds that no signed request breaks the check.
func FuzzSignature(f *testing.F) {
	f.Add("AWS4-HMAC-SHA256 Credential=A/20260101/r/bedrock/aws4_request, SignedHeaders=host;x-amz-date, Signature=00", "/model/a:b/converse", "a=b&c")
	f.Add("AWS4-HMAC-SHA256 Credential=,,=", "", "%zz")
	f.Fuzz(func(_ *testing.T, authorization, path, query string) { sim.Canonical(authorization, path, query) })
}
