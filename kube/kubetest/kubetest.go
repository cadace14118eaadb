// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubetest is a Kubernetes API for tests: a store of objects behind the
// requests that clients make (get, list, watch, create, update, delete), on a
// loopback port, in the process of the test.
//
// It knows no schema and no access control. It keeps resource versions, refuses
// updates of old ones, selects by labels and by name, streams initial events,
// and notes every call, so that a test can hold roles to the calls that are
// made. Start reading at [New].
package kubetest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Call is a request as roles see it.
type Call struct {
	Verb, Group, Resource, Namespace, Name string
}

// Server is a Kubernetes API.
type Server struct {
	t    testing.TB
	http *httptest.Server

	mu       sync.Mutex
	version  int
	objects  map[string]object // by path
	watchers map[*watcher]bool
	calls    map[Call]bool
	refuse   func(Call) int
}

type object = map[string]any

// watcher is an open watch. Events are kept until they are sent.
type watcher struct {
	at     target
	query  url.Values
	events []event
	wake   chan struct{}
}

type event struct {
	Type   string `json:"type"`
	Object object `json:"object"`
}

// target is what a path names.
type target struct {
	group, version, namespace, plural, name, sub string
}

// New starts a server that ends with the test.
func New(t testing.TB) *Server {
	s := &Server{t: t, objects: map[string]object{}, watchers: map[*watcher]bool{}, calls: map[Call]bool{}, version: 1}
	s.http = httptest.NewServer(s)
	t.Cleanup(func() {
		s.http.CloseClientConnections()
		s.http.Close()
	})
	return s
}

// URL is where it listens.
func (s *Server) URL() string { return s.http.URL }

// Kubeconfig writes a file with which clients find the server.
func (s *Server) Kubeconfig(namespace string) string {
	name := filepath.Join(s.t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: test,
clusters: [{name: test, cluster: {server: %q}}],
contexts: [{name: test, context: {cluster: test, user: test, namespace: %q}}],
users: [{name: test, user: {token: test}}]}`, s.http.URL, namespace)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return name
}

// Refuse answers calls with the status that f gives; 0 lets a call pass.
func (s *Server) Refuse(f func(Call) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = f
}

// Break cuts every open connection, watches too.
func (s *Server) Break() { s.http.CloseClientConnections() }

// Calls are all that were made, each once.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Keys(s.calls), func(a, b Call) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
}

// Put stores an object given as JSON, in place of the one of its name. plural
// is that of its kind.
func (s *Server) Put(plural, text string) {
	s.t.Helper()
	var o object
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		s.t.Fatalf("%v in %s", err, text)
	}
	group, version, ok := strings.Cut(str(o, "apiVersion"), "/")
	if !ok {
		group, version = "", group
	}
	meta := metaOf(o)
	at := target{group: group, version: version, namespace: str(meta, "namespace"), plural: plural, name: str(meta, "name")}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store(at, o)
}

// Delete takes an object away.
func (s *Server) Delete(group, plural, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range []string{"v1", "v1alpha1"} {
		s.remove(target{group: group, version: v, namespace: namespace, plural: plural, name: name})
	}
}

// Get is an object's JSON; "" if there is none.
func (s *Server) Get(group, version, plural, namespace, name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[target{group: group, version: version, namespace: namespace, plural: plural, name: name}.path()]
	if !ok {
		return ""
	}
	text, _ := json.Marshal(o)
	return string(text)
}

func (t target) path() string {
	return strings.Join([]string{t.group, t.version, t.plural, t.namespace, t.name}, "|")
}

func str(o object, key string) string {
	s, _ := o[key].(string)
	return s
}

func metaOf(o object) object {
	m, ok := o["metadata"].(object)
	if !ok {
		m = object{}
		o["metadata"] = m
	}
	return m
}

func (s *Server) store(at target, o object) {
	s.version++
	meta := metaOf(o)
	meta["resourceVersion"] = strconv.Itoa(s.version)
	if str(meta, "uid") == "" {
		meta["uid"] = fmt.Sprintf("uid-%d", s.version)
	}
	before, had := s.objects[at.path()]
	s.objects[at.path()] = o
	for w := range s.watchers {
		was, is := had && w.selects(at, before), w.selects(at, o)
		switch {
		case was && is:
			w.send("MODIFIED", o)
		case is:
			w.send("ADDED", o)
		case was:
			w.send("DELETED", o)
		}
	}
}

func (s *Server) remove(at target) bool {
	o, ok := s.objects[at.path()]
	if !ok {
		return false
	}
	s.version++
	delete(s.objects, at.path())
	for w := range s.watchers {
		if w.selects(at, o) {
			w.send("DELETED", o)
		}
	}
	return true
}

func (w *watcher) send(kind string, o object) {
	w.events = append(w.events, event{kind, o})
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watcher) selects(at target, o object) bool { return selects(w.at, w.query, at, o) }

// selects says whether a list or watch of want has the object at.
func selects(want target, query url.Values, at target, o object) bool {
	if want.group != at.group || want.version != at.version || want.plural != at.plural || want.namespace != "" && want.namespace != at.namespace {
		return false
	}
	if name, ok := strings.CutPrefix(query.Get("fieldSelector"), "metadata.name="); ok && name != at.name {
		return false
	}
	labels, _ := metaOf(o)["labels"].(object)
	for pair := range strings.SplitSeq(query.Get("labelSelector"), ",") {
		if key, value, ok := strings.Cut(pair, "="); ok && str(labels, key) != value {
			return false
		}
	}
	return true
}
