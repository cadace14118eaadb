// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

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

// ReadRequest reads a message as the server's codec does. Metadata that it has
// read in its own way is written anew.
func ReadRequest(data mem.BufferSlice) (*extprocv3.ProcessingRequest, error) {
	in := &incoming{}
	err := newCodec().Unmarshal(data, in)
	if m := in.meta.encode(); m != nil {
		in.m.MetadataContext = m
	}
	return &in.m, err
}

// Merge is what a stream takes from m.
func Merge(m *corev3.Metadata) *corev3.Metadata {
	var c contextMetadata
	c.merge(m)
	return c.encode()
}

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
