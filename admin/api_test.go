// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/admin"
	"github.com/penstock/penstock/auth"
	"github.com/penstock/penstock/auth/keystore"
	"github.com/penstock/penstock/config"
)

// apiOptions are an admin interface with a store of keys beside one tenant of a
// file.
func apiOptions(t *testing.T, users ...config.AdminUser) admin.Options {
	t.Helper()
	file := &config.Config{Tenants: []config.Tenant{{Name: "acme", Keys: []config.Key{{Name: "own", Hash: "sha256:" + strings.Repeat("a", 64)}}}}}
	s, err := keystore.Open(t.Context(), keystore.Options{
		Config:   config.Keys{Store: config.KeysSQLite, Path: filepath.Join(t.TempDir(), "keys.db"), Pepper: "a pepper of sixteen", Refresh: config.Duration(time.Minute)},
		Registry: auth.NewRegistry(), File: func() *config.Config { return file },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	o := options()
	o.Version = "v0"
	o.Tenancy = func() admin.Tenancy { return s }
	o.Users = func() []config.AdminUser { return users }
	return o
}

const jsonType = "application/json"

func TestAPI(t *testing.T) {
	h := admin.Handler(apiOptions(t))
	for _, c := range []struct {
		method, target, body, match string
		status                      int
		want                        string // part of the answer
	}{
		{"GET", "/api/v1/tenants", "", "", 200, `"path": "acme"`},
		{"POST", "/api/v1/tenants", `{"path": "acme/search", "spec": {"models": ["chat*"], "limits": [{"tokens": 200000, "per": "1m"}]}}`, "", 201, `"per": "1m"`},
		{"POST", "/api/v1/tenants?dryRun=true", `{"path": "acme/dry"}`, "", 201, `"path": "acme/dry"`},
		{"GET", "/api/v1/tenants/acme/dry", "", "", 404, `"code": "not_found"`},
		{"GET", "/api/v1/tenants/acme/search", "", "", 200, `"revision": 1`},
		{"GET", "/api/v1/tenants?under=acme/search&limit=1", "", "", 200, `"path": "acme/search"`},
		{"PUT", "/api/v1/tenants/acme/search", `{"spec": {"tier": "gold"}}`, "", 428, `If-Match`},
		{"PUT", "/api/v1/tenants/acme/search", `{"spec": {"tier": "gold"}}`, `"2"`, 412, `"code": "outdated"`},
		{"PUT", "/api/v1/tenants/acme/search", `{"spec": {"tier": "gold"}}`, `"1"`, 200, `"revision": 2`},
		{"PUT", "/api/v1/tenants/acme/search", `{"spec": {"tier": "gold"}}`, `1`, 400, `send the ETag as it came`},
		{"PUT", "/api/v1/tenants/acme", `{"spec": {}}`, `*`, 409, `"code": "read_only"`},
		{"POST", "/api/v1/tenants", `{"path": "acme/x", "spec": {"modles": ["a"]}}`, "", 400, `"param": "spec.modles"`},
		{"POST", "/api/v1/tenants", `{"path": "acme/x", "budget": 5}`, "", 400, `"param": "budget"`},
		{"POST", "/api/v1/tenants", `{"path": "acme/x", "path": "acme/y"}`, "", 400, `"message": "is given twice"`},
		{"POST", "/api/v1/tenants", `{"path": "acme/x", "spec": {"limits": [{"tokens": -1, "per": "1m"}]}}`, "", 400, `"param": "spec.limits[0].tokens"`},
		{"POST", "/api/v1/tenants", `{"path": "acme/x", "spec": {"limits": [{"tokens": 1.5, "per": "1m"}]}}`, "", 400, `must be a whole number`},
		{"POST", "/api/v1/tenants", `{"path": "acme/x", "spec": {"limits": [{"tokens": 5, "per": "1m"}, {"tokens": 6, "per": "1m"}]}}`, "", 400, "\"message\": \"limits the same as limits[0]\",\n    \"param\": \"spec.limits[1]\""},
		{"POST", "/api/v1/tenants", `path: acme/x`, "", 400, `is not JSON`},
		{"POST", "/api/v1/keys", `{"tenant": "acme/search", "name": "ci"}`, "", 201, `"secret": "pk_`},
		{"GET", "/api/v1/keys/acme%2Fsearch:ci", "", "", 200, `"state": "active"`},
		{"POST", "/api/v1/keys/acme%2Fsearch:ci/rotate", `{"grace": "1h"}`, "", 200, `"secret": "pk_`},
		{"POST", "/api/v1/keys/acme%2Fsearch:ci/rotate", `{"grace": "-1h"}`, "", 400, `"param": "grace"`},
		{"POST", "/api/v1/keys/acme%2Fsearch:ci/disable", "", "", 200, `"state": "disabled"`},
		{"POST", "/api/v1/keys/acme%2Fsearch:ci/enable", "", `"9"`, 412, `outdated`},
		{"POST", "/api/v1/keys/acme%2Fsearch:ci/enable", "", "", 200, `"state": "active"`},
		{"POST", "/api/v1/keys/acme:own/revoke", "", "", 409, `read_only`},
		{"DELETE", "/api/v1/tenants/acme/search", "", "*", 409, `"code": "in_use"`},
		{"GET", "/api/v1/keys?limit=1", "", "", 200, `"next": "YWNtZTpvd24"`},
		{"GET", "/api/v1/keys?limit=1&cursor=YWNtZTpvd24", "", "", 200, `"name": "ci"`},
		{"GET", "/api/v1/keys?limit=0", "", "", 400, `"param": "limit"`},
		{"GET", "/api/v1/keys?limit=1&limit=2", "", "", 400, `is given twice`},
		{"GET", "/api/v1/keys?page=2", "", "", 400, `it has tenant, limit, cursor`},
		{"GET", "/api/v1/keys?cursor=!", "", "", 400, `"param": "cursor"`},
		{"POST", "/api/v1/keys/acme%2Fsearch:ci/revoke", "", "", 200, `"state": "revoked"`},
		{"DELETE", "/api/v1/tenants/acme/search?dryRun=true", "", "*", 204, ""},
		{"DELETE", "/api/v1/tenants/acme/search", "", "*", 204, ""},
		{"GET", "/api/v1/tenants/acme/search", "", "", 404, ""},
		{"GET", "/api/v1/audit?limit=2", "", "", 200, `"action": "tenant.delete"`},
		{"PATCH", "/api/v1/keys/x", "", "", 405, `use GET or PUT`},
		{"GET", "/api/v1/prices", "", "", 404, ""},
		{"POST", "/api/v1/keys", strings.Repeat(" ", 1<<20+1), "", 413, ""},
	} {
		header := []string{"Content-Type", jsonType}
		if c.match != "" {
			header = append(header, "If-Match", c.match)
		}
		w := do(h, c.method, c.target, c.body, header...)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s %s: %d %s\nwant %d with %s", c.method, c.target, w.Code, w.Body, c.status, c.want)
		}
		if c.method == "GET" && strings.Contains(w.Body.String(), "pk_") && strings.Contains(w.Body.String(), `"secret"`) {
			t.Errorf("%s shows a secret", c.target)
		}
	}
	if w := do(h, "POST", "/api/v1/keys", `{}`); w.Code != 415 {
		t.Errorf("without a content type: %d", w.Code)
	}
	if w := do(h, "POST", "/api/v1/keys", `{}`, "Content-Type", jsonType, "Origin", "http://evil.example"); w.Code != 403 {
		t.Errorf("from another origin: %d", w.Code)
	}
	if w := do(h, "DELETE", "/api/v1/tenants/acme", "", "Sec-Fetch-Site", "cross-site"); w.Code != 403 {
		t.Errorf("a cross-site delete: %d", w.Code)
	}
}

func TestRoles(t *testing.T) {
	user := func(role string) config.AdminUser {
		return config.AdminUser{Name: role + "-user", Role: role, Hash: fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("token of "+role)))}
	}
	h := admin.Handler(apiOptions(t, user("viewer"), user("operator"), user("admin")))
	for _, c := range []struct {
		method, target, body string
		least                int // 0: nobody in particular, 1: viewer, 2: operator, 3: admin
	}{
		{"GET", "/healthz", "", 0},
		{"GET", "/readyz", "", 1},
		{"GET", "/metrics", "", 1},
		{"GET", "/config", "", 1},
		{"GET", "/api/openapi.json", "", 1},
		{"GET", "/api/v1/keys", "", 1},
		{"POST", "/explain", "{}", 2},
		{"GET", "/debug/pprof/goroutine?debug=1", "", 2},
		{"POST", "/api/v1/keys?dryRun=true", `{"tenant": "acme", "name": "x"}`, 2},
		{"POST", "/api/v1/tenants?dryRun=true", `{"path": "other"}`, 3},
		{"GET", "/api/v1/audit", "", 3},
	} {
		for i, token := range []string{"", "token of viewer", "token of operator", "token of admin"} {
			header := []string{"Content-Type", jsonType}
			if token != "" {
				header = append(header, "Authorization", "Bearer "+token)
			}
			w := do(h, c.method, c.target, c.body, header...)
			want := 403
			switch {
			case i >= c.least:
				want = 200
			case i == 0:
				want = 401
			}
			if w.Code == 201 {
				w.Code = 200
			}
			if w.Code != want {
				t.Errorf("%s %s with %q: %d, not %d", c.method, c.target, token, w.Code, want)
			}
			if need := [...]string{"", "viewer", "operator", "admin"}[c.least]; want == 403 && !strings.Contains(w.Body.String(), "has the role "+strings.TrimPrefix(token, "token of ")+", and this needs "+need) {
				t.Errorf("%s %s with %q: %s", c.method, c.target, token, w.Body)
			}
		}
		if w := do(h, c.method, c.target, c.body, "Authorization", "Bearer wrong"); c.least > 0 && w.Code != 401 {
			t.Errorf("%s with a wrong token: %d", c.target, w.Code)
		}
	}
	r := httptest.NewRequest("POST", "http://127.0.0.1:9901/api/v1/tenants", strings.NewReader(`{"path": "other"}`))
	r.Header.Set("Content-Type", jsonType)
	cert := &x509.Certificate{Subject: pkix.Name{CommonName: "deployer"}}
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}, VerifiedChains: [][]*x509.Certificate{{cert}}}
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != 201 {
		t.Errorf("with a certificate: %d %s", w.Code, w.Body)
	}
	if w := do(h, "GET", "/api/v1/audit", "", "Authorization", "Bearer token of admin"); !strings.Contains(w.Body.String(), `"actor": "certificate deployer"`) {
		t.Errorf("%s", w.Body)
	}
	r.TLS.VerifiedChains = nil
	r.Body = http.NoBody
	w = httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != 401 {
		t.Errorf("with a certificate that nobody has verified: %d", w.Code)
	}
}

