// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/internal/golden"
	"github.com/penstock/penstock/pool"
	"github.com/penstock/penstock/provider"
	"github.com/penstock/penstock/proxy"
	"github.com/penstock/penstock/usage"
)

// TestRouting sends requests through a gateway to servers that follow a script,
// and writes down what the client got, what the servers were asked, and what the
// record says. A case has the files
//
//	config.yaml  without listeners; $A, $B, $C and $D are the servers' URLs, $AADDR and $APORT parts of them
//	a, b, c, d   a server's script, a line for each request it gets, the last one for all further ones
//	requests     a line each: [Header: value] … METHOD PATH BODY; BODY may be @FILE, and name servers: $A/;
//	             with [Leave: TEXT] the client leaves when it has got TEXT, with [Leave: asked] when a server was asked
//
// Lines of a script:
//
//	text WORD …               an answer in OpenAI's form, as a stream where one is asked for
//	status CODE [H=V] … BODY  an answer; BODY may be @FILE
//	send FILE                 200 with the file: a stream, or JSON if it begins with {
//	slowly FILE               likewise, each event on its own
//	parts FILE                likewise, broken where there is a ¦
//	bomb SIZE                 200 with a whole answer of so many letters, compressed
//	refused FILE              400 with the file as JSON, which stays away for a while where there is a ¦
//	gaps FILE                 likewise, and waits there until the client got a comment
//	ping LINE                 waits for such a comment, and then does what LINE says
//	cut FILE                  likewise, and then the connection breaks
//	stall FILE                likewise, and then nothing more comes
//	raw FILE                  the file, head and body, with CR before each LF
//	pieces FILE               likewise, every 40 bytes on their own
//	gzip FILE                 likewise, each event compressed and on its own, though nobody asked for that
//	after DURATION LINE       the line, later
//	silent                    the head of a stream, and nothing more
//	hang                      nothing
//	reset                     the connection breaks
func TestRouting(t *testing.T) {
	golden.Run(t, "testdata/routing/*.txtar", func(t *testing.T, c *golden.Case) map[string]string {
		t.Parallel()
		s := newScene(t, c)
		for line := range strings.Lines(c.File(t, "requests")) {
			s.ask(strings.TrimSpace(line))
		}
		return map[string]string{"want": s.out.String()}
	})
}

// scene is one case under way.
type scene struct {
	t       *testing.T
	c       *golden.Case
	urls    *strings.Replacer // of the servers' names
	url     string
	out     strings.Builder
	records chan *usage.Record
	pings   chan struct{} // has one when the client got a comment

	mu    sync.Mutex
	calls []string
	leave context.CancelFunc // of the client, once a server was asked; nil: it stays
	freed chan string        // servers whose request ended while they worked on it
}

func newScene(t *testing.T, c *golden.Case) *scene {
	s := &scene{t: t, c: c, records: make(chan *usage.Record, 16), freed: make(chan string, 16), pings: make(chan struct{}, 1)}
	text := c.File(t, "config.yaml")
	var urls []string
	for _, name := range []string{"a", "b", "c", "d"} {
		if !c.Has(name) {
			continue
		}
		server := httptest.NewServer(&scripted{scene: s, name: name, lines: strings.Split(strings.TrimSpace(c.File(t, name)), "\n")})
		t.Cleanup(server.Close)
		text = strings.ReplaceAll(text, "$"+strings.ToUpper(name)+"PORT", server.URL[strings.LastIndexByte(server.URL, ':')+1:])
		text = strings.ReplaceAll(text, "$"+strings.ToUpper(name)+"ADDR", strings.TrimPrefix(server.URL, "http://"))
		text = strings.ReplaceAll(text, "$"+strings.ToUpper(name), server.URL)
		urls = append(urls, "$"+strings.ToUpper(name)+"/", server.URL+"/")
	}
	s.urls = strings.NewReplacer(urls...)
	if !strings.Contains(text, "listeners:") {
		text = "listeners: [{name: l, address: \"127.0.0.1:0\", anonymous: true}]\nadmin: {address: \"off\"}\n" + text
	}
	for name, key := range map[string]string{"KEY1": "sk-client-1", "KEY2": "sk-client-2"} {
		text = strings.ReplaceAll(text, "$"+name, fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(key))))
	}
	cfg, err := config.ParseWith("config.yaml", []byte(text), config.Options{Check: proxy.CheckConditions})
	if err != nil {
		t.Fatal(err)
	}
	server := proxy.New(proxy.Options{Images: provider.FetchOptions{Local: true}, Records: func(r *usage.Record) { s.records <- r }})
	backends, providers := map[string]proxy.Backend{}, map[string]*provider.Provider{}
	for _, pc := range cfg.Pools {
		p, err := pool.New(pc, pool.Options{})
		if err != nil {
			t.Fatal(err)
		}
		p.Start(context.Background())
		t.Cleanup(p.Close)
		plan, ok := epp.Builtin("round-robin")
		if !ok {
			t.Fatal("no round-robin")
		}
		profile, err := epp.Compile(plan)
		if err != nil {
			t.Fatal(err)
		}
		backends[pc.Name] = proxy.Backend{Pool: p, Picker: epp.New(p, profile, epp.Options{})}
	}
	for _, pc := range cfg.Providers {
		p, err := provider.New(pc, provider.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		providers[pc.Name] = p
	}
	change, err := server.Prepare(cfg, backends, providers)
	if err != nil {
		t.Fatal(err)
	}
	change.Commit()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if cut := server.Drain(ctx); cut != 0 {
			t.Errorf("%d exchanges were still open", cut)
		}
	})
	s.url = "http://" + server.Addresses()["l"]
	return s
}

