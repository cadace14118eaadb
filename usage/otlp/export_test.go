// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/penstock/penstock/usage"
)

// Spans are those of a record.
func Spans(rec *usage.Record, picks []Pick) []*tracepb.Span { return spansOf(rec, picks) }
