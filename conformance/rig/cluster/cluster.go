// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster starts the control plane of the rig: etcd, kube-apiserver and
// kube-controller-manager as three processes on an empty store, with
// certificates and credentials made for this one run, and installs custom
// resource definitions. There is no scheduler; package kubelet binds every pod
// to its one node.
//
// [Start] is the place to begin. Nothing outlives the folder and the namespaces
// that the caller gives.
package cluster

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Config is what a control plane needs to know.
type Config struct {
	Binary       string // the multi-call program of module controlplane
	Dir          string // keys, store
	Logs         string // one file for each process
	Addr         string // where the API server listens and pods reach it
	ServiceRange string // of ClusterIPs
	ServiceIP    string // the first of ServiceRange: the Service kubernetes
	// Halt is a folder: while it has a file with the name of a process, that
	// process is killed and stays away. Empty: no process can be halted.
	Halt string
}

// Port is where the API server listens.
const Port = 6443

// ControlPlane is a started control plane.
type ControlPlane struct {
	Kubeconfig string // path, for programs
	REST       *rest.Config

	config Config
	pki    *pki
	token  string
	failed chan error
}

// controllers is what the rig runs of kube-controller-manager. Without the node
// life cycle the Node needs no heartbeat; autoscaling has no metrics to go by.
const controllers = "deployment-controller,replicaset-controller,statefulset-controller,daemonset-controller," +
	"job-controller,cronjob-controller,endpointslice-controller,endpointslice-mirroring-controller," +
	"namespace-controller,serviceaccount-controller,root-ca-certificate-publisher-controller," +
	"garbage-collector-controller,disruption-controller,clusterrole-aggregation-controller,ttl-after-finished-controller"

// Start returns when the API server says that it is ready; controllers come
// with StartControllers. The processes end with ctx; Failed reports one that
// ends before.
func Start(ctx context.Context, config Config) (*ControlPlane, error) {
	for _, dir := range []string{config.Dir, config.Logs} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	pki, err := newPKI(config.Dir, config.Addr, config.ServiceIP, "127.0.0.1", "localhost",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
	if err != nil {
		return nil, err
	}
	c := &ControlPlane{config: config, pki: pki, failed: make(chan error, 3)}
	random := make([]byte, 16)
	rand.Read(random)
	c.token = hex.EncodeToString(random)
	tokens := c.path("tokens.csv")
	if err := os.WriteFile(tokens, []byte(c.token+",admin,admin,system:masters\n"), 0o600); err != nil {
		return nil, err
	}
	server := "https://" + net.JoinHostPort(config.Addr, fmt.Sprint(Port))
	c.Kubeconfig = c.path("kubeconfig")
	if err := c.WriteKubeconfig(c.Kubeconfig, server); err != nil {
		return nil, err
	}
	c.REST, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, err
	}
	c.REST.QPS = -1 // there is nobody else to be polite to

	const etcd, peers = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
	c.start(ctx, "etcd",
		"--data-dir", c.path("etcd"), "--unsafe-no-fsync", "--log-level", "warn",
		"--listen-client-urls", etcd, "--advertise-client-urls", etcd,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
		"--initial-cluster", "default="+peers)
	c.start(ctx, "kube-apiserver",
		"--etcd-servers", etcd, "--bind-address", config.Addr, "--advertise-address", config.Addr,
		"--secure-port", fmt.Sprint(Port), "--cert-dir", config.Dir,
		"--tls-cert-file", pki.serverCert, "--tls-private-key-file", pki.serverKey,
		"--token-auth-file", tokens, "--authorization-mode", "RBAC", "--allow-privileged",
		"--service-cluster-ip-range", config.ServiceRange,
		"--service-account-issuer", "https://kubernetes.default.svc",
		"--service-account-key-file", pki.accountKey, "--service-account-signing-key-file", pki.accountKey,
		"--kubelet-preferred-address-types", "InternalIP")
	if err := c.waitReady(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// StartControllers starts kube-controller-manager. What extends the API should
// be installed before: a garbage collector that meets a new kind stops until it
// looks for new kinds again, half a minute later.
func (c *ControlPlane) StartControllers(ctx context.Context) {
	c.start(ctx, "kube-controller-manager",
		"--kubeconfig", c.Kubeconfig, "--leader-elect=false", "--bind-address", "127.0.0.1",
		"--service-account-private-key-file", c.pki.accountKey, "--root-ca-file", c.pki.ca,
		"--controllers", controllers)
}

// Failed yields the first process that ended before its time.
func (c *ControlPlane) Failed() <-chan error { return c.failed }

// WriteKubeconfig writes the administrator's access by way of server.
func (c *ControlPlane) WriteKubeconfig(path, server string) error {
	ca, err := os.ReadFile(c.pki.ca)
	if err != nil {
		return err
	}
	const name = "rig"
	return clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: server, CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {Token: c.token}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}, path)
}

