// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/penstock/penstock/config"
)

// newDocsCommand prints the generated pages of docs/. The end-to-end tests
// compare them with what is committed.
func newDocsCommand() *cobra.Command {
	return quiet(&cobra.Command{
		Use:       "docs cli|config",
		Short:     "Print a page of the reference, Markdown",
		Hidden:    true,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"cli", "config"},
		RunE: func(c *cobra.Command, args []string) error {
			if args[0] == "cli" {
				return writeReference(c.OutOrStdout(), c.Root())
			}
			_, err := io.WriteString(c.OutOrStdout(), configPage())
			return err
		},
	})
}

// configPage is docs/config.md.
func configPage() string {
	return "# Configuration\n\n" +
		"This page is printed by the binary: `make docs`.\n\n" +
		"One YAML file, decoded strictly: an unknown key, a dangling or duplicate name, a duration without its unit is an error\n" +
		"with `file:line:col: path: what; hint`. Durations are written `500ms`, `2s`, `10m`; sizes `64KiB`, `32MiB`, or in bytes.\n" +
		"A relative path is relative to the folder of the file.\n" +
		"`${NAME}` in a value is the environment's. `penstock check` validates, `penstock config` prints it with defaults.\n\n" +
		strings.TrimRight(config.Reference(), "\n") + "\n"
}

// writeReference prints the page docs/cli.md from the commands below root.
func writeReference(w io.Writer, root *cobra.Command) error {
	var b strings.Builder
	b.WriteString("# Command line\n\n" +
		"This page is printed by the binary: `make docs`.\n\n" +
		"Results go to standard output, everything else to standard error. Every command that prints\n" +
		"data has `-o json`.\n\n" +
		"| exit code | meaning |\n|---|---|\n" +
		"| 0 | done |\n" +
		"| 1 | the answer is no: invalid configuration, gateway not reached, request failed |\n" +
		"| 2 | wrong flags or arguments, or a file that cannot be read |\n")
	for _, c := range leaves(root) {
		about := c.Long
		if about == "" {
			about = c.Short + "."
		}
		fmt.Fprintf(&b, "\n## %s\n\n```\n%s\n```\n\n%s\n", c.CommandPath(), strings.TrimSuffix(c.UseLine(), " [flags]"), indentLists(about))
		if c.HasAvailableLocalFlags() {
			b.WriteString("\n| flag | default | meaning |\n|---|---|---|\n")
			c.LocalFlags().VisitAll(func(f *pflag.Flag) { writeFlag(&b, f) })
		}
		if c.Example != "" {
			fmt.Fprintf(&b, "\nExamples:\n\n```\n%s\n```\n", strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n"))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// leaves are the commands below c that do something, depth first.
func leaves(c *cobra.Command) []*cobra.Command {
	var list []*cobra.Command
	for _, sub := range c.Commands() {
		switch {
		case !sub.IsAvailableCommand() || sub.Name() == "help" || sub.Name() == "completion":
		case sub.HasSubCommands():
			list = append(list, leaves(sub)...)
		default:
			list = append(list, sub)
		}
	}
	return list
}

// indentLists makes the indented lines of a help text a block in Markdown.
func indentLists(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "  ") {
			lines[i] = "  " + line
		}
	}
	return strings.Join(lines, "\n")
}

func writeFlag(b *strings.Builder, f *pflag.Flag) {
	if f.Hidden || f.Name == "help" {
		return
	}
	name := "`--" + f.Name + "`"
	if f.Shorthand != "" {
		name = "`-" + f.Shorthand + "`, " + name
	}
	value := ""
	if f.DefValue != "" && f.DefValue != "[]" {
		value = "`" + f.DefValue + "`"
	}
	fmt.Fprintf(b, "| %s | %s | %s |\n", name, value, strings.ReplaceAll(f.Usage, "|", "\\|"))
}
