// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package keystore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/auth"
	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/internal/postgrestest"
)

// bed is one database and a configuration beside it.
type bed struct {
	cfg  config.Keys
	file *config.Config
	now  time.Time
}

const pepper = "a pepper of sixteen"

var server postgrestest.Server

func TestMain(m *testing.M) {
	code := m.Run()
	server.Stop()
	os.Exit(code)
}

// each runs a test with every database.
func each(t *testing.T, test func(t *testing.T, b *bed)) {
	file := &config.Config{Tenants: []config.Tenant{
		{Name: "acme", Models: []string{"chat*"}, Regions: []string{"eu", "us"}, Keys: []config.Key{{Name: "own", Hash: "sha256:" + strings.Repeat("a", 64)}}},
	}}
	t.Run("sqlite", func(t *testing.T) {
		test(t, &bed{file: file, cfg: config.Keys{Store: config.KeysSQLite, Path: filepath.Join(t.TempDir(), "a dir?", "keys #1.db"), Pepper: pepper, Refresh: config.Duration(20 * time.Millisecond)}})
	})
	t.Run("postgres", func(t *testing.T) {
		b := &bed{file: file, cfg: config.Keys{Store: config.KeysPostgres, DSN: config.Secret(server.Database(t)), Pepper: pepper, Refresh: config.Duration(50 * time.Millisecond)}}
		test(t, b)
	})
}

// gateway is a store as one gateway has it, with who its keys let in.
type gateway struct {
	*Store
	registry *auth.Registry
	file     *config.Config
}

