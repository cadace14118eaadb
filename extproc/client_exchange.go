// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/pool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// exchange is one request at a remote picker: a stream. Until Pick returns it
// belongs to that goroutine; then receive reads what still comes, and the
// proxy's goroutine, as an epp.Observer, sends.
type exchange struct {
	c      *Client
	p      *replica
	t      *trace
	stream extprocv3.ExternalProcessor_ProcessClient
	ctx    context.Context // of the stream
	cancel context.CancelCauseFunc
	// unfollow takes the stream's end off that of the client's request.
	unfollow func() bool

	q         *question // nil after the request phase
	unreached bool      // the stream could not be had: nothing was asked
	strangers []string  // endpoints named that are no members

	// The response phase.
	tokens   int
	charge   *pool.Charge
	member   *pool.Member
	head     chan *extprocv3.HeadersResponse // capacity 1
	over     chan struct{}                   // closed when nothing more comes
	through  atomic.Int32                    // sides that are through with the stream
	parting  *time.Timer                     // ends the stream after farewell
	evicted  context.Context
	evict    context.CancelCauseFunc
	headSent bool
	edits    bool      // the picker may edit the answer's head: it did not say that it only observes
	whole    bool      // the end of the answer was known with its head, and is told with it
	used     llm.Usage // what it used then
	sse      bool
	copy     *copier
}

// question is what is known of a request while the picker decides.
type question struct {
	r    *epp.Request
	sent http.Header // what the picker was shown
	body []byte

	headers  bool        // the answer to the headers has come
	waiting  atomic.Bool // for the body, which may never come
	seen     bool        // an answer to the body has come
	done     bool        // the answer to the body is whole
	same     int         // bytes of the body given back unchanged
	replaced []byte
	replaces bool // replaced is the body, however empty
	edits    epp.HeaderEdits
	named    string // endpoints in the header
	lb       string // and in the metadata
	denial   *epp.Denial
}

// Causes for which a stream is ended from here.
var (
	errPickTimeout = fmt.Errorf("no answer in time: %w", context.DeadlineExceeded)
	errNoBody      = errors.New("the picker does not give the body back")
	errSettled     = errors.New("the request has ended")
	errLeft        = errors.New("the client left")
)

const (
	// inlineBody is the largest body that is sent before the first answer is
	// read: it fits into the windows of any gRPC peer, so sending cannot wait
	// for a picker that itself waits to be read.
	inlineBody = 48 << 10
	// bodyGrace is how long a picker that has answered the headers may take
	// until the body begins to come back. After it the original is taken.
	bodyGrace = 250 * time.Millisecond
	// farewell is how long a picker may take to end a stream that is over.
	farewell = time.Second
)

func (c *Client) newExchange(ctx context.Context, r *epp.Request, p *replica) *exchange {
	x := &exchange{c: c, p: p, q: &question{r: r, sent: shown(r.Header)}}
	// The stream must outlive the handler of the request by its farewell.
	x.ctx, x.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	x.unfollow = context.AfterFunc(ctx, func() { x.cancel(errLeft) })
	p.open.Add(1)
	c.metrics.streams.Inc()
	return x
}

// drop ends a stream that came to nothing.
func (x *exchange) drop(err error) {
	x.unfollow()
	x.cancel(err)
	x.release()
}

func (x *exchange) release() {
	x.p.open.Add(-1)
	x.c.metrics.streams.Dec()
}

// ask sends the request and waits for the picker's decision.
func (x *exchange) ask(timeout time.Duration) error {
	if timeout <= 0 {
		return x.failure(errPickTimeout)
	}
	q := x.q
	timer := time.AfterFunc(timeout, func() {
		if q.waiting.Load() {
			x.cancel(errNoBody)
		} else {
			x.cancel(errPickTimeout)
		}
	})
	defer timer.Stop()
	var err error
	if x.stream, err = extprocv3.NewExternalProcessorClient(x.p.conn).Process(x.ctx, grpc.ForceCodecV2(newClientCodec())); err != nil {
		x.unreached = true
		return x.failure(err)
	}
	if x.q.r.Body != nil {
		x.q.body = x.q.r.Body()
	}
	sending := make(chan error, 1)
	if len(x.q.body) <= inlineBody {
		sending <- x.send()
	} else {
		go func() { sending <- x.send() }()
	}
	err = x.await(timer, timeout)
	if err != nil || x.q.denial != nil {
		x.cancel(errSettled) // or what still sends might wait for ever
	}
	if sent := <-sending; err == nil && sent != nil && sent != io.EOF && x.q.denial == nil && context.Cause(x.ctx) != errNoBody {
		err = x.failure(sent)
	}
	return err
}

