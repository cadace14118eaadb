// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/encoding"

	"github.com/penstock/penstock/config"
)

// NewTestServer is a server without a listener, with the counter of the bytes
// that it holds.
func NewTestServer(log *slog.Logger, cfg *config.Config, b Backend, limit int) (*Server, *atomic.Int64) {
	held := &atomic.Int64{}
	in := NewServerInstruments(nil)
	s := &Server{log: log, metrics: in, bodies: held, limit: int64(limit)}
	s.rules.Store(newRules(cfg, b, in))
	return s, held
}

// Leashed is a stream's context as a listener makes it.
func Leashed(ctx context.Context) context.Context { return newLeash(ctx) }

// OpenStreams is the number of streams under way.
func (s *Server) OpenStreams() int { return int(s.open.Load()) }

// Codec is the server's.
func Codec() encoding.CodecV2 { return newCodec() }

// Counts are what the server has counted of streams, messages and refusals.
func (s *Server) Counts() string {
	reg := prometheus.NewRegistry()
	reg.MustRegister(s.metrics.ended, s.metrics.odd, s.metrics.immediate)
	families, err := reg.Gather()
	if err != nil {
		return err.Error()
	}
	var lines []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetCounter().GetValue() == 0 {
				continue
			}
			line := f.GetName()
			for _, l := range m.GetLabel() {
				if l.GetName() != "pool" {
					line += " " + l.GetValue()
				}
			}
			lines = append(lines, fmt.Sprintf("%s %v\n", line, m.GetCounter().GetValue()))
		}
	}
	return strings.Join(lines, "")
}
