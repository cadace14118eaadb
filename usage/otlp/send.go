// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	collogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip" // for UseCompressor
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock/config"
)

// client speaks OTLP (https://opentelemetry.io/docs/specs/otlp/), over gRPC or
// over HTTP with protobuf.
type client struct {
	headers map[string]config.Secret
	grpc    *grpc.ClientConn // nil:
	http    *http.Client
	base    string
}

func dial(cfg *config.OTLP, conf *tls.Config) (*client, error) {
	u, err := url.Parse(cfg.Endpoint)
	if err != nil {
		return nil, err
	}
	c := &client{headers: cfg.Headers}
	if cfg.Protocol == "http" {
		c.base = strings.TrimSuffix(cfg.Endpoint, "/")
		c.http = &http.Client{
			Transport:     &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: true, Proxy: http.ProxyFromEnvironment},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
		return c, nil
	}
	creds := insecure.NewCredentials()
	if u.Scheme == "https" {
		creds = credentials.NewTLS(conf)
	}
	target := u.Host
	if u.Port() == "" {
		target += ":4317"
	}
	c.grpc, err = grpc.NewClient(target, grpc.WithTransportCredentials(creds), grpc.WithDefaultCallOptions(grpc.UseCompressor("gzip")))
	return c, err
}

func (c *client) close() {
	if c.grpc != nil {
		c.grpc.Close()
		return
	}
	c.http.CloseIdleConnections()
}

func (c *client) traces(ctx context.Context, list []*tracepb.ResourceSpans) (refused int64, err error) {
	var res coltrace.ExportTraceServiceResponse
	err = c.export(ctx, "opentelemetry.proto.collector.trace.v1.TraceService", "/v1/traces", &coltrace.ExportTraceServiceRequest{ResourceSpans: list}, &res)
	return res.GetPartialSuccess().GetRejectedSpans(), err
}

func (c *client) logs(ctx context.Context, list []*logspb.ResourceLogs) (refused int64, err error) {
	var res collogs.ExportLogsServiceResponse
	err = c.export(ctx, "opentelemetry.proto.collector.logs.v1.LogsService", "/v1/logs", &collogs.ExportLogsServiceRequest{ResourceLogs: list}, &res)
	return res.GetPartialSuccess().GetRejectedLogRecords(), err
}

func (c *client) measures(ctx context.Context, list []*metricspb.ResourceMetrics) (refused int64, err error) {
	var res colmetrics.ExportMetricsServiceResponse
	err = c.export(ctx, "opentelemetry.proto.collector.metrics.v1.MetricsService", "/v1/metrics", &colmetrics.ExportMetricsServiceRequest{ResourceMetrics: list}, &res)
	return res.GetPartialSuccess().GetRejectedDataPoints(), err
}

// maxAnswer bounds what is read of a collector's answer.
const maxAnswer = 64 << 10

func (c *client) export(ctx context.Context, service, path string, req, res proto.Message) error {
	if c.grpc != nil {
		for name, value := range c.headers {
			ctx = metadata.AppendToOutgoingContext(ctx, strings.ToLower(name), value.Reveal())
		}
		return c.grpc.Invoke(ctx, "/"+service+"/Export", req, res)
	}
	body, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/x-protobuf")
	for name, value := range c.headers {
		r.Header.Set(name, value.Reveal())
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if answer.StatusCode/100 != 2 {
		return &statusError{answer.StatusCode}
	}
	if err != nil {
		return err
	}
	return proto.Unmarshal(text, res)
}

// statusError is an answer over HTTP that is no success. What it says is not told:
// it may hold what was sent.
type statusError struct{ status int }

func (e *statusError) Error() string {
	return fmt.Sprintf("the collector answered %d %s", e.status, http.StatusText(e.status))
}

// again says that the collector asks for another try, as OTLP defines it.
func again(err error) bool {
	if e, ok := err.(*statusError); ok {
		switch e.status {
		case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return true
		}
		return false
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.Aborted, codes.OutOfRange, codes.DataLoss, codes.ResourceExhausted:
		return true
	}
	return false
}
