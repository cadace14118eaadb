// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/config"
)

// A credential keeps the path of its file, so that the file can be read again;
// what was written as a variable is never a path.
func TestCredentialSecrets(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "key"), "hunter2\n")
	write(t, filepath.Join(dir, "empty"), "\n")
	env := map[string]string{"KEY": "hunter3", "LOOKS": "file:key", "DIR": dir}
	for _, c := range []struct{ in, secret, file, err string }{
		{"secret: ${KEY}", "hunter3", "", ""},
		{"secret: file:key", "", filepath.Join(dir, "key"), ""},
		{"secret: file:${DIR}/key", "", filepath.Join(dir, "key"), ""},
		{"secret: ${LOOKS}", "file:key", "", ""},
		{"secretFile: key", "", filepath.Join(dir, "key"), ""},
		{"secret: file:empty", "", "", "secret is empty"},
		{"secret: file:${NONE}", "", "", "variable NONE is not set"},
		{"secret: file:none", "", "", "no such file"},
		{"secret: file:key\nsecretFile: key", "", filepath.Join(dir, "key"), "is given beside secretFile"},
	} {
		var got config.Credential
		ps := config.DecodeInto(filepath.Join(dir, "in.yaml"), []byte(c.in), env, &got)
		if len(ps) > 1 || (len(ps) == 0) != (c.err == "") || len(ps) == 1 && !strings.Contains(ps.Error(), c.err) {
			t.Errorf("%s: %v", c.in, ps)
		}
		if got.Secret.Reveal() != c.secret || got.SecretFile != c.file {
			t.Errorf("%s: secret %q, file %q", c.in, got.Secret.Reveal(), got.SecretFile)
		}
		if printed := string(config.PrintAny(got)) + fmt.Sprint(got, ps); strings.Contains(printed, "hunter") {
			t.Errorf("printed: %s", printed)
		}
	}
}

// Over the wire the secret travels in clear and the path as a path.
func TestProvidersTravel(t *testing.T) {
	c := &config.Config{Providers: []config.Provider{{
		Name: "b", Dialect: config.ProviderBedrock, Region: "eu-west-1",
		Credentials: []config.Credential{{Name: "x", Secret: "file:not-a-path", AccessKeyID: "AKIA"}, {SecretFile: "/run/key"}},
	}}}
	c.SetDefaults()
	got, err := config.Decode(c.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if !got.Providers[0].Equal(c.Providers[0]) {
		t.Errorf("got %+v, want %+v", got.Providers[0], c.Providers[0])
	}
}

func TestRefusedAddress(t *testing.T) {
	for address, want := range map[string][2]bool{ // refused; refused with allowPrivate
		"8.8.8.8": {}, "2606:4700::1": {}, "64:ff9b::808:808": {},
		"127.0.0.1": {true, false}, "::1": {true, false}, "10.0.0.1": {true, false}, "172.31.0.1": {true, false}, "192.168.1.1": {true, false},
		"100.64.0.1": {true, false}, "198.18.0.1": {true, false}, "fd12::1": {true, false}, "64:ff9b::a00:1": {true, false}, "2002:a00:1::": {true, false},
		"169.254.169.254": {true, true}, "::ffff:169.254.169.254": {true, true}, "fe80::1%eth0": {true, true}, "fd00:ec2::254": {true, true},
		"100.100.100.200": {true, true}, "168.63.129.16": {true, true}, "64:ff9b::a9fe:a9fe": {true, true}, "2002:a9fe:a9fe::": {true, true},
		"224.0.0.1": {true, true}, "ff02::1": {true, true}, "0.0.0.0": {true, true}, "::": {true, true}, "255.255.255.255": {true, true},
		"::a9fe:a9fe": {true, true},
	} {
		a := netip.MustParseAddr(address)
		if got := [2]bool{config.RefusedAddress(a, false) != "", config.RefusedAddress(a, true) != ""}; got != want {
			t.Errorf("%s: %v, want %v", address, got, want)
		}
	}
}
