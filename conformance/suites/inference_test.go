// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/gateway-api-inference-extension/conformance"
	"sigs.k8s.io/gateway-api-inference-extension/conformance/tests"
	"sigs.k8s.io/gateway-api-inference-extension/version"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
)

// TestInference does what conformance.RunConformance does, with the tests of
// the suite in a subtest: the Gateway API's suite from v1.6.3 on counts as
// running until the test that runs it has ended, and refuses to report before.
func TestInference(t *testing.T) {
	ctx := context.Background()
	opts := conformance.DefaultOptions(t)
	suite.RegisterConformanceProfile(conformance.GatewayLayerProfile)
	s, err := suite.NewConformanceTestSuite(opts)
	require.NoError(t, err)
	conformance.SetupConformanceTestSuite(ctx, t, s, opts, tests.ConformanceTests)
	t.Run("suite", func(t *testing.T) {
		require.NoError(t, s.Run(t, tests.ConformanceTests))
	})
	if opts.ReportOutputPath == "" {
		return
	}
	report, err := s.Report()
	require.NoError(t, err)
	pools := &apiextensionsv1.CustomResourceDefinition{}
	require.NoError(t, opts.Client.Get(ctx, client.ObjectKey{Name: "inferencepools.inference.networking.k8s.io"}, pools))
	whole := conformance.GatewayAPIInferenceExtensionConformanceReport{
		GatewayAPIInferenceExtensionVersion: pools.Annotations[version.BundleVersionAnnotation],
		ConformanceReport:                   *report,
	}
	require.NoError(t, whole.WriteReport(t.Logf, opts.ReportOutputPath))
}
