// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

var (
	// regionForm keeps a region from becoming another host.
	regionForm     = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,62})$`)
	projectForm    = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.:_-]{0,127})$`)
	apiVersionForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,63})$`)
)

func (v *validator) providers() {
	seen := map[string]string{}
	for i := range v.c.Providers {
		p, path := &v.c.Providers[i], joinIndex("providers", i)
		v.name(path, p.Name, seen)
		v.baseURL(path, p)
		v.providerFields(path, p)
		v.credentials(path, p)
		v.providerHeaders(path+".headers", p.Headers)
		if c := p.Cooldown; c.Max < c.For {
			v.fail(path+".cooldown.max", fmt.Sprintf("is shorter than for (%s)", c.For), "")
		}
		if t := p.Timeouts; t.Connect != 0 || t.Total != 0 {
			v.timeouts(path+".timeouts", t.Or(v.c.Timeouts))
		}
	}
}

// providerFields checks what means something for some kinds only.
func (v *validator) providerFields(path string, p *Provider) {
	if p.Quirks != "" {
		known := append(ProviderQuirks(), "none")
		switch {
		case p.Dialect != ProviderOpenAI && p.Dialect != ProviderAzure:
			v.fail(path+".quirks", fmt.Sprintf("means nothing with dialect %s", p.Dialect), "quirks are of servers that are compatible with OpenAI's")
		case !slices.Contains(known, p.Quirks):
			v.fail(path+".quirks", fmt.Sprintf("%q is not known", p.Quirks), quirksHint(p.Quirks, known))
		}
	}
	regional := p.Dialect == ProviderBedrock || p.Dialect == ProviderVertex
	switch {
	case p.Region == "" && regional:
		v.fail(path+".region", "is missing", "it is part of the URL and of the signature; write e.g. eu-west-1 (bedrock), europe-west1 or global (vertex)")
	case p.Region != "" && !regionForm.MatchString(p.Region):
		v.fail(path+".region", fmt.Sprintf("%q is not a region", p.Region), "use lower-case letters, digits and - inside")
	}
	switch {
	case p.Project == "" && p.Dialect == ProviderVertex:
		v.fail(path+".project", "is missing", "name the Google Cloud project")
	case p.Project != "" && p.Dialect != ProviderVertex:
		v.fail(path+".project", fmt.Sprintf("means nothing with dialect %s", p.Dialect), "an OpenAI project belongs to a credential")
	case p.Project != "" && !projectForm.MatchString(p.Project):
		v.fail(path+".project", fmt.Sprintf("%q is not a project", p.Project), "")
	}
	switch {
	case p.APIVersion == "":
	case p.Dialect != ProviderAzure:
		v.fail(path+".apiVersion", fmt.Sprintf("means nothing with dialect %s", p.Dialect), "")
	case !apiVersionForm.MatchString(p.APIVersion):
		v.fail(path+".apiVersion", fmt.Sprintf("%q is not a version", p.APIVersion), "write e.g. 2024-10-21")
	}
}

func quirksHint(name string, known []string) string {
	if c := closest(name, known); c != "" {
		return fmt.Sprintf("did you mean %s?", c)
	}
	return "known here: " + strings.Join(known, ", ")
}

// baseURL checks what can be seen in the URL itself. What a name stands for is
// checked when it is dialled.
func (v *validator) baseURL(path string, p *Provider) {
	at := path + ".baseURL"
	if p.BaseURL == "" {
		switch {
		case p.Dialect == ProviderAzure:
			v.fail(at, "is missing", "write https://RESOURCE.openai.azure.com")
		case p.Dialect == ProviderOpenAI:
			v.fail(at, fmt.Sprintf("is missing, and %s is not OpenAI", p.Quirks), "write the URL of its API, with /v1 if it has that")
		case p.Region != "" && regionForm.MatchString(p.Region) && p.Dialect != "":
			v.fail(at, "is missing", "")
		}
		return // without a region that alone is said
	}
	u, err := url.Parse(p.BaseURL)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.Opaque != "":
		v.fail(at, fmt.Sprintf("%q is not a URL of a server", printable(u, p.BaseURL)), "write https://HOST/PATH")
		return
	case u.User != nil:
		v.fail(at, "holds a credential", "write it as the secret of a credential")
		return
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		v.fail(at, "has a query or a fragment", "the path of each operation is added to it")
		return
	case u.Path != "" && u.Path != "/":
		if what, _ := checkPath(strings.TrimSuffix(u.Path, "/")); what != "" {
			v.fail(at, "path "+what, "")
			return
		}
	}
	for _, tail := range []string{"/chat/completions", "/completions", "/embeddings", "/responses", "/messages"} {
		if rest, ok := strings.CutSuffix(strings.TrimSuffix(u.Path, "/"), tail); ok {
			u.Path = rest
			v.fail(at, "ends in the path of an operation, which is added to it", "write "+u.String())
			return
		}
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			v.fail(at, fmt.Sprintf("%q is not a port", port), "")
			return
		}
	}
	v.baseHost(at, u, p)
}

// printable is the URL without what may be a password.
func printable(u *url.URL, text string) string {
	if u != nil {
		return u.Redacted()
	}
	if i := strings.LastIndexByte(text, '@'); i >= 0 {
		return "…" + text[i:]
	}
	return text
}

func (v *validator) baseHost(at string, u *url.URL, p *Provider) {
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	local := host == "localhost" || strings.HasSuffix(host, ".localhost")
	ip, err := netip.ParseAddr(host)
	switch {
	case err == nil:
		local = ip.Unmap().IsLoopback()
		if why := RefusedAddress(ip, p.AllowPrivate || local); why != "" {
			hint := "a provider is never there"
			if strings.Contains(why, "private") {
				hint = "write allowPrivate: true if that is meant"
			}
			v.fail(at, fmt.Sprintf("%s %s", host, why), hint)
			return
		}
	case host == "metadata" || host == "metadata.google.internal" || host == "metadata.goog" || host == "instance-data":
		v.fail(at, host+" is a metadata service", "a provider is never there")
		return
	case numeric(host) || !hostForm.MatchString(host):
		v.fail(at, fmt.Sprintf("%q is not a host name", host), "")
		return
	}
	if u.Scheme == "http" && !local && !p.AllowHTTP {
		v.fail(at, "is plaintext: prompts and credentials could be read on the way", "use https, or write allowHTTP: true if that is meant")
	}
}

// numeric says that some resolvers would read the name as an address, though it
// is not written as one: 2130706433, 0x7f.1.
func numeric(host string) bool {
	last := host[strings.LastIndexByte(host, '.')+1:]
	hex, isHex := strings.CutPrefix(last, "0x")
	return strings.Trim(last, "0123456789") == "" || isHex && strings.Trim(hex, "0123456789abcdef") == ""
}

func (v *validator) credentials(path string, p *Provider) {
	seen := map[string]string{}
	total := 0
	for i := range p.Credentials {
		c, at := &p.Credentials[i], joinIndex(path+".credentials", i)
		if c.Name != "" {
			v.name(at, c.Name, seen)
		}
		if c.Secret == "" && c.SecretFile == "" {
			v.fail(at+".secret", "is missing", "write ${VARIABLE} or file:/path")
		}
		if c.Secret != "" && c.SecretFile != "" {
			v.fail(at+".secretFile", "is given beside secret", "leave out one of them")
		}
		if c.Weight == nil {
			total++
		} else {
			total += max(*c.Weight, 0)
		}
		bedrock := p.Dialect == ProviderBedrock
		if c.AccessKeyID != "" && !bedrock {
			v.fail(at+".accessKeyID", fmt.Sprintf("means nothing with dialect %s", p.Dialect), "")
		}
		if c.SessionToken != "" && (!bedrock || c.AccessKeyID == "") {
			v.fail(at+".sessionToken", "means nothing without accessKeyID", "it belongs to a temporary access key of AWS")
		}
		for _, f := range []struct{ key, value string }{{".organization", c.Organization}, {".project", c.Project}} {
			if f.value != "" && p.Dialect != ProviderOpenAI {
				v.fail(at+f.key, fmt.Sprintf("means nothing with dialect %s", p.Dialect), "")
			} else if !httpguts.ValidHeaderFieldValue(f.value) {
				v.fail(at+f.key, "holds characters that no header may have", "")
			}
		}
		if !httpguts.ValidHeaderFieldValue(c.AccessKeyID) {
			v.fail(at+".accessKeyID", "holds characters that no header may have", "")
		}
		v.limitsOf(at+".limits", c.Limits)
		whole := p.Dialect == ProviderVertex || bedrock && strings.HasPrefix(c.Secret.Reveal(), "{") // JSON
		if s := c.Secret.Reveal(); !whole && !httpguts.ValidHeaderFieldValue(s) {
			v.fail(at+".secret", "holds characters that no header may have", "is there a line break in it?")
		}
	}
	if len(p.Credentials) > 0 && total == 0 {
		v.fail(path+".credentials", "every weight is 0", "give one credential a weight")
	}
	if p.Dialect == ProviderVertex && len(p.Credentials) == 0 {
		v.fail(path+".credentials", "there are none", "add one whose secret is the JSON key of a service account: {secret: \"file:/path/key.json\"}")
	}
}

// reservedHeader says what a request header of the name is instead of a
// configured one, or "".
func reservedHeader(name string) (what, hint string) {
	switch strings.ToLower(name) {
	case "authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie", "x-amz-security-token", "x-amz-date", "x-amz-content-sha256":
		return "carries a credential", "write it as the secret of a credential"
	case "host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect",
		"accept-encoding", "content-type", "content-encoding", "accept":
		return "belongs to the connection or the body", "take it out"
	}
	return "", ""
}

func (v *validator) providerHeaders(path string, headers map[string]Secret) {
	lower := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		at := joinKey(path, name)
		if !httpguts.ValidHeaderFieldName(name) {
			v.fail(at, fmt.Sprintf("%q is not a header name", name), "")
			continue
		}
		if what, hint := reservedHeader(name); what != "" {
			v.fail(at, fmt.Sprintf("%s %s", name, what), hint)
		}
		if !httpguts.ValidHeaderFieldValue(headers[name].Reveal()) {
			v.fail(at, "holds characters that no header may have", "")
		}
		v.unique(at, strings.ToLower(name), lower)
	}
}
