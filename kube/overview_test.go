// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/penstock/penstock/kube"
)

// A route that no Gateway of ours has any more keeps an empty list of parents:
// its schema requires the list, and the API server refuses none.
func TestMergeLeavesEmptyLists(t *testing.T) {
	route := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "ai", Name: "chat"}}
	route.Status.Parents = []gatewayv1.RouteParentStatus{{ControllerName: kube.ControllerName}}
	s := &kube.Status{Kind: "HTTPRoute"}
	s.Namespace, s.Name = "ai", "chat"
	if changed, err := s.Merge(route, metav1.Now()); !changed || err != nil {
		t.Fatalf("%v %v", changed, err)
	}
	text, err := json.Marshal(route.Status)
	if err != nil || !strings.Contains(string(text), `"parents":[]`) {
		t.Errorf("%s %v", text, err)
	}
}