// TestFilesAlone: without a store the API shows what the configuration has.
func TestFilesAlone(t *testing.T) {
	o := options()
	o.Tenancy = func() admin.Tenancy {
		return auth.Files{Config: &config.Config{Tenants: []config.Tenant{{Name: "acme"}}}}
	}
	o.Prices = func(_ context.Context, q url.Values) (any, error) { return map[string]string{"at": q.Get("at")}, nil }
	o.PricesQuery = []string{"at"}
	h := admin.Handler(o)
	for _, c := range []struct {
		method, target, body string
		status               int
		want                 string
	}{
		{"GET", "/api/v1/tenants", "", 200, `"origin": "file"`},
		{"GET", "/api/v1/audit", "", 200, `"items": []`},
		{"GET", "/api/v1/prices?at=now", "", 200, `"at": "now"`},
		{"GET", "/api/v1/prices?to=now", "", 400, `"param": "to"`},
		{"POST", "/api/v1/keys", `{"tenant": "acme", "name": "x"}`, 409, `write keys: {store: sqlite`},
	} {
		if w := do(h, c.method, c.target, c.body, "Content-Type", jsonType); w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s %s: %d %s", c.method, c.target, w.Code, w.Body)
		}
	}
}

// TestOpenAPI holds the document to what is served: every operation, every type,
// every field, and nothing that refers to nowhere.
func TestOpenAPI(t *testing.T) {
	h := admin.Handler(apiOptions(t))
	w := do(h, "GET", "/api/openapi.json", "")
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			OperationID string `json:"operationId"`
			Parameters  []struct{ Name, In string }
			Responses   map[string]any
		}
		Components struct {
			Schemas map[string]struct{ Properties map[string]any }
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil || doc.OpenAPI != "3.1.0" {
		t.Fatalf("%v: %s", err, w.Body)
	}
	ids := map[string]bool{}
	served := 0
	for at, methods := range doc.Paths {
		for method, op := range methods {
			served++
			if ids[op.OperationID] || op.OperationID == "" {
				t.Errorf("%s %s: operationId %q", method, at, op.OperationID)
			}
			ids[op.OperationID] = true
			if len(op.Responses) != 2 {
				t.Errorf("%s %s: %d responses", method, at, len(op.Responses))
			}
			for part := range strings.SplitSeq(at, "/") {
				if name, is := strings.CutPrefix(part, "{"); is {
					found := false
					for _, p := range op.Parameters {
						found = found || p.In == "path" && p.Name+"}" == name
					}
					if !found {
						t.Errorf("%s %s: no parameter %s", method, at, name)
					}
				}
			}
			if got := do(h, strings.ToUpper(method), strings.NewReplacer("{path}", "none", "{id}", "none").Replace(at), ""); got.Code == 405 {
				t.Errorf("%s %s is not served", method, at)
			}
		}
	}
	index := do(h, "GET", "/", "").Body.String()
	if n := strings.Count(index, "/api/v1/"); n != served {
		t.Errorf("%d operations are served, and %d are in the document", n, served)
	}
	var look func(t reflect.Type)
	seen := map[reflect.Type]bool{}
	look = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || seen[typ] {
			return
		}
		seen[typ] = true
		s, there := doc.Components.Schemas[typ.Name()]
		if !there {
			t.Errorf("%s is not in the document", typ.Name())
			return
		}
		for i := range typ.NumField() {
			f := typ.Field(i)
			if key := f.Tag.Get("yaml"); key != "" && s.Properties[key] == nil {
				t.Errorf("%s.%s is not in the document", typ.Name(), key)
			}
			look(f.Type)
		}
	}
	for _, v := range []any{admin.NewTenant{}, admin.TenantChange{}, admin.NewKey{}, admin.KeyChange{}, admin.Rotation{}, admin.TenantList{}, admin.KeyList{}, admin.AuditList{}, auth.Tenant{}, auth.Key{}} {
		look(reflect.TypeOf(v))
	}
	for rest := w.Body.String(); ; {
		_, after, found := strings.Cut(rest, `"#/components/schemas/`)
		if !found {
			break
		}
		name, tail, _ := strings.Cut(after, `"`)
		if _, there := doc.Components.Schemas[name]; !there {
			t.Errorf("%s is referred to and not there", name)
		}
		rest = tail
	}
}

