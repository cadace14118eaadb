// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var hostForm = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*\.?$`)

// checkAddress says what is wrong with host:port, or "". A listener may leave
// out the host and may have port 0, which is any free one.
func checkAddress(address string, listen bool) (what, hint string) {
	if address == "" {
		return "is missing", "write host:port"
	}
	if scheme, rest, ok := strings.Cut(address, "://"); ok {
		rest, _, _ = strings.Cut(rest, "/")
		return fmt.Sprintf("%q is a URL", address), fmt.Sprintf("write %s without %s://", rest, scheme)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		switch {
		case strings.Count(address, ":") > 1 && !strings.Contains(address, "["):
			return fmt.Sprintf("%q is not host:port", address), "put an IPv6 address in brackets: [::1]:8000"
		case strings.Trim(address, "0123456789") == "" && listen:
			return fmt.Sprintf("%q has no host", address), fmt.Sprintf(`write "127.0.0.1:%[1]s", or ":%[1]s" for every interface`, address)
		case !strings.Contains(address, ":"), strings.HasSuffix(address, "]"):
			return fmt.Sprintf("%q has no port", address), "write " + address + ":PORT"
		}
		return fmt.Sprintf("%q is not host:port", address), "write host:port, an IPv6 host in brackets"
	}
	n, err := strconv.ParseUint(port, 10, 32)
	low := uint64(1)
	if listen {
		low = 0
	}
	if err != nil || n > 65535 || n < low || strconv.FormatUint(n, 10) != port {
		return fmt.Sprintf("%q is not a port", port), fmt.Sprintf("use a number from %d to 65535", low)
	}
	switch {
	case host == "" && listen:
		return "", ""
	case host == "":
		return fmt.Sprintf("%q has no host", address), "write host:port"
	case strings.Contains(host, ":"):
		if _, err := netip.ParseAddr(host); err != nil {
			return fmt.Sprintf("%q is not an IPv6 address", host), ""
		}
		return "", ""
	case strings.Trim(host, "0123456789.") == "":
		if _, err := netip.ParseAddr(host); err != nil {
			return fmt.Sprintf("%q is not an IPv4 address", host), ""
		}
	case len(host) > 253 || !hostForm.MatchString(host):
		return fmt.Sprintf("%q is not a host name", host), ""
	}
	return "", ""
}

// isLoopback says whether an address that passed checkAddress can be reached
// from this machine only.
func isLoopback(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.IsLoopback()
	}
	return strings.EqualFold(host, "localhost")
}

// collide says whether two listening addresses cannot be open at once.
func collide(a, b string) bool {
	hostA, portA, _ := net.SplitHostPort(a)
	hostB, portB, _ := net.SplitHostPort(b)
	if portA != portB || portA == "0" {
		return false
	}
	all := func(h string) bool {
		ip, err := netip.ParseAddr(h)
		return h == "" || err == nil && ip.IsUnspecified()
	}
	return all(hostA) || all(hostB) || strings.EqualFold(hostA, hostB)
}

func (v *validator) listeners() {
	if len(v.c.Listeners) == 0 && len(v.c.PickerListeners) == 0 && !v.maybeEmpty() && !v.unlistened {
		v.fail("listeners", "there are no listeners", `add one: listeners: [{name: public, address: ":8080", anonymous: true}]; a picker for other gateways is run by penstock epp`)
	}
	type open struct{ path, address string }
	opened := map[string][]open{} // by port
	claim := func(path, address string) {
		_, port, _ := net.SplitHostPort(address)
		for _, o := range opened[port] {
			if collide(o.address, address) {
				v.fail(path, fmt.Sprintf("%q is taken by %s (%q)", address, o.path, o.address), "choose another port")
				break
			}
		}
		opened[port] = append(opened[port], open{path, address})
	}
	seen := map[string]string{}
	for i := range v.c.Listeners {
		l, path := &v.c.Listeners[i], joinIndex("listeners", i)
		v.name(path, l.Name, seen)
		if what, hint := checkAddress(l.Address, true); what != "" {
			v.fail(path+".address", what, hint)
		} else {
			claim(path+".address", l.Address)
		}
		v.entry(path, l)
		if l.TLS != nil {
			v.serverTLS(path+".tls", l.TLS)
		}
		v.sections(path, l)
		for j, p := range l.UpgradePaths {
			v.clientPath(joinIndex(path+".upgradePaths", j), p)
		}
	}
	v.loopback(claim)
	v.pickerListeners(claim)
}

