// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	procv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// codec is gRPC's own but for the messages that make up nearly all of a picker
// server's work, and that it would read and write by reflection, in many small
// allocations: a request is decoded in place, into one copy of its bytes, the
// answer to headers is written in one go, and a chunk of a body without a copy. What is unusual in a message (a
// field that is not known here, one given twice, text that is not UTF-8) goes
// the usual way, so that there is one opinion on what it means.
// BenchmarkServerCPU says what that is worth.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(proto.Name)} }

// Unmarshal reads one message.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*incoming)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	own := make([]byte, data.Len())
	data.CopyTo(own)
	if decodeRequest(own, in) {
		return nil
	}
	in.meta = contextMetadata{}
	return protobuf.Unmarshal(own, &in.m) // which resets it
}

// incoming is a message of a gateway. What it says by metadata is in meta if
// that is all that there is of it, else in m.
type incoming struct {
	m    extprocv3.ProcessingRequest
	meta contextMetadata
}

// Marshal writes one message. The bytes of a chunk are not copied: whoever
// answers with them must not change them any more.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(*extprocv3.ProcessingResponse); ok {
		if out := encodeChunk(m); out != nil {
			return out, nil
		}
		if out := encodeHeaders(m); out != nil {
			return mem.BufferSlice{mem.SliceBuffer(out)}, nil
		}
	}
	return c.CodecV2.Marshal(v)
}

// record is one field of a message.
type record struct {
	number protowire.Number
	value  uint64 // a varint
	bytes  []byte // or a length and bytes
	isText bool   // the latter
}

// each calls f with every field of a message; false: it is malformed, has
// fields of other types, or f says so.
func each(b []byte, f func(record) bool) bool {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		r := record{number: number}
		switch kind {
		case protowire.VarintType:
			r.value, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			r.bytes, n = protowire.ConsumeBytes(b)
			r.isText = true
		default:
			return false
		}
		if n < 0 || !f(r) {
			return false
		}
		b = b[n:]
	}
	return true
}

// inboundHeaders and inboundBody are a request with all that is around it, one
// allocation.
type (
	inboundHeaders struct {
		out     extprocv3.ProcessingRequest_RequestHeaders
		back    extprocv3.ProcessingRequest_ResponseHeaders
		headers extprocv3.HttpHeaders
		fields  corev3.HeaderMap
	}
	inboundBody struct {
		out  extprocv3.ProcessingRequest_RequestBody
		back extprocv3.ProcessingRequest_ResponseBody
		body extprocv3.HttpBody
	}
)

// decodeRequest reads a request that holds nothing unusual; false: it does, and
// it is to be read anew. b is kept.
func decodeRequest(b []byte, into *incoming) bool {
	var seen uint32
	m := &into.m
	return each(b, func(r record) bool {
		if r.number > 11 || seen&(1<<r.number) != 0 {
			return false
		}
		seen |= 1 << r.number
		switch {
		case r.number == 10 && !r.isText:
			m.ObservabilityMode = protowire.DecodeBool(r.value)
			return true
		case !r.isText, r.number >= 2 && r.number <= 7 && m.Request != nil:
			return false
		}
		switch r.number {
		case 2:
			in := &inboundHeaders{}
			in.out.RequestHeaders = &in.headers
			m.Request = &in.out
			return decodeHeaders(r.bytes, in)
		case 3:
			in := &inboundHeaders{}
			in.back.ResponseHeaders = &in.headers
			m.Request = &in.back
			return decodeHeaders(r.bytes, in)
		case 4:
			in := &inboundBody{}
			in.out.RequestBody = &in.body
			m.Request = &in.out
			return decodeBody(r.bytes, &in.body)
		case 5:
			in := &inboundBody{}
			in.back.ResponseBody = &in.body
			m.Request = &in.back
			return decodeBody(r.bytes, &in.body)
		case 8:
			if decodeMetadata(r.bytes, &into.meta) {
				return true
			}
			into.meta = contextMetadata{}
			m.MetadataContext = &corev3.Metadata{}
			return protobuf.Unmarshal(r.bytes, m.MetadataContext) == nil
		case 11:
			m.ProtocolConfig = &extprocv3.ProtocolConfiguration{}
			return decodeModes(r.bytes, m.ProtocolConfig)
		}
		return false
	})
}

