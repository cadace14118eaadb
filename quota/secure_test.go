// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package quota_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/quota"
)

// authority writes a certificate for 127.0.0.1 that signs itself, and its key.
func authority(t *testing.T, name string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// refused says that a limiter gets nothing from its store.
func refused(t *testing.T, l *quota.Limiter, path []*quota.Node) {
	t.Helper()
	if _, f := enter(t, l, path, tokens(1, 1), false); !f.Away {
		t.Errorf("%+v", f)
	}
}

// TestRedisOverTLS: a store that wants a password, a certificate and TLS gets all
// of them; who lacks one, or trusts somebody else, gets nothing.
func TestRedisOverTLS(t *testing.T) {
	cert, key := authority(t, "redis")
	stranger, _ := authority(t, "stranger")
	server := redistest.StartWith(t, redistest.Options{Password: "open-sesame", CA: cert, Cert: cert, Key: key})
	use := func(password string, tls *config.ClientTLS) func(*config.Quota) {
		return func(c *config.Quota) {
			c.Redis.Password, c.Redis.TLS, c.Redis.Timeout = config.Secret(password), tls, config.Duration(2*time.Second)
		}
	}
	path := everyKind()
	right := &config.ClientTLS{CA: cert, Cert: cert, Key: key}
	l := gateway(t, server.Addr, use("open-sesame", right))
	r, _ := enter(t, l, path, tokens(100, 0), true)
	r.Settle(&quota.Amounts{Requests: 1, Input: 60})
	named := *right
	named.SubjectAltNames = []string{"dns:elsewhere"}
	await(t, l, path, [4]int64{0, 60, 60, 60}, [4]int64{})
	for name, edit := range map[string]func(*config.Quota){
		"no TLS":              use("open-sesame", nil),
		"a wrong password":    use("wrong", right),
		"no password":         use("", right),
		"no certificate":      use("open-sesame", &config.ClientTLS{CA: cert}),
		"another authority":   use("open-sesame", &config.ClientTLS{CA: stranger, Cert: cert, Key: key}),
		"another name":        use("open-sesame", &config.ClientTLS{CA: cert, Cert: cert, Key: key, ServerName: "elsewhere"}),
		"another alternative": use("open-sesame", &named),
	} {
		t.Run(name, func(t *testing.T) { refused(t, gateway(t, server.Addr, edit), path) })
	}
}

// TestRedisCluster: the keys of a reservation lie in one slot, whatever the names
// of its tenants, so that a cluster takes all scripts.
func TestRedisCluster(t *testing.T) {
	server := redistest.StartWith(t, redistest.Options{Cluster: true})
	l := gateway(t, server.Addr, func(c *config.Quota) { c.Redis.Cluster, c.Lease = true, config.Duration(time.Second) })
	everyWindow(t, l)
	t.Run("names", func(t *testing.T) {
		for _, name := range []string{"a}{b", "{", "}", "a b", "provider p/1", "é"} {
			path := []*quota.Node{quota.NewNode(name, []config.Limit{{Requests: 5, Per: "year"}}), quota.NewNode(name+":k", []config.Limit{{Concurrency: 1}})}
			r, _ := enter(t, l, path, tokens(1, 1), true)
			enter(t, l, path, tokens(1, 1), false)
			r.Settle(&quota.Amounts{Requests: 1})
			if states, err := l.Usage(context.Background(), name, path); err != nil || states[0].Used != 1 || states[1].Used != 0 {
				t.Errorf("%q: %+v, %v", name, states, err)
			}
		}
	})
	t.Run("loss", func(t *testing.T) {
		path := everyKind()
		enter(t, l, path, tokens(100, 0), true)
		server.Do("FLUSHALL")
		await(t, l, path, [4]int64{1, 100, 100, 100}, [4]int64{1, 100, 100, 100})
	})
}
