// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider_test

import (
	"bytes"
	"context"
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
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"crypto"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
	"github.com/penstock/penstock/provider"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func authorization(t *testing.T, p *provider.Provider, d llm.Dialect) (string, error) {
	t.Helper()
	c, _ := p.Pick("m", nil, 0)
	r, err := p.Request(context.Background(), c, &provider.Call{Op: llm.OpChat, Dialect: d, Model: "m", Body: []byte("{}")})
	if err != nil {
		return "", err
	}
	return r.Header.Get("Authorization"), nil
}

// A secret's file is read again when it changes; one that is wrong keeps the
// last good value and says so, once.
func TestSecretFileChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "key")
		write(t, file, "hunter2-one\n")
		var log bytes.Buffer
		p, err := provider.New(config.Provider{
			Name: "p", Dialect: config.ProviderOpenAI, BaseURL: "https://api.openai.com/v1",
			Credentials: []config.Credential{{Name: "a", SecretFile: file}},
			Cooldown:    config.Cooldown{After: 3, For: config.Duration(time.Second), Max: config.Duration(time.Minute)},
		}, provider.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		want := func(value, fault string) {
			t.Helper()
			got, _ := authorization(t, p, llm.DialectOpenAI)
			if got != "Bearer "+value || p.State("m").Credentials[0].Fault != fault {
				t.Errorf("sends %q, fault %q; want %q, %q", got, p.State("m").Credentials[0].Fault, value, fault)
			}
		}
		want("hunter2-one", "")
		c, _ := p.Pick("m", nil, 0)
		p.Observe(c, "m", provider.Verdict{Class: provider.Auth}, nil, 0)
		wantStates(t, p, "m", "a cooling auth 1m0s")

		write(t, file, "hunter2-two\n")
		time.Sleep(2 * time.Second)
		if !p.Ready("m") {
			t.Error("nobody is sent to an account that is out, so that its new secret is not seen")
		}
		want("hunter2-two", "")
		wantStates(t, p, "m", "a ready") // another secret, another chance

		for range 3 {
			write(t, file, "a\nb")
			time.Sleep(2 * time.Second)
			want("hunter2-two", "secret holds characters that no header may have")
		}
		write(t, file, "\n")
		time.Sleep(2 * time.Second)
		want("hunter2-two", "secret is empty")
		os.Remove(file)
		time.Sleep(2 * time.Second)
		want("hunter2-two", "cannot be read: no such file or directory")
		write(t, file, "hunter2-two")
		time.Sleep(2 * time.Second)
		want("hunter2-two", "")

		text := log.String()
		if n := strings.Count(text, "last good value is kept"); n != 3 {
			t.Errorf("%d faults are logged:\n%s", n, text)
		}
		if strings.Contains(text+fmt.Sprintf("%v %+v", p.State("m"), c), "hunter") {
			t.Errorf("printed: %s", text)
		}
	})
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	p := build(t, "  - {name: p, dialect: bedrock, region: eu-west-1, credentials: [{secret: hunter2-a, accessKeyID: AKIA, sessionToken: hunter2-b}]}", provider.Options{})
	c, _ := p.Pick("m", nil, 0)
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb+verb+verb+verb+"\n", p, c, p.Config(), p.State("m"))
		fmt.Fprintf(&out, verb+"\n", []any{p, c})
	}
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "provider", p, "credential", c)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "provider", p, "credential", c)
	if strings.Contains(out.String(), "hunter") || strings.Contains(out.String(), fmt.Sprintf("%x", "hunter")) {
		t.Errorf("printed:\n%s", out.String())
	}
}