// shownHeaders are those of an answer that are written down.
var shownHeaders = regexp.MustCompile(`^(X-Model-Used|X-Echo|X-Other|X-Penstock-.*|X-Should-Retry|Retry-After|Content-Type)$`)

func (s *scene) ask(line string) {
	header := http.Header{}
	for strings.HasPrefix(line, "[") {
		field, rest, _ := strings.Cut(line[1:], "]")
		name, value, _ := strings.Cut(field, ":")
		header.Add(name, strings.TrimSpace(value))
		line = strings.TrimSpace(rest)
	}
	fmt.Fprintf(&s.out, "> %s\n", line)
	method, rest, _ := strings.Cut(line, " ")
	path, body, _ := strings.Cut(rest, " ")
	r, err := http.NewRequest(method, s.url+path, strings.NewReader(s.text(body)))
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	leave := header.Get("Leave")
	header.Del("Leave")
	if r.Header = header; leave == "asked" {
		s.mu.Lock()
		s.leave = cancel
		s.mu.Unlock()
	}
	r = r.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		fmt.Fprintf(&s.out, "%d %v\n", code, h)
		return nil
	}}))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}
	res, err := client.Do(r)
	if leave == "asked" && err != nil {
		s.out.WriteString("! the client has left\n")
		s.sum()
		return
	}
	if err != nil {
		s.t.Fatal(err)
	}
	got, err := s.read(res.Body, leave)
	cancel()
	res.Body.Close()
	fmt.Fprintf(&s.out, "%d\n", res.StatusCode)
	for _, name := range slices.Sorted(maps.Keys(res.Header)) {
		if shownHeaders.MatchString(name) {
			fmt.Fprintf(&s.out, "%s: %s\n", name, strings.Join(res.Header[name], ", "))
		}
	}
	quiet := pings.ReplaceAllString(string(got), "$1")
	s.out.WriteString(s.steady(quiet))
	if len(quiet) < len(got) {
		s.out.WriteString("! with comments\n")
	}
	if len(got) > 0 && got[len(got)-1] != '\n' {
		s.out.WriteByte('\n')
	}
	switch {
	case err != nil:
		s.out.WriteString("! the answer breaks off\n")
	case leave != "":
		s.out.WriteString("! the client has left\n")
	}
	for _, name := range slices.Sorted(maps.Keys(res.Trailer)) {
		fmt.Fprintf(&s.out, "trailer %s: %s\n", name, strings.Join(res.Trailer[name], ", "))
	}
	s.sum()
}

// sum writes down what the servers were asked, and the record.
func (s *scene) sum() {
	rec := <-s.records
	if rec.Status == proxy.StatusClientClosed {
		select {
		case name := <-s.freed:
			fmt.Fprintf(&s.out, "! %s need not go on\n", name)
		case <-time.After(5 * time.Second):
			s.t.Error("the server still works for a client that has left")
		}
	}
	s.mu.Lock()
	for _, c := range s.calls {
		fmt.Fprintf(&s.out, "= %s\n", c)
	}
	s.calls, s.leave = nil, nil
	s.mu.Unlock()
	s.told(rec)
	s.out.WriteByte('\n')
}

// pings are comments between two events: how many come is a matter of time.
var pings = regexp.MustCompile(`(^|\n\n)(?:: keep-alive\n\n)+`)

// read reads a body to its end, or until the text has come, and tells of the comments in it as they come.
func (s *scene) read(body io.Reader, until string) (got []byte, err error) {
	seen, buf := 0, make([]byte, 4<<10)
	for {
		if until != "" && bytes.Contains(got, []byte(until)) {
			return got, nil
		}
		n, err := body.Read(buf)
		got = append(got, buf[:n]...)
		if now := bytes.Count(got, []byte(": keep-alive")); now > seen {
			seen = now
			select {
			case s.pings <- struct{}{}:
			default:
			}
		}
		if err == io.EOF {
			return got, nil
		}
		if err != nil {
			return got, err
		}
	}
}

