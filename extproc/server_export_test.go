// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"log/slog"
	"sync/atomic"

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

// OpenStreams is the number of streams under way.
func (s *Server) OpenStreams() int { return int(s.open.Load()) }

// Codec is the server's.
func Codec() encoding.CodecV2 { return newCodec() }
