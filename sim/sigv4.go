// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// mostSkew is how far the clock of a signature may be off.
const mostSkew = 5 * time.Minute

// verifySignature checks a request signed by AWS's Signature Version 4 for the
// service bedrock and says what is wrong. The ID of the access key is the
// credential.
func (p *Provider) verifySignature(r *http.Request, body []byte, now time.Time) (id string, bad *problem) {
	refuse := func(code, message string) (string, *problem) {
		return id, &problem{class: "auth", code: code, message: message}
	}
	scope, signed, signature, ok := parseAuthorization(r.Header.Get("Authorization"))
	if !ok {
		return refuse("IncompleteSignatureException", "Authorization header requires 'Credential', 'Signature' and 'SignedHeaders' parameters.")
	}
	id = scope[0]
	i := slices.IndexFunc(p.cfg.AccessKeys, func(k AccessKey) bool { return k.ID == id })
	if i < 0 {
		return refuse("UnrecognizedClientException", "The security token included in the request is invalid.")
	}
	key := p.cfg.AccessKeys[i]
	if r.Header.Get("X-Amz-Security-Token") != key.SessionToken {
		return refuse("UnrecognizedClientException", "The security token included in the request is invalid.")
	}
	date := r.Header.Get("X-Amz-Date")
	at, err := time.Parse("20060102T150405Z", date)
	switch {
	case err != nil || !strings.HasPrefix(date, scope[1]):
		return refuse("InvalidSignatureException", "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP.")
	case scope[2] != p.cfg.Region || scope[3] != "bedrock" || scope[4] != "aws4_request":
		return refuse("InvalidSignatureException", "Credential should be scoped to a valid region and to correct service: 'bedrock'.")
	case now.Sub(at) > mostSkew:
		return refuse("InvalidSignatureException", "Signature expired: "+date+" is now earlier than "+now.Add(-mostSkew).UTC().Format("20060102T150405Z")+" (5 min.)")
	case at.Sub(now) > mostSkew:
		return refuse("InvalidSignatureException", "Signature not yet current: "+date+" is still later than "+now.Add(mostSkew).UTC().Format("20060102T150405Z")+" (5 min.)")
	case !slices.Contains(signed, "host") || !slices.IsSorted(signed):
		return refuse("InvalidSignatureException", "SignedHeaders must be sorted and hold host.")
	}
	for name := range r.Header {
		if name = strings.ToLower(name); strings.HasPrefix(name, "x-amz-") && !slices.Contains(signed, name) {
			return refuse("InvalidSignatureException", "Header "+name+" must be signed.")
		}
	}
	canonical := canonicalRequest(r, signed, body)
	want := sign(key.Secret, scope[1:], date, canonical)
	if !hmac.Equal([]byte(want), []byte(signature)) {
		return refuse("InvalidSignatureException", "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key and signing method. Consult the service documentation for details.\n\nThe Canonical String for this request should have been\n'"+canonical+"'")
	}
	return id, nil
}

// parseAuthorization takes the header apart: ID, date, region, service and end
// of the scope; names of signed headers; signature.
func parseAuthorization(v string) (scope, signed []string, signature string, ok bool) {
	v, ok = strings.CutPrefix(v, "AWS4-HMAC-SHA256 ")
	if !ok {
		return nil, nil, "", false
	}
	for _, field := range strings.Split(v, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		switch name {
		case "Credential":
			scope = strings.Split(value, "/")
		case "SignedHeaders":
			signed = strings.Split(value, ";")
		case "Signature":
			signature = value
		}
	}
	return scope, signed, signature, len(scope) == 5 && len(signed) > 0 && signature != ""
}

// canonicalRequest is the text whose hash is signed. The path is escaped once
// more than on the wire, as for every service but S3.
func canonicalRequest(r *http.Request, signed []string, body []byte) string {
	segments := strings.Split(r.URL.EscapedPath(), "/")
	for i, s := range segments {
		segments[i] = awsEscape(s)
	}
	query := []string{}
	values, _ := url.ParseQuery(r.URL.RawQuery)
	for name, all := range values {
		for _, v := range all {
			query = append(query, awsEscape(name)+"="+awsEscape(v))
		}
	}
	slices.Sort(query)
	var headers strings.Builder
	for _, name := range signed {
		all := r.Header.Values(name)
		switch name {
		case "host":
			all = []string{r.Host}
		case "content-length":
			all = []string{r.Header.Get("Content-Length")}
		}
		trimmed := make([]string, len(all))
		for i, v := range all {
			trimmed[i] = strings.Join(strings.Fields(v), " ")
		}
		headers.WriteString(name + ":" + strings.Join(trimmed, ",") + "\n")
	}
	sum := sha256.Sum256(body)
	hash := hex.EncodeToString(sum[:])
	return strings.Join([]string{
		r.Method, strings.Join(segments, "/"), strings.Join(query, "&"), headers.String(), strings.Join(signed, ";"), hash,
	}, "\n")
}

// awsEscape escapes all but the unreserved characters.
func awsEscape(s string) string {
	const hexDigits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-_.~", c) >= 0 {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(hexDigits[c>>4])
		b.WriteByte(hexDigits[c&15])
	}
	return b.String()
}

// sign is the signature; scope is date, region, service and end.
func sign(secret string, scope []string, date, canonical string) string {
	mac := func(key []byte, text string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	key := []byte("AWS4" + secret)
	for _, s := range scope {
		key = mac(key, s)
	}
	sum := sha256.Sum256([]byte(canonical))
	text := strings.Join([]string{"AWS4-HMAC-SHA256", date, strings.Join(scope, "/"), hex.EncodeToString(sum[:])}, "\n")
	return hex.EncodeToString(mac(key, text))
}
