// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package suites runs the public conformance suites, as they are published,
// against the cluster that KUBECONFIG names: conformance/run.sh brings one up.
package suites

import (
	"testing"

	"sigs.k8s.io/gateway-api/conformance"
)

func TestGatewayAPI(t *testing.T) { conformance.RunConformance(t) }
