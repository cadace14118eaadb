// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/penstock/penstock/config"
	"github.com/penstock/penstock/epp"
	"github.com/penstock/penstock/provider"
	"github.com/penstock/penstock/proxy"
	"github.com/penstock/penstock/usage"
)

// The exit codes of every command.
const (
	exitFailed = 1 // the answer is no: invalid configuration, gateway not reached, request failed
	exitUsage  = 2 // wrong flags or arguments, or a file that cannot be read
)

// exitError is an error with its exit code. One without a text has been
// printed already.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// ExitCode is what the process ends with.
func (e *exitError) ExitCode() int { return e.code }

func usageError(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// quiet makes a command's own errors the only thing that is printed, and
// wrong flags and arguments exit with exitUsage.
func quiet(c *cobra.Command) *cobra.Command {
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if bad := (*pflag.InvalidValueError)(nil); errors.As(err, &bad) {
			return usageError("--%s %s: %s; try %s --help", bad.GetFlag().Name, bad.GetValue(), wantedBy(bad.GetFlag()), c.CommandPath())
		}
		return usageError("%w; try %s --help", err, c.CommandPath())
	})
	if c.HasSubCommands() && !c.Runnable() {
		c.Args = func(c *cobra.Command, a []string) error {
			if len(a) == 0 {
				return nil
			}
			hint := c.CommandPath() + " --help lists the commands"
			if near := c.SuggestionsFor(a[0]); len(near) > 0 {
				hint = "did you mean " + strings.Join(near, " or ") + "?"
			}
			return usageError("there is no command %q; %s", a[0], hint)
		}
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		c.SuggestionsMinimumDistance = 2
	} else if args := c.Args; args != nil {
		c.Args = func(c *cobra.Command, a []string) error {
			if err := args(c, a); err != nil {
				switch takes := c.ValidArgs; {
				case len(takes) > 0 && len(a) == 0:
					return usageError("%s what? one of %s; try %s --help", c.Name(), strings.Join(takes, ", "), c.CommandPath())
				case len(takes) > 0:
					return usageError("%s takes one of %s, not %s; try %s --help", c.Name(), strings.Join(takes, ", "), strings.Join(a, " "), c.CommandPath())
				case len(a) == 1 && (a[0] == "true" || a[0] == "false") && lastSwitch(c) != "":
					return usageError("%s is no argument; a flag that is on or off takes its value with =: --%s=%[1]s", a[0], lastSwitch(c))
				case len(a) == 1 && c.Flags().Lookup("config") != nil:
					return usageError("%s takes its file with -c: %s -c %s; try %[2]s --help", c.Name(), c.CommandPath(), a[0])
				}
				return usageError("%w; try %s --help", err, c.CommandPath())
			}
			return nil
		}
	}
	return c
}

// wantedBy is what a flag takes.
func wantedBy(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "int", "int64", "uint64", "uint":
		return "want a whole number"
	case "float64":
		return "want a number"
	case "duration":
		return "want a time span with a unit, such as 30s"
	case "bool":
		return "want true or false"
	}
	return "not a " + f.Value.Type()
}

// lastSwitch is a flag that is on or off and was given, or "".
func lastSwitch(c *cobra.Command) (name string) {
	c.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.Type() == "bool" {
			name = f.Name
		}
	})
	return name
}

func outputFlag(c *cobra.Command, output *string, plain string) {
	c.Flags().StringVarP(output, "output", "o", plain, plain+" or json")
}

func checkOutput(output, plain string) error {
	if output != plain && output != "json" {
		return usageError("-o %s: there is no such output; %s or json", output, plain)
	}
	return nil
}

func newCheckCommand() *cobra.Command {
	var file, output string
	c := &cobra.Command{
		Use:   "check -c FILE",
		Short: "Validate a configuration",
		Long: `Validate a configuration without starting anything, with the picker files and
certificates that it names. A file for penstock epp needs no listeners; the
answer says which commands run a file, where that is not all of them.

Every problem is one line on standard error, file:line:col: path: what; hint.
Lines that begin with note: are about what is valid and may yet not be meant.
Exit codes: 0 valid, 1 not valid, 2 the file cannot be read or the flags are wrong.`,
		Example: "  penstock check -c penstock.yaml",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := checkOutput(output, "text"); err != nil {
				return err
			}
			var notes config.Problems
			cfg, err := loadConfig(file, config.Options{Unlistened: true, Check: checkFiles, Advise: advise, Advice: &notes})
			problems, content := problemsOf(err)
			if err != nil && !content {
				return err
			}
			if output == "json" {
				if err := printJSON(c.OutOrStdout(), struct {
					File     string        `json:"file"`
					Valid    bool          `json:"valid"`
					Commands []string      `json:"commands,omitempty"` // that run it
					Problems []jsonProblem `json:"problems"`
					Notes    []jsonProblem `json:"notes,omitempty"` // on what is valid
				}{file, err == nil, commandsFor(cfg), jsonProblems(problems), jsonProblems(notes)}); err != nil {
					return err
				}
			} else {
				for _, p := range problems {
					fmt.Fprintln(c.ErrOrStderr(), p)
				}
				for _, p := range notes {
					fmt.Fprintln(c.ErrOrStderr(), "note:", p)
				}
			}
			if err != nil {
				return &exitError{code: exitFailed}
			}
			if output != "json" {
				fmt.Fprintf(c.OutOrStdout(), "%s: ok%s\n", file, useOf(cfg))
			}
			return nil
		},
	}
	configFlag(c, &file)
	outputFlag(c, &output, "text")
	return quiet(c)
}

