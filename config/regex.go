// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"regexp/syntax"
)

// Bounds of regular expressions. They match in linear time, but each byte of
// what a client sends can cost a step per instruction of the compiled
// expression, and repeats are compiled as often as they repeat: (.?){1000} is
// some thousands of instructions in ten bytes.
const (
	MaxExpression       = 500  // instructions of one expression, about
	MaxRouteExpressions = 2000 // of all of one HTTPRoute, about
)

// Expression says about how many instructions a regular expression (RE2) is
// compiled into, without compiling it, and why it cannot be used.
func Expression(text string) (int, error) {
	if len(text) > 4096 {
		return 0, fmt.Errorf("is longer than 4096 bytes")
	}
	re, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return 0, err
	}
	// As it is matched: an open \Q would quote what comes after it.
	if _, err := syntax.Parse(`\A(?:`+text+`)\z`, syntax.Perl); err != nil {
		return 0, err
	}
	n := instructions(re)
	if n > MaxExpression {
		return n, fmt.Errorf("is too expensive to match: it comes to about %d instructions, and %d are the most; repeat less", n, MaxExpression)
	}
	return n, nil
}

// instructions is about what regexp compiles re into. It stops counting where
// it is far beyond every bound, so that it cannot overflow.
func instructions(re *syntax.Regexp) int {
	const enough = 1 << 20
	n := 1
	switch re.Op {
	case syntax.OpLiteral:
		return max(1, len(re.Rune))
	case syntax.OpCharClass:
		return 1 + len(re.Rune)/8 // ranges are searched, but take room
	}
	for _, sub := range re.Sub {
		n = min(n+instructions(sub), enough)
	}
	switch re.Op {
	case syntax.OpRepeat:
		times := re.Max
		if times < 0 {
			times = re.Min + 1
		}
		n = min(n*max(1, times), enough)
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpCapture:
		n++
	}
	return n
}