func TestNewRefuses(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "bad"), "a\nb")
	base := config.Provider{Name: "p", Dialect: config.ProviderOpenAI, BaseURL: "https://api.openai.com/v1"}
	for _, c := range []struct {
		change func(*config.Provider)
		want   string
	}{
		{func(p *config.Provider) { p.BaseURL = "x" }, "provider p: baseURL: is no URL of a server"},
		{func(p *config.Provider) { p.Quirks = "x" }, `provider p: quirks: "x" is not known`},
		{func(p *config.Provider) { p.Credentials = []config.Credential{{}} }, "provider p: credentials[0].secret: secret is empty"},
		{func(p *config.Provider) {
			p.Credentials = []config.Credential{{Name: "a", SecretFile: filepath.Join(dir, "none")}}
		}, "provider p: credentials[0].secretFile: cannot be read: no such file or directory"},
		{func(p *config.Provider) {
			p.Credentials = []config.Credential{{SecretFile: filepath.Join(dir, "bad")}}
		}, "provider p: credentials[0].secretFile: secret holds characters that no header may have"},
		{func(p *config.Provider) {
			p.Dialect, p.Credentials = config.ProviderVertex, []config.Credential{{Secret: "hunter2"}}
		}, "provider p: credentials[0].secret: secret is not the JSON key of a service account"},
	} {
		cfg := base
		c.change(&cfg)
		if _, err := provider.New(cfg, provider.Options{}); err == nil || err.Error() != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

// Check gives the places, for the command that checks a file.
func TestCheckIsPlaced(t *testing.T) {
	text := page + "  - {name: a, credentials: [{secret: x}]}\n  - {name: b, dialect: vertex, region: global, project: p, credentials: [{secret: x}]}\n  - {name: c, credentials: [{secret: x}, {secretFile: none}]}\n"
	_, err := config.ParseWith("in.yaml", []byte(text), config.Options{Check: provider.Check})
	want := `in.yaml:6:83: providers[1].credentials[0].secret: secret is not the JSON key of a service account
in.yaml:7:55: providers[2].credentials[1].secretFile: cannot be read: no such file or directory`
	if fmt.Sprint(err) != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

// A key that is renewed in a file comes whole, in the form of AWS's tools.
func TestBedrockKeyFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "key")
		write(t, file, `{"Version":1,"AccessKeyId":"AKIA1","SecretAccessKey":"s1","SessionToken":"t1","Expiration":"2030-01-01T00:00:00Z"}`)
		p, err := provider.New(config.Provider{
			Name: "p", Dialect: config.ProviderBedrock, BaseURL: "https://bedrock-runtime.eu-west-1.amazonaws.com", Region: "eu-west-1",
			Credentials: []config.Credential{{SecretFile: file}},
		}, provider.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := authorization(t, p, llm.DialectBedrock); !strings.Contains(got, "Credential=AKIA1/") || !strings.Contains(got, "x-amz-security-token") {
			t.Errorf("got %s", got)
		}
		write(t, file, `{"Version":1,"AccessKeyId":"AKIA2","SecretAccessKey":"s2"}`)
		time.Sleep(2 * time.Second)
		if got, _ := authorization(t, p, llm.DialectBedrock); !strings.Contains(got, "Credential=AKIA2/") || strings.Contains(got, "x-amz-security-token") {
			t.Errorf("got %s", got)
		}
		for _, bad := range []string{`{"AccessKeyId":"AKIA3"}`, `{`, `{"AccessKeyId":"a\nb","SecretAccessKey":"x"}`} {
			write(t, file, bad)
			time.Sleep(2 * time.Second)
			if got, _ := authorization(t, p, llm.DialectBedrock); !strings.Contains(got, "AKIA2") || p.State("m").Credentials[0].Fault == "" {
				t.Errorf("%s: %s", bad, got)
			}
		}
	})
}

// account is the JSON key of a service account of a token server.
func account(t *testing.T, key *rsa.PrivateKey, uri string) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "a@p.iam.gserviceaccount.com", "private_key_id": "k1", "token_uri": uri,
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
	})
	return string(raw)
}

// tokenServer gives a token for a claim that is signed with key.
type tokenServer struct {
	*httptest.Server
	asked  atomic.Int64
	life   atomic.Int64 // seconds
	answer atomic.Value // func(http.ResponseWriter); what it says instead
}

