// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock/penstock/config"
)

// routed is a gateway with a configuration of HTTP routes.
func routed(t *testing.T, text string) *gateway {
	t.Helper()
	g := newGateway(slog.New(slog.DiscardHandler), "")
	g.acceptFeed()
	applyText(t, g, text)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		g.close(ctx)
	})
	return g
}

func applyText(t *testing.T, g *gateway, text string) {
	t.Helper()
	cfg, err := config.Parse("test.yaml", []byte("admin: {address: \"off\"}\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.apply(cfg); err != nil {
		t.Fatal(err)
	}
}

// echoCalls is a gRPC service that gives back every message of any call, and
// fails calls to methods called Fail.
func echoCalls(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		if strings.HasSuffix(method, "/Fail") {
			return status.Error(codes.FailedPrecondition, "not now")
		}
		md, _ := metadata.FromIncomingContext(stream.Context())
		stream.SetTrailer(metadata.Pairs("x-authority", md[":authority"][0], "x-secret", strings.Join(md["authorization"], ",")))
		for {
			m := &wrapperspb.StringValue{}
			if err := stream.RecvMsg(m); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			if err := stream.SendMsg(wrapperspb.String("echo " + m.Value)); err != nil {
				return err
			}
		}
	}))
	go s.Serve(l)
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

// gRPC calls pass: messages both ways as they come, the status and the trailers
// at the end; and what the gateway has to say is said as gRPC clients read it.
func TestGRPCRoutes(t *testing.T) {
	backend := echoCalls(t)
	g := routed(t, fmt.Sprintf(`
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true}]
pools: [{name: calls, plain: true, protocol: h2c, members: {static: [%q]}}, {name: none, plain: true, protocol: h2c, members: {external: true}}]
httpRoutes:
  - name: r
    parents: [{listener: l, hosts: [calls.example]}]
    rules:
      - {matches: [{path: {type: exact, value: /echo.Echo/Chat}}, {path: {value: /echo.Other}}], backends: [{pool: calls}]}
      - {matches: [{path: {value: /none.None}}], backends: [{pool: none}]}
`, backend))
	conn, err := grpc.NewClient("passthrough:///"+g.proxy.Addresses()["l"], grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("calls.example"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer x")
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/echo.Echo/Chat")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		word := fmt.Sprint("message ", i, strings.Repeat("x", i*1000))
		if err := stream.SendMsg(wrapperspb.String(word)); err != nil {
			t.Fatal(err)
		}
		m := &wrapperspb.StringValue{}
		if err := stream.RecvMsg(m); err != nil || m.Value != "echo "+word {
			t.Fatalf("message %d: %.40q %v", i, m.Value, err)
		}
	}
	stream.CloseSend()
	if err := stream.RecvMsg(&wrapperspb.StringValue{}); !errors.Is(err, io.EOF) {
		t.Errorf("end: %v", err)
	}
	if md := stream.Trailer(); fmt.Sprint(md["x-authority"], md["x-secret"]) != "[calls.example] [Bearer x]" {
		t.Errorf("trailer %v", md)
	}
	for method, want := range map[string]codes.Code{
		"/echo.Other/Fail": codes.FailedPrecondition, "/echo.Other/Call": codes.OK,
		"/no.Such/Call": codes.Unimplemented, "/none.None/Call": codes.Unavailable,
	} {
		err := conn.Invoke(ctx, method, wrapperspb.String("x"), &wrapperspb.StringValue{})
		if got := status.Code(err); got != want {
			t.Errorf("%s: %v, want %v (%v)", method, got, want, err)
		}
	}
	// A client that leaves takes the call at the backend with it.
	gone, leave := context.WithCancel(ctx)
	stream, err = conn.NewStream(gone, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/echo.Echo/Chat")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(wrapperspb.String("x")); err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(&wrapperspb.StringValue{}); err != nil {
		t.Fatal(err)
	}
	leave()
	for range 500 {
		if g.proxy.Open() == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("the call stays open")
}

// Members come on a path of their own: before the pool, after it and over
// reloads; and no configuration is accepted that nobody would feed.
func TestFedMembers(t *testing.T) {
	named := func(name string) config.Member {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, name) }))
		t.Cleanup(s.Close)
		return config.Member{Address: s.Listener.Addr().String()}
	}
	a, b := named("a"), named("b")
	const text = `
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true}]
pools: [{name: ns/one, plain: true, members: {external: true}}, {name: two, members: {external: true}, metrics: {off: true}}]
httpRoutes: [{name: ns/r, parents: [{listener: l}], rules: [{matches: [{path: {value: /two}}], backends: [{pool: two}]}, {backends: [{pool: ns/one}]}]}]
`
	cfg, err := config.Parse("test.yaml", []byte("admin: {address: \"off\"}\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	alone := newGateway(slog.New(slog.DiscardHandler), "")
	if err := alone.apply(cfg); err == nil || !strings.Contains(err.Error(), "external members") {
		t.Errorf("applied without a feeder: %v", err)
	}
	g := routed(t, `
listeners: [{name: l, address: "127.0.0.1:0", anonymous: true}]
httpRoutes: []
`)
	get := func(path string) string {
		t.Helper()
		res, err := http.Get("http://" + g.proxy.Addresses()["l"] + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		if res.StatusCode != 200 {
			return fmt.Sprint(res.StatusCode)
		}
		return string(body)
	}
	expect := func(when, one, two string) {
		t.Helper()
		if got1, got2 := get("/"), get("/two"); got1 != one || got2 != two {
			t.Errorf("%s: %s and %s, want %s and %s", when, got1, got2, one, two)
		}
	}
	expect("no routes", "404", "404")
	g.feed(map[string][]config.Member{"ns/one": {a}})
	applyText(t, g, text)
	expect("fed before", "a", "503")
	g.feed(map[string][]config.Member{"two": {b}})
	expect("fed after", "a", "b")
	applyText(t, g, strings.Replace(text, "/two", "/two/", 1))
	expect("reloaded", "a", "b")
	g.feed(map[string][]config.Member{"ns/one": {b}})
	expect("replaced", "b", "b")
	g.feed(map[string][]config.Member{"ns/one": nil})
	expect("forgotten for pools to come", "b", "b")
	g.feed(map[string][]config.Member{"ns/one": {}, "two": {}})
	expect("gone", "503", "503")
	if s := g.readiness(); !s.Ready || len(s.Pools) != 2 {
		t.Errorf("readiness %+v", s)
	}
	if picks := g.recentPicks("", 10); len(picks) == 0 {
		t.Error("no picks of the pool that has a picker")
	}
}
