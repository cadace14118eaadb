// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/config"
)

func newConfigCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "config -c FILE",
		Short: "Print a configuration with defaults filled in and secrets hidden",
		Long: `Print the configuration as YAML: defaults filled in, secrets as placeholders.

Exit codes: 0 printed, 1 not valid, 2 the file cannot be read or the flags are wrong.`,
		Example: "  penstock config -c penstock.yaml",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := loadConfig(file, config.Options{Unlistened: true})
			if problems, content := problemsOf(err); content {
				for _, p := range problems {
					fmt.Fprintln(c.ErrOrStderr(), p)
				}
				return &exitError{code: exitFailed}
			}
			if err != nil {
				return err
			}
			_, err = c.OutOrStdout().Write(cfg.Redacted())
			return err
		},
	}
	configFlag(c, &file)
	return quiet(c)
}
