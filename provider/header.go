// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider

import (
	"net/http"
	"slices"
	"strings"
)

// UpstreamID is the header in which a client gets the provider's own id of a
// request, for questions to the provider.
const UpstreamID = "X-Upstream-Request-Id"

// requestIDs are the names of a provider's id of a request, the better first.
var requestIDs = []string{"X-Request-Id", "Request-Id", "Apim-Request-Id", "X-Amzn-Requestid", "X-Ms-Request-Id", "X-Goog-Request-Id", "X-Generation-Id", "X-Together-Request-Id", "Cf-Ray"}

// withheld are response headers that speak of the account, of the server or of
// a hop, or that would act on the client in the provider's name.
var withheld = map[string]bool{
	"Set-Cookie": true, "Set-Cookie2": true, "Server": true, "Via": true, "Alt-Svc": true, "X-Powered-By": true,
	"Openai-Organization": true, "Openai-Project": true, "Anthropic-Organization-Id": true,
	"Retry-After": true, "Retry-After-Ms": true, "X-Should-Retry": true,
	// Credentials: a server may send back what it was sent.
	"Authorization": true, "Proxy-Authorization": true, "Api-Key": true, "X-Api-Key": true, "X-Goog-Api-Key": true, "Xi-Api-Key": true,
	"X-Amz-Security-Token": true, "X-Amz-Date": true, "Cookie": true, "Www-Authenticate": true, "Proxy-Authenticate": true, "Authentication-Info": true,
	// Of the hop, and what a browser would take for the gateway's word.
	"Connection": true, "Keep-Alive": true, "Proxy-Connection": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
	"Content-Length": true, "Strict-Transport-Security": true, "Nel": true, "Report-To": true, "Reporting-Endpoints": true, "Server-Timing": true,
	"Content-Security-Policy": true, "X-Frame-Options": true, "X-Xss-Protection": true, "Referrer-Policy": true, "Permissions-Policy": true,
	"Location": true, "Refresh": true, "Clear-Site-Data": true, "Link": true, "Vary": true, "Date": true,
}

// withheldPrefixes are beginnings of such headers.
var withheldPrefixes = []string{
	"X-Ratelimit", "Ratelimit", "Anthropic-Ratelimit-", "Anthropic-Priority-", "X-Ms-Ratelimit", "X-Rate-Limit",
	"Cf-", "X-Amz", "X-Goog-", "X-Ms-", "Azureml-", "Apim-", "Access-Control-", "Cross-Origin-", "X-Forwarded-", "X-Penstock-", "X-Envoy-", "X-Litellm-",
}

// ResponseHeader is [ResponseHeader] without values that hold one of the
// provider's secrets: a server may send back what it was sent, anywhere.
func (p *Provider) ResponseHeader(out, in http.Header) {
	ResponseHeader(out, in)
	for name := range in {
		values := out[name]
		if slices.ContainsFunc(values, func(v string) bool { return p.Scrub(v) != v }) {
			delete(out, name)
		}
	}
	if v := out[UpstreamID]; len(v) == 1 && p.Scrub(v[0]) != v[0] {
		delete(out, UpstreamID)
	}
}

// ResponseHeader copies to out what of a provider's response header is the
// client's. The provider's id of the request comes as [UpstreamID]; names of the
// gateway's own are not the provider's to set.
func ResponseHeader(out, in http.Header) {
	for _, name := range requestIDs {
		if v := in[name]; len(v) > 0 && v[0] != "" && len(v[0]) <= 256 {
			out[UpstreamID] = v[:1:1]
			break
		}
	}
	for name, values := range in {
		if !isWithheld(name) && !named(in["Connection"], name) {
			out[name] = values
		}
	}
}

func isWithheld(name string) bool {
	if withheld[name] || name == UpstreamID {
		return true
	}
	for _, p := range withheldPrefixes {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	for _, id := range requestIDs {
		if name == id {
			return true
		}
	}
	return false
}

// named says whether a Connection header makes name one of the hop.
func named(connection []string, name string) bool {
	for _, v := range connection {
		for token := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(token), name) {
				return true
			}
		}
	}
	return false
}
