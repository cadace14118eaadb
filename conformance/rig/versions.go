// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	inference "sigs.k8s.io/gateway-api-inference-extension/version"
	gateway "sigs.k8s.io/gateway-api/pkg/consts"
)

// definitionVersions says which definitions a rig installs. The imports keep the
// two modules in go.mod, from whose files the definitions come.
func definitionVersions() string {
	return "Gateway API " + gateway.BundleVersion + " (experimental channel), inference extension " + inference.BundleVersion
}
