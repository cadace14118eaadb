// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp

// Change is what would have led a pick elsewhere, as far as its scores tell.
type Change struct {
	Winner string  `json:"winner"`
	Lead   float64 `json:"lead"` // of its total over the next best; 0: a tie, or there is no other
	// Rivals are the others in the order of the explanation.
	Rivals []Rival `json:"rivals,omitempty"`
	// Without are the scorers without which another would have had the best total.
	Without []Without `json:"without,omitempty"`
}

// Rival is a candidate that was not picked.
type Rival struct {
	Endpoint string  `json:"endpoint"`
	Gap      float64 `json:"gap"` // of its total to the winner's
	// By is what each column adds to the gap: the difference of the scores times
	// the weight. Negative: in that one the rival was better.
	By []float64 `json:"by,omitempty"`
	// Needs are the scores, of one column each, with which it would have drawn
	// level; none: no single score is enough.
	Needs     []Need `json:"needs,omitempty"`
	RefusedBy string `json:"refusedBy,omitempty"` // a filter: it would have had to pass that first
	Why       string `json:"why,omitempty"`
}

// Need is a score that would have been enough.
type Need struct {
	Column string  `json:"column"`
	Score  float64 `json:"score"`
	Was    float64 `json:"was"`
}

// Without is who would have had the best total if one column did not count.
type Without struct {
	Column string `json:"column"`
	Winner string `json:"winner"`
}

// Change computes what would change the answer. nil: there are no scores to
// compute it from, as of a picker elsewhere or when nobody was picked.
func (e *Explanation) Change() *Change {
	at := -1
	for i := range e.Candidates {
		if len(e.Picked) > 0 && e.Candidates[i].Endpoint == e.Picked[0] && e.Candidates[i].RefusedBy == "" {
			at = i
		}
	}
	if at < 0 {
		return nil
	}
	winner := &e.Candidates[at]
	out := &Change{Winner: winner.Endpoint}
	next := -1
	for i := range e.Candidates {
		c := &e.Candidates[i]
		if i == at {
			continue
		}
		r := Rival{Endpoint: c.Endpoint, RefusedBy: c.RefusedBy, Why: c.Why}
		if c.RefusedBy == "" {
			r.Gap = winner.Total - c.Total
			r.compare(e.Columns, winner.Scores, c.Scores)
			if next < 0 || c.Total > e.Candidates[next].Total {
				next = i
			}
		}
		out.Rivals = append(out.Rivals, r)
	}
	if next >= 0 {
		out.Lead = winner.Total - e.Candidates[next].Total
	}
	if len(e.Columns) > 1 { // without the only one all are alike
		for k := range e.Columns {
			if other := e.bestWithout(k, at); other != at {
				out.Without = append(out.Without, Without{Column: e.Columns[k].Name, Winner: e.Candidates[other].Endpoint})
			}
		}
	}
	return out
}

func (r *Rival) compare(columns []Column, winner, own []float64) {
	for k := range min(len(columns), len(winner), len(own)) {
		weight := columns[k].Weight
		r.By = append(r.By, weight*(winner[k]-own[k]))
		if weight <= 0 || r.Gap <= 0 {
			continue
		}
		if need := own[k] + r.Gap/weight; need <= 1 {
			r.Needs = append(r.Needs, Need{Column: columns[k].Name, Score: need, Was: own[k]})
		}
	}
}

// bestWithout is the candidate with the best total when column k does not count;
// among equals the one at that index stays.
func (e *Explanation) bestWithout(k, at int) int {
	total := func(c *Candidate) float64 {
		if k >= len(c.Scores) {
			return c.Total
		}
		return c.Total - e.Columns[k].Weight*c.Scores[k]
	}
	best := at
	for i := range e.Candidates {
		// The margin is for sums that differ in their last bits alone.
		if c := &e.Candidates[i]; c.RefusedBy == "" && total(c) > total(&e.Candidates[best])+1e-12 {
			best = i
		}
	}
	return best
}
