// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// clientCodec is gRPC's own but for the messages that make up nearly all of a
// client's work: headers are written in one go, a part of a request's body
// without a copy of it, and an answer is read in place. What is unusual goes the
// usual way, as in the server's codec.
type clientCodec struct{ encoding.CodecV2 }

func newClientCodec() clientCodec { return clientCodec{encoding.GetCodecV2(proto.Name)} }

// endpoints are what the metadata of the answer names.
func (in *inbound) endpoints() string {
	if in.lb != "" {
		return in.lb
	}
	return lbText(in.m.GetDynamicMetadata(), HeaderEndpoint)
}

// inbound is an answer with the memory that it was read into, both used again
// for the next one: what is kept of an answer has to be copied.
type inbound struct {
	m      extprocv3.ProcessingResponse
	buf    []byte
	common extprocv3.CommonResponse
	lb     string // the endpoints of the metadata, where m does not hold it
	head   answerHead
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
	in.lb = ""
	if decodeBodyAnswer(in.buf, in) || decodeHeadAnswer(in.buf, in) {
		return nil
	}
	in.lb = "" // Unmarshal resets the message
	return protobuf.Unmarshal(in.buf, &in.m)
}

// encodeRequest writes headers and parts of a request's body; false: this is
// another message.
func encodeRequest(m *extprocv3.ProcessingRequest) (mem.BufferSlice, bool) {
	if len(m.Attributes) > 0 || m.ProtocolConfig.GetSendBodyWithoutWaitingForHeaderResponse() {
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
		ok := len(m.MetadataContext.TypedFilterMetadata) == 0
		b = nested(b, 8, func(b []byte) []byte {
			for namespace, s := range m.MetadataContext.FilterMetadata { // a map, as Struct.fields
				b = mapEntry(b, namespace, &ok, func(b []byte) []byte { return appendTexts(b, s, &ok) })
			}
			return b
		})
		if !ok {
			return nil, false
		}
	}
	if p := m.ProtocolConfig; p != nil {
		b = nested(b, 11, func(b []byte) []byte {
			return appendVarint(appendVarint(b, 1, uint64(p.RequestBodyMode)), 2, uint64(p.ResponseBodyMode))
		})
	}
	b = appendVarint(b, 10, protowire.EncodeBool(m.ObservabilityMode))
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

// mapEntry appends an entry of a map, the first field of its message.
func mapEntry(b []byte, key string, ok *bool, value func([]byte) []byte) []byte {
	*ok = *ok && utf8.ValidString(key)
	return nested(b, 1, func(b []byte) []byte { return nested(appendText(b, 1, key), 2, value) })
}

// appendTexts appends a Struct whose values are texts and lists of texts; not
// ok: it has others.
func appendTexts(b []byte, s *structpb.Struct, ok *bool) []byte {
	text := func(b []byte, v *structpb.Value) []byte {
		t, is := v.GetKind().(*structpb.Value_StringValue)
		if *ok = *ok && is && utf8.ValidString(t.StringValue); !*ok {
			return b
		}
		return protowire.AppendString(protowire.AppendTag(b, 3, protowire.BytesType), t.StringValue)
	}
	for key, v := range s.GetFields() {
		b = mapEntry(b, key, ok, func(b []byte) []byte {
			list, is := v.GetKind().(*structpb.Value_ListValue)
			if !is {
				return text(b, v)
			}
			return nested(b, 6, func(b []byte) []byte {
				for _, v := range list.ListValue.GetValues() {
					b = nested(b, 1, func(b []byte) []byte { return text(b, v) })
				}
				return b
			})
		})
	}
	return b
}

// answerHead is memory for an answer to headers.
type answerHead struct {
	request  extprocv3.ProcessingResponse_RequestHeaders
	response extprocv3.ProcessingResponse_ResponseHeaders
	answer   extprocv3.HeadersResponse
	mutation extprocv3.HeaderMutation
	options  []setOption
}

type setOption struct {
	option corev3.HeaderValueOption
	field  corev3.HeaderValue
}

// decodeHeadAnswer reads an answer to headers that sets and removes some and
// names endpoints, and nothing else, in place.
func decodeHeadAnswer(b []byte, in *inbound) bool {
	x := &in.head
	var common []byte
	if !each(b, func(r record) bool {
		if !r.isText {
			return false
		}
		switch {
		case r.number == 8 && in.lb == "":
			in.lb = decodeLB(r.bytes)
			return in.lb != ""
		case r.number == 1 && in.m.Response == nil:
			x.request.RequestHeaders = &x.answer
			in.m.Response = &x.request
		case r.number == 2 && in.m.Response == nil:
			x.response.ResponseHeaders = &x.answer
			in.m.Response = &x.response
		default:
			return false
		}
		ok := false
		common, ok = only(r.bytes, 1) // HeadersResponse.response
		return ok
	}) || in.m.Response == nil {
		return false
	}
	in.common.Reset()
	x.mutation.Reset()
	x.options = x.options[:0]
	x.answer.Response = &in.common
	ok := each(common, func(r record) bool {
		switch {
		case r.number == 5 && !r.isText:
			in.common.ClearRouteCache = protowire.DecodeBool(r.value)
			return true
		case r.number == 2 && r.isText && in.common.HeaderMutation == nil:
			in.common.HeaderMutation = &x.mutation
			return each(r.bytes, func(r record) bool {
				switch {
				case r.number == 1 && r.isText:
					return decodeOption(r.bytes, x)
				case r.number == 2 && r.isText && utf8.Valid(r.bytes):
					x.mutation.RemoveHeaders = append(x.mutation.RemoveHeaders, string(r.bytes))
					return true
				}
				return false
			})
		}
		return false
	})
	for i := range x.options { // which do not move any more
		o := &x.options[i]
		o.option.Header = &o.field
		x.mutation.SetHeaders = append(x.mutation.SetHeaders, &o.option)
	}
	return ok
}

// decodeOption reads one of HeaderMutation.set_headers.
func decodeOption(b []byte, x *answerHead) bool {
	if len(x.options) == cap(x.options) {
		x.options = append(make([]setOption, 0, 2*len(x.options)+4), x.options...)
	}
	x.options = x.options[:len(x.options)+1]
	o := &x.options[len(x.options)-1]
	o.option.Reset()
	o.field.Reset()
	field := false
	return each(b, func(r record) bool {
		switch {
		case r.number == 3 && !r.isText:
			o.option.AppendAction = corev3.HeaderValueOption_HeaderAppendAction(int32(r.value))
			return true
		case r.number != 1 || !r.isText || field:
			return false
		}
		field = true
		return each(r.bytes, func(r record) bool {
			switch {
			case r.number == 1 && r.isText && string(r.bytes) == HeaderEndpoint:
				o.field.Key = HeaderEndpoint
			case r.number == 1 && r.isText && utf8.Valid(r.bytes):
				o.field.Key = string(r.bytes)
			case r.number == 2 && r.isText && utf8.Valid(r.bytes):
				o.field.Value = string(r.bytes)
			case r.number == 3 && r.isText:
				o.field.RawValue = r.bytes
			default:
				return false
			}
			return true
		})
	}) && field
}

// decodeLB is the text in dynamic metadata of the shape that lbMetadata makes
// for endpoints; "" for every other shape.
func decodeLB(b []byte) string {
	entry := func(b []byte, key string) (value []byte) { // key (1), then value (2)
		fields := 0
		ok := each(b, func(r record) bool {
			fields++
			value = r.bytes
			return r.isText && int(r.number) == fields && (fields != 1 || string(r.bytes) == key)
		})
		if !ok || fields != 2 {
			return nil
		}
		return value
	}
	// Struct.fields, Value.struct_value, Struct.fields, Value.string_value.
	b, _ = only(b, 1)
	b, _ = only(entry(b, namespaceLB), 5)
	b, _ = only(b, 1)
	b, _ = only(entry(b, HeaderEndpoint), 3)
	if !utf8.Valid(b) {
		return ""
	}
	return string(b)
}

// only is the one field of a message, which must have this number and be text.
func only(b []byte, number protowire.Number) (inner []byte, ok bool) {
	n := 0
	ok = each(b, func(r record) bool {
		n++
		inner = r.bytes
		return r.number == number && r.isText
	})
	if !ok || n != 1 {
		return nil, false
	}
	return inner, true
}

// decodeBodyAnswer reads a streamed part of a request's body, and nothing else,
// in place.
func decodeBodyAnswer(b []byte, in *inbound) bool {
	for _, number := range [...]protowire.Number{3, 1, 3, 3} { // request_body, response, body_mutation, streamed_response
		var ok bool
		if b, ok = only(b, number); !ok {
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
