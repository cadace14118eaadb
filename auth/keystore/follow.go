// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package keystore

import (
	"context"
	"database/sql"
	"encoding/hex"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/auth"
	"github.com/penstock/penstock/config"
)

// follower is how far the registry has come.
type follower struct {
	poke    chan struct{} // look now
	reading sync.Mutex    // one look at a time
	seq     int64         // of the last change that the registry knows; guarded by reading
	reached atomic.Int64  // when the store answered last, Unix nanoseconds
	broken  atomic.Pointer[string]
}

const (
	page       = 5000 // rows at a time
	usedEvery  = 10 * time.Second
	listenWait = time.Second // between two tries to listen
)

// Status tells since when the store cannot be asked, and why; nil: it can.
func (s *Store) Status() (since time.Time, why string) {
	if f := s.broken.Load(); f != nil {
		return time.Unix(0, s.reached.Load()), *f
	}
	return time.Time{}, ""
}

// begin starts what runs until Close.
func (s *Store) begin() {
	ctx, cancel := context.WithCancel(context.Background())
	s.closing = cancel
	s.done.Go(func() { s.Follow(ctx) })
	if s.postgres {
		s.done.Go(func() { s.listen(ctx) })
	}
}

// Follow tells the registry of changes until ctx ends: every refresh, and at once
// after an edit by this process, or with PostgreSQL by any. While the store
// cannot be asked the registry keeps what it has, as long as maxStale says.
func (s *Store) Follow(ctx context.Context) {
	look, write := time.NewTicker(s.Config.Refresh.D()), time.NewTicker(usedEvery)
	defer look.Stop()
	defer write.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.Background(), time.Second)
			s.writeUsed(last)
			cancel()
			return
		case <-write.C:
			s.writeUsed(ctx)
		case <-look.C:
			s.Refresh(ctx)
		case <-s.poke:
			s.Refresh(ctx)
		}
	}
}

// Refresh brings the registry up to date.
func (s *Store) Refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := s.refresh(ctx)
	if err != nil && ctx.Err() == context.Canceled {
		return
	}
	s.note(err)
}

// note keeps how it went, and says so once when that changes.
func (s *Store) note(err error) {
	if err == nil {
		now := s.Now()
		s.reached.Store(now.UnixNano())
		if s.broken.Swap(nil) != nil {
			s.Log.Info("the store of keys answers again")
		}
		s.believe(now)
		s.Metrics.up(true)
		return
	}
	text := s.explain(err).Error()
	if s.broken.Swap(&text) == nil {
		s.Log.Error("the store of keys cannot be asked; keys stay as they are", "error", text, "maxStale", s.Config.MaxStale.String())
	}
	s.Metrics.up(false)
}

func (s *Store) believe(from time.Time) {
	if s.Config.MaxStale > 0 {
		s.Registry.Believe(from.Add(s.Config.MaxStale.D()))
	} else {
		s.Registry.Believe(time.Time{})
	}
}

func (s *Store) refresh(ctx context.Context) error {
	s.reading.Lock()
	defer s.reading.Unlock()
	newest, err := s.sequence(ctx)
	switch {
	case err != nil || newest == s.seq:
		return err
	case newest < s.seq: // an older copy was put in its place
		return s.loadAll(ctx, newest)
	}
	if err := s.changes(ctx, s.seq, nil, nil); err != nil {
		return err
	}
	s.seq = newest
	return nil
}

func (s *Store) sequence(ctx context.Context) (n int64, err error) {
	return n, s.db.QueryRowContext(ctx, "SELECT value FROM auth_meta WHERE name = 'sequence'").Scan(&n)
}

// load reads the whole store.
func (s *Store) load(ctx context.Context) error {
	s.reading.Lock()
	defer s.reading.Unlock()
	newest, err := s.sequence(ctx)
	if err != nil {
		return err
	}
	err = s.loadAll(ctx, newest)
	s.note(err)
	return err
}

func (s *Store) loadAll(ctx context.Context, newest int64) error {
	tenants, keys := map[string]bool{}, map[string]bool{}
	if err := s.changes(ctx, -1, tenants, keys); err != nil {
		return err
	}
	s.Registry.Retain(tenants, keys)
	s.seq = newest
	return nil
}

