// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
)

// run brings a rig up for one command and ends it with the command.
func run(ctx context.Context, args []string) error {
	s, more, err := prepare(ctx, "run", args)
	if err != nil {
		return err
	}
	if len(more.rest) == 0 {
		return errors.New("run: no command; rig run [FLAGS] -- COMMAND [ARG...]")
	}
	s.Command = more.rest
	if s.Logs != "" {
		if s.Logs, err = filepath.Abs(s.Logs); err != nil {
			return err
		}
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	cmd, err := launch(s, nil, false, nil)
	if err != nil {
		return err
	}
	go func() {
		for sig := range signals {
			if sig == syscall.SIGTERM {
				cmd.Process.Signal(sig)
			}
		}
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if code := exit.ExitCode(); code >= 0 {
			return exitError(code)
		}
		return exitError(128 + int(exit.Sys().(syscall.WaitStatus).Signal()))
	}
	return err
}
