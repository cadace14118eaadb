// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// parse reads /api/v1/... and /apis/GROUP/VERSION/... paths.
func parse(path string) (t target, ok bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		t.version, parts = parts[1], parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		t.group, t.version, parts = parts[1], parts[2], parts[3:]
	default:
		return t, false
	}
	if len(parts) >= 3 && parts[0] == "namespaces" {
		t.namespace, parts = parts[1], parts[2:]
	}
	for i, to := range []*string{&t.plural, &t.name, &t.sub} {
		if i < len(parts) {
			*to = parts[i]
		}
	}
	return t, len(parts) <= 3
}

func verbOf(r *http.Request, t target) string {
	switch {
	case r.Method == http.MethodGet && t.name != "":
		return "get"
	case r.Method == http.MethodGet && r.URL.Query().Get("watch") != "":
		return "watch"
	case r.Method == http.MethodGet:
		return "list"
	}
	return map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}[r.Method]
}

// ServeHTTP answers as an API server does, in JSON.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t, ok := parse(r.URL.Path)
	if !ok {
		fail(w, http.StatusNotFound, "NotFound", "could not find the requested resource")
		return
	}
	resource := t.plural
	if t.sub != "" {
		resource += "/" + t.sub
	}
	call := Call{verbOf(r, t), t.group, resource, t.namespace, t.name}
	s.mu.Lock()
	s.calls[call] = true
	refuse := s.refuse
	s.mu.Unlock()
	if refuse != nil {
		if status := refuse(call); status != 0 {
			reason := map[int]string{403: "Forbidden", 404: "NotFound", 409: "Conflict"}[status]
			message := strings.ToLower(reason) + " by the test"
			if status == http.StatusNotFound && call.Name == "" {
				message = "the server could not find the requested resource" // as of a kind that is not known
			}
			fail(w, status, reason, message)
			return
		}
	}
	switch call.Verb {
	case "watch":
		s.watch(w, r, t)
	case "list":
		s.list(w, r, t)
	case "get", "delete":
		s.one(w, call.Verb, t)
	case "create", "update":
		s.write(w, r, call.Verb, t)
	default:
		fail(w, http.StatusMethodNotAllowed, "MethodNotAllowed", "the server of the test does not "+call.Verb)
	}
}

func fail(w http.ResponseWriter, code int, reason, message string) {
	answer(w, code, object{"kind": "Status", "apiVersion": "v1", "metadata": object{}, "status": "Failure", "message": message, "reason": reason, "code": code})
}

func answer(w http.ResponseWriter, code int, o any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(o)
}

// selected are the objects of a list, in the order of their names. The lock is
// held.
func (s *Server) selected(r *http.Request, t target) []object {
	var paths []string
	for path, o := range s.objects {
		parts := strings.Split(path, "|")
		if selects(t, r.URL.Query(), target{group: parts[0], version: parts[1], plural: parts[2], namespace: parts[3], name: parts[4]}, o) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	out := make([]object, len(paths))
	for i, path := range paths {
		out[i] = s.objects[path]
	}
	return out
}

// kindOf is the kind of the objects of a list, by which clients decode.
func kindOf(plural string) string {
	return map[string]string{
		"pods": "Pod", "services": "Service", "secrets": "Secret", "configmaps": "ConfigMap", "namespaces": "Namespace",
		"endpointslices": "EndpointSlice", "leases": "Lease", "inferencepools": "InferencePool",
		"gatewayclasses": "GatewayClass", "gateways": "Gateway", "httproutes": "HTTPRoute", "grpcroutes": "GRPCRoute",
		"listenersets": "ListenerSet", "referencegrants": "ReferenceGrant", "backendtlspolicies": "BackendTLSPolicy",
		"models": "Model", "gatewaypolicies": "GatewayPolicy", "providers": "Provider", "tenants": "Tenant", "keys": "Key",
	}[plural]
}

func (t target) apiVersion() string {
	if t.group == "" {
		return t.version
	}
	return t.group + "/" + t.version
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, t target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer(w, http.StatusOK, object{"kind": kindOf(t.plural) + "List", "apiVersion": t.apiVersion(), "metadata": object{"resourceVersion": strconv.Itoa(s.version)}, "items": s.selected(r, t)})
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request, t target) {
	query := r.URL.Query()
	watching := &watcher{at: t, query: query, wake: make(chan struct{}, 1)}
	s.mu.Lock()
	from, _ := strconv.Atoi(query.Get("resourceVersion"))
	for _, o := range s.selected(r, t) {
		if v, _ := strconv.Atoi(str(metaOf(o), "resourceVersion")); v > from || query.Get("sendInitialEvents") == "true" {
			watching.send("ADDED", o)
		}
	}
	if query.Get("sendInitialEvents") == "true" {
		watching.send("BOOKMARK", object{"kind": kindOf(t.plural), "apiVersion": t.apiVersion(), "metadata": object{
			"resourceVersion": strconv.Itoa(s.version), "annotations": object{"k8s.io/initial-events-end": "true"}}})
	}
	s.watchers[watching] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, watching)
		s.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	for {
		flush.Flush()
		select {
		case <-r.Context().Done():
			return
		case <-watching.wake:
		}
		s.mu.Lock()
		var lines []byte
		for _, e := range watching.events {
			text, err := json.Marshal(e)
			if err != nil {
				s.t.Error(err)
			}
			lines = append(append(lines, text...), '\n')
		}
		watching.events = nil
		s.mu.Unlock()
		if _, err := w.Write(lines); err != nil {
			return
		}
	}
}

func (s *Server) one(w http.ResponseWriter, verb string, t target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[t.path()]
	if !ok {
		fail(w, http.StatusNotFound, "NotFound", t.plural+" "+t.name+" not found")
		return
	}
	if verb == "delete" {
		s.remove(t)
	}
	answer(w, http.StatusOK, o)
}

// write creates or updates. An update of a version that is not the last is a
// conflict.
func (s *Server) write(w http.ResponseWriter, r *http.Request, verb string, t target) {
	var o object
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		fail(w, http.StatusBadRequest, "BadRequest", err.Error())
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if verb == "create" {
		t.name = str(metaOf(o), "name")
	}
	before, had := s.objects[t.path()]
	switch {
	case verb == "create" && had:
		fail(w, http.StatusConflict, "AlreadyExists", t.name+" already exists")
		return
	case verb == "update" && !had:
		fail(w, http.StatusNotFound, "NotFound", t.name+" not found")
		return
	case verb == "update" && str(metaOf(o), "resourceVersion") != str(metaOf(before), "resourceVersion"):
		fail(w, http.StatusConflict, "Conflict", t.name+" was changed meanwhile")
		return
	}
	s.store(t, o)
	code := http.StatusOK
	if verb == "create" {
		code = http.StatusCreated
	}
	answer(w, code, o)
}
