// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// problem is an error of a provider before a shape words it.
type problem struct {
	class   string // see [Classes]
	status  int    // 0: that of the class
	message string // "": that of the class
	param   string // the field, as a path
	code    string // OpenAI: in place of the class's
	over    string // rate: requests or tokens
	model   string
	wait    time.Duration
	retry   bool // the wait belongs into the body as Google has it

	used, asked, most int // context: tokens of the prompt, of the output, and of the model
}

// text is the message, or a general one.
func (e *problem) text(general string) string { return cmp.Or(e.message, general) }

func invalidField(param, message string) *problem {
	return &problem{class: "invalid", param: param, message: message}
}

// refuse answers with an error.
func (c *call) refuse(e *problem) {
	if e.class == "context" && e.most == 0 {
		e.used, e.asked, e.most = c.p.cfg.MaxModelLen+1, 16, c.p.cfg.MaxModelLen
	}
	e.model = cmp.Or(e.model, c.asked)
	h := c.w.Header()
	hint(h, e, c.faults.Hints)
	status, body := c.p.shape.wording(h, e, c.id)
	status = cmp.Or(e.status, status)
	c.status = status
	if c.listed {
		body = []any{body}
	}
	if c.faults.wire("error200") {
		status = http.StatusOK
	}
	h.Set("Content-Type", "application/json")
	c.writeBody(status, append(encode(body), '\n'))
}

// hint writes how long to wait in the forms that are asked for.
func hint(h http.Header, e *problem, forms []string) {
	if e.wait <= 0 {
		return
	}
	at := time.Now().Add(e.wait)
	if len(forms) == 0 {
		forms = []string{"seconds", "google"}
		if e.over != "" {
			forms = []string{"seconds", "ms", "google"}
		}
	}
	for _, form := range forms {
		switch form {
		case "seconds":
			h.Set("Retry-After", strconv.Itoa(int((e.wait+time.Second-1)/time.Second)))
		case "date":
			h.Set("Retry-After", at.Add(time.Second-1).UTC().Format(http.TimeFormat))
		case "ms":
			h.Set("retry-after-ms", strconv.FormatInt(e.wait.Milliseconds(), 10))
		case "ratelimit":
			h.Set("x-ratelimit-limit-requests", "60")
			h.Set("x-ratelimit-remaining-requests", "0")
			h.Set("x-ratelimit-reset-requests", e.wait.String())
		case "anthropic":
			h.Set("anthropic-ratelimit-requests-limit", "60")
			h.Set("anthropic-ratelimit-requests-remaining", "0")
			h.Set("anthropic-ratelimit-requests-reset", at.UTC().Format(time.RFC3339))
		}
	}
	e.retry = slices.Contains(forms, "google")
	if slices.Contains(forms, "text") {
		e.message = "Rate limit reached. Please try again in " + e.wait.String() + "."
	}
}

// faultProblem is the error that a fault asks for.
func (f *Faults) faultProblem() *problem {
	e := &problem{class: f.Error, status: f.Status, wait: time.Duration(f.RetryAfter) * time.Second}
	if e.class == "" {
		e.class = classOf(f.Status)
	}
	return e
}

func classOf(status int) string {
	switch status {
	case 401:
		return "auth"
	case 402:
		return "billing"
	case 403:
		return "permission"
	case 404:
		return "model"
	case 408, 504:
		return "timeout"
	case 413:
		return "tooLarge"
	case 422:
		return "unprocessable"
	case 429:
		return "rate"
	case 503:
		return "unavailable"
	case 529:
		return "overloaded"
	}
	if status >= 400 && status < 500 {
		return "invalid"
	}
	return "server"
}

// befall does what a fault does in place of the handler and says whether it did.
func (c *call) befall() bool {
	f := &c.faults
	if f.Stall == "start" && !c.stall() {
		panic(http.ErrAbortHandler)
	}
	switch {
	case f.Cut == "start":
		c.cut()
	case f.Endless != "" || f.Early:
		return f.before(c.w, c.r, c.p.closing)
	case f.wire("html"):
		c.status = cmp.Or(f.Status, http.StatusBadGateway)
		c.w.Header().Set("Content-Type", "text/html")
		c.writeBody(c.status, []byte("<html><head><title>502 Bad Gateway</title></head><body><center><h1>502 Bad Gateway</h1></center></body></html>\n"))
	case f.wire("empty"):
		c.status = cmp.Or(f.Status, http.StatusOK)
		c.w.WriteHeader(c.status)
	case f.Status != 0 || f.Error != "" && f.ErrorEvent == "" || f.wire("error200"):
		e := f.faultProblem()
		if f.Status == 0 && f.Error == "" {
			e.class = "overloaded"
		}
		c.refuse(e)
	default:
		return false
	}
	return true
}

// cut resets the connection. It does not return.
func (c *call) cut() {
	c.err = errCut
	cut(c.w)
}

// stall waits as long as the fault says; false when there will be no more.
func (c *call) stall() bool {
	if d := time.Duration(c.faults.For); d > 0 {
		return c.sleep(d)
	}
	select {
	case <-c.r.Context().Done():
		c.err = c.r.Context().Err()
	case <-c.p.closing:
		c.err = errClosed
	}
	return false
}
