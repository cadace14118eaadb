// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sort"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/internal/certs"
	"github.com/penstock/penstock/llm"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// Probe asks a picker as a gateway would and keeps the transcript, for people
// who want to know what a picker does.
type Probe struct {
	Address string
	TLS     *certs.Client // nil: plaintext
	Detect  bool          // without TLS: find out whether the port speaks it, and then verify nothing
	Path    string
	Header  http.Header
	Body    []byte
	Subset  []string      // hint; nil: none
	Served  string        // reported as the endpoint that answered; "": the first one picked
	Status  int           // of the answer that is made up; 0: 200
	Timeout time.Duration // for the whole; 0: 10 s
}

// Transcript is what passed.
type Transcript struct {
	Address   string   `json:"address"`
	Transport string   `json:"transport"`        // plaintext, or what kind of TLS
	Health    string   `json:"health,omitempty"` // of the ext_proc service: SERVING, or why it is not known
	Lines     []Line   `json:"lines"`
	Endpoints []string `json:"endpoints,omitempty"` // picked
	Status    int      `json:"status,omitempty"`    // refused with
	Remarks   []string `json:"remarks,omitempty"`   // where the picker leaves the protocol
	Error     string   `json:"error,omitempty"`
	Hint      string   `json:"hint,omitempty"` // on the error: what to try
}

// Line is one message.
type Line struct {
	At     time.Duration `json:"atNs"`
	Sent   bool          `json:"sent"` // by the gateway; else by the picker
	Kind   string        `json:"kind"`
	Detail []string      `json:"detail,omitempty"`
}

// Run asks. What goes wrong is part of the transcript.
func (p *Probe) Run(ctx context.Context) *Transcript {
	timeout := p.Timeout
	if timeout == 0 {
		timeout = 10 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	t := &Transcript{Address: p.Address, Transport: "plaintext"}
	if err := p.run(ctx, t); err != nil {
		t.Error = causeOf(err)
		if s, ok := status.FromError(err); ok && s.Code() != codes.Unavailable {
			t.Error = fmt.Sprintf("%s: %s", s.Code(), s.Message())
		}
		_, t.Hint = adviceOn(err, t.Transport != "plaintext").words()
	}
	return t
}

// detect finds out whether TLS is spoken at the address.
func (p *Probe) detect(ctx context.Context, t *Transcript) (*certs.Client, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", p.Address)
	if err != nil {
		return nil, err
	}
	defer raw.Close()
	conn := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	limited, cancel := context.WithTimeout(ctx, detectTime)
	defer cancel()
	if err := conn.HandshakeContext(limited); err != nil {
		if refused := (*net.OpError)(nil); errors.As(err, &refused) && refused.Op == "remote error" { // an alert is TLS
			return &certs.Client{InsecureSkipVerify: true}, nil
		}
		return nil, ctx.Err()
	}
	whose := ""
	if chain := conn.ConnectionState().PeerCertificates; len(chain) > 0 {
		whose = fmt.Sprintf(" of %q", chain[0].Subject.CommonName)
	}
	t.Transport = fmt.Sprintf("TLS, as was found out; the certificate%s was not verified, which --tls does", whose)
	return &certs.Client{InsecureSkipVerify: true}, nil
}

// detectTime is how long a port may take to show that it speaks TLS.
const detectTime = 2 * time.Second

func (p *Probe) run(ctx context.Context, t *Transcript) error {
	identity := p.TLS
	if identity != nil {
		t.Transport = "TLS"
		if identity.InsecureSkipVerify {
			t.Transport = "TLS, the certificate was not verified"
		}
	} else if p.Detect {
		var err error
		if identity, err = p.detect(ctx, t); err != nil {
			return err
		}
	}
	creds := insecure.NewCredentials()
	if identity != nil {
		conf, err := identity.Config()
		if err != nil {
			return err
		}
		conf.NextProtos = []string{"h2"}
		creds = credentials.NewTLS(conf)
	}
	conn, err := grpc.NewClient(passthrough+p.Address, grpc.WithTransportCredentials(creds), grpc.WithDisableRetry(), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return err
	}
	defer conn.Close()
	res, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: serviceName})
	switch code := status.Code(err); code {
	case codes.OK:
		t.Health = res.GetStatus().String()
	case codes.Unavailable: // so will the stream be, and say why
	default:
		t.Health = fmt.Sprintf("not known (%s)", code)
	}
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
	if err != nil {
		return err
	}
	return (&probing{p: p, t: t, stream: stream, began: time.Now()}).run()
}

// probing is one question under way.
type probing struct {
	p      *Probe
	t      *Transcript
	stream extprocv3.ExternalProcessor_ProcessClient
	began  time.Time

	header, lb     string
	gotHeaders     bool
	back           []byte
	bodyAnswers    int
	bodyDone, over bool
}

func (q *probing) note(sent bool, kind string, detail ...string) {
	q.t.Lines = append(q.t.Lines, Line{At: time.Since(q.began), Sent: sent, Kind: kind, Detail: detail})
}

