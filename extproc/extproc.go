// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package extproc speaks the Endpoint Picker Protocol of the Gateway API
// Inference Extension from both sides: [Client] is a picker elsewhere, asked
// like one in this process (epp.Picker); [Server] lets other gateways ask a
// picker of ours. On the wire it is Envoy's external processing service over
// gRPC, one stream per request, bodies in full duplex.
//
// Choosing is left to package epp, dialling and the check of what a picker
// named to package proxy. Envoy's protobufs appear in no signature of this
// package.
//
// Start reading at [Client.Pick] and [Server.Process]; wire.go has the names
// and shapes that both sides share. Sources: proposal 004 (endpoint picker
// protocol) and 003 of the extension, envoy/service/ext_proc/v3.
//
// Always true: a message never carries more than maxChunk bytes of a body; on
// each side answers are in order: headers, body, trailers; every stream is
// bounded in memory, and every pick is settled exactly once.
package extproc