// pickerListeners checks the addresses on which other gateways ask.
func (v *validator) pickerListeners(claim func(path, address string)) {
	pools := names(v.c.Pools, func(p *Pool) string { return p.Name })
	for i := range v.c.PickerListeners {
		l, path := &v.c.PickerListeners[i], joinIndex("pickerListeners", i)
		switch {
		case l.Pool == "":
			v.fail(path+".pool", "is missing", "name one of pools")
		case !slices.Contains(pools, l.Pool):
			v.dangling(path+".pool", "pools", "pool", l.Pool, pools)
		case v.plain(l.Pool):
			v.fail(path+".pool", fmt.Sprintf("pool %q is plain: nobody picks among its members", l.Pool), "name a pool of model servers")
		}
		v.listens(path+".address", l.Address, claim)
		if l.Health != "off" {
			v.listens(path+".health", l.Health, claim)
		}
		if t := l.TLS; t != nil {
			v.serverTLS(path+".tls", t)
			if l.Plaintext {
				v.fail(path+".plaintext", "there is a certificate in tls", "leave out one of them")
			}
		}
	}
}

// loopback checks the addresses that are not for clients.
func (v *validator) loopback(claim func(path, address string)) {
	if a := v.c.Admin; a.Address != "off" {
		if what, hint := checkAddress(a.Address, true); what != "" {
			v.fail("admin.address", what, hint+`, or "off"`)
		} else {
			claim("admin.address", a.Address)
			v.guarded(a)
		}
		if a.TLS != nil {
			v.serverTLS("admin.tls", a.TLS)
		}
	}
	seen, hashes := map[string]string{}, map[string]string{}
	for i := range v.c.Admin.Users {
		u, path := &v.c.Admin.Users[i], joinIndex("admin.users", i)
		v.name(path, u.Name, seen)
		if u.Role == "" {
			v.fail(path+".role", "is missing", "use one of viewer, operator, admin")
		}
		switch {
		case u.Hash == "":
			v.fail(path+".hash", "is missing", "write sha256: and the digest of the token in hex: printf %s TOKEN | sha256sum")
		case !hashForm.MatchString(u.Hash):
			v.fail(path+".hash", "is not a digest", "write sha256: and 64 hexadecimal digits in lower case: printf %s TOKEN | sha256sum")
		default:
			v.unique(path+".hash", u.Hash, hashes)
		}
	}
	if a := v.c.Ops.Address; a != "" {
		if what, hint := checkAddress(a, true); what != "" {
			v.fail("ops.address", what, hint)
		} else {
			claim("ops.address", a)
		}
	}
}

// guarded holds an admin address that others reach to knowing who they are.
func (v *validator) guarded(a Admin) {
	switch {
	case isLoopback(a.Address), a.TLS != nil && (a.TLS.ClientCA != "" || a.TLS.ClientCAPEM != ""):
	case len(a.Users) == 0:
		v.fail("admin.address", fmt.Sprintf("%q can be reached from other machines, and nothing says who may", a.Address),
			"use 127.0.0.1, or list admin.users, or set admin.tls with clientCA; ops.address serves health and metrics alone")
	case a.TLS == nil && !a.AllowRemote:
		v.fail("admin.address", fmt.Sprintf("%q can be reached from other machines, and tokens would pass in clear", a.Address), "set admin.tls, or write allowRemote: true if something before it has a certificate")
	}
}