// commandsFor are the commands that run cfg; nil is none.
func commandsFor(cfg *config.Config) []string {
	switch {
	case cfg == nil:
		return nil
	case len(cfg.Listeners) == 0 && len(cfg.PickerListeners) == 0:
		return []string{"epp"}
	}
	return []string{"run", "epp"}
}

// useOf says what a file without listeners for clients can be used for.
func useOf(cfg *config.Config) string {
	switch {
	case len(cfg.Listeners) > 0:
		return ""
	case len(cfg.PickerListeners) > 0:
		return " (no listeners: penstock run and penstock epp serve its pickerListeners to other gateways, and nothing to clients)"
	case len(cfg.Pools) == 1:
		return " for penstock epp alone (no listeners: penstock run would refuse it)"
	}
	return " for penstock epp --pool-name POOL alone (no listeners: penstock run would refuse it)"
}

// jsonProblem is a config.Problem as JSON.
type jsonProblem struct {
	File string `json:"file"`
	Line int    `json:"line,omitempty"`
	Col  int    `json:"col,omitempty"`
	Path string `json:"path"`
	What string `json:"what"`
	Hint string `json:"hint,omitempty"`
}

func jsonProblems(problems config.Problems) []jsonProblem {
	list := make([]jsonProblem, len(problems))
	for i, p := range problems {
		list[i] = jsonProblem(*p)
	}
	return list
}

func configFlag(c *cobra.Command, file *string) {
	c.Flags().StringVarP(file, "config", "c", "penstock.yaml", "configuration file")
}

// loadConfig reads and checks a configuration as far as that goes without
// opening a socket; picker profiles are checked besides what o.Check does. Its
// error is an exitError for a file that cannot be read.
func loadConfig(file string, o config.Options) (*config.Config, error) {
	further := o.Check
	o.Check = func(cfg *config.Config) []*config.Problem {
		problems := checkContent(cfg)
		if further != nil {
			problems = append(problems, further(cfg)...)
		}
		return problems
	}
	cfg, err := config.LoadWith(file, o)
	if err == nil {
		return cfg, nil
	}
	if _, content := problemsOf(err); content {
		return nil, err
	}
	hint := ""
	if errors.Is(err, os.ErrNotExist) {
		hint = "; name the file with -c"
	}
	return nil, usageError("%w%s", err, hint)
}

// checkContent compiles what package config leaves to others: picker profiles,
// whose plug-ins package epp alone knows, the conditions of targets, and lists of
// prices.
func checkContent(cfg *config.Config) []*config.Problem {
	_, prices, _ := usage.NewPrices(&cfg.Prices)
	return slices.Concat(checkPickers(cfg), proxy.CheckConditions(cfg), provider.Check(cfg), prices)
}

func checkPickers(cfg *config.Config) []*config.Problem {
	var problems []*config.Problem
	for i, p := range cfg.Pickers {
		if p.Config == nil {
			continue
		}
		if _, err := epp.Compile(p.Config); err != nil {
			var problem *config.Problem
			if !errors.As(err, &problem) {
				problem = &config.Problem{What: err.Error()}
			}
			problems = append(problems, problem.Under(fmt.Sprintf("pickers[%d].config", i)))
		}
	}
	return problems
}