// send sends the request, and says that it was all where the picker is shown
// nothing of the answer: the picker then ends the stream with its decision, and
// need not be told to by another frame. io.EOF means that the stream has ended,
// the reason is for await.
func (x *exchange) send() error {
	err := x.sendRequest()
	if err == nil && x.c.cfg.Response.Mode == config.ResponseOff {
		err = x.stream.CloseSend()
	}
	return err
}

// sendRequest sends headers and body, which needs no answer in between.
func (x *exchange) sendRequest() error {
	path := x.q.r.Path
	h := &extprocv3.HttpHeaders{
		Headers:     headerMap(x.q.sent, ":method", x.q.r.Method, ":path", path, ":authority", x.q.r.Host, ":scheme", "http", "x-request-id", x.q.r.ID),
		EndOfStream: len(x.q.body) == 0,
	}
	meta := contextMetadata{subset: x.subset()}.encode()
	err := x.stream.Send(&extprocv3.ProcessingRequest{
		Request:         &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: h},
		MetadataContext: meta,
		ProtocolConfig:  &extprocv3.ProtocolConfiguration{RequestBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED, ResponseBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED},
	})
	if err != nil || len(x.q.body) == 0 {
		return err
	}
	chunks(x.q.body, func(part []byte, last bool) bool {
		err = x.stream.Send(&extprocv3.ProcessingRequest{
			Request:         &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: part, EndOfStream: last}},
			MetadataContext: meta,
		})
		return err == nil
	})
	return err
}

// subset is the hint, if one is to be given: the ready members less those that
// have failed this request.
func (x *exchange) subset() []string {
	if !x.c.cfg.SubsetHint && len(x.q.r.Tried) == 0 && x.q.r.Subset == nil {
		return nil
	}
	list := []string{}
	for _, m := range x.c.pool.Snapshot().Members {
		a := m.Address()
		if m.Available() && !contains(x.q.r.Tried, a) && (x.q.r.Subset == nil || inSubset(x.q.r.Subset, a)) {
			list = append(list, a)
		}
	}
	return list
}

func contains(list []string, s string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}

// await reads until the picker has decided.
func (x *exchange) await(timer *time.Timer, timeout time.Duration) error {
	extended := false
	in := &inbound{}
	for {
		err := x.stream.RecvMsg(in)
		m := &in.m
		switch {
		case context.Cause(x.ctx) == errNoBody:
			x.c.metrics.odd("no-body")
			return x.decided()
		case err == io.EOF && x.q.headers && x.q.same == 0 && x.q.replaced == nil:
			return x.decided() // it has no more to say
		case err == io.EOF:
			return x.failure(errEnded)
		case err != nil:
			return x.failure(err)
		}
		if more := m.GetOverrideMessageTimeout(); more != nil && m.GetResponse() == nil {
			if !extended { // once, and for no longer than a pick may take anyway
				extended = true
				timer.Reset(min(more.AsDuration(), timeout))
			}
			continue
		}
		if lb := in.endpoints(); lb != "" {
			x.q.lb = lb
		}
		if err := x.take(m); err != nil {
			return x.failure(err)
		}
		if x.q.denial != nil || x.q.headers && (x.q.done || len(x.q.body) == 0) {
			return x.decided()
		}
		if x.q.headers && !x.q.seen && !x.q.waiting.Swap(true) {
			timer.Reset(min(timeout, bodyGrace))
		} else if x.q.seen && x.q.waiting.Swap(false) {
			timer.Reset(timeout)
		}
	}
}

// errEnded is a clean end of the stream before there is an answer.
var errEnded = errors.New("the picker ended the stream without an answer")

// errInvalid marks what cannot be used.
type errInvalid struct{ what string }

