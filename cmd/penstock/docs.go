// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// newDocsCommand prints the reference pages of docs/. The end-to-end tests
// compare them with what is committed.
func newDocsCommand() *cobra.Command {
	return quiet(&cobra.Command{
		Use:    "docs",
		Short:  "Print the reference of the command line, Markdown",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return writeReference(c.OutOrStdout(), c.Root())
		},
	})
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
	for _, c := range root.Commands() {
		if c.Hidden || !c.IsAvailableCommand() || c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		about := c.Long
		if about == "" {
			about = c.Short + "."
		}
		fmt.Fprintf(&b, "\n## penstock %s\n\n```\npenstock %s\n```\n\n%s\n", c.Name(), c.Use, indentLists(about))
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