func newTokenServer(t *testing.T, key *rsa.PublicKey) *tokenServer {
	s := &tokenServer{}
	s.life.Store(3600)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := s.asked.Add(1)
		if f, _ := s.answer.Load().(func(http.ResponseWriter)); f != nil {
			f(w)
			return
		}
		parts := strings.Split(r.FormValue("assertion"), ".")
		if len(parts) != 3 || r.FormValue("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" {
			t.Errorf("form %v", r.Form)
			return
		}
		sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
		sig, _ := base64.RawURLEncoding.DecodeString(parts[2])
		if err := rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], sig); err != nil {
			t.Errorf("assertion: %v", err)
		}
		var claims struct {
			Iss, Aud, Scope string
			Iat, Exp        int64
		}
		raw, _ := base64.RawURLEncoding.DecodeString(parts[1])
		if err := json.Unmarshal(raw, &claims); err != nil || claims.Iss != "a@p.iam.gserviceaccount.com" || claims.Aud != s.URL+"/token" || claims.Exp-claims.Iat != 3600 ||
			claims.Scope != "https://www.googleapis.com/auth/cloud-platform" {
			t.Errorf("claims %s %v", raw, err)
		}
		fmt.Fprintf(w, `{"access_token":"token-%d","expires_in":%d,"token_type":"Bearer"}`, n, s.life.Load())
	}))
	t.Cleanup(s.Close)
	return s
}

func vertex(t *testing.T, secret string) (*provider.Provider, error) {
	t.Helper()
	return provider.New(config.Provider{
		Name: "v", Dialect: config.ProviderVertex, BaseURL: "https://europe-west1-aiplatform.googleapis.com", Region: "europe-west1", Project: "proj",
		Credentials: []config.Credential{{Secret: config.Secret(secret)}},
	}, provider.Options{})
}

