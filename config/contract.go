// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import "context"

// CONTRACT of the package towards cmd, proxy and admin. Bodies to be written.

// Load reads, expands, decodes, defaults and validates the file at path.
// Its error is a Problems value when the content is at fault.
func Load(path string) (*Config, error) { panic("to be written") }

// Parse is Load over text; name stands for the file in positions.
func Parse(name string, text []byte) (*Config, error) { panic("to be written") }

// Problems are every error found, in file order.
type Problems []*Problem

// Redacted is the configuration as YAML, defaults filled in, secrets as
// placeholders.
func (c *Config) Redacted() []byte { panic("to be written") }

// Diff says in lines what changed, for the log (never a secret's value).
func Diff(old, new *Config) []string { panic("to be written") }

// Watch calls changed when the file at path, or a file that it names
// (secrets, pickers), may have changed; it settles bursts. It ends with ctx.
func Watch(ctx context.Context, path string, changed func()) error { panic("to be written") }
