// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider

// ModelsKept is how many models the first credential tells apart.
func ModelsKept(p *Provider) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.credentials[0].models)
}

// CheckSocket is the check of an address that is dialled.
func CheckSocket(network, address string, private, loopback bool) error {
	return checkSocket(network, address, reach{private, loopback})
}

// VertexBody is the edit of a body for Anthropic's models on Vertex AI.
var VertexBody = func(body []byte) []byte { return vertexBody(body, false) }