// decodeMetadata reads metadata that says nothing but what c knows of, and that
// once; false: it says more, or something else.
func decodeMetadata(b []byte, c *contextMetadata) bool {
	return each(b, func(r record) bool { // Metadata.filter_metadata, a map of Structs
		namespace, fields, ok := entryOf(r, 1)
		if !ok {
			return false
		}
		return each(fields, func(r record) bool { // Struct.fields, a map of Values
			key, value, ok := entryOf(r, 1)
			switch {
			case !ok:
			case string(namespace) == namespaceLB && string(key) == keyServed && c.served == "":
				ok = decodeTexts(value, func(text string) { c.served = text })
				return ok && c.served != ""
			case string(namespace) == namespaceSubset && string(key) == keySubset && c.subset == nil:
				c.subset = []string{}
				return decodeTexts(value, func(text string) { c.subset = append(c.subset, splitEndpoints(text)...) })
			}
			return false
		})
	})
}

// entryOf is an entry of a map of messages, which is field number of its
// message.
func entryOf(r record, number protowire.Number) (key, value []byte, ok bool) {
	if r.number != number || !r.isText {
		return nil, nil, false
	}
	ok = each(r.bytes, func(r record) bool {
		switch {
		case r.number == 1 && r.isText && key == nil:
			key = r.bytes
		case r.number == 2 && r.isText && value == nil:
			value = r.bytes
		default:
			return false
		}
		return true
	})
	return key, value, ok && key != nil && value != nil
}

// decodeTexts reads a Value that is one text, or a list of texts.
func decodeTexts(value []byte, f func(string)) bool {
	n := 0
	return each(value, func(r record) bool {
		n++
		switch {
		case n > 1 || !r.isText:
			return false // the last of several would count
		case r.number == 3: // string_value
			f(string(r.bytes))
			return utf8.Valid(r.bytes)
		case r.number == 6: // list_value
			return each(r.bytes, func(r record) bool { // ListValue.values
				return r.number == 1 && r.isText && len(r.bytes) > 0 && r.bytes[0] == 3<<3|2 && decodeTexts(r.bytes, f)
			})
		}
		return false
	}) && n == 1
}

func decodeModes(b []byte, c *extprocv3.ProtocolConfiguration) bool {
	return each(b, func(r record) bool {
		if r.isText {
			return false
		}
		switch r.number {
		case 1:
			c.RequestBodyMode = procv3.ProcessingMode_BodySendMode(int32(r.value))
		case 2:
			c.ResponseBodyMode = procv3.ProcessingMode_BodySendMode(int32(r.value))
		case 3:
			c.SendBodyWithoutWaitingForHeaderResponse = protowire.DecodeBool(r.value)
		default:
			return false
		}
		return true
	})
}

func decodeBody(b []byte, body *extprocv3.HttpBody) bool {
	return each(b, func(r record) bool {
		switch {
		case r.number == 1 && r.isText:
			body.Body = nil
			if len(r.bytes) > 0 {
				body.Body = r.bytes[:len(r.bytes):len(r.bytes)]
			}
		case r.number == 2 && !r.isText:
			body.EndOfStream = protowire.DecodeBool(r.value)
		case r.number == 3 && !r.isText:
			body.EndOfStreamWithoutMessage = protowire.DecodeBool(r.value)
		default:
			return false
		}
		return true
	})
}

func decodeHeaders(b []byte, in *inboundHeaders) bool {
	return each(b, func(r record) bool {
		switch {
		case r.number == 1 && r.isText && in.headers.Headers == nil:
			in.headers.Headers = &in.fields
			return decodeMap(r.bytes, &in.fields)
		case r.number == 3 && !r.isText:
			in.headers.EndOfStream = protowire.DecodeBool(r.value)
		default:
			return false
		}
		return true
	})
}

