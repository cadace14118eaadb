// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	liveEvery   = time.Second
	liveJoin    = 100 * time.Millisecond // bounds what those who come and go cost
	liveClients = 64
	liveWrite   = 5 * time.Second // a client that takes no bytes for so long is let go
	liveCompute = 800 * time.Millisecond
)

// hub tells browsers what has changed, about once a second. What a topic shows is
// computed once for all of them, and only while somebody watches.
type hub struct {
	topics  map[string]func(ctx context.Context) any
	metrics *ConsoleInstruments
	every   time.Duration
	write   time.Duration

	mu      sync.Mutex
	clients map[*watcher]bool
	running bool
	joined  chan struct{} // of one: somebody came, who is not to wait for a second
}

// watcher is one client. It takes the newest state of things: what it was too slow
// for is passed over.
type watcher struct {
	topics []string
	next   chan map[string][]byte // of one; frames by topic
}

func newHub(topics map[string]func(ctx context.Context) any, m *ConsoleInstruments) *hub {
	return &hub{topics: topics, metrics: m, every: liveEvery, write: liveWrite, clients: map[*watcher]bool{}, joined: make(chan struct{}, 1)}
}

// join is nil when there are too many.
func (h *hub) join(topics []string) *watcher {
	w := &watcher{topics: topics, next: make(chan map[string][]byte, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.clients) >= liveClients {
		return nil
	}
	h.clients[w] = true
	h.metrics.watching(len(h.clients))
	if !h.running {
		h.running = true
		go h.run()
	}
	select {
	case h.joined <- struct{}{}:
	default:
	}
	return w
}

func (h *hub) leave(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.clients, w)
	h.metrics.watching(len(h.clients))
}

// run ends when nobody watches any more.
func (h *hub) run() {
	t := time.NewTicker(h.every)
	defer t.Stop()
	for h.tick() {
		select {
		case <-t.C:
		case <-h.joined:
			time.Sleep(liveJoin)
		}
	}
}

// tick computes what is watched and hands it out. false: nobody is there.
func (h *hub) tick() bool {
	h.mu.Lock()
	wanted := map[string]bool{}
	for w := range h.clients {
		for _, t := range w.topics {
			wanted[t] = true
		}
	}
	if len(h.clients) == 0 {
		h.running = false
	}
	running := h.running
	h.mu.Unlock()
	if !running {
		return false
	}
	frames := map[string][]byte{}
	for name := range wanted {
		ctx, cancel := context.WithTimeout(context.Background(), liveCompute)
		frames[name] = frame(name, h.topics[name](ctx))
		cancel()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.clients {
		select {
		case <-w.next: // it has not taken the one before
			h.metrics.skipped()
		default:
		}
		w.next <- frames
	}
	return true
}

// frame is one event. JSON has no line breaks, and so it is one line of data.
func frame(name string, v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		data, _ = json.Marshal(Failure{})
	}
	return slices.Concat([]byte("event: "+name+"\ndata: "), data, []byte("\n\n"))
}

// events serves a watcher. The rights are looked at again with every event, since
// the stream may outlast them.
func (s *server) events(w http.ResponseWriter, r *http.Request) {
	topics := strings.Split(r.URL.Query().Get("topics"), ",")
	for _, t := range topics {
		if s.live.topics[t] == nil {
			writeError(w, http.StatusBadRequest, "there is no topic "+quote(t), "topics are "+strings.Join(s.live.names(), ", "))
			return
		}
	}
	slices.Sort(topics)
	me := s.live.join(slices.Compact(topics))
	if me == nil {
		s.live.metrics.dropped("full")
		w.Header().Set("Retry-After", "10")
		writeError(w, http.StatusServiceUnavailable, "too many consoles watch already", "")
		return
	}
	defer s.live.leave(me)
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	sent := map[string][]byte{}
	var b bytes.Buffer
	for {
		select {
		case <-r.Context().Done():
			return
		case frames := <-me.next:
			if s.caller(r).role < Viewer {
				return
			}
			b.Reset()
			b.WriteString("event: tick\ndata: " + strconv.FormatInt(time.Now().UnixMilli(), 10) + "\n\n")
			for _, t := range me.topics {
				if f, there := frames[t]; there && !bytes.Equal(f, sent[t]) { // what is as it was is not told again
					b.Write(f)
					sent[t] = f
				}
			}
		}
		out.SetWriteDeadline(time.Now().Add(s.live.write))
		_, err := w.Write(b.Bytes())
		if err == nil {
			err = out.Flush()
		}
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) { // else it has gone by itself
				s.live.metrics.dropped("slow")
			}
			return
		}
	}
}

func (h *hub) names() []string {
	var out []string
	for t := range h.topics {
		out = append(out, t)
	}
	slices.Sort(out)
	return out
}
