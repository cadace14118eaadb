// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package certs_test

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/certs"
)

// pin is what a file would say of the certificate's key.
func (c *issued) pin() string {
	sum := sha256.Sum256(c.cert.RawSubjectPublicKeyInfo)
	return base64.StdEncoding.EncodeToString(sum[:])
}

func TestPinsBesideAlternativeNames(t *testing.T) {
	root := issue(t, "root", nil)
	leaf := issue(t, "server", root)
	server := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.cert.Raw}, PrivateKey: leaf.key}}}
	file := files(t, "ca.crt")[0]
	root.write(t, file, "")
	for _, c := range []struct {
		names, pins []string
		want        string // in the error; "": there is none
	}{
		{[]string{"dns:server"}, []string{leaf.pin()}, ""},
		{[]string{"dns:server"}, []string{root.pin()}, ""},
		{[]string{"dns:server"}, []string{issue(t, "x", nil).pin()}, "pinned"},
		{[]string{"dns:elsewhere"}, []string{leaf.pin()}, "none of the names"},
	} {
		conf, err := certs.Client{CA: file, ServerName: "sent", SubjectAltNames: c.names, Pins: c.pins}.Config()
		if err != nil {
			t.Fatal(err)
		}
		err = meet(t, conf, server).client
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q, %q: %v, want %q", c.names, c.pins, err, c.want)
		}
	}
	if _, err := (certs.Client{Pins: []string{"dXHe"}}).Config(); err == nil {
		t.Error("a pin that is none is taken")
	}
}

func TestPins(t *testing.T) {
	root, stranger := issue(t, "root", nil), issue(t, "stranger", nil)
	middle := issue(t, "middle", root, func(c *x509.Certificate) { c.IsCA = true })
	leaf := issue(t, "server", middle)
	// What the server sends: its chain, and a certificate that proves nothing.
	server := &tls.Config{Certificates: []tls.Certificate{{
		Certificate: [][]byte{leaf.cert.Raw, middle.cert.Raw, stranger.cert.Raw}, PrivateKey: leaf.key,
	}}}
	elsewhere := trusting(root)
	elsewhere.ServerName = "elsewhere"
	for _, c := range []struct {
		name   string
		client *tls.Config
		pins   []string
		want   string // in the error; "": there is none
	}{
		{"none", trusting(root), nil, ""},
		{"the server's", trusting(root), []string{leaf.pin()}, ""},
		{"an intermediate's", trusting(root), []string{middle.pin()}, ""},
		{"the root's, which is not sent", trusting(root), []string{root.pin()}, ""},
		{"one of two", trusting(root), []string{stranger.pin(), leaf.pin()}, ""},
		{"another's", trusting(root), []string{issue(t, "x", nil).pin()}, "pinned"},
		{"one that is sent and not in the chain", trusting(root), []string{stranger.pin()}, "pinned"},
		{"the server's, from an unknown authority", trusting(stranger), []string{leaf.pin()}, "unknown authority"},
		{"the server's, by another name", elsewhere, []string{leaf.pin()}, "elsewhere"},
		{"unverified, the server's", credulous(), []string{leaf.pin()}, ""},
		{"unverified, an authority's", credulous(), []string{middle.pin()}, "pinned"},
		{"unverified, another's", credulous(), []string{stranger.pin()}, "pinned"},
	} {
		if err := certs.Pin(c.client, c.pins); err != nil {
			t.Fatal(err)
		}
		err := meet(t, c.client, server).client
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}

	// A session that is taken up again is held to the pins too.
	cache := tls.NewLRUClientSessionCache(1)
	before, after := trusting(root), trusting(root)
	before.ClientSessionCache, after.ClientSessionCache = cache, cache
	if got := meet(t, before, server).name(); got != "server" {
		t.Fatal(got)
	}
	if m := meet(t, before, server); !m.state.DidResume {
		t.Fatal("the session was not taken up again")
	}
	if err := certs.Pin(after, []string{stranger.pin()}); err != nil {
		t.Fatal(err)
	}
	if m := meet(t, after, server); m.client == nil {
		t.Error("a session from before the pin is good after it")
	}

	for _, bad := range []string{"", "AAAA", "sha256/" + leaf.pin(), strings.TrimRight(leaf.pin(), "=")} {
		if err := certs.Pin(&tls.Config{}, []string{leaf.pin(), bad}); err == nil || !strings.HasPrefix(err.Error(), "tls.pins: ") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
