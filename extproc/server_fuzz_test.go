// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"golang.org/x/tools/txtar"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/extproc"
)

// FuzzServer plays any sequence of messages, each after its length: no panic,
// nothing left behind, answers in order and of a legal size.
func FuzzServer(f *testing.F) {
	cases, err := filepath.Glob("testdata/server/*.txtar")
	if err != nil || len(cases) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, name := range cases {
		raw, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range txtar.Parse(raw).Files {
			if file.Name == "in" && !bytes.Contains(file.Data, []byte("fill")) {
				f.Add(seed(f, string(file.Data)), uint8(0))
				f.Add(seed(f, string(file.Data)), uint8(len(file.Data)))
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, how uint8) {
		s := &script{ctx: t.Context()}
		if how&1 != 0 {
			s.end = status.Error(codes.Canceled, "context canceled")
		}
		for len(data) > 0 {
			n, k := binary.Uvarint(data)
			if k <= 0 || n > uint64(len(data)-k) {
				break
			}
			m := &extprocv3.ProcessingRequest{}
			if proto.Unmarshal(data[k:k+int(n)], m) != nil {
				s.end = status.Error(codes.Internal, "not a message")
				break
			}
			s.messages = append(s.messages, m)
			data = data[k+int(n):]
		}
		picker := always("10.0.0.1:8000", "10.0.0.2:8000")
		if how&2 != 0 {
			picker = &scripted{result: func(*epp.Request) (*epp.Result, error) {
				return &epp.Result{Reason: "full", Denial: &epp.Denial{Status: 429}}, nil
			}}
		}
		o := &order{t: t}
		s.received, s.sent = o.received, o.sent
		server, held := extproc.NewTestServer(logs(t), testConfig(), backend(t, picker), 10)
		err := server.Process(s)
		if status.Code(err) == codes.Unknown {
			t.Errorf("an error without a code: %v", err)
		}
		if held.Load() != 0 || server.OpenStreams() != 0 || picker.unsettled() != 0 {
			t.Errorf("left behind: %d bytes, %d streams, %d picks", held.Load(), server.OpenStreams(), picker.unsettled())
		}
	})
}

func seed(t testing.TB, in string) (out []byte) {
	for line := range strings.Lines(in) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			b, err := proto.Marshal(parseMessage(t, line))
			if err != nil {
				t.Fatal(err)
			}
			out = append(binary.AppendUvarint(out, uint64(len(b))), b...)
		}
	}
	return out
}

// order checks the rules of answers: headers, then body, then trailers in each
// direction, nothing after an end or an immediate response, nothing for what
// has not been asked.
type order struct {
	t         *testing.T
	asked     [2]int // furthest of each direction: 1 headers, 2 body, 3 trailers
	answered  [2]int
	ended     [2]bool
	first     *extprocv3.ProcessingRequest
	immediate bool
}

func (o *order) received(m *extprocv3.ProcessingRequest) {
	if o.first == nil {
		o.first = m
	}
	direction, stage := stageOfRequest(m)
	if stage > 0 {
		o.asked[direction] = max(o.asked[direction], stage)
	}
}

func (o *order) sent(m *extprocv3.ProcessingResponse) {
	if o.immediate {
		o.t.Errorf("after an immediate response: %s", describeAnswer(m))
	}
	if o.first.GetObservabilityMode() {
		o.t.Errorf("an answer in observability mode: %s", describeAnswer(m))
	}
	if r := m.GetImmediateResponse(); r != nil {
		o.immediate = true
		if c := r.GetStatus().GetCode(); c < 400 {
			o.t.Errorf("immediate response %d", c)
		}
		return
	}
	direction, stage, body := 0, 0, (*extprocv3.BodyResponse)(nil)
	switch k := m.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		stage = 1
	case *extprocv3.ProcessingResponse_RequestBody:
		stage, body = 2, k.RequestBody
	case *extprocv3.ProcessingResponse_RequestTrailers:
		stage = 3
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		direction, stage = 1, 1
	case *extprocv3.ProcessingResponse_ResponseBody:
		direction, stage, body = 1, 2, k.ResponseBody
	case *extprocv3.ProcessingResponse_ResponseTrailers:
		direction, stage = 1, 3
	}
	switch before := o.answered[direction]; {
	case stage == 0, o.ended[direction], stage < before, stage == before && stage != 2, before == 0 && stage != 1:
		o.t.Errorf("out of order: %s after stage %d, ended %v", describeAnswer(m), before, o.ended[direction])
	case o.asked[direction] == 0:
		o.t.Errorf("not asked for: %s", describeAnswer(m))
	}
	o.answered[direction] = stage
	if part := body.GetResponse().GetBodyMutation().GetStreamedResponse(); part != nil {
		if len(part.GetBody()) > 62000 {
			o.t.Errorf("a chunk of %d bytes", len(part.GetBody()))
		}
		o.ended[direction] = part.GetEndOfStream()
	}
	o.ended[direction] = o.ended[direction] || stage == 3
}

func stageOfRequest(m *extprocv3.ProcessingRequest) (direction, stage int) {
	switch m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		return 0, 1
	case *extprocv3.ProcessingRequest_RequestBody:
		return 0, 2
	case *extprocv3.ProcessingRequest_RequestTrailers:
		return 0, 3
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return 1, 1
	case *extprocv3.ProcessingRequest_ResponseBody:
		return 1, 2
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		return 1, 3
	}
	return 0, 0
}
