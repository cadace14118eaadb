// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"golang.org/x/net/http/httpguts"

	"github.com/penstock/penstock/config"
)

// Credential is one account at a provider, with its health.
type Credential struct {
	provider     *Provider
	name         string
	weight       int
	organization string
	project      string
	accessKeyID  string
	sessionToken config.Secret
	signer       *v4.Signer // nil: requests are not signed

	secret  atomic.Pointer[secret] // nil: there is none
	file    string                 // "": the secret does not change
	checked atomic.Int64           // Unix nanoseconds of the last look at the file
	looking sync.Mutex             // held by the one who looks
	fault   atomic.Pointer[string] // why the file is not believed; nil: it is

	whole  health             // for every model; under Provider.mu, as models
	models map[string]*health // at most maxModels
}

// secret is a value and what was made of it.
type secret struct {
	value config.Secret
	oauth *tokens // of a service account; nil: the value itself is sent
}

// recheck is how long a secret's file is believed without another look.
const recheck = time.Second

func (p *Provider) newCredential(cfg config.Credential, name string) (*Credential, error) {
	c := &Credential{
		provider: p, name: name, weight: 1,
		organization: cfg.Organization, project: cfg.Project,
		accessKeyID: cfg.AccessKeyID, sessionToken: cfg.SessionToken,
		file: cfg.SecretFile, models: map[string]*health{},
	}
	if cfg.Weight != nil {
		c.weight = *cfg.Weight
	}
	if cfg.AccessKeyID != "" {
		c.signer = newSigner()
	}
	value := cfg.Secret
	if c.file != "" {
		var err error
		if value, err = config.ReadSecret(c.file); err != nil {
			return nil, errors.New("secret file cannot be read: " + reason(err))
		}
		c.checked.Store(time.Now().UnixNano())
	}
	s, err := p.newSecret(value)
	if err != nil {
		return nil, err
	}
	c.secret.Store(s)
	return c, nil
}

// newSecret checks a secret and makes of it what the kind of provider needs. No
// error holds a part of it.
func (p *Provider) newSecret(value config.Secret) (*secret, error) {
	switch {
	case value == "":
		return nil, errors.New("secret is empty")
	case p.cfg.Dialect == config.ProviderVertex:
		t, err := p.newTokens(value)
		if err != nil {
			return nil, err
		}
		return &secret{value: value, oauth: t}, nil
	case !httpguts.ValidHeaderFieldValue(value.Reveal()):
		return nil, errors.New("secret holds characters that no header may have")
	}
	return &secret{value: value}, nil
}

// Name is the credential's name; "none" where the provider has none.
func (c *Credential) Name() string { return c.name }

// Format prints the name under every verb: fmt would print what is inside.
func (c *Credential) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("credential " + c.name)) }

// LogValue keeps everything but the name out of logs.
func (c *Credential) LogValue() slog.Value { return slog.StringValue(c.name) }

func (c *Credential) signs() bool { return c.signer != nil }

// current is the value in use. Its file is looked at now and then; a file that is
// not right keeps the last good value.
func (c *Credential) current() config.Secret {
	c.look()
	s := c.secret.Load()
	if s == nil {
		return ""
	}
	return s.value
}

func (c *Credential) token(ctx context.Context) (string, error) {
	return c.secret.Load().oauth.get(ctx)
}

// look reads the file if that was not done for a while. Whoever comes while
// another one is looking goes on with the old value.
func (c *Credential) look() {
	if c.file == "" {
		return
	}
	now := time.Now()
	if now.UnixNano()-c.checked.Load() < int64(recheck) || !c.looking.TryLock() {
		return
	}
	defer c.looking.Unlock()
	c.checked.Store(now.UnixNano())
	value, err := config.ReadSecret(c.file)
	if err != nil {
		c.disbelieve("secret file cannot be read: " + reason(err))
		return
	}
	if value == c.secret.Load().value {
		c.believe()
		return
	}
	s, err := c.provider.newSecret(value)
	if err != nil {
		c.disbelieve(err.Error())
		return
	}
	c.secret.Store(s)
	c.believe()
	c.provider.log.Info("secret has changed", "credential", c.name)
	c.provider.forgive(c)
}

func (c *Credential) believe() {
	if c.fault.Swap(nil) != nil {
		c.provider.log.Info("secret file is right again", "credential", c.name)
	}
}

// disbelieve says so once for each fault in a row.
func (c *Credential) disbelieve(fault string) {
	c.provider.metrics.secretFault(c)
	if old := c.fault.Swap(&fault); old == nil || *old != fault {
		c.provider.log.Warn("secret file is not right; the last good value is kept", "credential", c.name, "fault", fault)
	}
}

// reason is an error without the path, which may tell of the deployment.
func reason(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}
