// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// googleToken gives a token for an assertion of a service account, as Google's
// OAuth server does: POST /token. The token is an accepted key.
func (c *call) googleToken() {
	refuse := func(kind, what string) {
		c.status = http.StatusBadRequest
		c.w.Header().Set("Content-Type", "application/json")
		c.writeBody(c.status, encode(map[string]string{"error": kind, "error_description": what}))
	}
	form, err := url.ParseQuery(string(c.body))
	if err != nil || form.Get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" {
		refuse("unsupported_grant_type", "Invalid grant_type: "+form.Get("grant_type"))
		return
	}
	if what := c.p.cfg.checkAssertion(form.Get("assertion"), time.Now()); what != "" {
		refuse("invalid_grant", what)
		return
	}
	token := "sim-token"
	if len(c.p.cfg.Keys) > 0 {
		token = c.p.cfg.Keys[0]
	}
	c.reply(map[string]any{"access_token": token, "expires_in": 3599, "token_type": "Bearer"})
}

// checkAssertion says what is wrong with a JWT; "" if nothing.
func (c *ProviderConfig) checkAssertion(jwt string, now time.Time) string {
	parts := strings.Split(jwt, ".")
	if len(parts) != 3 {
		return "Invalid JWT: three parts are expected."
	}
	var head struct {
		Algorithm string `json:"alg"`
	}
	var claims struct {
		Issuer   string `json:"iss"`
		Scope    string `json:"scope"`
		Audience string `json:"aud"`
		Expires  int64  `json:"exp"`
		Issued   int64  `json:"iat"`
	}
	for i, v := range []any{&head, &claims} {
		raw, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err != nil || json.Unmarshal(raw, v) != nil {
			return "Invalid JWT: a part is not base64url of JSON."
		}
	}
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	switch {
	case err != nil || head.Algorithm != "RS256":
		return "Invalid JWT: RS256 is expected."
	case claims.Issuer == "" || claims.Scope == "" || !strings.HasSuffix(claims.Audience, "/token"):
		return "Invalid JWT: iss, scope and aud are needed."
	case claims.Expires <= now.Unix() || claims.Issued > now.Add(mostSkew).Unix() || claims.Expires-claims.Issued > 3600:
		return "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe. Check your iat and exp values in the JWT claim."
	}
	if c.TokenKey == nil {
		return ""
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if rsa.VerifyPKCS1v15(c.TokenKey, crypto.SHA256, sum[:], signature) != nil {
		return "Invalid JWT Signature."
	}
	return ""
}
