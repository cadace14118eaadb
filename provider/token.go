// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/config"
)

// tokens gets access tokens for a service account of Google (RFC 7523) and
// keeps the last one. One request at a time is under way, whoever waits for it
// may leave.
type tokens struct {
	key    *rsa.PrivateKey
	id     string // of the key
	email  string
	uri    string
	client *http.Client
	told   func(result string) // counts renewals

	mu      sync.Mutex
	token   string
	expires time.Time
	early   time.Duration // a token is renewed so long before it expires
	err     error         // of the last renewal
	running chan struct{} // closed at the end of the one under way; nil: none
}

const (
	tokenScope  = "https://www.googleapis.com/auth/cloud-platform"
	tokenBound  = 15 * time.Second // for one renewal
	tokenLife   = time.Hour        // of an assertion
	maxToken    = 64 << 10         // bytes of an answer
	renewBefore = 5 * time.Minute
)

// newTokens reads the JSON key of a service account. No error holds a part of
// it.
func (p *Provider) newTokens(value config.Secret) (*tokens, error) {
	var account struct {
		Type  string `json:"type"`
		Email string `json:"client_email"`
		KeyID string `json:"private_key_id"`
		Key   string `json:"private_key"`
		URI   string `json:"token_uri"`
	}
	if err := json.Unmarshal([]byte(value.Reveal()), &account); err != nil {
		return nil, errors.New("secret is not the JSON key of a service account")
	}
	if account.Type != "service_account" || account.Email == "" {
		return nil, errors.New("secret is JSON, and not the key of a service account: type must be service_account")
	}
	block, _ := pem.Decode([]byte(account.Key))
	if block == nil {
		return nil, errors.New("private_key of the service account is not PEM")
	}
	key, err := rsaKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(account.URI)
	switch {
	case err != nil || u.Hostname() == "" || u.User != nil:
		return nil, errors.New("token_uri of the service account is no URL of a server")
	case u.Scheme != "https" && !(u.Scheme == "http" && isLocal(u.Hostname())):
		return nil, errors.New("token_uri of the service account must be https")
	}
	transport := newDialer(reach{private: p.cfg.AllowPrivate, loopback: isLocal(u.Hostname())}, tokenBound).transport()
	transport.DisableKeepAlives = true // it is asked once in an hour
	return &tokens{
		key: key, id: account.KeyID, email: account.Email, uri: account.URI,
		client: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		told:   func(result string) { p.metrics.tokenRenewed(p.name, result) },
	}, nil
}

func rsaKey(der []byte) (*rsa.PrivateKey, error) {
	if k, err := x509.ParsePKCS1PrivateKey(der); err == nil {
		return k, nil
	}
	k, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, errors.New("private_key of the service account is no private key")
	}
	if key, ok := k.(*rsa.PrivateKey); ok {
		return key, nil
	}
	return nil, errors.New("private_key of the service account is not an RSA key")
}

// get is a token that is good for a while. It is renewed in the background
// before it expires; only without one does the caller wait.
func (t *tokens) get(ctx context.Context) (string, error) {
	t.mu.Lock()
	left := time.Until(t.expires)
	if t.token != "" && left > t.early/10 {
		token := t.token
		if left < t.early {
			t.renewLocked()
		}
		t.mu.Unlock()
		return token, nil
	}
	done := t.renewLocked()
	t.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return "", t.err
	}
	return t.token, nil
}

// renewLocked begins a renewal unless one is under way, and says when it ends.
func (t *tokens) renewLocked() <-chan struct{} {
	if t.running != nil {
		return t.running
	}
	done := make(chan struct{})
	t.running = done
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), tokenBound)
		defer cancel()
		token, life, err := t.fetch(ctx)
		t.mu.Lock()
		if t.err = err; err == nil {
			t.token, t.expires, t.early = token, time.Now().Add(life), min(renewBefore, life/4)
		}
		t.running = nil
		t.mu.Unlock()
		close(done)
		if result := "ok"; err != nil {
			t.told("error")
		} else {
			t.told(result)
		}
	}()
	return done
}

func (t *tokens) fetch(ctx context.Context) (token string, life time.Duration, err error) {
	assertion, err := t.assertion(time.Now())
	if err != nil {
		return "", 0, err
	}
	form := url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:jwt-bearer"}, "assertion": {assertion}}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, t.uri, strings.NewReader(form.Encode()))
	if err != nil {
		return "", 0, err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := t.client.Do(r)
	if err != nil {
		return "", 0, &Failure{Verdict: Verdict{Class: Connect, Code: "token", Message: "the token endpoint cannot be reached"}, Err: fmt.Errorf("token endpoint: %w", err)}
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxToken))
	var answer struct {
		Token   string  `json:"access_token"`
		Seconds float64 `json:"expires_in"`
		Error   string  `json:"error"`
	}
	if e := json.Unmarshal(raw, &answer); err == nil {
		err = e
	}
	if res.StatusCode != http.StatusOK || err != nil || answer.Token == "" || strings.ContainsFunc(answer.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		class := Auth
		if res.StatusCode >= 500 || res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusOK {
			class = Server
		}
		err = fmt.Errorf("token endpoint: status %d %.64q", res.StatusCode, answer.Error)
		return "", 0, &Failure{Verdict: Verdict{Class: class, Status: res.StatusCode, Code: "token", Message: "the token endpoint gives no token"}, Err: err}
	}
	life = time.Duration(min(max(answer.Seconds, 1), 24*3600) * float64(time.Second))
	return answer.Token, life, nil
}

// assertion is the signed claim for which a token is given.
func (t *tokens) assertion(now time.Time) (string, error) {
	part := func(v any) string {
		raw, _ := json.Marshal(v) // of strings and numbers
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	head := map[string]any{"alg": "RS256", "typ": "JWT"}
	if t.id != "" {
		head["kid"] = t.id
	}
	text := part(head) + "." + part(map[string]any{
		"iss": t.email, "scope": tokenScope, "aud": t.uri, "iat": now.Unix(), "exp": now.Add(tokenLife).Unix(),
	})
	sum := sha256.Sum256([]byte(text))
	sig, err := rsa.SignPKCS1v15(rand.Reader, t.key, crypto.SHA256, sum[:])
	if err != nil {
		return "", errors.New("the key of the service account cannot sign")
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(sig), nil
}