func (e errInvalid) Error() string { return e.what }

// take reads one message of the request phase.
func (x *exchange) take(m *extprocv3.ProcessingResponse) error {
	switch r := m.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		return x.takeHeaders(r.RequestHeaders.GetResponse())
	case *extprocv3.ProcessingResponse_RequestBody:
		return x.takeBody(r.RequestBody.GetResponse())
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		x.q.denial = x.c.metrics.denialOf(r.ImmediateResponse)
	case *extprocv3.ProcessingResponse_RequestTrailers:
		x.c.metrics.odd("order")
	case *extprocv3.ProcessingResponse_ResponseHeaders, *extprocv3.ProcessingResponse_ResponseBody, *extprocv3.ProcessingResponse_ResponseTrailers:
		x.c.metrics.odd("order")
	case nil: // metadata alone
	default:
		x.c.metrics.odd("order")
	}
	return nil
}

func (x *exchange) takeHeaders(r *extprocv3.CommonResponse) error {
	if x.q.headers {
		x.c.metrics.odd("order")
		return nil
	}
	x.q.headers = true
	x.q.edits, x.q.named = x.c.metrics.mutation(r.GetHeaderMutation(), x.q.sent)
	if r.GetStatus() == extprocv3.CommonResponse_CONTINUE_AND_REPLACE {
		x.q.seen, x.q.done, x.q.replaces = true, true, true
		x.q.replaced = append([]byte(nil), r.GetBodyMutation().GetBody()...)
	}
	return nil
}

// takeBody reads an answer to the body. Pieces that are the original's are
// counted and not kept: most pickers change nothing of it.
func (x *exchange) takeBody(r *extprocv3.CommonResponse) error {
	if x.q.done {
		return nil
	}
	if !x.q.headers && !x.q.seen {
		x.c.metrics.odd("early-body")
	}
	x.q.seen = true
	mutation := r.GetBodyMutation()
	streamed := mutation.GetStreamedResponse()
	if streamed == nil {
		switch kind := mutation.GetMutation().(type) {
		case *extprocv3.BodyMutation_Body:
			x.c.metrics.odd("whole-body")
			x.q.replaced, x.q.replaces = append([]byte(nil), kind.Body...), true
		case *extprocv3.BodyMutation_ClearBody:
			x.c.metrics.odd("whole-body")
			x.q.replaces = kind.ClearBody
		default:
			x.c.metrics.odd("empty-body")
		}
		x.q.done = true
		return nil
	}
	part := streamed.GetBody()
	if x.q.replaced == nil && x.q.same+len(part) <= len(x.q.body) && bytes.Equal(part, x.q.body[x.q.same:x.q.same+len(part)]) {
		x.q.same += len(part)
	} else {
		if x.q.replaced == nil {
			x.q.replaced = append(make([]byte, 0, len(x.q.body)+len(part)), x.q.body[:x.q.same]...)
		}
		x.q.replaced = append(x.q.replaced, part...)
		if len(x.q.replaced) > 2*len(x.q.body)+maxGrown {
			return errInvalid{"the body that it gives back is far larger than the original"}
		}
	}
	if streamed.GetEndOfStream() {
		x.q.done = true
		if x.q.replaces = x.q.replaced != nil || x.q.same < len(x.q.body); x.q.replaces && x.q.replaced == nil {
			x.q.replaced = x.q.body[:x.q.same:x.q.same]
		}
	}
	return nil
}

// maxGrown is how much a picker may add to a body, besides doubling it.
const maxGrown = 1 << 20

// decided makes sense of the answer: it is a refusal, or names endpoints.
func (x *exchange) decided() error {
	if x.q.denial != nil {
		return nil
	}
	if x.q.named != "" && x.q.lb != "" && x.q.named != x.q.lb {
		x.c.metrics.odd("mismatch")
	}
	return nil
}