// decodeMap reads a header map: names are parts of one string, values of b.
func decodeMap(b []byte, m *corev3.HeaderMap) bool {
	n := 0
	if !each(b, func(r record) bool { n++; return r.number == 1 && r.isText }) {
		return false
	}
	text := string(b)
	values := make([]corev3.HeaderValue, n)
	m.Headers = make([]*corev3.HeaderValue, n)
	n = 0
	return each(b, func(r record) bool {
		h := &values[n]
		m.Headers[n] = h
		n++
		return each(r.bytes, func(r record) bool {
			if !r.isText || len(r.bytes) == 0 {
				return false
			}
			// Where r.bytes lie in b is what their capacities tell.
			at := cap(b) - cap(r.bytes)
			switch r.number {
			case 1:
				h.Key = text[at : at+len(r.bytes)]
				return utf8.ValidString(h.Key)
			case 2:
				h.Value = text[at : at+len(r.bytes)]
				return utf8.ValidString(h.Value)
			case 3:
				h.RawValue = r.bytes[:len(r.bytes):len(r.bytes)]
				return true
			}
			return false
		})
	})
}

// encodeChunk writes a streamed part of a body, and is nil for every other
// message.
func encodeChunk(m *extprocv3.ProcessingResponse) mem.BufferSlice {
	var number protowire.Number
	var body *extprocv3.BodyResponse
	switch k := m.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestBody:
		number, body = 3, k.RequestBody
	case *extprocv3.ProcessingResponse_ResponseBody:
		number, body = 4, k.ResponseBody
	default:
		return nil
	}
	common := body.GetResponse()
	kind, ok := common.GetBodyMutation().GetMutation().(*extprocv3.BodyMutation_StreamedResponse)
	if !ok || m.DynamicMetadata != nil || common.HeaderMutation != nil || common.ClearRouteCache || common.Status != 0 {
		return nil
	}
	part := kind.StreamedResponse
	// Innermost first; a tag has one byte.
	inner := 0
	if len(part.Body) > 0 {
		inner += 1 + protowire.SizeBytes(len(part.Body))
	}
	if part.EndOfStream {
		inner += 2
	}
	sizes := [...]int{inner, 0, 0, 0}
	for i := 1; i < len(sizes); i++ {
		sizes[i] = 1 + protowire.SizeBytes(sizes[i-1])
	}
	head := make([]byte, 0, 48)
	wrap := func(n protowire.Number, size int) {
		head = protowire.AppendVarint(protowire.AppendTag(head, n, protowire.BytesType), uint64(size))
	}
	wrap(number, sizes[3])
	wrap(1, sizes[2]) // BodyResponse.response
	wrap(3, sizes[1]) // CommonResponse.body_mutation
	wrap(3, sizes[0]) // BodyMutation.streamed_response
	// end_of_stream goes before the body: fields may come in any order, and so
	// the body is the last of the bytes.
	if part.EndOfStream {
		head = protowire.AppendVarint(protowire.AppendTag(head, 2, protowire.VarintType), 1)
	}
	if len(part.Body) == 0 {
		return mem.BufferSlice{mem.SliceBuffer(head)}
	}
	head = protowire.AppendVarint(protowire.AppendTag(head, 1, protowire.BytesType), uint64(len(part.Body)))
	return mem.BufferSlice{mem.SliceBuffer(head), mem.SliceBuffer(part.Body)}
}

