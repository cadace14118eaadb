// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"encoding/json"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/llm"
)

// Counts are what an answer used: disjoint, and marked by who has counted.
type Counts = llm.Usage

// Spending is what a request used and what that costs.
type Spending struct {
	// Counts are those of the answer that the client got. Attempts that used
	// tokens and failed have theirs in Tries.
	Counts      Counts `json:"tokens"`
	ServiceTier string `json:"serviceTier,omitempty"` // of service, as the server says, or as it was asked for
	// Cost is that of all attempts.
	Cost Cost `json:"costUSD"`
	// Avoided is what an answer out of a cache of the gateway would have cost.
	Avoided  *Cost  `json:"avoidedUSD,omitempty"`
	Prices   string `json:"prices,omitempty"`   // version of the price table
	Unpriced string `json:"unpriced,omitempty"` // why the cost is not known
}

// Cost is an amount of money, if it is known.
type Cost struct {
	Pico  int64 // picodollars, 1e-12 USD; not negative; the largest one stands for everything beyond
	Known bool
}

// Free is the cost of what used nothing.
func Free() Cost { return Cost{Known: true} }

// Plus adds two costs. The sum is known if both are.
func (c Cost) Plus(d Cost) Cost {
	return Cost{Pico: addSaturated(c.Pico, d.Pico), Known: c.Known && d.Known}
}

// String is the amount in USD, exactly, or "unknown".
func (c Cost) String() string {
	if !c.Known {
		return "unknown"
	}
	return config.USD(c.Pico).String()
}

// MarshalJSON writes USD as a number with all its digits, null if it is not
// known.
func (c Cost) MarshalJSON() ([]byte, error) {
	if !c.Known {
		return []byte("null"), nil
	}
	return []byte(config.USD(c.Pico).String()), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (c *Cost) UnmarshalJSON(b []byte) error {
	if *c = (Cost{}); string(b) == "null" {
		return nil
	}
	var n json.Number
	if err := json.Unmarshal(b, &n); err != nil {
		return err
	}
	u, _, err := config.ParseUSD(n.String())
	if err != nil {
		return err
	}
	*c = Cost{Pico: int64(u), Known: true}
	return nil
}
