// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import "time"

// CONTRACT towards bench and the virtual-time tests. Bodies to be written.

// Preset is the cost model and the size of an engine.
type Preset struct {
	Name string
	// A step takes A + B*prefillTokens + C*decodeSequences + D*contextTokens/1000
	// + E*(prefillTokens/1000 * contextTokens/1000).
	A, B, C, D, E    time.Duration
	BlockSize        int // tokens
	NumBlocks        int
	MaxBatchedTokens int // budget of one step
	MaxSequences     int
	MaxWaiting       int // 0: no bound
	MaxLoRAs         int
	LoRALoad         time.Duration
}

// Engine is a pure step function: it has no clock and no goroutine; the caller
// says what time it is. Not safe for concurrent use.
type Engine struct{}

func NewEngine(p Preset) *Engine { panic("to be written") }

// Submit queues a sequence; false when the queue is full.
func (e *Engine) Submit(now time.Duration, r *Request) bool { panic("to be written") }

// Abort drops a sequence; its blocks are free from the next step on.
func (e *Engine) Abort(id uint64) { panic("to be written") }

// Idle says that a step would do nothing.
func (e *Engine) Idle() bool { panic("to be written") }

// Step runs one step that begins at now and returns when it ends and what
// happened at that moment. The slice is valid until the next call.
func (e *Engine) Step(now time.Duration) (end time.Duration, events []Event) { panic("to be written") }

// Gauges is the state after the last step.
func (e *Engine) Gauges() Gauges { panic("to be written") }

// Reset is a restart: the cache is empty, every sequence is gone.
func (e *Engine) Reset() { panic("to be written") }