// encodeHeaders writes an answer to headers that sets and removes some and
// names endpoints; it is nil for every other message.
func encodeHeaders(m *extprocv3.ProcessingResponse) []byte {
	var number protowire.Number
	var common *extprocv3.CommonResponse
	switch k := m.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		number, common = 1, k.RequestHeaders.GetResponse()
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		number, common = 2, k.ResponseHeaders.GetResponse()
	}
	if common == nil || common.Status != 0 || common.BodyMutation != nil || common.Trailers != nil {
		return nil
	}
	sets := common.HeaderMutation.GetSetHeaders()
	for _, o := range sets {
		//lint:ignore SA1019 one that has it is written the usual way
		if o.Header == nil || o.Append != nil || o.KeepEmptyValue || !utf8.ValidString(o.Header.Key) || !utf8.ValidString(o.Header.Value) {
			return nil
		}
	}
	for _, name := range common.HeaderMutation.GetRemoveHeaders() {
		if !utf8.ValidString(name) {
			return nil
		}
	}
	namespace, key, text, ok := oneText(m.DynamicMetadata)
	if !ok {
		return nil
	}
	b := nested(make([]byte, 0, 512), number, func(b []byte) []byte {
		return nested(b, 1, func(b []byte) []byte { // HeadersResponse.response
			if common.HeaderMutation != nil {
				b = nested(b, 2, func(b []byte) []byte {
					for _, o := range sets {
						b = appendOption(b, o)
					}
					for _, name := range common.HeaderMutation.RemoveHeaders {
						b = protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), name)
					}
					return b
				})
			}
			return appendVarint(b, 5, protowire.EncodeBool(common.ClearRouteCache))
		})
	})
	if m.DynamicMetadata == nil {
		return b
	}
	// Struct.fields is a map: a message of key (1) and value (2) for each entry.
	entry := func(b []byte, key string, value func([]byte) []byte) []byte {
		return nested(b, 1, func(b []byte) []byte { return nested(appendText(b, 1, key), 2, value) })
	}
	return nested(b, 8, func(b []byte) []byte {
		return entry(b, namespace, func(b []byte) []byte {
			return nested(b, 5, func(b []byte) []byte { // Value.struct_value
				return entry(b, key, func(b []byte) []byte {
					return protowire.AppendString(protowire.AppendTag(b, 3, protowire.BytesType), text) // Value.string_value
				})
			})
		})
	})
}

// oneText is metadata of the shape that lbMetadata makes, or of none.
func oneText(s *structpb.Struct) (namespace, key, text string, ok bool) {
	if s == nil {
		return "", "", "", true
	}
	for n, v := range s.Fields {
		inner, is := v.GetKind().(*structpb.Value_StructValue)
		if !is || len(s.Fields) != 1 || len(inner.StructValue.GetFields()) != 1 {
			return "", "", "", false
		}
		for k, v := range inner.StructValue.GetFields() {
			t, is := v.GetKind().(*structpb.Value_StringValue)
			if !is || !utf8.ValidString(n) || !utf8.ValidString(k) || !utf8.ValidString(t.StringValue) {
				return "", "", "", false
			}
			return n, k, t.StringValue, true
		}
	}
	return "", "", "", false
}

// appendOption appends HeaderMutation.set_headers.
func appendOption(b []byte, o *corev3.HeaderValueOption) []byte {
	return nested(b, 1, func(b []byte) []byte {
		b = nested(b, 1, func(b []byte) []byte { // header
			b = appendText(appendText(b, 1, o.Header.Key), 2, o.Header.Value)
			if len(o.Header.RawValue) > 0 {
				b = protowire.AppendBytes(protowire.AppendTag(b, 3, protowire.BytesType), o.Header.RawValue)
			}
			return b
		})
		return appendVarint(b, 3, uint64(o.AppendAction))
	})
}

func appendText(b []byte, n protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), s)
}

func appendVarint(b []byte, n protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
}

// nested appends what f appends as a message. Its length comes first and is
// known last: one byte is left for it, and more are made room for if need be.
func nested(b []byte, n protowire.Number, f func([]byte) []byte) []byte {
	b = protowire.AppendTag(b, n, protowire.BytesType)
	at := len(b)
	b = f(append(b, 0))
	size := len(b) - at - 1
	if more := protowire.SizeVarint(uint64(size)) - 1; more > 0 {
		b = append(b, make([]byte, more)...)
		copy(b[at+1+more:], b[at+1:at+1+size])
	}
	protowire.AppendVarint(b[:at], uint64(size))
	return b
}