func (v *validator) listens(path, address string, claim func(path, address string)) {
	if what, hint := checkAddress(address, true); what != "" {
		v.fail(path, what, hint)
		return
	}
	claim(path, address)
}

func (v *validator) keyPair(path, cert, key string, required bool) {
	switch {
	case cert == "" && (key != "" || required):
		v.fail(path+".cert", "is missing", "a certificate and its key go together")
	case key == "" && (cert != "" || required):
		v.fail(path+".key", "is missing", "a certificate and its key go together")
	}
}

// checkPath says what is wrong with a request path, or "".
func checkPath(p string) (what, hint string) {
	switch {
	case p == "":
		return "is empty", "write a path such as /v1/rerank"
	case p[0] != '/':
		return fmt.Sprintf("%q is not absolute", p), "begin with /"
	case strings.ContainsAny(p, "?#%*\\;") || strings.ContainsFunc(p, func(r rune) bool { return r <= ' ' || r == 0x7F }):
		return fmt.Sprintf("%q holds a character that no path here may have", p), "no ? # % * \\ ; or spaces"
	case path.Clean(p) != p:
		return fmt.Sprintf("%q is not clean", p), "write " + path.Clean(p)
	}
	return "", ""
}

// clientPath checks a path that clients may ask a pool for.
func (v *validator) clientPath(at, p string) {
	what, hint := checkPath(p)
	switch {
	case what != "":
	case IsAdministrative(p):
		what, hint = fmt.Sprintf("%q administers the engine and is never served to clients", p), "take it out"
	case slices.Contains(parsedPaths(), p):
		what, hint = fmt.Sprintf("%q is served already", p), "take it out; it has a parser of its own"
	}
	if what != "" {
		v.fail(at, what, hint)
	}
}

// parsedPaths are served by every listener from what the models say.
func parsedPaths() []string {
	return []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/models"}
}

// administration are paths by which engines (vLLM, SGLang, Triton, llama.cpp)
// are steered or tell of their insides. An entry covers everything below it;
// one that ends in _ covers every continuation.
func administration() []string {
	return []string{
		"/admin", "/health", "/health_generate", "/metrics", "/prometheus", "/version", "/ping", "/load",
		"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/load_lora_adapter", "/unload_lora_adapter",
		"/sleep", "/wake_up", "/is_sleeping", "/pause", "/resume", "/is_paused", "/shutdown",
		"/pause_generation", "/continue_generation", "/abort_request", "/abort_requests",
		"/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/flush_cache", "/clear_hicache_storage_backend",
		"/collective_rpc", "/start_profile", "/stop_profile", "/server_info", "/get_server_info", "/get_load", "/get_internal_state",
		"/set_internal_state", "/slow_down", "/configure_logging", "/open_session", "/close_session",
		"/update_weights", "/update_weights_", "/update_weight_", "/init_weights_", "/init_weight_", "/destroy_weights_", "/get_weights_",
		"/release_memory_occupation", "/resume_memory_occupation", "/scale_elastic_ep", "/is_scaling_elastic_ep",
		"/start_", "/stop_", "/finish_", "/shutdown_", "/dump_expert_",
		"/get_world_size", "/kv_event_sources", "/release_kv_cache_memory", "/weight_checker", "/weight_info",
		"/v2/repository", "/v2/logging", "/v2/trace", "/v2/systemsharedmemory", "/v2/cudasharedmemory",
		"/kv_cache_events", "/perf_metrics", "/steady_clock_offset", "/slots", "/props", "/lora-adapters", "/debug",
	}
}

// IsAdministrative says whether a cleaned request path belongs to the
// administration of an engine, which clients never reach through a listener.
func IsAdministrative(cleaned string) bool {
	p := strings.ToLower(cleaned)
	return slices.ContainsFunc(administration(), func(a string) bool {
		rest, ok := strings.CutPrefix(p, a)
		return ok && (rest == "" || rest[0] == '/' || a[len(a)-1] == '_')
	})
}
