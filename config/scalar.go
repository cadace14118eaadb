// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

var units = []struct {
	name  string
	bytes int64
}{
	{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"B", 1},
}

// String writes the size with the largest binary unit that divides it.
func (s Size) String() string {
	if s == 0 {
		return "0"
	}
	for _, u := range units[:3] {
		if int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

var numberUnit = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(\s*)([A-Za-zµ]*)$`)

// parseSize reads a size. Its error has a hint where one can be given.
func parseSize(s string) (Size, *Problem) {
	m := numberUnit.FindStringSubmatch(s)
	if m == nil {
		return 0, &Problem{What: "is not a size", Hint: "write a whole number with a unit, such as 32MiB"}
	}
	unit := int64(1)
	if m[3] != "" {
		known := ""
		for _, u := range units {
			if u.name == m[3] {
				unit, known = u.bytes, u.name
			}
		}
		if known == "" || m[2] != "" {
			for _, u := range units {
				short := strings.TrimSuffix(u.name, "B")
				if known == "" && (strings.EqualFold(m[3], u.name) || strings.EqualFold(m[3], short)) {
					known = u.name
				}
			}
			if known == "" {
				return 0, &Problem{What: fmt.Sprintf("has the unknown unit %q", m[3]), Hint: "use B, KB, MB, GB, KiB, MiB or GiB"}
			}
			return 0, &Problem{What: "is not a size", Hint: "write " + m[1] + known}
		}
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil || n > math.MaxInt64/unit {
		if strings.Contains(m[1], ".") {
			return 0, &Problem{What: "is not a whole number", Hint: "use a smaller unit"}
		}
		return 0, &Problem{What: "is too large"}
	}
	return Size(n * unit), nil
}

// parseDuration reads a time span, which always has a unit.
func parseDuration(s string) (Duration, *Problem) {
	if d, err := time.ParseDuration(s); err == nil && s != "0" && s != "+0" && s != "-0" {
		return Duration(d), nil
	}
	m := numberUnit.FindStringSubmatch(s)
	if m == nil {
		return 0, &Problem{What: "is not a time span", Hint: "write a number with a unit, such as 500ms, 2s or 10m"}
	}
	if m[3] == "" {
		hint := "write " + m[1] + "s"
		if n, err := strconv.ParseFloat(m[1], 64); err == nil && n >= 100 {
			hint = fmt.Sprintf("write %[1]sms or %[1]ss", m[1])
		}
		return 0, &Problem{What: "needs a unit", Hint: hint}
	}
	unit := ""
	switch strings.ToLower(m[3]) {
	case "ns", "us", "µs", "ms", "s", "m", "h":
		unit = strings.ToLower(m[3])
	case "sec", "secs", "second", "seconds":
		unit = "s"
	case "min", "mins", "minute", "minutes":
		unit = "m"
	case "hour", "hours", "hr":
		unit = "h"
	case "msec", "millis", "milliseconds":
		unit = "ms"
	case "d", "day", "days":
		if days, err := strconv.Atoi(m[1]); err == nil && days < 10000 {
			return 0, &Problem{What: "has the unknown unit " + strconv.Quote(m[3]), Hint: fmt.Sprintf("write %dh", days*24)}
		}
	}
	if unit == "" {
		return 0, &Problem{What: "has the unknown unit " + strconv.Quote(m[3]), Hint: "use ms, s, m or h"}
	}
	if _, err := time.ParseDuration(m[1] + unit); err != nil {
		return 0, &Problem{What: "is too large"}
	}
	return 0, &Problem{What: "is not a time span", Hint: "write " + m[1] + unit}
}

// String writes the span with its unit and without parts that are zero: 5m,
// not 5m0s.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText makes JSON and YAML carry the unit.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// MarshalText makes JSON and YAML carry the unit.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// placeholder stands wherever a secret would be printed.
const placeholder = "<secret>"

// String is a placeholder; an empty secret is empty.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return placeholder
}

// Reveal is the secret itself: for the one place that sends it.
func (s Secret) Reveal() string { return string(s) }

// Format prints the placeholder under every verb. The fmt package cannot call
// it for an unexported field of a struct: keep secrets in exported ones.
func (s Secret) Format(f fmt.State, verb rune) { _, _ = f.Write([]byte(s.String())) }

// MarshalText covers JSON, YAML and every other text form.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue covers log/slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