// pinged waits until the client gets a comment.
func (s *scene) pinged(r *http.Request) {
	select {
	case <-s.pings: // of before
	default:
	}
	select {
	case <-s.pings:
	case <-r.Context().Done():
	}
}

// told writes down what the record says of the routing.
func (s *scene) told(rec *usage.Record) {
	for i := range rec.Tries {
		rec.Tries[i].Seconds = 0
	}
	show := map[string]any{
		"status": rec.Status, "modelAsked": rec.ModelAsked, "modelUsed": rec.ModelUsed, "attempts": rec.Attempts, "served": rec.Provider + rec.Pool,
		"tokens": fmt.Sprintf("%d+%d/%d %v", rec.Counts.Prompt(), rec.Counts.CacheRead, rec.Counts.Completion(), rec.Counts.Source),
	}
	for name, value := range map[string]string{"alias": rec.Alias, "fallback": rec.Fallback, "errorClass": rec.ErrorClass, "finish": rec.Finish, "key": rec.Key, "bound": rec.Bound} {
		if value != "" {
			show[name] = value
		}
	}
	tries := []string{}
	for _, t := range rec.Tries {
		text := strings.TrimSpace(t.Target + " " + t.Error)
		if t.Used != nil && rec.Prices != "" {
			text += fmt.Sprintf(", %d/%d %v for %v", t.Used.Counts.Prompt(), t.Used.Counts.Completion(), t.Used.Counts.Source, t.Used.Cost)
		}
		tries = append(tries, text)
	}
	if rec.Prices != "" {
		show["cost"] = strings.TrimSpace(rec.Cost.String() + " " + rec.ServiceTier + " " + rec.Unpriced)
	}
	if len(tries) > 0 {
		show["tries"] = tries
	}
	if len(rec.Dropped) > 0 {
		show["dropped"] = rec.Dropped
	}
	for _, k := range rec.Skipped {
		show["skipped "+k.Target] = k.Reason
	}
	text, err := json.Marshal(show)
	if err != nil {
		s.t.Fatal(err)
	}
	fmt.Fprintf(&s.out, "# %s\n", s.steady(string(text)))
}

// text is a body that is written in a line, or in a file.
func (s *scene) text(body string) string {
	if name, ok := strings.CutPrefix(body, "@"); ok {
		body = s.c.File(s.t, name)
	}
	return s.urls.Replace(body)
}

var changing = []struct {
	form *regexp.Regexp
	text string
}{
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "SERVER"},
	{regexp.MustCompile(`"request_id":"[^"]*"`), `"request_id":"ID"`},
	{regexp.MustCompile(`aaaa{200,}`), "aaaa…"},
	{regexp.MustCompile(`"responseId":"[0-9a-f]{32}"`), `"responseId":"ID"`},
	{regexp.MustCompile(`"created":\d+`), `"created":0`},
	{regexp.MustCompile(`"created_at":\d+`), `"created_at":0`},
	{regexp.MustCompile(`(chatcmpl-|msg_|resp_|call_|toolu_|fc_)[0-9a-f]{16,}`), "${1}ID"},
}

// steady takes out of a text what differs from run to run.
func (s *scene) steady(text string) string {
	for _, c := range changing {
		text = c.form.ReplaceAllString(text, c.text)
	}
	return text
}

// scripted is a server.
type scripted struct {
	scene *scene
	name  string
	lines []string
	mu    sync.Mutex
	n     int
}

func (p *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	p.mu.Lock()
	line := p.lines[min(p.n, len(p.lines)-1)]
	p.n++
	p.mu.Unlock()
	call := fmt.Sprintf("%s %s %s", p.name, r.Method, r.URL.RequestURI())
	for _, slot := range []string{"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "Xi-Api-Key", "Cookie"} {
		if v := r.Header.Get(slot); v != "" {
			call += fmt.Sprintf(" %s=%s", slot, v)
		}
	}
	p.scene.mu.Lock()
	p.scene.calls = append(p.scene.calls, call+" "+string(bytes.TrimSpace(body)))
	leave := p.scene.leave
	p.scene.mu.Unlock()
	if leave != nil {
		leave()
	}
	p.play(w, r, body, line)
}

