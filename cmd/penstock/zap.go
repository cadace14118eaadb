// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/penstock/penstock/config"
)

// zapFlags are how the reference picker is told to log. Manifests have them, so
// they are taken: what has a meaning here is mapped, the rest is ignored aloud.
type zapFlags struct {
	level, encoder string
	devel          bool
	verbosity      int
}

func (z *zapFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&z.level, "zap-log-level", "", "as log.level: debug, info, error, or a number, 1 and more being debug")
	flags.StringVar(&z.encoder, "zap-encoder", "", "as log.format: json, or console for text")
	flags.BoolVar(&z.devel, "zap-devel", false, "debug and text, where the other flags say nothing")
	flags.IntVarP(&z.verbosity, "v", "v", 0, "as --zap-log-level, as a number; debug from 4 on")
	flags.String("zap-stacktrace-level", "", "accepted and ignored")
	flags.String("zap-time-encoding", "", "accepted and ignored: times are RFC 3339")
}

// apply puts the flags in the place of what the file says.
func (z *zapFlags) apply(l *config.Log, set *pflag.FlagSet) {
	if z.devel {
		l.Level, l.Format = "debug", "text"
	}
	if z.verbosity >= 4 {
		l.Level = "debug"
	}
	if set.Changed("zap-log-level") {
		l.Level = z.level
		if n, err := strconv.Atoi(z.level); err == nil {
			l.Level = "info"
			if n > 0 {
				l.Level = "debug"
			}
		}
	}
	switch z.encoder {
	case "json":
		l.Format = "json"
	case "console":
		l.Format = "text"
	}
}

func (z *zapFlags) tell(log *slog.Logger, set *pflag.FlagSet) {
	for _, name := range []string{"zap-stacktrace-level", "zap-time-encoding"} {
		if set.Changed(name) {
			log.Warn("flag ignored", "flag", "--"+name, "why", set.Lookup(name).Usage)
		}
	}
}
