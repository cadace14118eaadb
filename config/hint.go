// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
)

// closest is the name that a person most likely meant by word, or "".
func closest(word string, names []string) string {
	if len(word) > 64 {
		return ""
	}
	plain := strings.NewReplacer("-", "", "_", "", " ", "")
	best, least := "", 3
	if len(word) < 5 {
		least = 2
	}
	folded := strings.ToLower(plain.Replace(word))
	for _, name := range names {
		if strings.EqualFold(folded, plain.Replace(name)) {
			return name
		}
		if d := distance(strings.ToLower(word), strings.ToLower(name)); d < least {
			best, least = name, d
		}
	}
	return best
}

// didYouMean is a hint: the closest name, or the whole list if it is short.
func didYouMean(word string, names []string) string {
	if name := closest(word, names); name != "" {
		return fmt.Sprintf("did you mean %s?", name)
	}
	if len(names) > 0 && len(names) <= 12 {
		return "known here: " + strings.Join(names, ", ")
	}
	return ""
}

// distance is the number of letters to insert, delete, replace or swap with
// the neighbour (optimal string alignment).
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	rows := [3][]int{make([]int, len(y)+1), make([]int, len(y)+1), make([]int, len(y)+1)}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(x); i++ {
		now, last, before := rows[i%3], rows[(i+2)%3], rows[(i+1)%3]
		now[0] = i
		for j := 1; j <= len(y); j++ {
			cost := 1
			if x[i-1] == y[j-1] {
				cost = 0
			}
			now[j] = min(now[j-1]+1, last[j]+1, last[j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				now[j] = min(now[j], before[j-2]+1)
			}
		}
	}
	return rows[len(x)%3][len(y)]
}
