// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"maps"
	"math/rand/v2"
	"sync"
	"time"
)

// vary is 0.7 to 1.3 times the median, and three times that for one in twenty.
func vary(rng *rand.Rand, median time.Duration, slow float64) time.Duration {
	factor := 0.7 + 0.6*rng.Float64()
	if rng.IntN(20) == 0 {
		factor *= 3
	}
	return time.Duration(float64(median) * factor * slow)
}

// limiter counts requests and tokens per key in windows of one minute.
type limiter struct {
	requests, tokens int // per minute; 0: no limit
	mu               sync.Mutex
	byKey            map[string]*spent
}

// mostKeys bounds the keys of one minute.
const mostKeys = 1 << 16

type spent struct {
	requests, tokens int
	until            time.Time // end of the window
}

// limitState is what the headers of rate limits say.
type limitState struct {
	requests, requestsLeft int // 0, 0: no limit
	tokens, tokensLeft     int
	now                    time.Time
	reset                  time.Duration
}

// admit takes a request with so many tokens, prompt and possible output; or
// says which limit it is over, "requests" or "tokens".
func (l *limiter) admit(key string, tokens int) (s limitState, over string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	w := l.byKey[key]
	if w == nil || !now.Before(w.until) {
		maps.DeleteFunc(l.byKey, func(_ string, s *spent) bool { return !now.Before(s.until) })
		if len(l.byKey) >= mostKeys {
			key = "" // further keys share one
		}
		w = &spent{until: now.Add(time.Minute)}
		l.byKey[key] = w
	}
	switch {
	case l.requests > 0 && w.requests+1 > l.requests:
		over = "requests"
	case l.tokens > 0 && w.tokens+tokens > l.tokens:
		over = "tokens"
	default:
		w.requests++
		w.tokens += tokens
	}
	return limitState{
		requests: l.requests, requestsLeft: max(0, l.requests-w.requests),
		tokens: l.tokens, tokensLeft: max(0, l.tokens-w.tokens),
		now: now, reset: w.until.Sub(now).Round(time.Millisecond),
	}, over
}
