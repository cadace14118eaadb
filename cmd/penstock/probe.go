// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/extproc"
	"github.com/penstock/penstock/internal/certs"
)

// probeFlags are the flags of epp probe.
type probeFlags struct {
	output, body, path, served string
	headers, subset            []string
	tls, plaintext             bool
	identity                   certs.Client
	noSubset                   bool
	status                     int
	timeout                    time.Duration
}

func newProbeCommand() *cobra.Command {
	var f probeFlags
	c := &cobra.Command{
		Use:   "probe ADDRESS --body FILE",
		Short: "Ask any endpoint picker as a gateway would, and print what passed",
		Long: `Ask an endpoint picker for a pick (Endpoint Picker Protocol, gRPC ext_proc) as a
gateway would, then report a short answer of the endpoint that it picked, and
print every message with the time at which it passed. No model server is called.

Below the messages stands where the picker leaves the protocol, if it does.

Without --tls and --plaintext it finds out whether the port speaks TLS, and then
believes any certificate: it says so. --tls verifies it.

Exit codes: 0 it picked, 1 it failed or refused, 2 wrong flags or an unreadable
file.`,
		Example: "  penstock epp probe 127.0.0.1:9002 --body request.json\n  penstock epp probe epp.gpu.internal:9002 --body request.json --ca ca.pem\n  penstock epp probe 10.0.0.7:9002 --body request.json --subset 10.0.0.11:8000",
		Args:    cobra.ExactArgs(1),
		RunE:    func(c *cobra.Command, args []string) error { return runProbe(c, args[0], &f) },
	}
	fs := c.Flags()
	outputFlag(c, &f.output, "text")
	fs.StringVar(&f.body, "body", "", "file with the request's body; - is standard input; without it a request without body")
	fs.StringVar(&f.path, "path", "/v1/chat/completions", "path of the request")
	fs.StringArrayVar(&f.headers, "header", nil, "NAME: VALUE to send, may be repeated")
	fs.StringSliceVar(&f.subset, "subset", nil, "endpoints to pick from, as a hint (host:port, may be repeated)")
	fs.BoolVar(&f.noSubset, "empty-subset", false, "send a hint that names nobody")
	fs.StringVar(&f.served, "served", "", "endpoint to report as the one that answered (default the first one picked)")
	fs.IntVar(&f.status, "status", 200, "status of the answer that is reported")
	fs.BoolVar(&f.tls, "tls", false, "speak TLS and verify the certificate (default: find out)")
	fs.BoolVar(&f.plaintext, "plaintext", false, "do not speak TLS (default: find out)")
	fs.StringVar(&f.identity.CA, "ca", "", "PEM file with the authorities to trust (implies --tls)")
	fs.StringVar(&f.identity.Cert, "cert", "", "PEM file with a client certificate (implies --tls; with --key)")
	fs.StringVar(&f.identity.Key, "key", "", "PEM file with the key of --cert")
	fs.StringVar(&f.identity.ServerName, "server-name", "", "name to expect in the certificate")
	fs.BoolVar(&f.identity.InsecureSkipVerify, "insecure", false, "believe any certificate (implies --tls)")
	fs.DurationVar(&f.timeout, "timeout", 10*time.Second, "longest time for all of it")
	return quiet(c)
}

func runProbe(c *cobra.Command, address string, f *probeFlags) error {
	if err := checkOutput(f.output, "text"); err != nil {
		return err
	}
	p := &extproc.Probe{Address: address, Path: f.path, Header: http.Header{}, Subset: f.subset, Served: f.served, Status: f.status, Timeout: f.timeout}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return usageError("%q is not host:port", address)
	}
	if f.noSubset {
		p.Subset = []string{}
	}
	for _, line := range f.headers {
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return usageError("--header %q is not NAME: VALUE", line)
		}
		p.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	switch f.body {
	case "":
	case "-":
		p.Body, err = io.ReadAll(c.InOrStdin())
	default:
		p.Body, err = os.ReadFile(f.body)
	}
	if err != nil {
		return usageError("--body: %w", err)
	}
	if len(p.Body) > 0 && p.Header.Get("Content-Type") == "" {
		p.Header.Set("Content-Type", "application/json")
	}
	secure := f.tls || !f.identity.IsZero()
	switch {
	case f.identity.Cert != "" && f.identity.Key == "":
		return usageError("--cert %s: its key is missing; name it with --key", f.identity.Cert)
	case f.identity.Key != "" && f.identity.Cert == "":
		return usageError("--key %s: its certificate is missing; name it with --cert", f.identity.Key)
	case f.identity.CA != "" && f.identity.InsecureSkipVerify:
		return usageError("--insecure believes any certificate, whatever --ca says; leave out one of them")
	case f.plaintext && secure:
		return usageError("--plaintext means no TLS, and another flag asks for it; leave out one of them")
	}
	p.Detect = !secure && !f.plaintext
	if secure {
		if f.identity.ServerName == "" {
			f.identity.ServerName = host
		}
		p.TLS = &f.identity
	}
	t := p.Run(c.Context())
	if f.output == "json" {
		text, err := json.MarshalIndent(t, "", "  ")
		if err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "%s\n", text)
	} else if err := t.Write(c.OutOrStdout()); err != nil {
		return err
	}
	if t.Error != "" || t.Status != 0 || len(t.Endpoints) == 0 {
		return &exitError{code: exitFailed} // which the transcript says
	}
	return nil
}
