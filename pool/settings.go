// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/config"
)

// newPlan fills in the defaults, checks, and builds all that can fail.
func newPlan(cfg config.Pool) (*plan, error) {
	cfg = withDefaults(cfg)
	if err := check(cfg); err != nil {
		return nil, fmt.Errorf("pool %s: %w", cfg.Name, err)
	}
	dial, err := newDialer(cfg)
	if err != nil {
		return nil, fmt.Errorf("pool %s: %w", cfg.Name, err)
	}
	return &plan{cfg: cfg, dial: dial}, nil
}

func setDefault[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

func setDuration(v *config.Duration, to time.Duration) { setDefault(v, config.Duration(to)) }

// withDefaults fills in the documented defaults, so that a Pool made by hand
// behaves as one from a file.
func withDefaults(cfg config.Pool) config.Pool {
	setDefault(&cfg.Protocol, config.HTTP)
	setDefault(&cfg.Engine, config.Auto)
	setDuration(&cfg.Members.Refresh, 5*time.Second)
	if cfg.Engine == config.TRTLLM {
		setDefault(&cfg.Metrics.Path, "/prometheus/metrics")
	}
	setDefault(&cfg.Metrics.Path, "/metrics")
	setDuration(&cfg.Metrics.Interval, 100*time.Millisecond)
	setDuration(&cfg.Metrics.Timeout, time.Second)
	setDuration(&cfg.Metrics.Stale, 2*time.Second)
	setDefault(&cfg.Metrics.MaxCPU, 0.15)
	setDefault(&cfg.Ejection.Failures, 3)
	setDuration(&cfg.Ejection.Base, 2*time.Second)
	setDuration(&cfg.Ejection.Max, time.Minute)
	setDuration(&cfg.Ejection.SlowReturn, 10*time.Second)
	setDefault(&cfg.Ejection.MaxPercent, 50)
	if cfg.Probe != nil {
		probe := *cfg.Probe
		setDefault(&probe.Path, "/health")
		setDuration(&probe.Interval, 2*time.Second)
		setDuration(&probe.Timeout, time.Second)
		setDefault(&probe.Failures, 2)
		cfg.Probe = &probe
	}
	return cfg
}

func check(cfg config.Pool) error {
	sources := 0
	for _, set := range []bool{cfg.Members.Static != nil, cfg.Members.DNS != "", cfg.Members.File != ""} {
		if set {
			sources++
		}
	}
	if sources > 1 {
		return errors.New("members: more than one of static, dns and file is set")
	}
	for i, m := range cfg.Members.Static {
		if _, err := canonicalAddress(m.Address); err != nil {
			return fmt.Errorf("members.static[%d]: %w", i, err)
		}
	}
	if cfg.Members.DNS != "" {
		if _, err := canonicalAddress(cfg.Members.DNS); err != nil {
			return fmt.Errorf("members.dns: %w", err)
		}
	}
	switch cfg.Protocol {
	case config.HTTP, config.H2C, config.HTTPS:
	default:
		return fmt.Errorf("protocol: unknown protocol %q", cfg.Protocol)
	}
	switch cfg.Engine {
	case config.Auto, config.VLLM, config.SGLang, config.TRTLLM:
	default:
		return fmt.Errorf("engine: unknown engine %q", cfg.Engine)
	}
	if !strings.HasPrefix(cfg.Metrics.Path, "/") {
		return fmt.Errorf("metrics.path: %q does not begin with /", cfg.Metrics.Path)
	}
	if cfg.Probe != nil && !strings.HasPrefix(cfg.Probe.Path, "/") {
		return fmt.Errorf("probe.path: %q does not begin with /", cfg.Probe.Path)
	}
	durations := []config.Duration{cfg.Members.Refresh, cfg.Metrics.Interval, cfg.Metrics.Timeout, cfg.Metrics.Stale,
		cfg.Ejection.Base, cfg.Ejection.Max, cfg.Ejection.SlowReturn}
	if cfg.Probe != nil {
		durations = append(durations, cfg.Probe.Interval, cfg.Probe.Timeout)
	}
	for _, d := range durations {
		if d < 0 {
			return fmt.Errorf("a duration is negative: %s", d)
		}
	}
	if cfg.Ejection.MaxPercent < 0 || cfg.Ejection.MaxPercent > 100 || cfg.Metrics.MaxCPU < 0 {
		return errors.New("ejection.maxPercent or metrics.maxCPU is out of range")
	}
	return nil
}

// canonicalAddress is the one form under which host:port is a member: lower
// case, IP addresses in their shortest form, IPv6 in brackets.
func canonicalAddress(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("address %q is not host:port", addr)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", fmt.Errorf("address %q: port is not 1 to 65535", addr)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return netip.AddrPortFrom(ip.Unmap(), uint16(n)).String(), nil
	}
	if host == "" || len(host) > 253 {
		return "", fmt.Errorf("address %q: no host", addr)
	}
	for _, c := range []byte(host) {
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '_' {
			return "", fmt.Errorf("address %q: host is neither a name nor an IP address", addr)
		}
	}
	return strings.ToLower(host) + ":" + strconv.FormatUint(n, 10), nil
}