// FuzzAPI: no body makes the API fail in another way than by saying what is wrong.
func FuzzAPI(f *testing.F) {
	f.Add("/api/v1/keys", `{"tenant": "acme", "name": "ci", "spec": {"limits": [{"tokens": 1, "per": "1m"}]}}`)
	f.Add("/api/v1/tenants", `{"path": "acme/search", "spec": {"kind": "team", "sources": ["10.0.0.0/8"]}}`)
	f.Add("/api/v1/keys/acme:own/rotate", `{"grace": "1h"}`)
	o := options()
	o.Tenancy = func() admin.Tenancy {
		return auth.Files{Config: &config.Config{Tenants: []config.Tenant{{Name: "acme"}}}}
	}
	h := admin.Handler(o)
	f.Fuzz(func(t *testing.T, target, body string) {
		u, err := url.Parse(target)
		if err != nil || !strings.HasPrefix(u.Path, "/api/v1/") {
			return
		}
		r := httptest.NewRequest("POST", "http://127.0.0.1:9901/", strings.NewReader(body))
		r.URL.Path, r.URL.RawQuery = u.Path, u.RawQuery
		r.Header.Set("Content-Type", jsonType)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code >= 500 || w.Code < 300 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	})
}

// TestAPILimits: limits come in pages by node, of one unit or of all, and an idle
// one is told with its zeros.
func TestAPILimits(t *testing.T) {
	o := apiOptions(t)
	o.Limits = func(_ context.Context, tenant, after string, n int) (admin.LimitPage, error) {
		switch {
		case tenant == "away":
			return admin.LimitPage{}, errors.New("refused")
		case n == 1 && after == "":
			return admin.LimitPage{Next: "acme", Limits: []admin.LimitStatus{{Node: "acme", Limit: "5 requests at a time", Unit: "concurrency", Amount: 5, Left: 5}}}, nil
		case after == "acme":
			return admin.LimitPage{Limits: []admin.LimitStatus{{Node: "acme/b", Limit: "1 USD per day", Unit: "usd", Amount: 1, Used: 0.25, Left: 0.75, Reset: 60}}}, nil
		}
		return admin.LimitPage{}, nil
	}
	h := admin.Handler(o)
	for _, c := range []struct {
		target string
		status int
		want   string
	}{
		{"/api/v1/limits?limit=1", 200, `{"items":[{"node":"acme","limit":"5 requests at a time","unit":"concurrency","amount":5,"used":0,"reserved":0,"left":5,"resetSeconds":0}],"next":"YWNtZQ"}`},
		{"/api/v1/limits?limit=1&unit=usd", 200, `{"items":[],"next":"YWNtZQ"}`},
		{"/api/v1/limits?limit=1&cursor=YWNtZQ", 200, `{"items":[{"node":"acme/b","limit":"1 USD per day","unit":"usd","amount":1,"used":0.25,"reserved":0,"left":0.75,"resetSeconds":60}]}`},
		{"/api/v1/limits?tenant=away", 503, `{"error":{"message":"the store of limits cannot be asked: refused","code":"store_unreachable","hint":"see quota.redis in the configuration"}}`},
		{"/api/v1/limits?limit=0", 400, `{"error":{"message":"is \"0\"","param":"limit","code":"invalid","hint":"a number from 1 to 1000"}}`},
	} {
		w := do(h, "GET", c.target, "")
		var got bytes.Buffer
		if err := json.Compact(&got, w.Body.Bytes()); err != nil || w.Code != c.status || got.String() != c.want {
			t.Errorf("%s: %d %s", c.target, w.Code, &got)
		}
	}
}
