// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package provider

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Instruments are the Prometheus metrics of all providers
// (penstock_provider_…). Labels are names of the configuration and classes,
// never a model's: a client could make those up.
//
// Counts of events are counters; what is true at this moment is collected from
// the running providers when it is asked for. The methods of a nil *Instruments
// do nothing.
type Instruments struct {
	attempts     *prometheus.CounterVec
	firstOutput  *prometheus.HistogramVec
	cooldowns    *prometheus.CounterVec
	authFailures *prometheus.CounterVec
	secretFaults *prometheus.CounterVec
	tokens       *prometheus.CounterVec

	mu        sync.Mutex
	providers map[string]*Provider // running, by name

	up, coolingModels, inFlight, secretOK *prometheus.Desc
}

// NewInstruments registers them. It panics if they are registered already; a
// nil reg keeps them unregistered.
func NewInstruments(reg prometheus.Registerer) *Instruments {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_provider_" + name, Help: help}, labels)
	}
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("penstock_provider_"+name, help, []string{"provider", "credential"}, nil)
	}
	i := &Instruments{
		providers: map[string]*Provider{},
		attempts:  counter("attempts_total", "Attempts at providers by what came of them.", "provider", "credential", "class"),
		firstOutput: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "penstock_provider_first_output_seconds",
			Help:    "Time from the request to the first output of an answer.",
			Buckets: []float64{.05, .1, .25, .5, 1, 2, 4, 8, 15, 30, 60, 120},
		}, []string{"provider"}),
		cooldowns:     counter("cooldowns_total", "Times that a credential was taken out of use, at a model or at all, by reason.", "provider", "credential", "reason"),
		authFailures:  counter("auth_failures_total", "Requests whose credential the provider refused. Any increase wants a look.", "provider", "credential"),
		secretFaults:  counter("secret_faults_total", "Looks at a secret's file that found it wrong; the last good value is in use.", "provider", "credential"),
		tokens:        counter("token_renewals_total", "Renewals of access tokens by result.", "provider", "result"),
		up:            desc("credential_up", "1 if the credential is not out at every model."),
		coolingModels: desc("credential_cooling_models", "Models at which the credential is out."),
		inFlight:      desc("credential_in_flight", "Requests that this gateway has open with the credential."),
		secretOK:      desc("credential_secret_ok", "0 if the secret's file is wrong and the last good value is in use."),
	}
	if reg != nil {
		reg.MustRegister(i.attempts, i.firstOutput, i.cooldowns, i.authFailures, i.secretFaults, i.tokens, i)
	}
	return i
}

// Describe implements [prometheus.Collector].
func (i *Instruments) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{i.up, i.coolingModels, i.inFlight, i.secretOK} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (i *Instruments) Collect(ch chan<- prometheus.Metric) {
	i.mu.Lock()
	providers := make([]*Provider, 0, len(i.providers))
	for _, p := range i.providers {
		providers = append(providers, p)
	}
	i.mu.Unlock()
	for _, p := range providers {
		i.collect(p, ch)
	}
}

func (i *Instruments) collect(p *Provider, ch chan<- prometheus.Metric) {
	now := time.Now()
	var list []prometheus.Metric // sent without the lock
	p.mu.Lock()
	for _, c := range p.credentials {
		gauge := func(d *prometheus.Desc, v float64) {
			list = append(list, prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, p.name, c.name))
		}
		up, secretOK, out, inFlight := 1.0, 1.0, 0, 0
		if c.whole.fitness(now) == cooling {
			up = 0
		}
		if c.fault.Load() != nil {
			secretOK = 0
		}
		for _, h := range c.models {
			if h.fitness(now) == cooling {
				out++
			}
			inFlight += h.inFlight
		}
		gauge(i.up, up)
		gauge(i.secretOK, secretOK)
		gauge(i.coolingModels, float64(out))
		gauge(i.inFlight, float64(inFlight))
	}
	p.mu.Unlock()
	for _, m := range list {
		ch <- m
	}
}

// add shows p from now on. Of two providers of one name, as there may be for a
// moment at a reload, the later is shown.
func (i *Instruments) add(p *Provider) {
	if i == nil {
		return
	}
	i.mu.Lock()
	old := i.providers[p.name]
	i.providers[p.name] = p
	i.mu.Unlock()
	if old != nil {
		for _, c := range old.credentials {
			if !slices.ContainsFunc(p.credentials, func(n *Credential) bool { return n.name == c.name }) {
				i.forget(prometheus.Labels{"provider": p.name, "credential": c.name})
			}
		}
	}
	for _, c := range p.credentials {
		i.attempts.WithLabelValues(p.name, c.name, OK.String())
		i.authFailures.WithLabelValues(p.name, c.name)
	}
}

func (i *Instruments) remove(p *Provider) {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.providers[p.name] != p {
		return
	}
	delete(i.providers, p.name)
	i.forget(prometheus.Labels{"provider": p.name})
}

// forget drops the series that have the labels.
func (i *Instruments) forget(series prometheus.Labels) {
	for _, vec := range []*prometheus.CounterVec{i.attempts, i.cooldowns, i.authFailures, i.secretFaults, i.tokens} {
		vec.DeletePartialMatch(series)
	}
	i.firstOutput.DeletePartialMatch(series)
}

func (i *Instruments) observed(c *Credential, v Verdict, latency time.Duration) {
	if i == nil {
		return
	}
	i.attempts.WithLabelValues(c.provider.name, c.name, v.Class.String()).Inc()
	if v.Class == Auth || v.Class == Forbidden {
		i.authFailures.WithLabelValues(c.provider.name, c.name).Inc()
	}
	if v.Class == OK && latency > 0 {
		i.firstOutput.WithLabelValues(c.provider.name).Observe(latency.Seconds())
	}
}

func (i *Instruments) cooled(c *Credential, reason Class) {
	if i != nil {
		i.cooldowns.WithLabelValues(c.provider.name, c.name, reason.String()).Inc()
	}
}

func (i *Instruments) secretFault(c *Credential) {
	if i != nil {
		i.secretFaults.WithLabelValues(c.provider.name, c.name).Inc()
	}
}

func (i *Instruments) tokenRenewed(provider, result string) {
	if i != nil {
		i.tokens.WithLabelValues(provider, result).Inc()
	}
}
