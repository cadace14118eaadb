// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"io"
	"net/http"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/llm"
	"google.golang.org/grpc"
)

// Mutation is what a client makes of a mutation.
func Mutation(m *extprocv3.HeaderMutation, sent http.Header, in *ClientInstruments) (epp.HeaderEdits, string) {
	return in.of("p").mutation(m, sent)
}

// Shown is what a picker is shown of a header.
func Shown(h http.Header) http.Header { return shown(h) }

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

func (f *fed) Recv() (*extprocv3.ProcessingResponse, error) {
	if len(f.messages) == 0 {
		return nil, io.EOF
	}
	m := f.messages[0]
	f.messages = f.messages[1:]
	return m, nil
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
