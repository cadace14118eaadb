// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// Names that probes ask for, besides serviceName and the empty one.
const (
	healthLiveness  = "liveness"
	healthReadiness = "readiness"
	healthInference = "inference-extension" // the reference picker's
)

func healthNames() []string {
	return []string{"", healthLiveness, healthReadiness, healthInference, serviceName}
}

// health answers grpc.health.v1 for one picker listener. Liveness is serving
// for as long as the process answers; the rest is not while the listener
// drains, before the pool was first told its members (what becomes of them later
// is what picks are told), and while the process says that it is not to be asked.
type health struct {
	healthv1.UnimplementedHealthServer
	server   *Server
	may      func() bool   // see ListenersOptions.Ready
	draining chan struct{} // closed at the begin of a drain
	ends     bool          // watches end with the drain, which waits for them
	watches  *atomic.Int64
}

const (
	watchEvery = 250 * time.Millisecond // a change is told after so long at the latest
	maxWatches = 1024
)

func (h *health) drains() bool {
	select {
	case <-h.draining:
		return true
	default:
		return false
	}
}

// status is that of a name; SERVICE_UNKNOWN for one that is not known.
func (h *health) status(service string) healthv1.HealthCheckResponse_ServingStatus {
	switch service {
	case healthLiveness:
		return healthv1.HealthCheckResponse_SERVING
	case "", healthReadiness, healthInference, serviceName:
		if h.drains() || h.server.fading.Load() || !h.server.rules.Load().Pool.Told() || !h.may() {
			return healthv1.HealthCheckResponse_NOT_SERVING
		}
		return healthv1.HealthCheckResponse_SERVING
	}
	return healthv1.HealthCheckResponse_SERVICE_UNKNOWN
}

// Check answers one probe.
func (h *health) Check(_ context.Context, r *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	s := h.status(r.GetService())
	if s == healthv1.HealthCheckResponse_SERVICE_UNKNOWN {
		return nil, status.Errorf(codes.NotFound, "no service is called %q", r.GetService())
	}
	return &healthv1.HealthCheckResponse{Status: s}, nil
}

// List answers for every name.
func (h *health) List(context.Context, *healthv1.HealthListRequest) (*healthv1.HealthListResponse, error) {
	all := map[string]*healthv1.HealthCheckResponse{}
	for _, name := range healthNames() {
		all[name] = &healthv1.HealthCheckResponse{Status: h.status(name)}
	}
	return &healthv1.HealthListResponse{Statuses: all}, nil
}

// Watch tells the status now and whenever it changes.
func (h *health) Watch(r *healthv1.HealthCheckRequest, g healthv1.Health_WatchServer) error {
	if h.watches.Add(1) > maxWatches {
		h.watches.Add(-1)
		return status.Errorf(codes.ResourceExhausted, "%d health watches are open, which is the limit", maxWatches)
	}
	defer h.watches.Add(-1)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	draining := h.draining
	last := healthv1.HealthCheckResponse_ServingStatus(-1)
	for {
		if s := h.status(r.GetService()); s != last {
			if err := g.Send(&healthv1.HealthCheckResponse{Status: s}); err != nil {
				return err
			}
			last = s
		}
		if h.ends && h.drains() {
			return status.Error(codes.Unavailable, "the endpoint picker is shutting down")
		}
		select {
		case <-tick.C:
		case <-draining:
			draining = nil
		case <-g.Context().Done():
			return status.FromContextError(g.Context().Err()).Err()
		}
	}
}