// checkFiles reads the files that run needs at its start and that the
// configuration only names: certificates and keys. Members files are not among
// them: one that is not there yet is waited for.
func checkFiles(cfg *config.Config) []*config.Problem {
	var problems []*config.Problem
	fail := func(path, what string) { problems = append(problems, &config.Problem{Path: path, What: what}) }
	// identity reads what the section at path names; of is its key for authorities.
	identity := func(path, cert, key, of, authorities string) {
		if cert != "" && key != "" {
			if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
				fail(path+".cert", err.Error())
			}
		}
		if authorities == "" {
			return
		}
		pem, err := os.ReadFile(authorities)
		switch {
		case err != nil:
			fail(path+"."+of, err.Error())
		case !x509.NewCertPool().AppendCertsFromPEM(pem):
			fail(path+"."+of, authorities+" holds no certificate in PEM form")
		}
	}
	server := func(path string, t *config.ServerTLS) {
		if t != nil {
			identity(path, t.Cert, t.Key, "clientCA", t.ClientCA)
		}
	}
	for i, l := range cfg.Listeners {
		server(fmt.Sprintf("listeners[%d].tls", i), l.TLS)
		for j, s := range l.Sections {
			server(fmt.Sprintf("listeners[%d].sections[%d].tls", i, j), s.TLS)
		}
	}
	for i, p := range cfg.Pools {
		if t := p.TLS; t != nil {
			identity(fmt.Sprintf("pools[%d].tls", i), t.Cert, t.Key, "ca", t.CA)
		}
		if r := p.Picker.Remote; r != nil && r.TLS != nil {
			identity(fmt.Sprintf("pools[%d].picker.remote.tls", i), r.TLS.Cert, r.TLS.Key, "ca", r.TLS.CA)
		}
	}
	for i, l := range cfg.PickerListeners {
		server(fmt.Sprintf("pickerListeners[%d].tls", i), l.TLS)
	}
	return problems
}

// advise is about what is valid and may yet not be meant.
func advise(cfg *config.Config) []*config.Problem {
	prices, _, unbilled := usage.NewPrices(&cfg.Prices)
	notes := slices.Concat(hostnames(cfg), unasked(cfg), unserved(cfg), uncounted(cfg), unbilled, prices.Doubts(), proxy.Unpriced(cfg))
	open := map[string]bool{} // pools whose picker elsewhere may be gone
	for _, p := range cfg.Pools {
		open[p.Name] = p.Picker.Remote != nil && p.Picker.Remote.FailureMode == config.FailOpen
	}
	for i, m := range cfg.Models {
		for j, t := range m.Targets {
			if open[t.Pool] && t.Model == "" {
				notes = append(notes, &config.Problem{
					Path: fmt.Sprintf("models[%d].targets[%d]", i, j), What: fmt.Sprintf("names no model: without its picker (FailOpen) the pool is asked for %q", m.Name),
					Hint: "write model: NAME if the picker is what renames it, or servers answer 404",
				})
			}
		}
	}
	return notes
}

// unasked are fallbacks for which no attempt may be left.
func unasked(cfg *config.Config) (notes []*config.Problem) {
	for i, m := range cfg.Models {
		most := m.Retries.Or(cfg.Retries).Attempts
		follows := slices.ContainsFunc(m.Fallbacks, func(f config.Fallback) bool {
			return len(f.On) == 0 || slices.Contains(f.On, config.FallbackGeneral)
		})
		if n := len(m.Targets); follows && n >= most {
			notes = append(notes, &config.Problem{
				Path: fmt.Sprintf("models[%d].fallbacks", i), What: fmt.Sprintf("may not be asked: a request has %d attempts in all, and %d targets that fail use them up", most, n),
				Hint: fmt.Sprintf("write retries: {attempts: %d} at the model", n+len(m.Fallbacks)),
			})
		}
	}
	return notes
}

// unserved are rights of tenants that lead nowhere: models that are not there, and
// regions of no target.
func unserved(cfg *config.Config) (notes []*config.Problem) {
	place := map[string]string{} // region of a provider
	for _, p := range cfg.Providers {
		place[p.Name] = p.Region
	}
	regions := map[string]bool{}
	count := func(provider string, c *config.Capabilities) {
		if c != nil && len(c.Regions) > 0 {
			for _, r := range c.Regions {
				regions[r] = true
			}
		} else if place[provider] != "" {
			regions[place[provider]] = true
		}
	}
	for _, m := range cfg.Models {
		for _, t := range m.Targets {
			count(t.Provider, t.Capabilities)
		}
		for _, f := range m.Fallbacks {
			count(f.Provider, f.Capabilities)
		}
	}
	known := strings.Join(slices.Sorted(maps.Keys(regions)), ", ")
	for i, t := range cfg.Tenants {
		for j, r := range t.Regions {
			if !regions[r] {
				notes = append(notes, &config.Problem{
					Path: fmt.Sprintf("tenants[%d].regions[%d]", i, j), What: fmt.Sprintf("no target is in %q", r),
					Hint: "regions of targets (capabilities.regions, or the provider's region): " + cmp.Or(known, "none"),
				})
			}
		}
		for n, name := range t.Models {
			if !slices.ContainsFunc(cfg.Models, func(m config.Model) bool { return meets(name, m.Name) }) {
				notes = append(notes, &config.Problem{
					Path: fmt.Sprintf("tenants[%d].models[%d]", i, n), What: fmt.Sprintf("no model is called %q", name),
					Hint: "models: " + strings.Join(modelNames(cfg), ", "),
				})
			}
		}
		for j, k := range t.Keys {
			for n, name := range k.Models {
				if !slices.ContainsFunc(cfg.Models, func(m config.Model) bool { return meets(name, m.Name) }) {
					notes = append(notes, &config.Problem{
						Path: fmt.Sprintf("tenants[%d].keys[%d].models[%d]", i, j, n), What: fmt.Sprintf("no model is called %q", name),
						Hint: "models: " + strings.Join(modelNames(cfg), ", "),
					})
				}
			}
		}
	}
	return notes
}