func (b *bed) gateway(t *testing.T) *gateway {
	t.Helper()
	if b.cfg.Path != "" {
		_ = os.MkdirAll(filepath.Dir(b.cfg.Path), 0o700)
	}
	g := &gateway{registry: auth.NewRegistry(), file: b.file}
	var err error
	g.Store, err = Open(t.Context(), Options{Config: b.cfg, Registry: g.registry, File: func() *config.Config { return b.file }, Now: func() time.Time {
		if b.now.IsZero() {
			return time.Now()
		}
		return b.now
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

// knows says whether a secret lets somebody in.
func (g *gateway) knows(secret string) bool {
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header.Set("Authorization", "Bearer "+secret)
	_, fail := auth.New(g.file.Tenants, g.registry).Identify(r)
	return fail == nil
}

// soon waits until a gateway has followed.
func soon(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); {
		if time.Now().After(end) {
			t.Fatalf("%s: not seen", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (g *gateway) must(t *testing.T, e auth.Edit) *auth.Outcome {
	t.Helper()
	out, err := g.Do(t.Context(), e)
	if err != nil {
		t.Fatalf("%s %s: %v", e.Action, e.Target, err)
	}
	return out
}

func key(target, name string) auth.Edit {
	return auth.Edit{Action: auth.CreateKey, Target: target, Name: name, Key: &auth.KeySpec{}, Actor: "a test", Role: "admin"}
}

func TestLifeOfAKey(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		one, two := b.gateway(t), b.gateway(t)
		made := one.must(t, key("acme", "ci")).Key
		if !one.knows(made.Secret) {
			t.Error("the gateway that made a key does not know it")
		}
		soon(t, "the key at the other gateway", func() bool { return two.knows(made.Secret) })

		rotated := two.must(t, auth.Edit{Action: auth.RotateKey, Target: made.ID, Grace: time.Hour}).Key
		if !two.knows(rotated.Secret) || !two.knows(made.Secret) || rotated.Revision != 2 {
			t.Error("a rotation with grace")
		}
		soon(t, "the rotation", func() bool { return one.knows(rotated.Secret) && one.knows(made.Secret) })
		again := one.must(t, auth.Edit{Action: auth.RotateKey, Target: "acme:ci"}).Key
		if one.knows(made.Secret) || one.knows(rotated.Secret) || !one.knows(again.Secret) || len(again.Secrets) != 1 {
			t.Errorf("a rotation without grace: %+v", again.Secrets)
		}
		one.must(t, auth.Edit{Action: auth.DisableKey, Target: made.ID})
		soon(t, "that it is disabled", func() bool { return !two.knows(again.Secret) && !one.knows(again.Secret) })
		one.must(t, auth.Edit{Action: auth.EnableKey, Target: made.ID})
		soon(t, "that it is enabled", func() bool { return two.knows(again.Secret) })
		one.must(t, auth.Edit{Action: auth.RevokeKey, Target: made.ID})
		if one.knows(again.Secret) {
			t.Error("the gateway that revoked a key knows it")
		}
		soon(t, "the revocation", func() bool { return !two.knows(again.Secret) })
		if _, err := one.Do(t.Context(), auth.Edit{Action: auth.EnableKey, Target: made.ID}); err == nil {
			t.Error("a revoked key is enabled")
		}
		one.must(t, key("acme", "ci")) // the name is free again

		third := b.gateway(t) // reads the whole
		if third.knows(again.Secret) || third.registry.Len() != 1 {
			t.Errorf("a gateway that starts now knows %d keys", third.registry.Len())
		}
		rows, err := one.Audit(t.Context(), 0, 100)
		if err != nil || len(rows) != 7 || rows[6].Action != "key.create" || rows[6].Actor != "a test" || rows[0].Before != nil || rows[1].Before == nil {
			t.Errorf("%v, %d rows: %+v", err, len(rows), rows)
		}
		if text := fmt.Sprint(rows); strings.Contains(text, made.Secret[10:]) || strings.Contains(text, again.Secret[10:]) {
			t.Error("the audit trail has a secret")
		}
	})
}

// TestLastUseIsWritten: it is there for everybody, and an edit does not undo it.
func TestLastUseIsWritten(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		g := b.gateway(t)
		made := g.must(t, key("acme", "ci")).Key
		if !g.knows(made.Secret) {
			t.Fatal("the key is not known")
		}
		g.writeUsed(t.Context())
		for range 2 {
			k, err := g.Key(t.Context(), made.ID)
			if err != nil || k.LastUsed == "" || k.Revision != 1 {
				t.Errorf("%v %+v", err, k)
			}
			g.writeUsed(t.Context())
		}
	})
}

// TestNoSecretIsStored looks for secrets in the bytes of the database.
func TestNoSecretIsStored(t *testing.T) {
	b := &bed{file: &config.Config{Tenants: []config.Tenant{{Name: "acme"}}}, cfg: config.Keys{Store: config.KeysSQLite, Path: filepath.Join(t.TempDir(), "keys.db"), Pepper: pepper, Refresh: config.Duration(time.Minute)}}
	g := b.gateway(t)
	secret := g.must(t, key("acme", "ci")).Key.Secret
	g.Close()
	files, _ := filepath.Glob(b.cfg.Path + "*")
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(raw), secret[8:]) || strings.Contains(string(raw), pepper) {
			t.Errorf("%s holds a secret", name)
		}
		if st, _ := os.Stat(name); st.Mode().Perm() != 0o600 {
			t.Errorf("%s can be read by others: %s", name, st.Mode())
		}
	}
}

func TestRefusals(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		g := b.gateway(t)
		tenant := func(path string, s auth.TenantSpec) auth.Edit {
			return auth.Edit{Action: auth.CreateTenant, Target: path, Tenant: &s}
		}
		g.must(t, tenant("acme/search", auth.TenantSpec{Deny: []string{"chat-hr"}}))
		k := g.must(t, key("acme/search", "ci")).Key
		update := auth.Edit{Action: auth.UpdateTenant, Target: "acme/search", Tenant: &auth.TenantSpec{}, Revision: 7}
		limits := key("acme", "x")
		if err := config.DecodeJSON([]byte(`{"limits": [{"tokens": 5}]}`), limits.Key); err != nil {
			t.Fatal(err)
		}
		denied := key("acme/search", "x")
		denied.Key = &auth.KeySpec{Models: []string{"chat-hr"}}
		for _, c := range []struct {
			edit        auth.Edit
			kind        auth.FaultKind
			param, want string
		}{
			{tenant("acme", auth.TenantSpec{}), auth.Exists, "path", "tenant acme is there already, in the configuration"},
			{auth.Edit{Action: auth.UpdateTenant, Target: "acme", Tenant: &auth.TenantSpec{}}, auth.ReadOnly, "", "tenant acme is in the configuration (tenants[0])"},
			{auth.Edit{Action: auth.RevokeKey, Target: "acme:own"}, auth.ReadOnly, "", "key acme:own is in the configuration (tenants[0])"},
			{tenant("acme/search", auth.TenantSpec{}), auth.Exists, "path", "tenant acme/search is there already"},
			{tenant("none/search", auth.TenantSpec{}), auth.Invalid, "path", `there is no tenant "none"`},
			{tenant("acme/a b", auth.TenantSpec{}), auth.Invalid, "path", `"a b" is not a name`},
			{tenant("acme/x", auth.TenantSpec{Regions: []string{"mars"}}), auth.Invalid, "spec.regions[0]", `"mars" is not allowed to the parent, acme`},
			{tenant("acme/x", auth.TenantSpec{Models: []string{"gpt"}}), auth.Invalid, "spec.models[0]", `"gpt" is not allowed to tenant acme`},
			{tenant("acme/x", auth.TenantSpec{Kind: "organisation"}), auth.Invalid, "spec.kind", "organisation below organisation is not the order"},
			{tenant("acme/x/y", auth.TenantSpec{}), auth.Invalid, "path", `there is no tenant "acme/x"`},
			{update, auth.Outdated, "", "acme/search has changed since: it is at revision 1, and revision 7 was to be changed"},
			{auth.Edit{Action: auth.DeleteTenant, Target: "acme/search"}, auth.InUse, "", "tenant acme/search has 1 keys"},
			{auth.Edit{Action: auth.DeleteTenant, Target: "nobody"}, auth.NotFound, "", "there is no tenant nobody"},
			{key("acme/search", "ci"), auth.Exists, "name", "tenant acme/search has a key ci already"},
			{key("acme", "own"), auth.Exists, "name", "tenant acme has a key own already, in the configuration"},
			{key("nobody", "ci"), auth.Invalid, "tenant", `there is no tenant "nobody"`},
			{key("acme", "a:b"), auth.Invalid, "name", `"a:b" is not a name`},
			{limits, auth.Invalid, "spec.limits[0].per", "is missing"},
			{denied, auth.Invalid, "spec.models[0]", `"chat-hr" is not allowed to tenant acme/search`},
			{auth.Edit{Action: auth.RotateKey, Target: "key_none"}, auth.NotFound, "", "there is no key key_none"},
			{auth.Edit{Action: auth.RotateKey, Target: k.ID, Revision: 3}, auth.Outdated, "", "has changed since"},
		} {
			_, err := g.Do(t.Context(), c.edit)
			var f *auth.Fault
			if !errors.As(err, &f) || f.Kind != c.kind || f.Param != c.param || !strings.Contains(f.Message, c.want) {
				t.Errorf("%s %s %s: %v\nwant %d %s %s", c.edit.Action, c.edit.Target, c.edit.Name, err, c.kind, c.param, c.want)
			}
		}
		rows, _ := g.Audit(t.Context(), 0, 100)
		if len(rows) != 2 {
			t.Errorf("refusals are in the audit trail: %d rows", len(rows))
		}
		dry := key("acme/search", "dry")
		dry.DryRun = true
		if out := g.must(t, dry); out.Key.Secret != "" {
			t.Error("a dry run gives a secret")
		}
		if _, err := g.Key(t.Context(), "acme/search:dry"); err == nil {
			t.Error("a dry run makes a key")
		}
	})
}