func TestVertexTokens(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	s := newTokenServer(t, &key.PublicKey)
	p, err := vertex(t, account(t, key, s.URL+"/token"))
	if err != nil {
		t.Fatal(err)
	}
	// However many ask at once, one request is made; and then none.
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if got, err := authorization(t, p, llm.DialectGemini); err != nil || got != "Bearer token-1" {
				t.Errorf("%q %v", got, err)
			}
		})
	}
	wg.Wait()
	if n := s.asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
	c, _ := p.Pick("m", nil, 0)
	for model, want := range map[string]string{
		"gemini-2.5-pro":                 "https://europe-west1-aiplatform.googleapis.com/v1/projects/proj/locations/europe-west1/publishers/google/models/gemini-2.5-pro:streamGenerateContent?alt=sse",
		"publishers/meta/models/llama 4": "https://europe-west1-aiplatform.googleapis.com/v1/projects/proj/locations/europe-west1/publishers/meta/models/llama%204:streamGenerateContent?alt=sse",
	} {
		r, err := p.Request(context.Background(), c, &provider.Call{Op: llm.OpChat, Dialect: llm.DialectGemini, Model: model, Stream: true})
		if err != nil || r.URL.String() != want {
			t.Errorf("%v %v", r.URL, err)
		}
	}

	// A token that is about to expire is renewed without anybody waiting; one
	// whose renewal fails is used until it expires.
	s.life.Store(4)
	p, _ = vertex(t, account(t, key, s.URL+"/token"))
	begun := time.Now()
	first, _ := authorization(t, p, llm.DialectGemini)
	time.Sleep(3100 * time.Millisecond) // less than a quarter is left
	if again, _ := authorization(t, p, llm.DialectGemini); again != first && time.Since(begun) < 3800*time.Millisecond {
		t.Errorf("waited for %s", again)
	}
	until := time.Now().Add(5 * time.Second)
	for {
		if got, _ := authorization(t, p, llm.DialectGemini); got != first {
			break
		}
		if time.Now().After(until) {
			t.Fatal("not renewed")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// What Vertex AI counts and embeds has paths and bodies of its own.
func TestVertexCountsAndEmbeds(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p, err := vertex(t, account(t, key, newTokenServer(t, &key.PublicKey).URL+"/token"))
	if err != nil {
		t.Fatal(err)
	}
	c, _ := p.Pick("m", nil, 0)
	const base = "https://europe-west1-aiplatform.googleapis.com/v1/projects/proj/locations/europe-west1/publishers/"
	for _, x := range []struct {
		call             provider.Call
		body, url, wants string
	}{
		{
			provider.Call{Op: llm.OpCountContents, Dialect: llm.DialectGemini, Model: "gemini-2.5-pro"},
			`{"generateContentRequest":{"model":"models/x","contents":[1],"safetySettings":[],"tools":[2]}}`,
			base + "google/models/gemini-2.5-pro:countTokens", `{"contents":[1],"tools":[2]}`,
		},
		{
			provider.Call{Op: llm.OpCountTokens, Dialect: llm.DialectGemini, Model: "gemini-2.5-pro"},
			`{"contents":[1],"generationConfig":{}}`, base + "google/models/gemini-2.5-pro:countTokens", `{"contents":[1]}`,
		},
		{
			provider.Call{Op: llm.OpCountTokens, Dialect: llm.DialectAnthropic, Model: "claude-haiku-4-5"},
			`{"model":"claude-haiku-4-5","messages":[]}`, base + "anthropic/models/count-tokens:rawPredict",
			`{"model":"claude-haiku-4-5","messages":[],"anthropic_version":"vertex-2023-10-16"}`,
		},
		{
			provider.Call{Op: llm.OpEmbeddings, Dialect: llm.DialectPredict, Model: "text-embedding-005"},
			`{"instances":[]}`, base + "google/models/text-embedding-005:predict", `{"instances":[]}`,
		},
	} {
		x.call.Body = []byte(x.body)
		r, err := p.Request(context.Background(), c, &x.call)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(r.Body)
		if r.URL.String() != x.url || string(got) != x.wants || r.ContentLength != int64(len(x.wants)) {
			t.Errorf("%s\n%s\nwant %s\n%s", r.URL, got, x.url, x.wants)
		}
	}
}

func TestVertexFailures(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	s := newTokenServer(t, &key.PublicKey)
	for _, c := range []struct {
		status int
		body   string
		want   provider.Class
	}{
		{400, `{"error":"invalid_grant","error_description":"Invalid JWT Signature."}`, provider.Auth},
		{500, ``, provider.Server},
		{429, `{}`, provider.Server},
		{302, ``, provider.Auth}, // not followed
		{200, `{"access_token":"a b"}`, provider.Server},
		{200, `nonsense`, provider.Server},
	} {
		s.answer.Store(func(w http.ResponseWriter) {
			w.Header().Set("Location", "http://169.254.169.254/")
			w.WriteHeader(c.status)
			fmt.Fprint(w, c.body)
		})
		p, err := vertex(t, account(t, key, s.URL+"/token"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = authorization(t, p, llm.DialectGemini)
		var f *provider.Failure
		if !errors.As(err, &f) || provider.Classify(llm.DialectGemini, 0, nil, nil, err, false).Class != c.want {
			t.Errorf("%d %s: %v, want %v", c.status, c.body, err, c.want)
		}
	}
	hang := make(chan struct{})
	s.answer.Store(func(http.ResponseWriter) { <-hang })
	p, _ := vertex(t, account(t, key, s.URL+"/token"))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	cred, _ := p.Pick("m", nil, 0)
	_, err = p.Request(ctx, cred, &provider.Call{Op: llm.OpChat, Dialect: llm.DialectGemini, Model: "m"})
	if v := provider.Classify(llm.DialectGemini, 0, nil, nil, err, false); v.Class != provider.Deadline {
		t.Errorf("%v: %v", err, v)
	}
	close(hang)

	for _, c := range []struct{ secret, want string }{
		{account(t, key, "http://oauth.example.com/token"), "token_uri of the service account must be https"},
		{account(t, key, "https://u:p@oauth.example.com/token"), "token_uri of the service account is no URL of a server"},
		{account(t, key, "file:///etc/passwd"), "token_uri of the service account is no URL of a server"},
		{strings.Replace(account(t, key, "https://x/"), "service_account", "authorized_user", 1), "secret is JSON, and not the key of a service account: type must be service_account"},
		{`{"type":"service_account","client_email":"a","private_key":"x"}`, "private_key of the service account is not PEM"},
	} {
		if _, err := vertex(t, c.secret); err == nil || !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
	// A token endpoint cannot be a metadata service by another name.
	p, err = vertex(t, account(t, key, "https://169.254.169.254/token"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := authorization(t, p, llm.DialectGemini); provider.Classify(0, 0, nil, nil, err, false).Class != provider.Connect {
		t.Errorf("got %v", err)
	}
}