// uncounted are limits that count models of which none is there.
func uncounted(cfg *config.Config) (notes []*config.Problem) {
	asked := modelNames(cfg)
	for i := range cfg.Models {
		for _, f := range cfg.Models[i].Fallbacks {
			if f.Model != "" {
				asked = append(asked, f.Model)
			}
		}
	}
	look := func(path string, limits []config.Limit, names []string) {
		for i := range limits {
			for j, pattern := range limits[i].Models {
				if !slices.ContainsFunc(names, func(name string) bool { return meets(pattern, name) }) {
					notes = append(notes, &config.Problem{
						Path: fmt.Sprintf("%s.limits[%d].models[%d]", path, i, j), What: fmt.Sprintf("no model is called %q: the limit does not count it", pattern),
						Hint: "models: " + strings.Join(modelNames(cfg), ", "),
					})
				}
			}
		}
	}
	for i := range cfg.Tenants {
		t, at := &cfg.Tenants[i], fmt.Sprintf("tenants[%d]", i)
		look(at, t.Limits, asked)
		if t.Users != nil {
			look(at+".users", t.Users.Limits, asked)
		}
		for j := range t.Keys {
			look(fmt.Sprintf("%s.keys[%d]", at, j), t.Keys[j].Limits, asked)
		}
	}
	there := asked // an account's limits know the names at the provider too
	for i := range cfg.Models {
		for _, t := range cfg.Models[i].Targets {
			if t.Model != "" {
				there = append(there, t.Model)
			}
		}
	}
	for i := range cfg.Providers {
		for j := range cfg.Providers[i].Credentials {
			look(fmt.Sprintf("providers[%d].credentials[%d]", i, j), cfg.Providers[i].Credentials[j].Limits, there)
		}
	}
	return notes
}

// meets says that some name may be meant by both; of two patterns it is not found
// out.
func meets(a, b string) bool {
	return config.MatchName(a, b) || config.MatchName(b, a) || strings.Contains(a, "*") && strings.Contains(b, "*")
}

func modelNames(cfg *config.Config) []string {
	names := make([]string, len(cfg.Models))
	for i := range cfg.Models {
		names[i] = cfg.Models[i].Name
	}
	return names
}

// hostnames are the members by name of pools that the Endpoint Picker Protocol
// is spoken about, which knows addresses only.
func hostnames(cfg *config.Config) (notes []*config.Problem) {
	for i, p := range cfg.Pools {
		why := "a picker elsewhere (picker.remote) names it by its address, which is then no member"
		if slices.ContainsFunc(cfg.PickerListeners, func(l config.PickerListener) bool { return l.Pool == p.Name }) {
			why = "other gateways (pickerListeners) are told ip:port, and take no name"
		} else if p.Picker.Remote == nil {
			continue
		}
		note := func(at func(j int) string, members []config.Member) {
			for j, m := range members {
				if _, err := netip.ParseAddrPort(m.Address); err != nil {
					notes = append(notes, &config.Problem{
						Path: at(j), What: fmt.Sprintf("%q is no address: %s", m.Address, why), Hint: "write ip:port, or members: {dns: NAME:PORT}, which resolves it",
					})
				}
			}
		}
		note(func(j int) string { return fmt.Sprintf("pools[%d].members.static[%d]", i, j) }, p.Members.Static)
		if p.Members.File == "" {
			continue
		}
		if text, err := os.ReadFile(p.Members.File); err == nil {
			if list, err := config.ParseMembers(p.Members.File, text); err == nil {
				note(func(int) string { return fmt.Sprintf("pools[%d].members.file", i) }, list)
			}
		}
	}
	return notes
}

// problemsOf says whether err is about the content of a configuration.
func problemsOf(err error) (config.Problems, bool) {
	var many config.Problems
	if errors.As(err, &many) {
		return many, true
	}
	var one *config.Problem
	if errors.As(err, &one) {
		return config.Problems{one}, true
	}
	return nil, false
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