func (p *scripted) play(w http.ResponseWriter, r *http.Request, body []byte, line string) {
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case "text":
		p.words(w, bytes.Contains(body, []byte(`"stream":true`)), strings.Fields(rest))
	case "status":
		code, rest, _ := strings.Cut(rest, " ")
		for {
			field, more, _ := strings.Cut(rest, " ")
			name, value, ok := strings.Cut(field, "=")
			if !ok || strings.ContainsAny(name, `{"<`) {
				break
			}
			w.Header().Set(name, strings.ReplaceAll(value, "_", " "))
			rest = more
		}
		n, err := strconv.Atoi(code)
		if err != nil {
			panic(line)
		}
		if w.Header().Get("Content-Type") == "" {
			w.Header().Set("Content-Type", "application/json")
		}
		w.WriteHeader(n)
		io.WriteString(w, p.scene.text(rest))
	case "send", "cut", "stall":
		p.send(w, p.scene.c.File(p.scene.t, rest))
		switch verb {
		case "cut":
			panic(http.ErrAbortHandler)
		case "stall":
			p.wait(r)
		}
	case "pieces":
		for piece := range slices.Chunk([]byte(p.scene.c.File(p.scene.t, rest)), 40) {
			p.send(w, string(piece))
			time.Sleep(time.Millisecond)
		}
	case "gzip":
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		for event := range strings.SplitAfterSeq(p.scene.c.File(p.scene.t, rest), "\n\n") {
			p.kind(w, event)
			io.WriteString(z, event)
			z.Flush()
			w.(http.Flusher).Flush()
		}
		z.Close()
	case "after":
		pause, line, _ := strings.Cut(rest, " ")
		d, err := time.ParseDuration(pause)
		if err != nil {
			panic("script: " + line)
		}
		time.Sleep(d)
		p.play(w, r, body, line)
	case "slowly":
		for event := range strings.SplitAfterSeq(p.scene.c.File(p.scene.t, rest), "\n\n") {
			p.send(w, event)
			time.Sleep(5 * time.Millisecond)
		}
	case "refused":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		for i, piece := range strings.Split(p.scene.c.File(p.scene.t, rest), "¦") {
			if i > 0 {
				time.Sleep(time.Second) // comments would come after half of it
			}
			p.send(w, piece)
		}
	case "ping":
		p.scene.pinged(r)
		p.play(w, r, body, rest)
	case "gaps":
		for i, piece := range strings.Split(p.scene.c.File(p.scene.t, rest), "¦") {
			if i > 0 {
				p.scene.pinged(r)
			}
			p.send(w, piece)
		}
	case "bomb":
		size, err := strconv.Atoi(rest)
		if err != nil {
			panic(line)
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", "gzip")
		gz := gzip.NewWriter(w)
		fmt.Fprintf(gz, `{"object":"chat.completion","choices":[{"index":0,"message":{"content":"%s"},"finish_reason":"stop"}]}`, strings.Repeat("a", size))
		gz.Close()
	case "parts":
		for piece := range strings.SplitSeq(p.scene.c.File(p.scene.t, rest), "¦") {
			p.send(w, piece)
			time.Sleep(5 * time.Millisecond)
		}
	case "raw":
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			io.WriteString(c, strings.ReplaceAll(p.scene.c.File(p.scene.t, rest), "\n", "\r\n"))
			c.Close()
		}
	case "silent":
		p.send(w, "\n")
		p.wait(r)
	case "hang":
		p.wait(r)
	case "reset":
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
	default:
		panic("script: " + line)
	}
}

// wait does nothing until the gateway gives up.
func (p *scripted) wait(r *http.Request) {
	<-r.Context().Done()
	select {
	case p.scene.freed <- p.name:
	default:
	}
}

// kind says which of the two forms the answer that begins with text has.
func (p *scripted) kind(w http.ResponseWriter, text string) {
	if w.Header().Get("Content-Type") != "" {
		return
	}
	kind := "text/event-stream"
	if strings.HasPrefix(text, "{") {
		kind = "application/json"
	}
	w.Header().Set("Content-Type", kind)
}

func (p *scripted) send(w http.ResponseWriter, text string) {
	p.kind(w, text)
	io.WriteString(w, text)
	w.(http.Flusher).Flush()
}

// words answers in OpenAI's form.
func (p *scripted) words(w http.ResponseWriter, stream bool, words []string) {
	usage := fmt.Sprintf(`{"prompt_tokens":7,"completion_tokens":%d,"total_tokens":%d}`, len(words), 7+len(words))
	if !stream {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"c","object":"chat.completion","created":1,"model":"served","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop"}],"usage":%s}`,
			strings.Join(words, " "), usage)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	b := bufio.NewWriter(w)
	chunk := func(delta, finish string) {
		fmt.Fprintf(b, "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"served\",\"choices\":[{\"index\":0,\"delta\":%s,\"finish_reason\":%s}]}\n\n", delta, finish)
	}
	chunk(`{"role":"assistant","content":""}`, "null")
	for _, word := range words {
		chunk(fmt.Sprintf(`{"content":%q}`, word), "null")
	}
	chunk(`{}`, `"stop"`)
	fmt.Fprintf(b, "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"served\",\"choices\":[],\"usage\":%s}\n\ndata: [DONE]\n\n", usage)
	b.Flush()
}
