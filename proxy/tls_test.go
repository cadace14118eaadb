// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// certificate writes a self-signed certificate for 127.0.0.1 and its key.
func certificate(t *testing.T, dir, name string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.ParseIP("127.0.0.1")}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A listener serves HTTP/2 and HTTP/1.1 over TLS, asks for a client
// certificate where it is told to, and takes up new files without a reload;
// files that are no certificate change nothing.
func TestTLSListener(t *testing.T) {
	dir := t.TempDir()
	oldCert, oldKey := certificate(t, dir, "old")
	newCert, newKey := certificate(t, dir, "new")
	clientCert, clientKey := certificate(t, dir, "client")
	live, liveKey := filepath.Join(dir, "live.crt"), filepath.Join(dir, "live.key")
	copyFile(t, oldCert, live)
	copyFile(t, oldKey, liveKey)
	r := newRig(t, []*httptest.Server{model(t, answers(200, answer))}, func(y string) string {
		return strings.Replace(y, "anonymous: true", fmt.Sprintf("anonymous: true, tls: {cert: %q, key: %q, clientCA: %q}", live, liveKey, clientCert), 1)
	})
	url := strings.Replace(r.url, "http:", "https:", 1)
	identity, err := tls.LoadX509KeyPair(clientCert, clientKey)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(http2, withCert bool) (proto, name string, err error) {
		tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, Protocols: new(http.Protocols)}
		defer tr.CloseIdleConnections()
		tr.Protocols.SetHTTP1(!http2)
		tr.Protocols.SetHTTP2(http2)
		if withCert {
			tr.TLSClientConfig.Certificates = []tls.Certificate{identity}
		}
		res, err := (&http.Client{Transport: tr}).Post(url+"/v1/chat/completions", "application/json", strings.NewReader(hello))
		if err != nil {
			return "", "", err
		}
		defer res.Body.Close()
		io.Copy(io.Discard, res.Body)
		if res.StatusCode != 200 {
			t.Errorf("status %s", res.Status)
		}
		return res.Proto, res.TLS.PeerCertificates[0].Subject.CommonName, nil
	}
	for _, http2 := range []bool{true, false} {
		want := map[bool]string{true: "HTTP/2.0", false: "HTTP/1.1"}[http2]
		if proto, name, err := ask(http2, true); err != nil || proto != want || name != "old" {
			t.Errorf("got %s from %s: %v", proto, name, err)
		}
	}
	if _, _, err := ask(false, false); err == nil {
		t.Error("a client without a certificate was served")
	}
	if err := os.WriteFile(live, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1100 * time.Millisecond) // files are looked at once a second at most
	if _, name, err := ask(true, true); err != nil || name != "old" {
		t.Errorf("after nonsense: %s %v", name, err)
	}
	copyFile(t, newCert, live)
	copyFile(t, newKey, liveKey)
	time.Sleep(1100 * time.Millisecond)
	if _, name, err := ask(true, true); err != nil || name != "new" {
		t.Errorf("after the change: %s %v", name, err)
	}
}

func TestTLSUpstream(t *testing.T) {
	s := httptest.NewUnstartedServer(answers(200, answer))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for config, want := range map[string]int{
		fmt.Sprintf("tls: {ca: %q}", ca):                200,
		"tls: {insecureSkipVerify: true}":               200,
		"engine: auto":                                  502, // the system does not know the certificate
		fmt.Sprintf("tls: {ca: %q, serverName: x}", ca): 502,
	} {
		r := newRig(t, []*httptest.Server{s}, func(y string) string {
			return strings.Replace(y, "metrics:", "protocol: https\n    "+config+"\n    metrics:", 1)
		})
		if res, body := r.post(hello); res.StatusCode != want || want == 502 && !strings.Contains(body, "no TLS connection") {
			t.Errorf("%s: %d %s", config, res.StatusCode, body)
		}
	}
}

// An informational answer passes on before the answer itself.
func TestInformationalAnswers(t *testing.T) {
	s := model(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Link", "</a>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		answers(200, answer)(w, r)
	})
	r := newRig(t, []*httptest.Server{s}, nil)
	got := r.raw(fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(hello), hello))
	early, rest, ok := strings.Cut(got, "\r\n\r\n")
	if !ok || !strings.HasPrefix(early, "HTTP/1.1 103") || !strings.Contains(early, "Link: </a>") ||
		!strings.HasPrefix(rest, "HTTP/1.1 200") || strings.Contains(rest, "Link:") {
		t.Errorf("got %q", got)
	}
}

// A client that waits for 100 Continue is told to go on only when its request
// may be served at all.
func TestExpectContinue(t *testing.T) {
	r := newRig(t, []*httptest.Server{model(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Expect") != "" {
			t.Error("Expect was passed on")
		}
		answers(200, answer)(w, r)
	})}, nil)
	for path, want := range map[string]string{"/v1/chat/completions": "HTTP/1.1 100 Continue", "/nowhere": "HTTP/1.1 404"} {
		c, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(5 * time.Second))
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", path, len(hello))
		head := make([]byte, len(want))
		if _, err := io.ReadFull(c, head); err != nil || string(head) != want {
			t.Errorf("%s: %q %v", path, head, err)
		}
		if strings.Contains(want, "100") {
			io.WriteString(c, hello)
			if rest, _ := io.ReadAll(c); !bytes.Contains(rest, []byte("HTTP/1.1 200")) {
				t.Errorf("%s: %q", path, rest)
			}
		}
		c.Close()
	}
}

// Paths besides the OpenAI ones reach the pool when it allows them; a form
// passes as it came but for its model.
func TestOtherPathsAndForms(t *testing.T) {
	var got string
	s := model(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = r.URL.Path + " " + string(b)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"text":"hi"}`)
	})
	r := newRig(t, []*httptest.Server{s}, nil)
	if res, body := r.postTo("/tokenize", `{"model":"m","prompt":"x"}`); res.StatusCode != 200 || got != `/tokenize {"model":"up-m","prompt":"x"}` {
		t.Errorf("%d %s; upstream got %s", res.StatusCode, body, got)
	}
	form := "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF\x00\xff\r\n--B\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n%s\r\n--B--\r\n"
	res, err := http.Post(r.url+"/v1/audio/transcriptions", "multipart/form-data; boundary=B", strings.NewReader(fmt.Sprintf(form, "m")))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if want := "/v1/audio/transcriptions " + fmt.Sprintf(form, "up-m"); res.StatusCode != 200 || got != want {
		t.Errorf("%d; upstream got %q, want %q", res.StatusCode, got, want)
	}
	if res, _ := r.postTo("/v1/moderations", `{"model":"m"}`); res.StatusCode != 404 {
		t.Errorf("a path that no pool allows: %d", res.StatusCode)
	}
}
