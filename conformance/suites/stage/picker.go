// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"flag"
	"fmt"
	"math/big"
	"net"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/structpb"
)

// pick is an endpoint picker. What it does of these is for the request:
//
//	x-stage-pick: A,B        names these endpoints, in this order
//	x-stage-refuse: 429      an immediate response, with x-stage-reason,
//	                         retry-after and a body
//
// To the head of the answer it adds x-stage-served, the endpoint that the
// gateway says has served.
func pick(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("picker", flag.ContinueOnError)
	port := flags.Int("port", 9002, "to listen on")
	path := flags.String("cert-path", "", "folder with tls.crt and tls.key; empty: a certificate of its own")
	if err := flags.Parse(args); err != nil {
		return err
	}
	cert, err := certificate(*path)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", *port))
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}})))
	extprocv3.RegisterExternalProcessorServer(server, picker{})
	healthv1.RegisterHealthServer(server, health.NewServer())
	go func() {
		<-ctx.Done()
		server.GracefulStop()
	}()
	return server.Serve(l)
}

func certificate(path string) (tls.Certificate, error) {
	if path != "" {
		return tls.LoadX509KeyPair(path+"/tls.crt", path+"/tls.key")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "stage"}, NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

type picker struct{}

func (picker) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	fields := map[string]string{}
	for {
		in, err := stream.Recv()
		if err != nil {
			return nil // the gateway is done, or gone
		}
		var out []*extprocv3.ProcessingResponse
		switch r := in.GetRequest().(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			for _, h := range r.RequestHeaders.GetHeaders().GetHeaders() {
				fields[h.GetKey()] = string(h.GetRawValue())
			}
			out = append(out, headReply(fields))
		case *extprocv3.ProcessingRequest_RequestBody:
			out = append(out, bodyReply(r.RequestBody))
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			served := in.GetMetadataContext().GetFilterMetadata()["envoy.lb"].GetFields()["x-gateway-destination-endpoint-served"].GetStringValue()
			out = append(out, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{
				Response: &extprocv3.CommonResponse{HeaderMutation: set("x-stage-served", served)},
			}}})
		}
		for _, message := range out {
			if err := stream.Send(message); err != nil {
				return err
			}
			if message.GetImmediateResponse() != nil {
				return nil
			}
		}
	}
}

// headReply names the endpoints twice, as the protocol wants, or refuses.
func headReply(fields map[string]string) *extprocv3.ProcessingResponse {
	if text := fields["x-stage-refuse"]; text != "" {
		code, _ := strconv.Atoi(text)
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extprocv3.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(code)},
			Headers: set("x-stage-reason", "by request", "retry-after", "7", "content-type", "application/json"),
			Body:    []byte(`{"error":{"message":"the stage refuses","code":` + text + `}}`),
		}}}
	}
	const name = "x-gateway-destination-endpoint"
	list := fields["x-stage-pick"]
	inner := &structpb.Struct{Fields: map[string]*structpb.Value{name: structpb.NewStringValue(list)}}
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: set(name, list), ClearRouteCache: true},
		}},
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{"envoy.lb": structpb.NewStructValue(inner)}},
	}
}

func bodyReply(in *extprocv3.HttpBody) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{
		Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
			StreamedResponse: &extprocv3.StreamedBodyResponse{Body: in.GetBody(), EndOfStream: in.GetEndOfStream()},
		}}},
	}}}
}

func set(pairs ...string) *extprocv3.HeaderMutation {
	m := &extprocv3.HeaderMutation{}
	for i := 0; i < len(pairs); i += 2 {
		m.SetHeaders = append(m.SetHeaders, &corev3.HeaderValueOption{Header: &corev3.HeaderValue{
			Key: strings.ToLower(pairs[i]), RawValue: []byte(pairs[i+1]),
		}})
	}
	return m
}