// TestConcurrentEdits has two gateways edit at once: of those who have read the
// same revision one alone succeeds, and every follower has seen every edit.
func TestConcurrentEdits(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		one, two := b.gateway(t), b.gateway(t)
		k := one.must(t, key("acme", "ci")).Key
		var wg sync.WaitGroup
		var mu sync.Mutex
		won := 0
		for i := range 10 {
			wg.Go(func() {
				g := []*gateway{one, two}[i%2]
				_, err := g.Do(context.Background(), auth.Edit{Action: auth.UpdateKey, Target: k.ID, Key: &auth.KeySpec{Tier: fmt.Sprint(i)}, Revision: 1})
				mu.Lock()
				defer mu.Unlock()
				var f *auth.Fault
				switch {
				case err == nil:
					won++
				case errors.As(err, &f) && f.Kind == auth.Outdated:
				default:
					t.Error(err)
				}
			})
			wg.Go(func() {
				e := key("acme", fmt.Sprintf("k-%d", i))
				if _, err := []*gateway{one, two}[i%2].Do(context.Background(), e); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won != 1 {
			t.Errorf("%d of 10 edits of one revision succeed", won)
		}
		soon(t, "every key at both", func() bool { return one.registry.Len() == 11 && two.registry.Len() == 11 })
	})
}

func TestPages(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		g := b.gateway(t)
		for i := range 7 {
			g.must(t, auth.Edit{Action: auth.CreateTenant, Target: fmt.Sprintf("acme/t%d", i), Tenant: &auth.TenantSpec{}})
			g.must(t, key("acme", fmt.Sprintf("k%d", i)))
		}
		var tenants, keys []string
		for p := (auth.Page{Limit: 3}); ; {
			page, err := g.Tenants(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				break
			}
			for _, x := range page {
				tenants = append(tenants, x.Path)
			}
			p.After = page[len(page)-1].Path
		}
		for p := (auth.Page{Limit: 3, Tenant: "acme"}); ; {
			page, err := g.Keys(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				break
			}
			for _, x := range page {
				keys = append(keys, x.Name)
			}
			p.After = page[len(page)-1].ID
		}
		if got := strings.Join(tenants, " "); got != "acme acme/t0 acme/t1 acme/t2 acme/t3 acme/t4 acme/t5 acme/t6" {
			t.Error(got)
		}
		if len(keys) != 8 || keys[0] != "own" {
			t.Error(keys)
		}
		if page, err := g.Tenants(t.Context(), auth.Page{Limit: 9, Tenant: "acme/t"}); err != nil || len(page) != 0 {
			t.Errorf("%v %v: the beginning of a name is no tenant above", err, page)
		}
	})
}

