// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// maxWait bounds every hint: a provider cannot take itself out for longer.
const maxWait = 10 * time.Minute

// hint is how long a provider asks to wait: in the header for that, by the rate
// limit that is used up, in the body, or in words. 0: it says nothing.
func hint(h http.Header, e *evidence) time.Duration {
	now := clock(h)
	for _, name := range []string{"Retry-After-Ms", "X-Ms-Retry-After-Ms"} {
		if ms, err := strconv.ParseFloat(first(h, name), 64); err == nil && ms > 0 {
			return bounded(ms / 1000)
		}
	}
	if s := strings.TrimSpace(first(h, "Retry-After")); s != "" {
		if seconds, err := strconv.ParseFloat(s, 64); err == nil && seconds > 0 {
			return bounded(seconds)
		}
		if at, err := http.ParseTime(s); err == nil && at.After(now) {
			return min(at.Sub(now), maxWait)
		}
	}
	if e.wait != "" {
		if d := span(e.wait); d > 0 {
			return d
		}
	}
	if d := exhausted(h, now); d > 0 {
		return d
	}
	return spoken(e.message)
}

// clock is the time by which a provider's stamps are read: its own.
func clock(h http.Header) time.Time {
	if at, err := http.ParseTime(first(h, "Date")); err == nil {
		return at
	}
	return time.Now()
}

func first(h http.Header, name string) string {
	if v := h[name]; len(v) > 0 && len(v[0]) <= 64 {
		return v[0]
	}
	return ""
}

func bounded(seconds float64) time.Duration {
	if !(seconds > 0) { // not a number, too
		return 0
	}
	return time.Duration(min(seconds, maxWait.Seconds()) * float64(time.Second))
}

// span reads 17s, 6m0s, 20ms, 1h2m3.5s, or a bare number of seconds.
func span(s string) time.Duration {
	s = strings.TrimSpace(s)
	if seconds, err := strconv.ParseFloat(s, 64); err == nil {
		return bounded(seconds)
	}
	if days, rest, ok := strings.Cut(s, "d"); ok { // Go's spans know no days
		if n, err := strconv.ParseFloat(days, 64); err == nil && n > 0 {
			return maxWait
		}
		s = rest
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0
	}
	return min(d, maxWait)
}

// buckets are the names of rate limits: what is left, and when there is more.
var buckets = []struct {
	kind             bucketKind
	limit            string
	remaining, reset string
}{
	{requestBucket, "X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests"},
	{tokenBucket, "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens"},
	{requestBucket, "Anthropic-Ratelimit-Requests-Limit", "Anthropic-Ratelimit-Requests-Remaining", "Anthropic-Ratelimit-Requests-Reset"},
	{tokenBucket, "Anthropic-Ratelimit-Tokens-Limit", "Anthropic-Ratelimit-Tokens-Remaining", "Anthropic-Ratelimit-Tokens-Reset"},
	{otherBucket, "Anthropic-Ratelimit-Input-Tokens-Limit", "Anthropic-Ratelimit-Input-Tokens-Remaining", "Anthropic-Ratelimit-Input-Tokens-Reset"},
	{otherBucket, "Anthropic-Ratelimit-Output-Tokens-Limit", "Anthropic-Ratelimit-Output-Tokens-Remaining", "Anthropic-Ratelimit-Output-Tokens-Reset"},
	{requestBucket, "X-Ratelimit-Limit-Requests-Day", "X-Ratelimit-Remaining-Requests-Day", "X-Ratelimit-Reset-Requests-Day"},
	{tokenBucket, "X-Ratelimit-Limit-Tokens-Minute", "X-Ratelimit-Remaining-Tokens-Minute", "X-Ratelimit-Reset-Tokens-Minute"},
	{tokenBucket, "X-Ratelimitbysize-Limit-Minute", "X-Ratelimitbysize-Remaining-Minute", ""},
	{otherBucket, "X-Ratelimitbysize-Limit-Month", "X-Ratelimitbysize-Remaining-Month", ""},
	{requestBucket, "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"},
}

type bucketKind uint8

const (
	requestBucket bucketKind = iota
	tokenBucket
	otherBucket
)

// exhausted is the time until the last of the buckets that are empty is filled
// again. A bucket that has something left is not what one waits for, however
// soon it is filled.
func exhausted(h http.Header, now time.Time) time.Duration {
	var wait time.Duration
	if len(h) == 0 {
		return 0
	}
	for i := range buckets {
		b := buckets[i]
		left, err := strconv.ParseFloat(first(h, b.remaining), 64)
		if err == nil && left <= 0 && b.reset != "" {
			wait = max(wait, until(first(h, b.reset), now))
		}
	}
	return wait
}

// month tells spans from stamps: nobody has a limit for longer.
const month = 30 * 24 * time.Hour

// until reads a time to wait: a span, seconds, a stamp of RFC 3339, or one in
// seconds or milliseconds since 1970.
func until(s string, now time.Time) time.Duration {
	if s == "" {
		return 0
	}
	if at, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return max(min(at.Sub(now), maxWait), 0)
	}
	if n, err := strconv.ParseFloat(s, 64); err == nil && n > month.Seconds() {
		if n > 1e11 {
			n /= 1000
		}
		return bounded(n - float64(now.UnixMilli())/1000)
	}
	return span(s)
}

// waitWords are the words before a time to wait in messages for people.
var waitWords = regexp.MustCompile(`(?i)(?:try again|retry|wait|available) (?:after|in|for)?\s*(?:about |approximately )?([0-9]+(?:\.[0-9]+)?)\s*(milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|h)\b`)

// spoken finds "try again in 20s", "retry after 17 seconds", "wait 1m30.5s".
func spoken(message string) time.Duration {
	m := waitWords.FindStringSubmatch(message)
	if m == nil {
		return compound(message)
	}
	unit := time.Second
	switch u := strings.ToLower(m[2]); {
	case strings.HasPrefix(u, "ms"), strings.HasPrefix(u, "milli"):
		unit = time.Millisecond
	case strings.HasPrefix(u, "m"):
		unit = time.Minute
	case strings.HasPrefix(u, "h"):
		unit = time.Hour
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return 0
	}
	return bounded(n * unit.Seconds())
}

// spanWords is a span in Go's form, which OpenAI and Groq use: 1m30.5s, 2h3m4s.
var spanWords = regexp.MustCompile(`(?i)(?:try again|retry|wait) (?:after|in|for)?\s*((?:[0-9]+(?:\.[0-9]+)?(?:h|ms|m|s))+)`)

func compound(message string) time.Duration {
	if m := spanWords.FindStringSubmatch(message); m != nil {
		return span(m[1])
	}
	return 0
}
