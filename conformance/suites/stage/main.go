// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Command stage is the model server and the endpoint picker of the tests in
// package own. Both do what headers of the request say, so that a test decides
// what happens to each of its requests:
//
//	stage server [-port 3000] [-drain 10m]
//	stage picker [-port 9002] [-cert-path FOLDER]
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := fmt.Errorf("usage: stage server|picker [FLAGS]")
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "server":
			err = serve(ctx, os.Args[2:])
		case "picker":
			err = pick(ctx, os.Args[2:])
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "stage:", err)
		os.Exit(1)
	}
}
