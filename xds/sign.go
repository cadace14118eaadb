// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"errors"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// TokenReviewer says whose a token is. The one of the controller asks the
// Kubernetes API (TokenReview).
type TokenReviewer interface {
	// Review is an error that wraps [ErrToken] when the token is not valid, or
	// not meant for audience; any other error means that it cannot be told now.
	Review(ctx context.Context, token, audience string) (Account, error)
}

// ErrToken says that a token proves nothing.
var ErrToken = errors.New("the token is not accepted")

// Account is whom a token belongs to: a service account, and the pod that holds
// the token if it is bound to one.
type Account struct{ Namespace, Name, Pod string }

// Audience is the audience of the tokens by which gateways prove themselves.
const Audience = "penstock-controller"

// signMethod is a unary call: a certificate request (PKCS #10, DER) against a
// certificate (PEM), with the token as the call's bearer token. Both messages
// are google.protobuf.BytesValue, so that no schema is needed.
const (
	signService = "penstock.xds.v1.Identity"
	signMethod  = "Sign"
	signPath    = "/" + signService + "/" + signMethod
)

type signer interface {
	sign(context.Context, *wrapperspb.BytesValue) (*wrapperspb.BytesValue, error)
}

func signDesc() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: signService,
		HandlerType: (*signer)(nil),
		Methods: []grpc.MethodDesc{{MethodName: signMethod, Handler: func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			in := &wrapperspb.BytesValue{}
			if err := decode(in); err != nil {
				return nil, err
			}
			return srv.(signer).sign(ctx, in)
		}}},
	}
}

// What strangers can cause is bounded.
const (
	maxReviews = 32 // at a time
	reviewTime = 10 * time.Second
	maxCSR     = 4 << 10
)

// parseRequest takes keys of the one kind that gateways make: others may cost
// much to verify.
func parseRequest(der []byte) (*x509.CertificateRequest, error) {
	if len(der) > maxCSR {
		return nil, errors.New("too large")
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, err
	}
	if key, ok := csr.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("the key is not ECDSA over P-256")
	}
	return csr, csr.CheckSignature() // the caller holds the key
}

// sign gives a gateway its certificate.
func (s *Server) sign(ctx context.Context, in *wrapperspb.BytesValue) (*wrapperspb.BytesValue, error) {
	out, g, err := s.certify(ctx, in.GetValue())
	if err != nil {
		s.o.Metrics.certificate("refused")
		level := slog.LevelWarn
		if now := time.Now().UnixNano(); now-s.warned.Swap(now) < int64(time.Second) {
			level = slog.LevelDebug // strangers may ask as often as they like
		}
		s.o.Log.Log(ctx, level, "no certificate for a gateway", "from", peerAddress(ctx), "gateway", g.String(), "error", err)
		return nil, err
	}
	s.o.Metrics.certificate("issued")
	return &wrapperspb.BytesValue{Value: out}, nil
}

func (s *Server) certify(ctx context.Context, request []byte) (out []byte, g Gateway, err error) {
	if !s.leads() {
		return nil, g, errNotLeader()
	}
	token, ok := bearer(ctx)
	if !ok {
		return nil, g, status.Error(codes.Unauthenticated, "a bearer token is needed")
	}
	csr, err := parseRequest(request)
	if err != nil {
		return nil, g, status.Errorf(codes.InvalidArgument, "certificate request: %v", err)
	}
	select {
	case s.reviews <- struct{}{}:
		defer func() { <-s.reviews }()
	case <-ctx.Done():
		return nil, g, status.FromContextError(ctx.Err()).Err()
	}
	reviewing, cancel := context.WithTimeout(ctx, reviewTime)
	defer cancel()
	account, err := s.o.Reviewer.Review(reviewing, token, s.o.Audience)
	switch {
	case errors.Is(err, ErrToken):
		return nil, g, status.Error(codes.Unauthenticated, err.Error())
	case err != nil:
		return nil, g, status.Errorf(codes.Unavailable, "the token cannot be reviewed: %v", err)
	}
	g, err = s.o.GatewayOf(account)
	if err != nil {
		return nil, g, status.Errorf(codes.PermissionDenied, "service account %s/%s: %v", account.Namespace, account.Name, err)
	}
	out, err = s.o.Authority.sign(csr, g, account.Pod, s.o.CertificateLife)
	if err != nil {
		return nil, g, status.Errorf(codes.Internal, "sign: %v", err)
	}
	s.o.Log.Info("certificate issued", "gateway", g.String(), "pod", account.Pod)
	return out, g, nil
}

func bearer(ctx context.Context) (string, bool) {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get("authorization")
	if len(values) != 1 {
		return "", false
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	return token, strings.EqualFold(scheme, "bearer") && token != ""
}
