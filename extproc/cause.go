// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/penstock/penstock/config"
	"google.golang.org/grpc/status"
)

// This file says in few words why a picker cannot be talked to, and what to
// try. gRPC says it in many, and the cause comes last.

// causeOf is the cause inside an error of gRPC.
func causeOf(err error) string {
	text := err.Error()
	if s, ok := status.FromError(err); ok {
		text = s.Message()
	}
	for {
		before := text
		if rest, ok := strings.CutPrefix(text, "connection error: desc = "); ok {
			if text = rest; len(rest) > 1 {
				if plain, err := strconv.Unquote(rest); err == nil {
					text = plain
				}
			}
		}
		for _, wrapped := range []string{"last connection error: ", "transport: ", "Error while dialing: ", "authentication handshake failed: ", "error reading server preface: ", "connect: ", "read: "} {
			text = strings.TrimPrefix(text, wrapped)
		}
		for _, op := range []string{"dial tcp ", "read tcp ", "write tcp "} {
			if rest, ok := strings.CutPrefix(text, op); ok {
				if _, what, ok := strings.Cut(rest, ": "); ok && what != "" {
					text = what
				}
			}
		}
		if text == before {
			return cmp.Or(text, status.Code(err).String())
		}
	}
}

// advice is what may be wrong.
type advice uint8

const (
	adviseNothing     advice = iota
	advisePlaintext          // TLS is spoken to a port without it
	adviseTLS                // and the other way round
	adviseTrust              // its certificate is not vouched for
	adviseName               // its certificate has other names
	adviseCertificate        // it wants a client certificate, or another one
	adviseHTTP               // the port is one of plain HTTP
	adviseOtherPort          // the port is gRPC without ext_proc
)

// adviceOn reads an error; secure says that TLS was spoken.
func adviceOn(err error, secure bool) advice {
	text := err.Error()
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(text, p) {
				return true
			}
		}
		return false
	}
	switch {
	case has("unknown service"):
		return adviseOtherPort
	case has("looked like an HTTP/1.1 header", "malformed HTTP response", "unexpected HTTP status code"):
		return adviseHTTP
	case has("first record does not look like a TLS handshake"):
		return advisePlaintext
	case has("doesn't contain any IP SANs", "certificate is valid for", "certificate is not valid for any names"):
		return adviseName
	case has("x509: ", "failed to verify certificate"):
		return adviseTrust
	case secure && has("remote error: tls: ") && !has("protocol"), secure && has("EOF", "connection reset", "broken pipe"):
		return adviseCertificate
	case !secure && has("error reading server preface", "EOF", "connection reset"):
		return adviseTLS
	}
	return adviseNothing
}

// words are the advice as told to who writes a configuration, and to who writes
// the flags of a probe.
func (a advice) words() (file, flags string) {
	switch a {
	case advisePlaintext:
		return "the port does not speak TLS: leave tls out", "the port does not speak TLS; try --plaintext"
	case adviseTLS:
		return "the port may speak TLS: write tls: {ca: FILE}, or tls: {insecureSkipVerify: true} for a certificate that it signed itself",
			"the port may speak TLS; try --tls, with --ca FILE or --insecure"
	case adviseTrust:
		return "name its authority in tls.ca, or write tls: {insecureSkipVerify: true} for a certificate that it signed itself",
			"nobody who is trusted vouches for its certificate; try --ca FILE with its authority, or --insecure for one that it signed itself"
	case adviseName:
		return "write a name of the certificate as tls.serverName", "try --server-name NAME with a name of the certificate"
	case adviseCertificate:
		return "the picker may want a client certificate, or have refused this one: tls.cert and tls.key",
			"the picker may want a client certificate, or have refused this one; see --cert and --key"
	case adviseHTTP:
		file = "the port speaks plain HTTP, as a metrics port does; ext_proc is usually on 9002"
	case adviseOtherPort:
		file = "the port has no ext_proc service, as a health port; ext_proc is usually on 9002"
	}
	return file, file
}

// policy is the advice to who has no file, for a controller configures the
// gateway: what a file would say of tls is said by a GatewayPolicy.
func (a advice) policy(file string) string {
	const of = "in the GatewayPolicy of the InferencePool"
	switch a {
	case advisePlaintext:
		return "the port does not speak TLS: write picker: {tls: {plaintext: true}} " + of
	case adviseTLS:
		return "the port may speak TLS: leave picker.tls.plaintext out " + of
	case adviseTrust:
		return "name its authority in picker.tls.caCertificateRefs " + of
	case adviseName:
		return "write a name of the certificate as picker.tls.hostname " + of
	case adviseCertificate:
		return "the picker may want a client certificate, and a controller has none for it"
	}
	return file
}

// hint is what an operator whose picker is not ready may try.
func hint(cfg *config.RemotePicker, address string, err error) string {
	var a advice
	if err != nil {
		a = adviceOn(err, cfg.TLS != nil)
	}
	try := "try penstock epp probe " + address
	if cfg.TLS != nil && a != advisePlaintext || a == adviseTLS {
		try += " --tls --insecure"
	}
	text, _ := a.words()
	if cfg.External {
		text = a.policy(text)
	}
	if text != "" {
		return fmt.Sprintf("%s; %s", text, try)
	}
	return try
}
