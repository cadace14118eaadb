// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"unicode/utf8"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
)

// clientCodec is gRPC's own but for the messages that make up nearly all of a
// client's work: headers are written in one go, a part of a request's body
// without a copy of it, and an answer is read in place. What is unusual goes the
// usual way, as in the server's codec.
type clientCodec struct{ encoding.CodecV2 }

func newClientCodec() clientCodec { return clientCodec{encoding.GetCodecV2(proto.Name)} }

// inbound is an answer with the memory that it was read into, both used again
// for the next one: what is kept of an answer has to be copied.
type inbound struct {
	m      extprocv3.ProcessingResponse
	buf    []byte
	common extprocv3.CommonResponse
	body   struct {
		kind     extprocv3.ProcessingResponse_RequestBody
		response extprocv3.BodyResponse
		mutation extprocv3.BodyMutation
		streamed extprocv3.BodyMutation_StreamedResponse
		part     extprocv3.StreamedBodyResponse
	}
}

// Marshal writes one message. The bytes of a request's body must not be changed
// any more.
func (c clientCodec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(*extprocv3.ProcessingRequest); ok {
		if out, ok := encodeRequest(m); ok {
			return out, nil
		}
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal reads one message.
func (c clientCodec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*inbound)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if n := data.Len(); n > cap(in.buf) {
		in.buf = make([]byte, n)
	} else {
		in.buf = in.buf[:n]
	}
	data.CopyTo(in.buf)
	in.m.Reset()
	if decodeBodyAnswer(in.buf, in) {
		return nil
	}
	return protobuf.Unmarshal(in.buf, &in.m)
}

// encodeRequest writes headers and parts of a request's body; false: this is
// another message.
func encodeRequest(m *extprocv3.ProcessingRequest) (mem.BufferSlice, bool) {
	if len(m.Attributes) > 0 || m.ObservabilityMode || m.ProtocolConfig.GetSendBodyWithoutWaitingForHeaderResponse() {
		return nil, false
	}
	var b, body []byte
	switch k := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		if b = encodeFields(2, k.RequestHeaders); b == nil {
			return nil, false
		}
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		if b = encodeFields(3, k.ResponseHeaders); b == nil {
			return nil, false
		}
	case *extprocv3.ProcessingRequest_RequestBody:
		h := k.RequestBody
		if h.EndOfStreamWithoutMessage || h.GrpcMessageCompressed {
			return nil, false
		}
		body = h.Body
	default:
		return nil, false
	}
	if m.MetadataContext != nil {
		text, err := protobuf.Marshal(m.MetadataContext)
		if err != nil {
			return nil, false
		}
		b = protowire.AppendBytes(protowire.AppendTag(b, 8, protowire.BytesType), text)
	}
	if p := m.ProtocolConfig; p != nil {
		b = nested(b, 11, func(b []byte) []byte {
			return appendVarint(appendVarint(b, 1, uint64(p.RequestBodyMode)), 2, uint64(p.ResponseBodyMode))
		})
	}
	k, ok := m.GetRequest().(*extprocv3.ProcessingRequest_RequestBody)
	if !ok {
		return mem.BufferSlice{mem.SliceBuffer(b)}, true
	}
	// The body is the last of the bytes: fields may come in any order.
	inner := 0
	if k.RequestBody.EndOfStream {
		inner = 2
	}
	if len(body) > 0 {
		inner += 1 + protowire.SizeBytes(len(body))
	}
	b = protowire.AppendVarint(protowire.AppendTag(b, 4, protowire.BytesType), uint64(inner))
	if k.RequestBody.EndOfStream {
		b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), 1)
	}
	if len(body) == 0 {
		return mem.BufferSlice{mem.SliceBuffer(b)}, true
	}
	b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.BytesType), uint64(len(body)))
	return mem.BufferSlice{mem.SliceBuffer(b), mem.SliceBuffer(body)}, true
}

// encodeFields writes HttpHeaders as field number of a request; nil: there is
// something unusual.
func encodeFields(number protowire.Number, h *extprocv3.HttpHeaders) []byte {
	if h.GetHeaders() == nil {
		return nil
	}
	for _, v := range h.GetHeaders().GetHeaders() {
		if v.Value != "" || !utf8.ValidString(v.Key) {
			return nil
		}
	}
	return nested(make([]byte, 0, 1024), number, func(b []byte) []byte {
		b = nested(b, 1, func(b []byte) []byte { // HttpHeaders.headers
			for _, v := range h.GetHeaders().GetHeaders() {
				b = nested(b, 1, func(b []byte) []byte {
					b = appendText(b, 1, v.Key)
					if len(v.RawValue) > 0 {
						b = protowire.AppendBytes(protowire.AppendTag(b, 3, protowire.BytesType), v.RawValue)
					}
					return b
				})
			}
			return b
		})
		return appendVarint(b, 3, protowire.EncodeBool(h.EndOfStream))
	})
}

// decodeBodyAnswer reads a streamed part of a request's body, and nothing else,
// in place.
func decodeBodyAnswer(b []byte, in *inbound) bool {
	one := func(b []byte, number protowire.Number) ([]byte, bool) {
		var inner []byte
		n := 0
		ok := each(b, func(r record) bool {
			n++
			inner = r.bytes
			return r.number == number && r.isText
		})
		return inner, ok && n == 1
	}
	for _, number := range [...]protowire.Number{3, 1, 3, 3} { // request_body, response, body_mutation, streamed_response
		var ok bool
		if b, ok = one(b, number); !ok {
			return false
		}
	}
	x := &in.body
	x.part.Body, x.part.EndOfStream = nil, false
	if !each(b, func(r record) bool {
		switch {
		case r.number == 1 && r.isText:
			x.part.Body = r.bytes
		case r.number == 2 && !r.isText:
			x.part.EndOfStream = protowire.DecodeBool(r.value)
		default:
			return false
		}
		return true
	}) {
		return false
	}
	x.streamed.StreamedResponse = &x.part
	x.mutation.Mutation = &x.streamed
	in.common.Reset()
	in.common.BodyMutation = &x.mutation
	x.response.Response = &in.common
	x.kind.RequestBody = &x.response
	in.m.Response = &x.kind
	return true
}
