// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Command rig is a Kubernetes cluster of local processes: a real API server with
// its controllers, pods with addresses of their own, Services that answer, and
// the definitions of Gateway API and its inference extension. It needs Linux, Go
// and root, no container engine and no registry, and all of it lives in
// namespaces that end with it.
//
// The commands are in run.go and up.go. Both build what is missing, make the
// namespaces (namespaces.go) and bring the rig up inside of them (inside.go),
// which reads like a list of the parts: sandbox, cluster, service, clusterdns,
// kubelet.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"

	"github.com/penstock/penstock/conformance/rig/sandbox"
)

const usage = `A Kubernetes cluster of local processes.

  rig run [FLAGS] -- COMMAND [ARG...]   run COMMAND in a cluster of its own, with KUBECONFIG set
  rig up [FLAGS]                        start a cluster in the background and print its KUBECONFIG
  rig down                              end it
  rig exec -- COMMAND [ARG...]          run COMMAND in the network of the cluster that is up
  rig build [FLAGS]                     build what the others would build first

rig COMMAND -h lists the flags. docs/rig.md tells more.
`

func main() {
	sandbox.Init()
	// Namespaces are entered, and a parent's death is noticed, by thread: the
	// main goroutine stays on the main thread.
	runtime.LockOSThread()
	if os.Args[0] == reaperName {
		os.Exit(reap())
	}
	if os.Args[0] == insideName {
		os.Exit(report(inside()))
	}
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	ctx := context.Background()
	args := os.Args[2:]
	var err error
	switch os.Args[1] {
	case "run":
		err = run(ctx, args)
	case "up":
		err = up(ctx, args)
	case "down":
		err = down(args)
	case "exec":
		err = enter(args)
	case "build":
		_, _, err = prepare(ctx, "build", args)
	case "help", "-h", "--help":
		fmt.Print(usage)
	default:
		err = fmt.Errorf("no command %q; rig help lists them", os.Args[1])
	}
	os.Exit(report(err))
}

// exitError ends the rig with the code of the command that it ran.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("the command ended with code %d", int(e)) }

func report(err error) int {
	var code exitError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &code):
		return int(code)
	}
	fmt.Fprintln(os.Stderr, "rig:", err)
	return 1
}
