// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Command penstock is the inference gateway, its tools and its simulator.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/spf13/cobra"
)

func main() {
	// Only net/http writes to the standard logger here: the bytes that a model
	// server sends unasked, which may be the text of an answer.
	log.SetOutput(io.Discard)
	os.Exit(run(os.Args[1:]))
}

// run is main without the process around it. Results go to standard output,
// everything else to standard error.
func run(args []string) int {
	root := newRootCommand()
	root.SetArgs(args)
	err := root.ExecuteContext(context.Background())
	if err == nil {
		return 0
	}
	if text := err.Error(); text != "" {
		fmt.Fprintln(os.Stderr, "penstock: "+text)
	}
	var coded *exitError
	if errors.As(err, &coded) {
		return coded.code
	}
	return exitFailed
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "penstock",
		Short: "An inference gateway that picks the right model server",
	}
	root.AddCommand(
		newRunCommand(), newGatewayCommand(), newControllerCommand(), newEPPCommand(), newDemoCommand(), newSimCommand(), newBenchCommand(),
		newCheckCommand(), newConfigCommand(), newImportCommand(), newPricesCommand(), newGetCommand(), newKeysCommand(), newTenantsCommand(), newExplainCommand(), newVersionCommand(), newDocsCommand(),
	)
	root.Version = thisBuild().String()
	root.SetVersionTemplate("{{.Version}}\n")
	return quiet(root)
}
