// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/pool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Mutation is what a client makes of a mutation.
func Mutation(m *extprocv3.HeaderMutation, sent http.Header, in *ClientInstruments) (epp.HeaderEdits, string) {
	return in.of("p").mutation(m, sent)
}

// Shown is what a picker is shown of a header.
func Shown(h http.Header) http.Header { return shown(h) }

// Member is the member at address.
func (c *Client) Member(address string) *pool.Member { return c.pool.Lookup(address) }

// SplitEndpoints reads a list of endpoints.
func SplitEndpoints(s string) []string { return splitEndpoints(s) }

// Feed gives a client's question these answers, and returns the decision.
func (c *Client) Feed(r *epp.Request, messages []*extprocv3.ProcessingResponse) (*epp.Result, error) {
	x := c.newExchange(context.Background(), r, &replica{})
	x.t = c.traces.begin(r, "p", "fed")
	x.stream = &fed{messages: messages}
	x.q.body = r.Body()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	if err := x.await(timer, time.Hour); err != nil {
		x.drop(err)
		return nil, err
	}
	return x.result(), nil
}

// fed is a stream that gives messages and then ends.
type fed struct {
	grpc.ClientStream
	messages []*extprocv3.ProcessingResponse
}

func (f *fed) Send(*extprocv3.ProcessingRequest) error { return nil }
func (f *fed) CloseSend() error                        { return nil }
func (f *fed) Header() (metadata.MD, error)            { return nil, nil }

func (f *fed) Recv() (*extprocv3.ProcessingResponse, error) { panic("not called") }

// RecvMsg goes through the codec, as a real stream does.
func (f *fed) RecvMsg(v any) error {
	if len(f.messages) == 0 {
		return io.EOF
	}
	text, err := proto.Marshal(f.messages[0])
	if err != nil {
		return err
	}
	f.messages = f.messages[1:]
	return newClientCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(text)}, v)
}

// ClientCodec holds the codec of a client against the library: what it writes
// of m must be read as m, and what it reads of text as the library reads it.
func ClientCodec(m *extprocv3.ProcessingRequest, text []byte) (wrote bool, again *extprocv3.ProcessingRequest, read *extprocv3.ProcessingResponse, err error) {
	if m != nil {
		out, err := newClientCodec().Marshal(m)
		if err != nil {
			return false, nil, nil, err
		}
		again = &extprocv3.ProcessingRequest{}
		if err := proto.Unmarshal(out.Materialize(), again); err != nil {
			return true, nil, nil, err
		}
	}
	in := &inbound{}
	in.buf = bytes.Repeat([]byte{0xAA}, 64) // what the last message left
	err = newClientCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(text)}, in)
	if in.lb != "" {
		in.m.DynamicMetadata = lbMetadata(HeaderEndpoint, in.lb)
	}
	return true, again, &in.m, err
}

// Question is a request for Feed.
func Question(body []byte) *epp.Request {
	return &epp.Request{ID: "id", Method: "POST", Path: "/v1/chat/completions", Header: http.Header{}, Prompt: &llm.Prompt{}, Body: func() []byte { return body }}
}

// Resolver makes the client ask f for the addresses behind its picker's name.
func (c *Client) Resolver(f func() []string) {
	c.replicas.resolve = func(context.Context, string) ([]string, error) { return f(), nil }
}

// Ready are the addresses that are ready.
func (c *Client) Ready() (list []string) {
	for _, p := range *c.replicas.list.Load() {
		if standing(p.state.Load()) == ready {
			list = append(list, p.address)
		}
	}
	return list
}

// Remote is the configuration of a remote picker with its defaults.
func Remote(c config.RemotePicker) config.RemotePicker { return c }

// AdviceOn is the advice on an error with this text.
func AdviceOn(text string, secure bool) (forFile, forFlags string) {
	return adviceOn(status.Error(codes.Unavailable, text), secure).words()
}

// CauseOf is the cause of an error with this text.
func CauseOf(text string) string { return causeOf(status.Error(codes.Unavailable, text)) }

// Outcomes are what a pick may be counted as.
func Outcomes() []string {
	list := []string{reasonPicked, reasonDenied, reasonInvalid, reasonNoneReady, reasonRejected, reasonFailed, reasonTimeout}
	for _, why := range failureReasons() {
		list = append(list, reasonFailedOpen+why)
	}
	return list
}
