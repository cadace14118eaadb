// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// probe runs the probes of a running container until ctx ends. It reports a
// failed startup or liveness probe once.
func (c *container) probe(ctx context.Context, unhealthy chan<- string) {
	report := func(kind string) func(error) bool {
		return func(err error) bool {
			unhealthy <- fmt.Sprintf("%s probe failed: %v", kind, err)
			return false
		}
	}
	if p := c.spec.StartupProbe; p != nil {
		ok := false
		c.repeat(ctx, p, func() bool { ok = true; return false }, report("startup"))
		if !ok {
			return
		}
		c.setStarted()
	}
	var both sync.WaitGroup
	if p := c.spec.ReadinessProbe; p != nil {
		both.Go(func() {
			c.repeat(ctx, p,
				func() bool { c.setReady(true); return true },
				func(error) bool { c.setReady(false); return true })
		})
	}
	if p := c.spec.LivenessProbe; p != nil {
		both.Go(func() { c.repeat(ctx, p, func() bool { return true }, report("liveness")) })
	}
	both.Wait()
}

// repeat asks until ctx ends or one of the functions returns false. up and down
// are called after as many successes or failures in a row as the probe says.
// Before the first success it asks more often than the period: a program that
// needs 50 ms to listen is not kept waiting for ten seconds. Failures are
// counted by the period all the same.
func (c *container) repeat(ctx context.Context, p *v1.Probe, up func() bool, down func(error) bool) {
	period := max(time.Duration(p.PeriodSeconds)*time.Second, time.Second)
	timer := time.NewTimer(time.Duration(p.InitialDelaySeconds) * time.Second)
	defer timer.Stop()
	eager := 50 * time.Millisecond
	var successes, failures int32
	var counted time.Time // when a failure was last counted
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		err := c.ask(ctx, p)
		if ctx.Err() != nil {
			return
		}
		wait := period
		if err == nil {
			successes, failures, eager = successes+1, 0, 0
			if successes >= p.SuccessThreshold && !up() {
				return
			}
		} else {
			successes = 0
			if now := time.Now(); now.Sub(counted) >= period-10*time.Millisecond {
				counted = now
				if failures++; failures >= p.FailureThreshold && !down(err) {
					return
				}
			}
			if eager > 0 {
				wait = min(eager, period)
				eager = min(2*eager, time.Second)
			}
		}
		timer.Reset(wait)
	}
}

// ask runs a probe once.
func (c *container) ask(ctx context.Context, p *v1.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, max(time.Duration(p.TimeoutSeconds)*time.Second, time.Second))
	defer cancel()
	switch {
	case p.HTTPGet != nil:
		return c.httpGet(ctx, p.HTTPGet, noRedirect)
	case p.TCPSocket != nil:
		port, err := c.port(p.TCPSocket.Port)
		if err != nil {
			return err
		}
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.address(p.TCPSocket.Host, port))
		if err != nil {
			return err
		}
		return conn.Close()
	case p.GRPC != nil:
		return c.askGRPC(ctx, p.GRPC)
	}
	return errors.New("the probe has no action that is known here")
}

func (c *container) askGRPC(ctx context.Context, g *v1.GRPCAction) error {
	conn, err := grpc.NewClient("passthrough:///"+c.address("", g.Port), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	request := &healthpb.HealthCheckRequest{}
	if g.Service != nil {
		request.Service = *g.Service
	}
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, request)
	if err != nil {
		return err
	}
	if answer.Status != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("service %q is %s", request.Service, answer.Status)
	}
	return nil
}

// A redirect counts as success, as from a real kubelet.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

func (c *container) httpGet(ctx context.Context, g *v1.HTTPGetAction, redirect func(*http.Request, []*http.Request) error) error {
	port, err := c.port(g.Port)
	if err != nil {
		return err
	}
	target, err := url.Parse(g.Path)
	if err != nil {
		return err
	}
	target.Scheme, target.Host = "http", c.address(g.Host, port)
	if g.Scheme == v1.URISchemeHTTPS {
		target.Scheme = "https"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return err
	}
	request.Header.Set("User-Agent", "kube-probe/rig")
	for _, h := range g.HTTPHeaders {
		if http.CanonicalHeaderKey(h.Name) == "Host" {
			request.Host = h.Value
			continue
		}
		request.Header.Add(h.Name, h.Value)
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		// A probe checks that the pod answers, not who it is.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport, CheckRedirect: redirect}).Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	io.Copy(io.Discard, io.LimitReader(response.Body, 10<<10))
	if response.StatusCode < 200 || response.StatusCode >= 400 {
		return fmt.Errorf("%s answers %s", target, response.Status)
	}
	return nil
}

func (c *container) address(host string, port int32) string {
	if host == "" {
		host = c.w.place.Addr.String()
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

func (c *container) port(p intstr.IntOrString) (int32, error) {
	if p.Type == intstr.Int {
		return p.IntVal, nil
	}
	for _, declared := range c.spec.Ports {
		if declared.Name == p.StrVal {
			return declared.ContainerPort, nil
		}
	}
	if n, err := strconv.Atoi(p.StrVal); err == nil {
		return int32(n), nil
	}
	return 0, fmt.Errorf("container %s has no port named %q", c.spec.Name, p.StrVal)
}