// TestStoreAway: what is known stays as long as it may, then nobody is let in.
func TestStoreAway(t *testing.T) {
	b := &bed{file: &config.Config{Tenants: []config.Tenant{{Name: "acme"}}}, cfg: config.Keys{
		Store: config.KeysSQLite, Path: filepath.Join(t.TempDir(), "keys.db"), Pepper: pepper, Refresh: config.Duration(time.Hour), MaxStale: config.Duration(time.Minute),
	}}
	g := b.gateway(t)
	secret := g.must(t, key("acme", "ci")).Key.Secret
	g.db.Close()
	g.Refresh(t.Context())
	if since, why := g.Status(); why == "" || since.IsZero() {
		t.Error("nothing tells that the store is away")
	}
	if !g.knows(secret) {
		t.Error("a key is forgotten while the store is away")
	}
	g.believe(time.Now().Add(-2 * time.Minute))
	if g.knows(secret) {
		t.Error("a key is believed for longer than maxStale")
	}
	if _, err := g.Do(t.Context(), key("acme", "more")); err == nil || !strings.Contains(err.Error(), "nothing was changed") {
		t.Error(err)
	}
}

func TestOpenRefusals(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.db")
	if err := os.WriteFile(text, []byte(strings.Repeat("this is no database\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cfg  config.Keys
		want string
	}{
		{config.Keys{Store: config.KeysSQLite, Path: text}, "is no SQLite database"},
		{config.Keys{Store: config.KeysSQLite, Path: filepath.Join(dir, "none", "x.db")}, "its directory must be there"},
		{config.Keys{Store: config.KeysPostgres, DSN: "postgres://u:hidden@127.0.0.1:1/x?connect_timeout=1"}, "PostgreSQL of the keys"},
		{config.Keys{Store: config.KeysPostgres, DSN: "hidden:// nonsense"}, "is not an address of PostgreSQL"},
	} {
		c.cfg.Pepper = pepper
		_, err := Open(t.Context(), Options{Config: c.cfg, Registry: auth.NewRegistry()})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", c.cfg.Path, err)
		}
	}
}

// Whoever changes the pepper and forgets the older one reads it in the log.
func TestForeignPepperIsTold(t *testing.T) {
	each(t, func(t *testing.T, b *bed) {
		first := b.gateway(t)
		first.must(t, key("acme", "a"))
		first.must(t, key("acme", "b"))
		for _, c := range []struct {
			old  []config.Secret
			want int
		}{{nil, 1}, {[]config.Secret{pepper}, 0}} {
			var log strings.Builder
			cfg := b.cfg
			cfg.Pepper, cfg.OldPeppers = "another pepper of sixteen", c.old
			s, err := Open(t.Context(), Options{Config: cfg, Registry: auth.NewRegistry(), Log: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			s.Close()
			line := "secrets=2 here=" + s.peppers.Current()
			if n := strings.Count(log.String(), line); n != c.want || strings.Contains(log.String(), pepper) {
				t.Errorf("%v: want %d times %s in:\n%s", c.old, c.want, line, log.String())
			}
		}
	})
}
