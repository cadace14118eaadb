// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/penstock/penstock/config"
)

// The sources of members as the status names them.
const (
	sourceNone     = "none"     // somebody calls SetMembers, or nobody
	sourceExternal = "external" // the control plane, by SetMembers
	sourceStatic   = "static"
	sourceDNS      = "dns"
	sourceFile     = "file"
)

func sourceOf(m config.Members) string {
	switch {
	case m.External:
		return sourceExternal
	case m.DNS != "":
		return sourceDNS
	case m.File != "":
		return sourceFile
	case m.Static != nil:
		return sourceStatic
	}
	return sourceNone
}

const (
	lookupTimeout   = 5 * time.Second
	firstRetry      = time.Second     // while a source has never answered
	filePoll        = 5 * time.Second // where notifications fail or are not supported
	fileSettle      = 50 * time.Millisecond
	membersFileSize = 4 << 20
)

// discover starts the configured source anew; the channel is closed when it
// has answered or failed for the first time. lifeMu is held.
func (p *Pool) discover() (first <-chan struct{}) {
	answered := make(chan struct{})
	cfg := p.next.cfg.Members
	switch sourceOf(cfg) {
	case sourceDNS:
		p.run(discovering, func(ctx context.Context) { p.followDNS(ctx, cfg, sync.OnceFunc(func() { close(answered) })) })
	case sourceFile:
		p.run(discovering, func(ctx context.Context) { p.followFile(ctx, cfg.File, sync.OnceFunc(func() { close(answered) })) })
	default:
		close(answered)
	}
	return answered
}

// discovered takes over what a source has answered. An error keeps the last
// good set, and is logged when it begins and when it ends, not in between.
func (p *Pool) discovered(ctx context.Context, source string, members []config.Member, err error) {
	if ctx.Err() != nil {
		return
	}
	was := *p.discovery.Load()
	now := p.now()
	if err == nil {
		status := &DiscoveryStatus{Source: source, OK: true, Members: len(members), Changed: was.Changed}
		if !was.OK {
			status.Changed = now
			if was.LastError != "" {
				p.log.Info("discovery works again", "source", source, "members", len(members))
			}
		}
		p.replaceFrom(ctx, members, status)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	p.opts.Metrics.discoveryFailed(p.name)
	if was.OK || was.LastError == "" {
		p.log.Error("discovery fails; the last good members stay", "source", source, "error", err, "members", len(p.Snapshot().Members))
		was.Changed = now
	}
	was.OK = false
	was.LastError = err.Error()
	p.discovery.Store(&was)
}

// followDNS resolves the name again and again. Every A and AAAA record is a
// member at the configured port.
func (p *Pool) followDNS(ctx context.Context, cfg config.Members, answered func()) {
	good := false
	for {
		members, err := p.lookup(ctx, cfg.DNS)
		p.discovered(ctx, sourceDNS, members, err)
		answered()
		good = good || err == nil
		wait := cfg.Refresh.D()
		if !good {
			wait = min(wait, firstRetry)
		}
		if !sleep(ctx, jitter(wait)) {
			return
		}
	}
}

func (p *Pool) lookup(ctx context.Context, name string) ([]config.Member, error) {
	host, port, err := net.SplitHostPort(name)
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addrs, err := p.opts.Resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("no address for %s", host)
	}
	members := make([]config.Member, len(addrs))
	for i, a := range addrs {
		members[i].Address = netip.AddrPortFrom(a.Unmap(), uint16(n)).String()
	}
	return members, nil
}

// followFile reads the file when its folder changes, since editors and mounted
// volumes replace files rather than write them, and polls besides.
func (p *Pool) followFile(ctx context.Context, path string, answered func()) {
	var events chan fsnotify.Event
	var failures chan error
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		err = watcher.Add(filepath.Dir(path))
		events, failures = watcher.Events, watcher.Errors
	}
	if err != nil {
		p.log.Warn("members file is polled only", "file", path, "error", err)
	}
	poll := time.NewTicker(filePoll)
	defer poll.Stop()
	settle := time.NewTimer(0)
	<-settle.C
	var last []byte
	for {
		text, err := readBounded(path, membersFileSize)
		if err != nil || last == nil || !bytes.Equal(text, last) || !p.discovery.Load().OK {
			var members []config.Member
			if err == nil {
				members, err = ParseMembers(text)
			}
			p.discovered(ctx, sourceFile, members, err)
			last = text
		}
		answered()
		for again := false; !again; {
			select {
			case <-ctx.Done():
				return
			case <-events:
				settle.Reset(fileSettle)
			case err := <-failures:
				p.log.Warn("members file: watch failed", "file", path, "error", err)
			case <-settle.C:
				again = true
			case <-poll.C:
				again = true
			}
		}
	}
}

func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a named pipe is not waited for
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s: larger than %d bytes", path, limit)
	}
	return text, err
}

// jitter spreads d by a tenth to either side.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}

// sleep says whether d has passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

var errNoList = errors.New("members file: holds no list; an empty pool is written []")
