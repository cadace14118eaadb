// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"testing"

	"sigs.k8s.io/gateway-api-inference-extension/conformance"
)

func TestInference(t *testing.T) { conformance.RunConformance(t) }
