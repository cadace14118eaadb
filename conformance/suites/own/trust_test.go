// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package own

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"
)

// authority signs certificates for a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key, block("CERTIFICATE", der)}
}

func block(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// secret makes a Secret with a certificate for a name.
func (a *authority) secret(b *bed, name, host string) {
	b.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		b.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		b.Fatal(err)
	}
	b.apply(`
apiVersion: v1
kind: Secret
type: kubernetes.io/tls
metadata: {name: %s}
stringData:
  tls.crt: |
    %s
  tls.key: |
    %s
`, name, indent(block("CERTIFICATE", der)), indent(block("PRIVATE KEY", pkcs8)))
}

// trust makes the ConfigMap of an authority.
func (b *bed) trust(name string, a *authority) {
	b.Helper()
	b.apply(`
apiVersion: v1
kind: ConfigMap
metadata: {name: %s}
data:
  ca.crt: |
    %s
`, name, indent(a.pem))
}

func indent(text string) string {
	return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ")
}

// TestPickerTrust verifies pickers in both ways that there are, and neither:
// by a GatewayPolicy of the pool, and by a BackendTLSPolicy of the Service.
func TestPickerTrust(t *testing.T) {
	b := lay(t)
	right, wrong := newAuthority(t, "right"), newAuthority(t, "wrong")
	b.trust("right", right)
	b.trust("wrong", wrong)
	for pool, mode := range map[string]string{"open": "FailOpen", "closed": "FailClose"} {
		p := stagePicker(pool)
		p.args, p.secret = append(p.args, "-cert-path", "/certs"), pool
		right.secret(b, pool, fmt.Sprintf("%s.%s.svc", p.name, b.ns))
		b.deploy(p)
		b.deploy(servers(pool, 2))
		b.pool(pool, reference(p, mode))
	}
	b.gateway("")
	b.running("open-picker", "closed-picker", "open-server", "closed-server")
	steer := map[string][]string{}
	for _, pool := range []string{"open", "closed"} {
		steer[pool] = []string{"x-stage-pick", b.pods("app=" + pool + "-server")[0].Status.PodIP + ":3000"}
	}

	// asked waits until the picker of a pool is asked, as its field in the
	// answer tells, or no longer is.
	asked := func(pool string, is bool) {
		t.Helper()
		in := 0
		b.until(fmt.Sprintf("the picker of %s is asked: %v", pool, is), time.Minute, func() (string, bool) {
			r := b.ask(pool+".own.test", chat, steer[pool]...)
			if in++; r.err != nil || (r.header.Get("x-stage-served") != "") != is {
				in = 0
			}
			return r.String() + " " + r.header.Get("x-stage-served"), in == 6
		})
	}
	// apart is what a picker that is not trusted costs in each mode.
	apart := func(how string) {
		t.Helper()
		asked("open", false)
		asked("closed", false)
		for range 20 {
			if r := b.ask("open.own.test", chat, steer["open"]...); r.err != nil || r.status != 200 {
				t.Errorf("%s, failing open: %s, want 200", how, r)
			}
			if r := b.ask("closed.own.test", chat, steer["closed"]...); r.err != nil || r.status != 503 {
				t.Errorf("%s, failing closed: %s, want 503", how, r)
			}
		}
	}
	both := func() { t.Helper(); asked("open", true); asked("closed", true) }

	both() // by default nobody is verified
	policy := func(ca, hostname string) {
		t.Helper()
		for _, pool := range []string{"open", "closed"} {
			b.apply(`
apiVersion: penstock.dev/v1alpha1
kind: GatewayPolicy
metadata: {name: %[1]s}
spec:
  targetRef: {group: inference.networking.k8s.io, kind: InferencePool, name: %[1]s}
  picker: {tls: {caCertificateRefs: [{group: "", kind: ConfigMap, name: %[2]s}]%[3]s}}
`, pool, ca, hostname)
		}
	}
	policy("wrong", "")
	apart("by the wrong authority")
	policy("right", "")
	both()
	policy("right", ", hostname: somebody.else.test")
	apart("by another name")
	for _, pool := range []string{"open", "closed"} {
		b.remove("penstock.dev/v1alpha1", "GatewayPolicy", pool)
	}
	both()

	standard := func(ca string) {
		t.Helper()
		for _, pool := range []string{"open", "closed"} {
			b.apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: %[1]s}
spec:
  targetRefs: [{group: "", kind: Service, name: %[1]s-picker}]
  validation: {hostname: %[1]s-picker.%[3]s.svc, caCertificateRefs: [{group: "", kind: ConfigMap, name: %[2]s}]}
`, pool, ca, b.ns)
		}
	}
	standard("wrong")
	apart("by a BackendTLSPolicy and the wrong authority")
	standard("right")
	both()
}

// TestServerTrust puts TLS between the gateway and plain servers.
func TestServerTrust(t *testing.T) {
	b := lay(t)
	right, wrong := newAuthority(t, "right"), newAuthority(t, "wrong")
	b.trust("right", right)
	b.trust("wrong", wrong)
	right.secret(b, "server", "server.own.test")
	w := servers("tls", 2)
	w.args, w.secret, w.service = append(w.args, "-cert-path", "/certs"), "server", 3000
	w.probe = "tcpSocket: {port: 3000}"
	b.deploy(w)
	b.apply(`
apiVersion: v1
kind: Service
metadata: {name: secure}
spec:
  selector: {app: tls-server}
  ports: [{port: 443, targetPort: 3000}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: tls}
spec:
  parentRefs: [{name: gw}]
  hostnames: [tls.own.test]
  rules: [{backendRefs: [{name: secure, port: 443}]}]
`)
	b.gateway("")
	b.running("tls-server")
	for _, c := range []struct {
		ca, hostname string
		status       int
	}{{"right", "server.own.test", 200}, {"wrong", "server.own.test", 503}, {"right", "other.own.test", 503}, {"right", "server.own.test", 200}} {
		b.apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: tls}
spec:
  targetRefs: [{group: "", kind: Service, name: secure}]
  validation: {hostname: %s, caCertificateRefs: [{group: "", kind: ConfigMap, name: %s}]}
`, c.hostname, c.ca)
		b.wait("tls.own.test", c.status)
	}
}
