// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// logBytes is how much of a container's output is kept, the newest.
const logBytes = 4 << 20

// logBuffer is the output of one run of a container.
type logBuffer struct {
	mu      sync.Mutex
	lines   []logLine
	first   int // number of lines[0] since the start
	size    int
	over    bool
	changed chan struct{} // closed and replaced at each change
}

type logLine struct {
	at   time.Time
	text []byte // with the newline
}

func newLogBuffer() *logBuffer { return &logBuffer{changed: make(chan struct{})} }

// collect reads the output until all writers are gone.
func (l *logBuffer) collect(r *os.File) {
	defer r.Close()
	in := bufio.NewReaderSize(r, 16<<10)
	for {
		text, err := in.ReadSlice('\n') // a longer line comes in pieces
		if len(text) > 0 {
			l.add(append([]byte(nil), text...))
		}
		if err != nil && err != bufio.ErrBufferFull {
			break
		}
	}
	l.mu.Lock()
	l.over = true
	l.wake()
	l.mu.Unlock()
}

func (l *logBuffer) add(text []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, logLine{time.Now(), text})
	l.size += len(text)
	for l.size > logBytes && len(l.lines) > 1 {
		l.size -= len(l.lines[0].text)
		l.lines = l.lines[1:]
		l.first++
	}
	l.wake()
}

func (l *logBuffer) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// since returns the lines from number n on, the number behind the last of them,
// and what to wait for when there are no more.
func (l *logBuffer) since(n int) (lines []logLine, next int, over bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n = max(n, l.first)
	return l.lines[n-l.first:], l.first + len(l.lines), l.over, l.changed
}

// logQuery is the options of kubectl logs.
type logQuery struct {
	follow, previous, timestamps bool
	after                        time.Time
	tail                         int // -1 for all
	limit                        int64
}

func parseLogQuery(r *http.Request) logQuery {
	get := r.URL.Query().Get
	q := logQuery{tail: -1, limit: 1 << 62}
	q.follow, _ = strconv.ParseBool(get("follow"))
	q.previous, _ = strconv.ParseBool(get("previous"))
	q.timestamps, _ = strconv.ParseBool(get("timestamps"))
	if n, err := strconv.Atoi(get("tailLines")); err == nil {
		q.tail = n
	}
	if n, err := strconv.ParseInt(get("limitBytes"), 10, 64); err == nil {
		q.limit = n
	}
	if n, err := strconv.Atoi(get("sinceSeconds")); err == nil {
		q.after = time.Now().Add(-time.Duration(n) * time.Second)
	} else if t, err := time.Parse(time.RFC3339, get("sinceTime")); err == nil {
		q.after = t
	}
	return q
}

// write sends the lines that the query asks for.
func (l *logBuffer) write(ctx context.Context, w io.Writer, flush func(), q logQuery) {
	next := 0
	if q.tail >= 0 {
		lines, end, _, _ := l.since(0)
		next = end - min(q.tail, len(lines))
	}
	for {
		lines, end, over, changed := l.since(next)
		next = end
		for _, line := range lines {
			if line.at.Before(q.after) {
				continue
			}
			text := line.text
			if q.timestamps {
				text = append([]byte(line.at.UTC().Format(time.RFC3339Nano)+" "), text...)
			}
			if int64(len(text)) > q.limit {
				text = text[:q.limit]
			}
			q.limit -= int64(len(text))
			if _, err := w.Write(text); err != nil || q.limit <= 0 {
				return
			}
		}
		if !q.follow || over {
			return
		}
		flush()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// serveLogs answers the API server for the log subresource of pods and returns
// the port. Without --kubelet-certificate-authority the API server takes any
// certificate.
func (k *Kubelet) serveLogs(ctx context.Context) (int32, error) {
	certificate, err := selfSigned()
	if err != nil {
		return 0, err
	}
	listener, err := net.Listen("tcp", netip.AddrPortFrom(k.NodeIP, 0).String())
	if err != nil {
		return 0, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", k.containerLogs)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })
	server := &http.Server{
		Handler: mux, TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}},
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(k.Log.Handler(), slog.LevelDebug),
	}
	go server.ServeTLS(listener, "", "")
	context.AfterFunc(ctx, func() { server.Close() })
	return int32(listener.Addr().(*net.TCPAddr).Port), nil
}

func (k *Kubelet) containerLogs(w http.ResponseWriter, r *http.Request) {
	worker := k.find(types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("pod")})
	if worker == nil {
		http.Error(w, "no such pod on this node", http.StatusNotFound)
		return
	}
	c := worker.container(r.PathValue("container"))
	if c == nil {
		http.Error(w, "the pod has no such container", http.StatusNotFound)
		return
	}
	q := parseLogQuery(r)
	c.mu.Lock()
	log := c.log
	if q.previous {
		log = c.oldLog
	}
	c.mu.Unlock()
	if log == nil {
		http.Error(w, "the container has not run", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	log.write(r.Context(), w, func() { http.NewResponseController(w).Flush() }, q)
}

func (k *Kubelet) find(name types.NamespacedName) *worker {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, w := range k.workers {
		if w.namespace == name.Namespace && w.current().Name == name.Name {
			return w
		}
	}
	return nil
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{NodeName}, NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
