// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/penstock/penstock/config"
)

// state is the last good state: what is in force and what the controller is
// told is there.
type state struct {
	Config  saved            `json:"config"`
	Members map[string]saved `json:"members"` // by pool
}

// saved is a resource as it came: its version is that of these bytes.
type saved struct {
	Version string `json:"version"`
	Value   []byte `json:"value"`
}

const (
	stateFile = "state"
	// stateMark begins the file; the digest of the rest follows it.
	stateMark = "penstock-state-1 "
	maxState  = 256 << 20
)

// formatState is the content of the file.
func formatState(s state) ([]byte, error) {
	body, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	return append([]byte(stateMark+hex.EncodeToString(sum[:])+"\n"), body...), nil
}

// parseState refuses whatever is not whole.
func parseState(text []byte) (state, error) {
	head, body, ok := bytes.Cut(text, []byte("\n"))
	digest, marked := bytes.CutPrefix(head, []byte(stateMark))
	if !ok || !marked {
		return state{}, errors.New("is no state of this kind")
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != string(digest) {
		return state{}, errors.New("is damaged: the checksum differs")
	}
	var s state
	if err := json.Unmarshal(body, &s); err != nil {
		return state{}, err
	}
	if s.Members == nil {
		s.Members = map[string]saved{}
	}
	return s, nil
}

// restore puts the saved state in force. What cannot be used is logged and left
// alone: the controller will send it anew.
func (c *Client) restore() {
	if c.o.StateDir == "" {
		return
	}
	path := filepath.Join(c.o.StateDir, stateFile)
	for _, left := range leftovers(path) {
		os.Remove(left) // of a writer that was killed; they would fill a volume in memory
	}
	s, cfg, err := readState(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		c.log.Error("the saved state cannot be used; waiting for the controller", "file", path, "error", err)
		return
	}
	for _, pool := range slices.Sorted(maps.Keys(s.Members)) {
		list, err := decodeMembers(s.Members[pool].Value)
		if err != nil {
			c.log.Error("saved members cannot be used", "pool", pool, "error", err)
			delete(s.Members, pool)
			continue
		}
		c.o.Target.SetMembers(pool, list)
	}
	if err := c.o.Target.Apply(cfg); err != nil {
		c.log.Error("the saved configuration is refused; waiting for the controller", "file", path, "error", err)
		s.Config = saved{}
	} else {
		c.log.Info("started from the saved state", "file", path, "version", s.Config.Version, "pools", len(s.Members))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = s
	if v := s.Config.Version; v != "" {
		c.status.Version, c.status.Applied, c.status.Saved = v, time.Now(), true
	}
}

func leftovers(path string) []string {
	names, _ := filepath.Glob(path + ".*") // the pattern is ours and well formed but for odd directories
	return names
}

func readState(path string) (state, *config.Config, error) {
	st, err := os.Stat(path)
	if err != nil {
		return state{}, nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxState {
		return state{}, nil, errors.New("is not a plain file of a sensible size")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return state{}, nil, err
	}
	s, err := parseState(text)
	if err != nil {
		return state{}, nil, err
	}
	if s.Config.Version == "" {
		return state{}, nil, errors.New("holds no configuration")
	}
	cfg, err := config.Decode(s.Config.Value)
	return s, cfg, err
}

// save lets the state be saved soon.
func (c *Client) save() {
	select {
	case c.saves <- struct{}{}:
	default:
	}
}

// keepSaved saves what changes until ctx ends, and then once more.
func (c *Client) keepSaved(ctx context.Context) {
	if c.o.StateDir == "" {
		return
	}
	for {
		select {
		case <-c.saves:
			c.saveNow()
			sleep(ctx, saveEvery)
		case <-ctx.Done():
			select {
			case <-c.saves:
				c.saveNow()
			default:
			}
			return
		}
	}
}

func (c *Client) saveNow() {
	c.mu.Lock()
	s := state{Config: c.state.Config, Members: maps.Clone(c.state.Members)}
	c.mu.Unlock()
	if s.Config.Version == "" {
		return // members alone are nothing to start from
	}
	if err := writeState(c.o.StateDir, s); err != nil {
		c.o.Metrics.saved.WithLabelValues("failed").Inc()
		c.log.Error("the state is not saved; a restart would wait for the controller", "directory", c.o.StateDir, "error", err)
		return
	}
	c.o.Metrics.saved.WithLabelValues("ok").Inc()
}

// writeState replaces the file whole: a reader finds the old or the new one.
// Only the owner may read it, since it holds secrets.
func writeState(dir string, s state) error {
	text, err := formatState(s)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, stateFile+".*") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, stateFile))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("save the state: %w", err), os.Remove(f.Name()))
	}
	return nil
}