// changes tells the registry of everything that was changed after number since.
// What is there is put into tenants and keys, where these are not nil.
func (s *Store) changes(ctx context.Context, since int64, tenants, keys map[string]bool) error {
	rows, err := s.db.QueryContext(ctx, s.bind("SELECT path, gone, spec FROM auth_tenants WHERE seq > ?"), since)
	if err != nil {
		return err
	}
	var list []auth.StoredTenant
	for rows.Next() {
		var t auth.StoredTenant
		var gone int64
		var spec string
		if err := rows.Scan(&t.Path, &gone, &spec); err != nil {
			rows.Close()
			return err
		}
		t.Gone = gone != 0 || !s.read("tenant "+t.Path, spec, &t.Spec)
		if tenants != nil && !t.Gone {
			tenants[t.Path] = true
		}
		list = append(list, t)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	s.Registry.Apply(list, nil)
	for after := ""; ; {
		batch, err := s.keysSince(ctx, since, after)
		if err != nil {
			return err
		}
		for i := range batch {
			if keys != nil && !batch[i].Gone {
				keys[batch[i].ID] = true
			}
		}
		s.Registry.Apply(nil, batch)
		if len(batch) < page {
			return nil
		}
		after = batch[len(batch)-1].ID
	}
}

// read decodes a spec. One that this version cannot read shuts its owner out,
// since nobody can say what it forbids.
func (s *Store) read(what, text string, into any) bool {
	if text == "{}" {
		return true
	}
	if err := config.DecodeJSON([]byte(text), into); err != nil {
		s.Log.Error("what is stored of a "+what+" cannot be read, so it is not let in; was it written by a newer penstock?", "error", err)
		return false
	}
	return true
}

// keysSince is a page of keys with their secrets, in the order of their IDs.
func (s *Store) keysSince(ctx context.Context, since int64, after string) ([]auth.StoredKey, error) {
	rows, err := s.db.QueryContext(ctx, s.bind(`SELECT k.id, k.tenant, k.name, k.revoked, k.spec, COALESCE(u.at, 0) FROM auth_keys k
		LEFT JOIN auth_last_used u ON u.key_id = k.id WHERE k.seq > ? AND k.id > ? ORDER BY k.id LIMIT ?`), since, after, page)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []auth.StoredKey
	at := map[string]int{}
	for rows.Next() {
		var k auth.StoredKey
		var revoked int64
		var spec string
		if err := rows.Scan(&k.ID, &k.Tenant, &k.Name, &revoked, &spec, &k.LastUsed); err != nil {
			return nil, err
		}
		k.Gone = revoked != 0 || !s.read("key "+k.ID, spec, &k.Spec)
		at[k.ID] = len(out)
		out = append(out, k)
	}
	if err := rows.Err(); err != nil || len(out) == 0 {
		return out, err
	}
	return out, s.secretsOf(ctx, since, after, out[len(out)-1].ID, func(id string, x auth.StoredSecret) {
		if i, there := at[id]; there {
			out[i].Secrets = append(out[i].Secrets, x)
		}
	})
}

func (s *Store) secretsOf(ctx context.Context, since int64, after, last string, each func(id string, x auth.StoredSecret)) error {
	rows, err := s.db.QueryContext(ctx, s.bind(`SELECT s.key_id, s.digest, s.expires FROM auth_secrets s JOIN auth_keys k ON k.id = s.key_id
		WHERE k.seq > ? AND k.id > ? AND k.id <= ? ORDER BY s.key_id, s.created`), since, after, last)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id, digest string
		var x auth.StoredSecret
		if err := rows.Scan(&id, &digest, &x.Until); err != nil {
			return err
		}
		if n, err := hex.Decode(x.Digest[:], []byte(digest)); err != nil || n != len(x.Digest) {
			continue
		}
		each(id, x)
	}
	return rows.Err()
}

// writeUsed writes when keys were used last.
func (s *Store) writeUsed(ctx context.Context) {
	used := s.Registry.Used()
	if len(used) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return // the next use is written, a minute later
	}
	defer tx.Rollback()
	write, err := tx.PrepareContext(ctx, s.bind(`INSERT INTO auth_last_used (key_id, at) VALUES (?, ?)
		ON CONFLICT (key_id) DO UPDATE SET at = excluded.at WHERE excluded.at > auth_last_used.at`))
	if err != nil {
		return
	}
	defer write.Close()
	for id, at := range used {
		if _, err := write.ExecContext(ctx, id, at); err != nil {
			return
		}
	}
	_ = tx.Commit()
}

// listen waits for PostgreSQL's word of changes. Without it they are found at
// the next refresh.
func (s *Store) listen(ctx context.Context) {
	for ctx.Err() == nil {
		conn, err := pgx.Connect(ctx, s.Config.DSN.Reveal())
		if err == nil {
			if _, err = conn.Exec(ctx, "LISTEN penstock_auth"); err == nil {
				for err == nil {
					if _, err = conn.WaitForNotification(ctx); err == nil {
						s.look()
					}
				}
			}
			end, cancel := context.WithTimeout(context.Background(), time.Second)
			conn.Close(end)
			cancel()
		}
		select {
		case <-ctx.Done():
		case <-time.After(listenWait):
		}
	}
}

// look has the follower look now.
func (s *Store) look() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// isNone says that a query found nothing.
func isNone(err error) bool { return err == sql.ErrNoRows }
