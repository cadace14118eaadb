// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/config"
)

func newImportCommand() *cobra.Command {
	c := &cobra.Command{Use: "import", Short: "Translate the configuration of another gateway"}
	c.AddCommand(newImportLiteLLMCommand())
	return quiet(c)
}

func newImportLiteLLMCommand() *cobra.Command {
	var out string
	var strict bool
	c := &cobra.Command{
		Use:   "litellm FILE",
		Short: "Translate a LiteLLM proxy configuration",
		Long: `Translate a configuration of the LiteLLM proxy (- reads it from standard input)
into one of penstock, on standard output or in the file of -o. Nothing is asked
over the network, and no database is read.

What becomes of each setting that is not carried as it is stands in a table on
standard error: do this (a step that only you can take), not carried, carried
differently. Keys that stand in the file itself are copied nowhere: the output
reads them from variables, which the table names.

Exit codes: 0 written, 1 nothing could be written, or with --strict something
was not carried; 2 the file cannot be read or written, or the flags are wrong.`,
		Example: "  penstock import litellm config.yaml -o penstock.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			text, err := readImported(c.InOrStdin(), args[0])
			if err != nil {
				return usageError("%w", err)
			}
			made, report, err := importLiteLLM(text)
			if report != nil {
				report.print(c.ErrOrStderr())
			}
			if err != nil {
				return &exitError{exitFailed, inFile(args[0], err)}
			}
			if err := writeImported(c.OutOrStdout(), args[0], out, made); err != nil {
				return usageError("%w", err)
			}
			if strict && report.count(notCarried) > 0 {
				return &exitError{code: exitFailed}
			}
			return nil
		},
	}
	c.Flags().StringVarP(&out, "output", "o", "", "`file` to write in place of standard output")
	c.Flags().BoolVar(&strict, "strict", false, "exit with 1 if something is not carried")
	return quiet(c)
}

// readImported reads one byte beyond the bound at most.
func readImported(stdin io.Reader, path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(io.LimitReader(stdin, importMaxFile+1))
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, importMaxFile+1))
}

// writeImported never writes over the file that was imported.
func writeImported(stdout io.Writer, in, out string, text []byte) error {
	if out == "" {
		_, err := stdout.Write(text)
		return err
	}
	if a, err := os.Stat(out); err == nil {
		if b, err := os.Stat(in); err == nil && os.SameFile(a, b) {
			return fmt.Errorf("-o %s is the file that is imported; name another one", out)
		}
	}
	return os.WriteFile(out, text, 0o600)
}

// inFile puts the name of the file before its problems.
func inFile(name string, err error) error {
	if name == "-" {
		name = "standard input"
	}
	var p *config.Problem
	if errors.As(err, &p) {
		named := *p
		named.File = name
		return &named
	}
	return fmt.Errorf("%s: %w", name, err)
}

// outcome is what became of a setting.
type outcome string

// The outcomes, in the order in which they are told.
const (
	doThis             outcome = "do this"
	notCarried         outcome = "not carried"
	carriedDifferently outcome = "carried differently"
)

// finding is what is to be told of one setting of the imported file. It never
// holds a value of the file that may be a secret.
type finding struct {
	path   string
	became outcome
	why    string
}

// importReport tells what did not come over as it was.
type importReport struct {
	findings  []finding
	variables map[string]string // that the output may read, each with a value that it might have
}

func (r *importReport) tell(path string, became outcome, why string) {
	r.findings = append(r.findings, finding{path, became, why})
}

func (r *importReport) count(o outcome) (n int) {
	for _, f := range r.findings {
		if f.became == o {
			n++
		}
	}
	return n
}

var listIndex = regexp.MustCompile(`\[[0-9]+\]`)

// rows are the findings in the order of telling. What is said of several entries
// of a list is said once.
func (r *importReport) rows() []finding {
	var rows []finding
	at, more := map[finding]int{}, map[int]int{}
	for _, became := range []outcome{doThis, notCarried, carriedDifferently} {
		for _, f := range r.findings {
			if f.became != became {
				continue
			}
			key := finding{listIndex.ReplaceAllString(f.path, "[]"), f.became, f.why}
			if i, there := at[key]; there {
				if rows[i].path != f.path {
					more[i]++
				}
				continue
			}
			at[key] = len(rows)
			rows = append(rows, f)
		}
	}
	for i, n := range more {
		rows[i].path += fmt.Sprintf(" and %d more", n)
	}
	return rows
}

func (r *importReport) print(w io.Writer) {
	rows := r.rows()
	if len(rows) == 0 {
		return
	}
	var b bytes.Buffer
	tw := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "SETTING\tBECAME\tWHY")
	clean := strings.NewReplacer("\t", " ", "\n", " ", "\r", " ", "\v", " ", "\f", " ")
	for _, f := range rows {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", clean.Replace(f.path), f.became, clean.Replace(f.why))
	}
	tw.Flush()
	w.Write(b.Bytes())
}
