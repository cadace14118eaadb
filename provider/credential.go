// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
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
	signer       *v4.Signer // keeps keys that it has derived

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
	oauth *tokens          // of a service account; nil: the value itself is sent
	key   *aws.Credentials // requests are signed with it; nil: they are not
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
	if p.cfg.Dialect == config.ProviderBedrock {
		c.signer = v4.NewSigner()
	}
	value := cfg.Secret
	if c.file != "" {
		var err error
		if value, err = config.ReadSecret(c.file); err != nil {
			return nil, errors.New("cannot be read: " + reason(err))
		}
		c.checked.Store(time.Now().UnixNano())
	}
	s, err := c.newSecret(value)
	if err != nil {
		return nil, err
	}
	c.secret.Store(s)
	return c, nil
}

// newSecret checks a secret and makes of it what the kind of provider needs. No
// error holds a part of it.
func (c *Credential) newSecret(value config.Secret) (*secret, error) {
	p := c.provider
	s := &secret{value: value}
	var err error
	switch {
	case value == "":
		err = errors.New("secret is empty")
	case p.cfg.Dialect == config.ProviderVertex:
		s.oauth, err = p.newTokens(value)
	case p.cfg.Dialect == config.ProviderBedrock && strings.HasPrefix(value.Reveal(), "{"):
		s.key, err = readKey(value)
	case !httpguts.ValidHeaderFieldValue(value.Reveal()):
		err = errors.New("secret holds characters that no header may have")
	case c.accessKeyID != "":
		s.key = &aws.Credentials{AccessKeyID: c.accessKeyID, SecretAccessKey: value.Reveal(), SessionToken: c.sessionToken.Reveal()}
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// readKey reads a key of AWS in the form that credential processes print, for
// keys that something else renews in a file.
func readKey(value config.Secret) (*aws.Credentials, error) {
	var key struct{ AccessKeyID, SecretAccessKey, SessionToken string }
	if err := json.Unmarshal([]byte(value.Reveal()), &key); err != nil {
		return nil, errors.New("secret begins with { and is not JSON")
	}
	for _, s := range []string{key.AccessKeyID, key.SecretAccessKey} {
		if s == "" {
			return nil, errors.New("secret is JSON without AccessKeyId or SecretAccessKey")
		}
	}
	if !httpguts.ValidHeaderFieldValue(key.AccessKeyID) || !httpguts.ValidHeaderFieldValue(key.SessionToken) {
		return nil, errors.New("secret holds characters that no header may have")
	}
	return &aws.Credentials{AccessKeyID: key.AccessKeyID, SecretAccessKey: key.SecretAccessKey, SessionToken: key.SessionToken}, nil
}

// Name is the credential's name; "none" where the provider has none.
func (c *Credential) Name() string { return c.name }

// Format prints the name under every verb: fmt would print what is inside.
func (c *Credential) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("credential " + c.name)) }

// LogValue keeps everything but the name out of logs.
func (c *Credential) LogValue() slog.Value { return slog.StringValue(c.name) }

// current is the secret in use; nil: there is none. Its file is looked at now and
// then; a file that is not right keeps the last good value.
func (c *Credential) current() *secret {
	c.look()
	return c.secret.Load()
}

// values are all that must not be told.
func (s *secret) values() []string {
	switch {
	case s == nil:
		return nil
	case s.oauth != nil:
		s.oauth.mu.Lock()
		defer s.oauth.mu.Unlock()
		return []string{s.oauth.token}
	case s.key != nil:
		return []string{s.key.SecretAccessKey, s.key.SessionToken, s.key.AccessKeyID}
	}
	return []string{s.value.Reveal()}
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
		c.disbelieve("cannot be read: " + reason(err))
		return
	}
	if value == c.secret.Load().value {
		c.believe()
		return
	}
	s, err := c.newSecret(value)
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
