// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package own holds Penstock's tests in a cluster for what the public suites do
// not ask: pickers and controllers that die, roll-outs under traffic, outages of
// the API server, churn. conformance/run.sh own runs them in a cluster of their
// own, one after the other; KUBECONFIG names it.
//
// A test has a namespace (bed_test.go) with a Gateway that the controller
// provisions, pools whose members and pickers are mostly command stage, which
// does what a request's headers say, and traffic (traffic_test.go) that counts
// what is lost. Nothing depends on time but bounds for a failure.
package own

import (
	"os"
	"testing"
	"time"
)

// lasting is the time of a test's long part: as the environment says, or short
// enough for every day.
func lasting(t *testing.T, variable string, usual time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return usual
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return d
}
