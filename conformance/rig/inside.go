// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/penstock/penstock/conformance/rig/cluster"
	"github.com/penstock/penstock/conformance/rig/clusterdns"
	"github.com/penstock/penstock/conformance/rig/kubelet"
	"github.com/penstock/penstock/conformance/rig/program"
	"github.com/penstock/penstock/conformance/rig/sandbox"
	"github.com/penstock/penstock/conformance/rig/service"
)

// The addresses of the rig. They need not be free on the machine: the rig has a
// network of its own without a way out.
var (
	bridge        = netip.MustParsePrefix("10.244.0.1/16") // of the pods
	bridgeIP      = bridge.Addr()
	clusterIPs    = netip.MustParsePrefix("10.96.0.0/16")
	kubernetesIP  = netip.MustParseAddr("10.96.0.1")
	dnsIP         = netip.MustParseAddr("10.96.0.10")
	loadBalancers = netip.MustParsePrefix("10.245.0.0/16")
)

// inside is the third process: the rig.
func inside() error {
	if len(os.Args) != 2 {
		return errors.New("this name is for the rig itself")
	}
	// What was passed on is for this process, not for those that it starts.
	for fd := firstFile; passed(uintptr(fd)); fd++ {
		syscall.CloseOnExec(fd)
	}
	var s settings
	if err := json.Unmarshal([]byte(os.Args[1]), &s); err != nil {
		return err
	}
	begun := time.Now()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	signal.Ignore(syscall.SIGINT) // at the terminal it is meant for the command
	level := slog.LevelError
	if s.Verbose || s.Up != "" {
		level = slog.LevelInfo
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))

	network, err := s.setUpNamespaces()
	if err != nil {
		return err
	}
	if s.Logs == "" {
		s.Logs = filepath.Join(s.State, "logs")
	}
	if err := os.MkdirAll(s.haltFolder(), 0o700); err != nil {
		return err
	}
	control, err := cluster.Start(ctx, cluster.Config{
		Binary: s.ControlPlane, Dir: filepath.Join(s.State, "cluster"), Logs: s.Logs,
		Addr: bridgeIP.String(), ServiceRange: clusterIPs.String(), ServiceIP: kubernetesIP.String(),
		Halt: s.haltFolder(),
	})
	if err != nil {
		return err
	}
	if err := control.Install(ctx, s.CRDs...); err != nil {
		return err
	}
	control.StartControllers(ctx)
	if err := s.startNode(ctx, control, network, log); err != nil {
		return err
	}
	log.Info("up", "after", time.Since(begun).Round(100*time.Millisecond).String())
	if s.Up != "" {
		return s.stayUp(ctx, control)
	}
	return s.runCommand(ctx, control)
}

// haltVariable tells a command the folder in which it halts processes of the
// control plane.
const haltVariable = "RIG_HALT"

func (s *settings) haltFolder() string {
	if s.Up != "" {
		return filepath.Join(s.Up, haltFolderName)
	}
	return filepath.Join(s.State, haltFolderName)
}

// setUpNamespaces makes the new namespaces a place to live in: /proc shows the
// right processes, the rig's files are in memory and end with it.
func (s *settings) setUpNamespaces() (*sandbox.Network, error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return nil, fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("rig", s.State, "tmpfs", 0, "mode=0755"); err != nil {
		return nil, fmt.Errorf("mount a file system in memory: %w", err)
	}
	resolv := filepath.Join(s.State, resolvFile)
	if err := os.WriteFile(resolv, fmt.Appendf(nil, "nameserver %s\n", dnsIP), 0o644); err != nil {
		return nil, err
	}
	if err := useResolvConf(resolv); err != nil {
		return nil, err
	}
	return sandbox.NewNetwork(bridge, clusterIPs, loadBalancers)
}

// startNode starts what stands in for a node and the cluster's network.
func (s *settings) startNode(ctx context.Context, control *cluster.ControlPlane, network *sandbox.Network, log *slog.Logger) error {
	images := program.NewTable(s.Programs)
	for _, mapping := range s.Images {
		if err := images.Map(mapping); err != nil {
			return err
		}
	}
	client, err := kubernetes.NewForConfig(control.REST)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	forwarder, err := service.New(service.Config{Client: client, Pool: loadBalancers, NodeIP: bridgeIP, Log: log}, factory)
	if err != nil {
		return err
	}
	names := clusterdns.New(factory, log)
	node := kubelet.New(kubelet.Config{
		Client: client, Network: network, Images: images, Dir: filepath.Join(s.State, "pods"),
		NodeIP: bridgeIP, DNS: dnsIP, API: netip.AddrPortFrom(kubernetesIP, 443), Log: log,
	}, factory)
	if err := names.Serve(ctx, dnsIP); err != nil {
		return fmt.Errorf("serve DNS: %w", err)
	}
	if err := node.Start(ctx, factory); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	go forwarder.Run(ctx)
	return nil
}

// runCommand runs the command beside the cluster and ends with it.
func (s *settings) runCommand(ctx context.Context, control *cluster.ControlPlane) error {
	cmd := exec.CommandContext(ctx, s.Command[0], s.Command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "KUBECONFIG="+control.Kubeconfig, haltVariable+"="+s.haltFolder())
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-control.Failed():
		cmd.Process.Kill()
		return err
	case err := <-ended:
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			if status := exit.Sys().(syscall.WaitStatus); status.Signaled() {
				return exitError(128 + int(status.Signal()))
			}
			return exitError(exit.ExitCode())
		}
		return err
	}
}

// stayUp serves the machine outside until it is told to end.
func (s *settings) stayUp(ctx context.Context, control *cluster.ControlPlane) error {
	ready := os.NewFile(firstFile, "ready")
	for i, target := range s.Forwards {
		file := os.NewFile(uintptr(firstFile+1+i), "listener")
		listener, err := net.FileListener(file)
		file.Close()
		if err != nil {
			return err
		}
		if i == 0 {
			server := "https://" + listener.Addr().String()
			if err := control.WriteKubeconfig(filepath.Join(s.Up, kubeconfigFile), server); err != nil {
				return err
			}
		}
		go forward(listener, target)
	}
	inside := "https://" + net.JoinHostPort(bridgeIP.String(), strconv.Itoa(cluster.Port))
	if err := control.WriteKubeconfig(filepath.Join(s.Up, insideConfigFile), inside); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.Up, resolvFile), fmt.Appendf(nil, "nameserver %s\n", dnsIP), 0o644); err != nil {
		return err
	}
	io.WriteString(ready, "ready")
	ready.Close()
	select {
	case <-ctx.Done():
		return nil
	case err := <-control.Failed():
		return err
	}
}

// forward passes connections from the machine to an address in the rig.
func forward(listener net.Listener, target string) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer client.Close()
			server, err := net.DialTimeout("tcp", target, 5*time.Second)
			if err != nil {
				return
			}
			defer server.Close()
			var directions sync.WaitGroup
			directions.Go(func() { io.Copy(server, client); server.(*net.TCPConn).CloseWrite() })
			directions.Go(func() { io.Copy(client, server); client.(*net.TCPConn).CloseWrite() })
			directions.Wait()
		}()
	}
}
