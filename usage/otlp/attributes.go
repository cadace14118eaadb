// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"maps"
	"slices"
	"strings"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
)

// list is attrs without those that are nil: an attribute that says nothing.
func list(attrs ...*commonpb.KeyValue) []*commonpb.KeyValue {
	return slices.DeleteFunc(attrs, func(a *commonpb.KeyValue) bool { return a == nil })
}

// maxText bounds one attribute: a client chooses some of them.
const maxText = 1024

// text is nil for an empty value.
func text(name, value string) *commonpb.KeyValue {
	if value == "" {
		return nil
	}
	return &commonpb.KeyValue{Key: name, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: clean(value)}}}
}

// clean is what protobuf takes as a text.
func clean(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxText)], "\uFFFD")
}

func texts(name, value string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: name, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: &commonpb.ArrayValue{
		Values: []*commonpb.AnyValue{{Value: &commonpb.AnyValue_StringValue{StringValue: clean(value)}}},
	}}}}
}

func number(name string, n int64) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: name, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: n}}}
}

func float(name string, f float64) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: name, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: f}}}
}

func flag(name string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: name, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_BoolValue{BoolValue: true}}}
}

func sorted(m map[string]float64) []string { return slices.Sorted(maps.Keys(m)) }

func compare(a, b string) int { return strings.Compare(a, b) }
