// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// progress shows how far a long task has come: a bar on a terminal, a line
// every few seconds elsewhere.
type progress struct {
	w     io.Writer
	what  string
	total int
	tty   bool

	mu           sync.Mutex
	shown        time.Time
	done, failed int
}

func newProgress(w io.Writer, what string, total int) *progress {
	p := &progress{w: w, what: what, total: total}
	if f, ok := w.(*os.File); ok {
		info, err := f.Stat()
		p.tty = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

func (p *progress) step(done, failed int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.failed = max(p.done, done), max(p.failed, failed)
	every := 3 * time.Second
	if p.tty {
		every = 100 * time.Millisecond
	}
	if time.Since(p.shown) < every {
		return
	}
	p.shown = time.Now()
	p.show()
}

func (p *progress) show() {
	text := fmt.Sprintf("%s %d of %d requests", p.what, p.done, p.total)
	if p.failed > 0 {
		text += fmt.Sprintf(", %d failed", p.failed)
	}
	if p.tty {
		n := 30 * p.done / max(1, p.total)
		fmt.Fprintf(p.w, "\r%s [%s%s] ", text, strings.Repeat("#", n), strings.Repeat("·", 30-n))
	} else {
		fmt.Fprintln(p.w, text)
	}
}

func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.show()
	if p.tty {
		fmt.Fprintln(p.w)
	}
}
