// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Command controlplane is etcd, kube-apiserver and kube-controller-manager of
// the pinned Kubernetes release in one binary, built from their Go modules. It
// has a module of its own so that nothing of a Kubernetes server enters the
// module of the gateway.
//
// The first argument says which program to be; the rest are that program's own
// flags. The rig starts it once for each: the Kubernetes packages keep flags,
// feature gates and metrics in package variables, so two of them in one process
// would share what they must not share.
package main

import (
	"fmt"
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: controlplane etcd|kube-apiserver|kube-controller-manager [FLAGS]")
		os.Exit(2)
	}
	program := os.Args[1]
	os.Args = os.Args[1:]
	switch program {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kube-controller-manager":
		os.Exit(cli.Run(controllers.NewControllerManagerCommand()))
	default:
		fmt.Fprintf(os.Stderr, "controlplane: no program %q: want etcd, kube-apiserver or kube-controller-manager\n", program)
		os.Exit(2)
	}
}
