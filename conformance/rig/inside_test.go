// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"
)

// space is a namespace of a test and what the test does in it.
type space struct {
	*testing.T
	ctx     context.Context
	client  *kubernetes.Clientset
	dynamic dynamic.Interface
	name    string
}

// inside makes a namespace for the test.
func inside(t *testing.T) *space {
	t.Helper()
	if !isInside() {
		t.Fatal("this runs inside of the rig that TestCluster starts")
	}
	t.Parallel()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	s := &space{T: t, ctx: ctx, name: strings.ToLower(strings.TrimPrefix(t.Name(), "TestInside"))}
	if s.client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	if s.dynamic, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	_, err = s.client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// apply creates or changes the objects of the manifest in the namespace.
func (s *space) apply(manifest string) {
	s.Helper()
	documents := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifest), 4096)
	for {
		o := &unstructured.Unstructured{}
		if err := documents.Decode(&o.Object); err == io.EOF {
			return
		} else if err != nil {
			s.Fatal(err)
		}
		gvk := o.GroupVersionKind()
		resource := gvk.GroupVersion().WithResource(strings.ToLower(gvk.Kind) + "s")
		_, err := s.dynamic.Resource(resource).Namespace(s.name).Apply(s.ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: "test", Force: true})
		if err != nil {
			s.Fatalf("apply %s %s: %v", gvk.Kind, o.GetName(), err)
		}
	}
}

// wait watches objects until one is as it should be, and returns that.
func wait[T runtime.Object](s *space, resource, selector string, what string, ok func(T) bool) T {
	s.Helper()
	list := cache.NewFilteredListWatchFromClient(s.restFor(resource), resource, s.name,
		func(o *metav1.ListOptions) { o.LabelSelector = selector })
	return waitList(s, list, what, ok)
}

// waitNamed is wait for the object of that name.
func waitNamed[T runtime.Object](s *space, resource, name string, what string, ok func(T) bool) T {
	s.Helper()
	list := cache.NewListWatchFromClient(s.restFor(resource), resource, s.name, fields.OneTermEqualSelector("metadata.name", name))
	return waitList(s, list, name+" "+what, ok)
}

func waitList[T runtime.Object](s *space, list *cache.ListWatch, what string, ok func(T) bool) T {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	var last T
	var zero T
	_, err := watchtools.UntilWithSync(ctx, list, zero, nil, func(e watchEvent) (bool, error) {
		o, is := e.Object.(T)
		if is {
			last = o
		}
		return is && ok(o), nil
	})
	if err != nil {
		s.Fatalf("wait for %s: %v; last seen: %+v", what, err, last)
	}
	return last
}

func (s *space) restFor(resource string) cache.Getter {
	if resource == "deployments" {
		return s.client.AppsV1().RESTClient()
	}
	return s.client.CoreV1().RESTClient()
}

func ready(pod *v1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// pod applies the manifest of a pod and waits until it is ready.
func (s *space) pod(name, manifest string) *v1.Pod {
	s.Helper()
	s.apply(manifest)
	return waitNamed(s, "pods", name, "to be ready", ready)
}

// ask gets a path of the program apiclient in the pod.
func (s *space) ask(pod *v1.Pod, path string, query ...string) (int, string) {
	s.Helper()
	values := url.Values{}
	for i := 0; i < len(query); i += 2 {
		values.Set(query[i], query[i+1])
	}
	return s.get(fmt.Sprintf("http://%s:8080%s?%s", pod.Status.PodIP, path, values.Encode()))
}

func (s *space) get(url string) (int, string) {
	s.Helper()
	request, err := http.NewRequestWithContext(s.ctx, http.MethodGet, url, nil)
	if err != nil {
		s.Fatal(err)
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(body)
}

func (s *space) logs(pod string, options *v1.PodLogOptions) string {
	s.Helper()
	text, err := s.client.CoreV1().Pods(s.name).GetLogs(pod, options).DoRaw(s.ctx)
	if err != nil {
		s.Fatalf("logs of %s: %v", pod, err)
	}
	return string(text)
}

func (s *space) want(what string, got, want any) {
	s.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		s.Errorf("%s: %v, want %v", what, got, want)
	}
}

// listening tells whether a process of the rig other than this has the text in
// its command line.
func processes(text string) int {
	n := 0
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		line, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err == nil && bytes.Contains(line, []byte(text)) {
			n++
		}
	}
	return n
}

func gvr(group, version, resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: resource}
}