func (q *probing) remark(text string) {
	for _, r := range q.t.Remarks {
		if r == text {
			return
		}
	}
	q.t.Remarks = append(q.t.Remarks, text)
}

func (q *probing) send(kind string, m *extprocv3.ProcessingRequest, detail ...string) error {
	q.note(true, kind, detail...)
	return q.stream.Send(m)
}

func (q *probing) run() error {
	p := q.p
	meta := contextMetadata{subset: p.Subset}.encode()
	fields := headerMap(p.Header, ":method", "POST", ":path", p.Path, ":authority", p.Address, ":scheme", "http", "x-request-id", "probe")
	err := q.send("request headers", &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: fields, EndOfStream: len(p.Body) == 0}},
		ProtocolConfig: &extprocv3.ProtocolConfiguration{
			RequestBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED, ResponseBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
		},
		MetadataContext: meta,
	}, append(headerLines(fields), subsetLine(p.Subset)...)...)
	if err == nil && len(p.Body) > 0 {
		sending := make(chan error, 1)
		go func() {
			var err error
			chunks(p.Body, func(part []byte, last bool) bool {
				err = q.stream.Send(&extprocv3.ProcessingRequest{
					Request:         &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: part, EndOfStream: last}},
					MetadataContext: meta,
				})
				return err == nil
			})
			sending <- err
		}()
		q.note(true, "request body", fmt.Sprintf("%d bytes in %d messages, the last with end of stream", len(p.Body), (len(p.Body)+maxChunk-1)/maxChunk))
		defer func() { <-sending }()
	}
	for !q.over && !(q.gotHeaders && (q.bodyDone || len(p.Body) == 0)) {
		m, err := q.stream.Recv()
		if err != nil {
			return q.ended(err)
		}
		q.request(m)
	}
	if q.over {
		return nil
	}
	q.judge()
	return q.response()
}

// ended tells of the end of the stream in the request phase.
func (q *probing) ended(err error) error {
	if errors.Is(err, io.EOF) {
		q.note(false, "end of stream")
		if q.gotHeaders {
			q.judge()
			return nil
		}
		return errEnded
	}
	return err
}

// request notes one message of the request phase.
func (q *probing) request(m *extprocv3.ProcessingResponse) {
	var lines []string
	if lb := lbText(m.GetDynamicMetadata(), HeaderEndpoint); lb != "" {
		q.lb = lb
		lines = append(lines, fmt.Sprintf("metadata %s %s: %s", namespaceLB, HeaderEndpoint, lb))
	}
	switch r := m.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		q.gotHeaders = true
		common := r.RequestHeaders.GetResponse()
		q.note(false, "answer to the headers", append(mutationLines(common), lines...)...)
		for _, set := range common.GetHeaderMutation().GetSetHeaders() {
			if strings.EqualFold(set.GetHeader().GetKey(), HeaderEndpoint) {
				q.header = valueOf(set.GetHeader())
			}
		}
	case *extprocv3.ProcessingResponse_RequestBody:
		q.body(r.RequestBody.GetResponse(), lines)
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		i := r.ImmediateResponse
		q.t.Status, q.over = int(i.GetStatus().GetCode()), true
		lines = append(lines, fmt.Sprintf("status %d", q.t.Status))
		for _, set := range i.GetHeaders().GetSetHeaders() {
			lines = append(lines, set.GetHeader().GetKey()+": "+valueOf(set.GetHeader()))
		}
		q.note(false, "immediate response", append(lines, clip(string(i.GetBody())))...)
	default:
		q.note(false, fmt.Sprintf("%T", m.GetResponse()), lines...)
		q.remark("a message that has no place in the request phase")
	}
}

func (q *probing) body(common *extprocv3.CommonResponse, lines []string) {
	q.bodyAnswers++
	if !q.gotHeaders {
		q.remark("the body is answered before the headers")
	}
	streamed := common.GetBodyMutation().GetStreamedResponse()
	if streamed == nil {
		q.bodyDone = true
		q.note(false, "answer to the body", append(lines, "no streamed response: the original is kept")...)
		q.remark("in full duplex each answer to a body must be a streamed response; Envoy fails such a request")
		return
	}
	q.back = append(q.back, streamed.GetBody()...)
	if len(streamed.GetBody()) > 64<<10 {
		q.remark(fmt.Sprintf("a message carries %d bytes of body; some gateways take no more than 64 KiB", len(streamed.GetBody())))
	}
	text := fmt.Sprintf("%d bytes", len(streamed.GetBody()))
	if q.bodyDone = streamed.GetEndOfStream(); q.bodyDone {
		text += ", end of stream"
	}
	q.note(false, "answer to the body", append(lines, text)...)
}

