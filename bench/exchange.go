// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// Failure says how a request went wrong; empty is no failure.
type Failure string

// The kinds of failures besides http-STATUS. A stream that ends with an error
// event told the truth; one that is cut, or says [DONE] after an error or
// before its answer was complete, did not.
const (
	FailConnect   Failure = "connect"      // no connection
	FailTimeout   Failure = "timeout"      // no first byte in time
	FailReset     Failure = "reset"        // the connection broke before the answer's head
	FailCut       Failure = "cut"          // the answer ended early and did not say so
	FailStream    Failure = "stream-error" // the stream ended with an error event
	FailFalseDone Failure = "false-done"   // [DONE] after an error, or without a finish reason
	FailBody      Failure = "bad-body"     // not the JSON that was promised
)

// Truthful says whether a client could know from the answer what became of its
// request.
func (f Failure) Truthful() bool { return f != FailCut && f != FailFalseDone && f != FailBody }

// Exchange is what one HTTP request came to.
type Exchange struct {
	Class        string        `json:"class,omitempty"`
	Status       int           `json:"status"`
	Failure      Failure       `json:"failure,omitempty"`
	Detail       string        `json:"detail,omitempty"`
	TTFT         time.Duration `json:"ttftNs"`
	Total        time.Duration `json:"totalNs"`
	Chunks       int           `json:"chunks"` // content events
	PromptTokens int           `json:"promptTokens"`
	OutputTokens int           `json:"outputTokens"`
	CachedTokens int           `json:"cachedTokens"`
}

// TPOT is the mean time between output tokens; 0 when there are fewer than two.
func (x *Exchange) TPOT() time.Duration {
	n := max(x.OutputTokens, x.Chunks)
	if n < 2 {
		return 0
	}
	return (x.Total - x.TTFT) / time.Duration(n-1)
}

// answer is what is read of an answer or of a chunk of one.
type answer struct {
	Choices []struct {
		Text    string    `json:"text"`
		Message *struct{} `json:"message"`
		Delta   struct {
			Content   string            `json:"content"`
			Reasoning string            `json:"reasoning_content"`
			ToolCalls []json.RawMessage `json:"tool_calls"`
		} `json:"delta"`
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

func (a *answer) failed() bool { return len(a.Error) > 0 && string(a.Error) != "null" }

func (x *Exchange) usage(a *answer) {
	if u := a.Usage; u != nil {
		x.PromptTokens, x.OutputTokens, x.CachedTokens = u.Prompt, u.Completion, u.Details.Cached
	}
}

// send makes one request and reads the whole answer. firstByte bounds the wait
// for the answer to begin; each is called for every content event.
func send(ctx context.Context, c *http.Client, url string, header http.Header, body []byte, stream bool, firstByte time.Duration, each func()) *Exchange {
	x := &Exchange{}
	start := time.Now()
	defer func() { x.Total = time.Since(start) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(firstByte, func() { cancel(context.DeadlineExceeded) })
	defer late.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		x.fail(FailConnect, err)
		return x
	}
	req.GetBody = nil // what fails is counted, not sent again
	for k, v := range header {
		req.Header[k] = v
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := c.Do(req)
	if err != nil {
		x.fail(connectionFailure(ctx, err), err)
		return x
	}
	defer res.Body.Close()
	x.Status = res.StatusCode
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 4096))
		x.fail(Failure(fmt.Sprintf("http-%d", res.StatusCode)), errors.New(strings.TrimSpace(string(text))))
		return x
	}
	begun := func() {
		if x.TTFT == 0 {
			late.Stop()
			x.TTFT = time.Since(start)
		}
	}
	if stream {
		x.readStream(res.Body, func() {
			begun()
			if each != nil {
				each()
			}
		})
	} else {
		x.readWhole(res.Body, begun)
	}
	if x.Failure == FailCut && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		x.Failure = FailTimeout
	}
	return x
}

func (x *Exchange) fail(f Failure, err error) {
	x.Failure = f
	if err != nil {
		x.Detail = err.Error()
	}
}

func connectionFailure(ctx context.Context, err error) Failure {
	var op *net.OpError
	switch {
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return FailTimeout
	case errors.As(err, &op) && op.Op == "dial", errors.Is(err, syscall.ECONNREFUSED):
		return FailConnect
	}
	return FailReset
}

func (x *Exchange) readWhole(r io.Reader, begun func()) {
	body, err := io.ReadAll(r)
	begun()
	if err != nil { // also when it is shorter than its Content-Length
		x.fail(FailCut, err)
		return
	}
	var a answer
	switch err := json.Unmarshal(body, &a); {
	case err != nil:
		x.fail(FailBody, err)
	case a.failed() || len(a.Choices) == 0:
		x.fail(FailBody, errors.New("an answer without choices"))
	}
	x.usage(&a)
}

// maxEvent bounds one line of a stream.
const maxEvent = 1 << 20

// readStream reads server-sent events and judges how they end.
func (x *Exchange) readStream(r io.Reader, token func()) {
	lines := bufio.NewReaderSize(r, 4096)
	var failed, finished, done bool
	for {
		line, err := readLine(lines)
		data, ok := bytes.CutPrefix(line, []byte("data:"))
		if ok && err == nil { // the last line of a stream that was cut may be a part

			data = bytes.TrimSpace(data)
			var a answer
			switch {
			case done:
				x.fail(FailBody, errors.New("an event after [DONE]"))
				return
			case string(data) == "[DONE]":
				done = true
			case json.Unmarshal(data, &a) != nil:
				x.fail(FailBody, fmt.Errorf("an event that is not JSON: %.100q", data))
				return
			case a.failed():
				failed = true
				x.Detail = string(a.Error)
			}
			x.usage(&a)
			for i := range a.Choices {
				c := &a.Choices[i]
				if c.Text != "" || c.Delta.Content != "" || c.Delta.Reasoning != "" || len(c.Delta.ToolCalls) > 0 {
					x.Chunks++
					token()
				}
				finished = finished || c.FinishReason != nil
			}
		}
		if err != nil {
			x.judge(err, failed, finished, done)
			return
		}
	}
}

func (x *Exchange) judge(err error, failed, finished, done bool) {
	switch {
	case done && (failed || !finished):
		x.Failure = FailFalseDone
	case failed:
		x.Failure = FailStream
	case !done || err != io.EOF:
		x.fail(FailCut, err)
	}
}

// readLine returns the next line without its end; what was read with an error
// comes with it.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if err == bufio.ErrBufferFull {
		whole := bytes.Clone(line)
		for err == bufio.ErrBufferFull && len(whole) < maxEvent {
			line, err = r.ReadSlice('\n')
			whole = append(whole, line...)
		}
		line = whole
	}
	return bytes.TrimRight(line, "\r\n"), err
}
