// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider_test

import (
	"crypto/rand"
	"crypto/rsa"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/provider"
)

// The examples of the page are configurations from which providers can be
// built, and it names every quirk.
func TestPage(t *testing.T) {
	raw, err := os.ReadFile("../docs/providers.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "openai"), "sk-1\n")
	write(t, filepath.Join(dir, "vertex.json"), account(t, key, "https://oauth2.googleapis.com/token"))
	write(t, filepath.Join(dir, "aws.json"), `{"AccessKeyId":"AKIA","SecretAccessKey":"s"}`)
	examples := strings.Split(string(raw), "```yaml\n")[1:]
	if len(examples) < 8 {
		t.Errorf("only %d examples", len(examples))
	}
	for _, e := range examples {
		text, _, _ := strings.Cut(e, "```")
		text = strings.ReplaceAll(text, "/run/secrets", dir)
		text = strings.ReplaceAll(text, "RESOURCE", "resource")
		c, err := config.ParseWith("page.yaml", []byte(strings.TrimSuffix(page, "providers:\n")+text), config.Options{
			Env:   func(name string) (string, bool) { return "value-of-" + name, true },
			Check: provider.Check,
		})
		if err != nil {
			t.Errorf("%v\n%s", err, text)
			continue
		}
		for _, cfg := range c.Providers {
			if _, err := provider.New(cfg, provider.Options{}); err != nil {
				t.Error(err)
			}
		}
	}
	for _, name := range config.ProviderQuirks() {
		if !strings.Contains(string(raw), "`"+name+"`") {
			t.Errorf("the page does not name %s", name)
		}
	}
}