// judge compares the answer with what the protocol asks for.
func (q *probing) judge() {
	named := q.header
	if named == "" {
		named = q.lb
	}
	q.t.Endpoints = splitEndpoints(named)
	switch {
	case named == "":
		q.remark("no endpoint is named")
	case q.header == "" || q.lb == "":
		q.remark("the endpoint is named in one place only; header and metadata must both have it")
	case q.header != q.lb:
		q.remark("header and metadata name different endpoints")
	}
	for _, e := range q.t.Endpoints {
		if _, err := netip.ParseAddrPort(e); err != nil {
			q.remark(fmt.Sprintf("%q is not ip:port, as endpoints must be", e))
		}
	}
	if q.bodyDone && q.bodyAnswers > 0 && len(q.back) > 0 && string(q.back) != string(q.p.Body) {
		q.remark(fmt.Sprintf("the body comes back changed: %d bytes, %d were sent", len(q.back), len(q.p.Body)))
	}
}

// response plays a short answer of the endpoint that was picked.
func (q *probing) response() error {
	served, code := q.p.Served, q.p.Status
	if served == "" && len(q.t.Endpoints) > 0 {
		served = q.t.Endpoints[0]
	}
	if code == 0 {
		code = http.StatusOK
	}
	meta := contextMetadata{served: served}.encode()
	fields := headerMap(http.Header{"Content-Type": {"application/json"}}, ":status", strconv.Itoa(code))
	if err := q.send("response headers", &extprocv3.ProcessingRequest{
		Request:         &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{Headers: fields}},
		MetadataContext: meta,
	}, append(headerLines(fields), "metadata "+namespaceLB+" "+keyServed+": "+served)...); err != nil {
		return q.last()
	}
	end := digest(llm.Usage{Input: 1, Output: 1}, false)
	if err := q.send("response body", &extprocv3.ProcessingRequest{
		Request:         &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: end, EndOfStream: true}},
		MetadataContext: meta,
	}, clip(string(end))); err != nil {
		return q.last()
	}
	q.stream.CloseSend()
	return q.last()
}

// last reads what the picker still says.
func (q *probing) last() error {
	for {
		m, err := q.stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			q.note(false, "end of stream")
			return nil
		case err != nil:
			return err
		}
		switch r := m.GetResponse().(type) {
		case *extprocv3.ProcessingResponse_ResponseHeaders:
			q.note(false, "answer to the response headers", mutationLines(r.ResponseHeaders.GetResponse())...)
		case *extprocv3.ProcessingResponse_ResponseBody:
			q.note(false, "answer to the response body", fmt.Sprintf("%d bytes", len(r.ResponseBody.GetResponse().GetBodyMutation().GetStreamedResponse().GetBody())))
		default:
			q.note(false, fmt.Sprintf("%T", m.GetResponse()))
		}
	}
}

func headerLines(m *corev3.HeaderMap) (lines []string) {
	for _, h := range m.GetHeaders() {
		lines = append(lines, h.GetKey()+": "+clip(valueOf(h)))
	}
	sort.Strings(lines)
	return lines
}

func subsetLine(subset []string) []string {
	if subset == nil {
		return nil
	}
	return []string{"metadata " + namespaceSubset + " " + keySubset + ": " + strings.Join(subset, ", ")}
}

func mutationLines(r *extprocv3.CommonResponse) (lines []string) {
	for _, name := range r.GetHeaderMutation().GetRemoveHeaders() {
		lines = append(lines, "remove "+name)
	}
	for _, set := range r.GetHeaderMutation().GetSetHeaders() {
		form := ""
		if len(set.GetHeader().GetRawValue()) == 0 {
			form = " (as text: Envoy reads raw values only)"
		}
		lines = append(lines, "set "+set.GetHeader().GetKey()+": "+clip(valueOf(set.GetHeader()))+form)
	}
	if r.GetClearRouteCache() {
		lines = append(lines, "clear the route cache")
	}
	if s := r.GetStatus(); s != extprocv3.CommonResponse_CONTINUE {
		lines = append(lines, s.String())
	}
	return lines
}

// clip shortens what is shown.
func clip(s string) string {
	const most = 300
	if len(s) > most {
		return s[:most] + fmt.Sprintf("… (%d bytes)", len(s))
	}
	return s
}

// Write prints the transcript for a reader.
func (t *Transcript) Write(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s", t.Address, t.Transport)
	if t.Health != "" {
		fmt.Fprintf(&b, "  health %s", t.Health)
	}
	b.WriteString("\n\n")
	for _, l := range t.Lines {
		arrow := "<-"
		if l.Sent {
			arrow = "->"
		}
		fmt.Fprintf(&b, "%10s  %s %s\n", epp.Rounded(l.At), arrow, l.Kind)
		for _, d := range l.Detail {
			fmt.Fprintf(&b, "                  %s\n", d)
		}
	}
	if len(t.Lines) > 0 {
		b.WriteByte('\n')
	}
	switch {
	case t.Error != "":
		fmt.Fprintf(&b, "failed: %s\n", t.Error)
		if t.Hint != "" {
			fmt.Fprintf(&b, "hint: %s\n", t.Hint)
		}
	case t.Status != 0:
		fmt.Fprintf(&b, "refused with status %d\n", t.Status)
	case len(t.Endpoints) > 0:
		fmt.Fprintf(&b, "picked: %s\n", strings.Join(t.Endpoints, ", "))
	}
	for _, r := range t.Remarks {
		fmt.Fprintf(&b, "remark: %s\n", r)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
