// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// The bench of Envoy runs the example, with other addresses and no TLS to the
// picker.
func TestEnvoyConfig(t *testing.T) {
	const example = "../../examples/envoy/envoy.yaml"
	text, err := envoyConfig(example, "127.0.0.1:1", "127.0.0.2:2", []string{"127.0.0.3:31", "127.0.0.3:32"})
	if err != nil {
		t.Fatal(err)
	}
	type socket struct {
		SocketAddress struct {
			Address string `yaml:"address"`
			Port    int    `yaml:"port_value"`
		} `yaml:"socket_address"`
	}
	var doc struct {
		Static struct {
			Listeners []struct {
				Address socket `yaml:"address"`
			} `yaml:"listeners"`
			Clusters []struct {
				Name      string `yaml:"name"`
				Transport any    `yaml:"transport_socket"`
				Load      struct {
					Endpoints []struct {
						LB []struct {
							Endpoint struct {
								Address socket `yaml:"address"`
							} `yaml:"endpoint"`
						} `yaml:"lb_endpoints"`
					} `yaml:"endpoints"`
				} `yaml:"load_assignment"`
			} `yaml:"clusters"`
		} `yaml:"static_resources"`
	}
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	at := func(s socket) string { return fmt.Sprintf("%s:%d", s.SocketAddress.Address, s.SocketAddress.Port) }
	var got []string
	for _, l := range doc.Static.Listeners {
		got = append(got, at(l.Address))
	}
	for _, c := range doc.Static.Clusters {
		if c.Transport != nil {
			t.Errorf("cluster %s has TLS", c.Name)
		}
		got = append(got, c.Name)
		for _, e := range c.Load.Endpoints {
			for _, m := range e.LB {
				got = append(got, at(m.Endpoint.Address))
			}
		}
	}
	if want := "127.0.0.1:1 pool 127.0.0.3:31 127.0.0.3:32 picker 127.0.0.2:2"; strings.Join(got, " ") != want {
		t.Errorf("got %s, want %s", strings.Join(got, " "), want)
	}

	other := filepath.Join(t.TempDir(), "envoy.yaml")
	if _, err := envoyConfig(other, "a:1", "b:2", nil); err == nil || !strings.Contains(err.Error(), "--envoy-config") {
		t.Errorf("without the example: %v", err)
	}
	if err := os.WriteFile(other, []byte("static_resources: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := envoyConfig(other, "a:1", "b:2", nil); err == nil || !strings.Contains(err.Error(), "0 times") {
		t.Errorf("an example that is none: %v", err)
	}
}
