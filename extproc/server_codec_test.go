// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc_test

import (
	"bytes"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/penstock/penstock/extproc"
)

// FuzzCodec compares with the protobuf library: what one of them reads the
// other reads as the same, and what one writes the other reads.
func FuzzCodec(f *testing.F) {
	for _, m := range append(exchangeOf(100), &extprocv3.ProcessingRequest{}) {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, []byte("x"), true, true)
		f.Add(b, bytes.Repeat([]byte("y"), 200), true, false)
	}
	for _, line := range []string{
		"request-headers (eos request=STREAMED response=NONE subset=[\"10.0.0.1\"]) :path=/ A=b a=",
		"request-headers (text) Content-Type=x y=",
		"response-body (eos grpc-eos served=\"10.0.0.1:1\") abc",
		"response-trailers a=b",
		"request-trailers a=b",
	} {
		b, err := proto.Marshal(parseMessage(f, line))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, []byte(""), false, true)
	}
	c := extproc.Codec()
	f.Fuzz(func(t *testing.T, wire, body []byte, end, ofRequest bool) {
		want := &extprocv3.ProcessingRequest{}
		wantErr := proto.Unmarshal(wire, want)
		half := len(wire) / 2
		got, gotErr := extproc.ReadRequest(mem.BufferSlice{mem.SliceBuffer(wire[:half]), mem.SliceBuffer(wire[half:])})
		if (wantErr == nil) != (gotErr == nil) {
			t.Fatalf("errors differ: %v, %v", wantErr, gotErr)
		}
		// Of metadata there remains what a stream takes over.
		want.MetadataContext, got.MetadataContext = extproc.Merge(want.MetadataContext), extproc.Merge(got.MetadataContext)
		if wantErr == nil && !proto.Equal(want, got) {
			t.Fatalf("read as %v, want %v", got, want)
		}
		m := &extprocv3.ProcessingResponse{}
		part := &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
			Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: &extprocv3.StreamedBodyResponse{Body: body, EndOfStream: end}}}}}
		if ofRequest {
			m.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: part}
		} else {
			m.Response = &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: part}
		}
		out, err := c.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		back := &extprocv3.ProcessingResponse{}
		if err := proto.Unmarshal(out.Materialize(), back); err != nil {
			t.Fatal(err)
		}
		// And the answer to headers.
		text := string(body)
		heads := &extprocv3.ProcessingResponse{}
		common := &extprocv3.CommonResponse{ClearRouteCache: end, HeaderMutation: &extprocv3.HeaderMutation{
			RemoveHeaders: []string{"x", text}[:len(text)%3%2+1],
			SetHeaders: []*corev3.HeaderValueOption{
				{Header: &corev3.HeaderValue{Key: "a", RawValue: body}, AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD},
				{Header: &corev3.HeaderValue{Key: text, Value: "v"}},
			}[:len(text)%2+1],
		}}
		if ofRequest {
			heads.Response = &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: common}}
			heads.DynamicMetadata = &structpb.Struct{Fields: map[string]*structpb.Value{"envoy.lb": structpb.NewStructValue(
				&structpb.Struct{Fields: map[string]*structpb.Value{"k": structpb.NewStringValue(text)}})}}
		} else {
			heads.Response = &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{Response: common}}
		}
		_, usual := proto.Marshal(heads)
		out2, err := c.Marshal(heads)
		if (err == nil) != (usual == nil) {
			t.Fatalf("errors differ: %v, %v", err, usual)
		}
		if err == nil {
			back := &extprocv3.ProcessingResponse{}
			if err := proto.Unmarshal(out2.Materialize(), back); err != nil || !proto.Equal(heads, back) {
				t.Fatalf("%v: written as %v, want %v", err, back, heads)
			}
		}
		// proto.Equal tells an absent body from an empty one no more than the wire does.
		if !proto.Equal(m, back) || !bytes.Equal(back.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody(), part.GetResponse().GetBodyMutation().GetStreamedResponse().GetBody()) && ofRequest {
			t.Fatalf("written as %v, want %v", back, m)
		}
	})
}
