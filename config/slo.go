// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import "fmt"

// SLO is an objective: the share of some requests that are to be good.
type SLO struct {
	Name    string   `yaml:"name"`
	Models  []string `yaml:"models"`  // names or patterns with one *, of what clients ask for; nil: every model
	Tenants []string `yaml:"tenants"` // likewise, with those above: acme/*; nil: every tenant
	// Objective is what makes a request good: ttft, its first token came within
	// Under; tpot, its tokens came within Under each, on average; errors, it did not
	// fail for a reason on this side.
	Objective Objective `yaml:"objective" enum:"ttft|tpot|errors"`
	Under     Duration  `yaml:"under" min:"0s" max:"1h"`
	Target    float64   `yaml:"target" default:"0.99" min:"0.5" max:"0.99999"` // share of good requests
}

// Objective is a kind of SLO.
type Objective string

// Objectives.
const (
	ObjectiveTTFT   Objective = "ttft"
	ObjectiveTPOT   Objective = "tpot"
	ObjectiveErrors Objective = "errors"
)

func (v *validator) slos() {
	seen := map[string]int{}
	for i := range v.c.SLOs {
		s, path := &v.c.SLOs[i], joinIndex("slos", i)
		if before, ok := seen[s.Name]; ok {
			v.fail(joinKey(path, "name"), fmt.Sprintf("%s is the name of slos[%d] too", s.Name, before), "each objective has a name of its own")
		}
		if seen[s.Name] = i; s.Name == "" || len(s.Name) > 128 {
			v.fail(joinKey(path, "name"), "is missing or too long", "metrics and alerts carry it")
		}
		switch {
		case s.Objective == "":
			v.fail(joinKey(path, "objective"), "is missing", "write ttft, tpot or errors")
		case s.Objective == ObjectiveErrors && s.Under != 0:
			v.fail(joinKey(path, "under"), "means nothing with objective: errors", "remove it")
		case s.Objective != ObjectiveErrors && s.Under == 0:
			v.fail(joinKey(path, "under"), "is missing", "write the time that a good request stays under, such as 500ms")
		}
	}
}