// result is the decision for the proxy. Whom the list names is checked there,
// at the moment of dialling; what is listed here is what the picker said.
func (x *exchange) result() *epp.Result {
	if x.q.denial != nil {
		x.drop(errSettled)
		return &epp.Result{Denial: x.q.denial, Reason: reasonDenied}
	}
	named := x.q.named
	if named == "" {
		named = x.q.lb
	}
	x.edits = x.c.cfg.Response.Mode != config.ResponseOff && !x.observes()
	res := &epp.Result{Reason: reasonPicked, Endpoints: splitEndpoints(named), Header: x.q.edits, Observer: x, Edits: x.edits, OnDone: x.settle}
	if x.q.replaces {
		res.Body = x.q.replaced
		if res.Body == nil {
			res.Body = []byte{}
		}
	}
	for _, endpoint := range res.Endpoints {
		if x.c.pool.Lookup(endpoint) == nil {
			x.strangers = append(x.strangers, endpoint)
		}
	}
	x.tokens = x.q.r.Prompt.Tokens()
	x.head, x.over = make(chan *extprocv3.HeadersResponse, 1), make(chan struct{})
	x.evicted, x.evict = context.WithCancelCause(context.Background())
	res.Evicted = x.evicted
	x.q = nil // a stream lives for long after this
	switch {
	case context.Cause(x.ctx) != nil:
		close(x.over)
	case x.c.cfg.Response.Mode == config.ResponseOff:
		x.cancel(errSettled)
		close(x.over)
	default:
		go x.receive()
	}
	return res
}

// observes says that the picker has said that it edits no answers. It has
// answered, so the header of its side of the stream is there.
func (x *exchange) observes() bool {
	if context.Cause(x.ctx) != nil {
		return false
	}
	h, err := x.stream.Header()
	return err == nil && slices.Contains(h[keyAnswers], answersObserved)
}

// receive reads what the picker still says after its decision.
func (x *exchange) receive() {
	defer func() {
		close(x.over)
		if x.through.Add(1) == 2 {
			x.letGo()
		}
	}()
	for {
		in := &inbound{} // the head is read by another goroutine
		if err := x.stream.RecvMsg(in); err != nil {
			return // it has no more to say, or fails: the answer passes without it
		}
		switch r := in.m.GetResponse().(type) {
		case *extprocv3.ProcessingResponse_ResponseHeaders:
			select {
			case x.head <- r.ResponseHeaders:
			default:
				x.c.metrics.odd("order")
			}
		case *extprocv3.ProcessingResponse_ImmediateResponse:
			x.evict(&epp.Eviction{Denial: x.c.metrics.denialOf(r.ImmediateResponse)})
			return
		}
	}
}

// failure says what an error of the stream means.
func (x *exchange) failure(err error) error {
	switch cause := context.Cause(x.ctx); {
	case cause == errLeft:
		return context.Canceled
	case cause == errPickTimeout || err == errPickTimeout:
		return &Failure{failTimeout, errPickTimeout}
	}
	if err == errEnded {
		return &Failure{failEnded, err}
	}
	if invalid := (errInvalid{}); errors.As(err, &invalid) {
		return &Failure{failInvalid, err}
	}
	switch status.Code(err) {
	case codes.Unavailable:
		if !x.q.headers && !x.q.seen {
			x.unreached = true
			x.p.broke(x.c.replicas, err)
			return &Failure{failUnreachable, fmt.Errorf("%s: %s", x.p.address, causeOf(err))}
		}
	case codes.DeadlineExceeded:
		return &Failure{failTimeout, fmt.Errorf("%w: %v", context.DeadlineExceeded, err)}
	}
	if s, ok := status.FromError(err); ok {
		err = fmt.Errorf("%s: %s", s.Code(), s.Message())
	}
	return &Failure{failBroken, err}
}

// denialOf is an immediate response as a refusal. One without a status that a
// final answer may have is a 500: whatever it was meant to be, it was no pick.
func (c *clientCounters) denialOf(r *extprocv3.ImmediateResponse) *epp.Denial {
	d := &epp.Denial{Status: int(r.GetStatus().GetCode()), Header: http.Header{}, Body: r.GetBody()}
	if d.Status < 200 || d.Status > 599 {
		d.Status = http.StatusInternalServerError
	}
	if d.Body == nil {
		d.Body = []byte{}
	}
	edits, _ := c.mutation(r.GetHeaders(), nil)
	edit(d.Header, edits)
	d.Detail = strings.TrimSpace("the remote picker refused: " + r.GetDetails())
	return d
}