func (c *ControlPlane) path(name string) string { return filepath.Join(c.config.Dir, name) }

// start runs a process; one that ends early, or cannot start, goes to failed.
func (c *ControlPlane) start(ctx context.Context, program string, args ...string) {
	os.Remove(c.logPath(program))
	ended, err := c.launch(ctx, program, args)
	if err != nil {
		c.failed <- fmt.Errorf("start %s: %w", program, err)
		return
	}
	go func() {
		for {
			err := <-ended
			if ctx.Err() != nil {
				return
			}
			if !c.halted(program) {
				c.failed <- fmt.Errorf("%s ended (%v); the end of its log:\n%s", program, err, tail(c.logPath(program)))
				return
			}
			for c.halted(program) && ctx.Err() == nil {
				time.Sleep(haltPoll)
			}
			if ended, err = c.launch(ctx, program, args); err != nil {
				if ctx.Err() == nil {
					c.failed <- fmt.Errorf("start %s again: %w", program, err)
				}
				return
			}
		}
	}()
}

// haltPoll is how often a process is looked for in the folder of halted ones.
const haltPoll = 50 * time.Millisecond

func (c *ControlPlane) halted(program string) bool {
	if c.config.Halt == "" {
		return false
	}
	_, err := os.Stat(filepath.Join(c.config.Halt, program))
	return err == nil
}

func (c *ControlPlane) logPath(program string) string {
	return filepath.Join(c.config.Logs, program+".log")
}

// launch starts a process, which is killed once it is halted. How it ended
// comes over the channel.
func (c *ControlPlane) launch(ctx context.Context, program string, args []string) (<-chan error, error) {
	cmd := exec.CommandContext(ctx, c.config.Binary, append([]string{program}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt at the terminal is for the command
	log, err := os.OpenFile(c.logPath(program), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	over := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		close(over)
		ended <- err
	}()
	if c.config.Halt != "" {
		go func() {
			tick := time.NewTicker(haltPoll)
			defer tick.Stop()
			for {
				select {
				case <-over:
					return
				case <-tick.C:
					if c.halted(program) {
						cmd.Process.Kill() // as a machine that fails would
						return
					}
				}
			}
		}()
	}
	return ended, nil
}

func tail(path string) string {
	log, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// waitReady asks until the API server answers: before that there is nothing to
// watch.
func (c *ControlPlane) waitReady(ctx context.Context) error {
	transport, err := rest.TransportFor(c.REST)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: transport, Timeout: 2 * time.Second}
	deadline := time.After(2 * time.Minute)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	last := errors.New("not asked yet")
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-c.failed:
			return err
		case <-deadline:
			return fmt.Errorf("kube-apiserver is not ready after two minutes: %w", last)
		case <-tick.C:
		}
		resp, err := client.Get(c.REST.Host + "/readyz")
		if err != nil {
			last = err
			continue
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return nil
		}
		last = errors.New(resp.Status)
	}
}
