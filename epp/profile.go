// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package epp

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/config"
)

// Profile is a compiled picker profile: immutable, shared.
type Profile struct {
	name    string
	filters []namedFilter
	columns []Column
	scorers []scorer
	picker  picker
	session *sessionParams // nil: no session affinity
	index   indexParams
	served  bool // see TellsServed
	notes   []string
}

type namedFilter struct {
	name  string
	apply filter
}

// indexParams are those of the prefix producer.
type indexParams struct {
	blocks   int // of a request; at most maxBlocks
	capacity int // of a member that does not report its cache
	reported bool
}

// sessionParams say where a request carries its session.
type sessionParams struct {
	header string // request header
	cookie string // or cookie
	// echo: the header holds a token that names the member; the answer's head
	// tells the client. Else the header or cookie holds a session id of the
	// client's, and the scheduler remembers the member for ttl.
	echo bool
	ttl  time.Duration
}

// Name is the scheduling profile's name.
func (p *Profile) Name() string { return p.name }

// Notes are remarks for the operator: what the configuration says and this
// scheduler takes from elsewhere or has no use for.
func (p *Profile) Notes() []string { return slices.Clone(p.notes) }

// TellsServed says that answers name the endpoint that served them, as the
// gateway in front reported it: destination-endpoint-served-verifier, which the
// conformance suite of the Gateway API Inference Extension asks for. Only a
// picker that other gateways ask can do it.
func (p *Profile) TellsServed() bool { return p.served }

// maxScorers bounds the columns of a profile.
const maxScorers = 16

// defaultProfile names the built-in that "default" stands for.
const defaultProfile = "expected-cost"

// Builtin returns the EndpointPickerConfig of a built-in profile:
//
//	default        the profile that a pool has when it names none
//	expected-cost  affinity and load in one cost, learnt online (see cost.go)
//	lmetric        least uncached tokens × (own requests in flight + 1)
//	llm-d-sticky   llm-d's default: warm members until they answer too late, then token load
//	llm-d-blend    llm-d's older default: prefix 3, queue 2, free KV 2
//	least-request  least own requests in flight
//	round-robin    in turn
//	random         evenly at random
func Builtin(name string) (*config.EndpointPickerConfig, bool) {
	weight := func(w float64) *float64 { return &w }
	var refs []config.PluginRef
	switch name {
	case "default":
		cfg, ok := Builtin(defaultProfile)
		cfg.SchedulingProfiles[0].Name = name
		return cfg, ok
	case "expected-cost":
		refs = []config.PluginRef{{PluginRef: "expected-cost-scorer"}, {PluginRef: "max-score-picker"}}
	case "lmetric":
		refs = []config.PluginRef{{PluginRef: "lmetric-scorer"}, {PluginRef: "max-score-picker"}}
	case "llm-d-sticky":
		refs = []config.PluginRef{
			{PluginRef: "prefix-cache-affinity-filter"}, {PluginRef: "token-load-scorer"}, {PluginRef: "max-score-picker"},
		}
	case "llm-d-blend":
		refs = []config.PluginRef{
			{PluginRef: "queue-scorer", Weight: weight(2)},
			{PluginRef: "kv-cache-utilization-scorer", Weight: weight(2)},
			{PluginRef: "prefix-cache-scorer", Weight: weight(3)},
			{PluginRef: "max-score-picker"},
		}
	case "least-request":
		refs = []config.PluginRef{{PluginRef: "active-request-scorer"}, {PluginRef: "max-score-picker"}}
	case "round-robin":
		refs = []config.PluginRef{{PluginRef: "round-robin-picker"}}
	case "random":
		refs = []config.PluginRef{{PluginRef: "random-picker"}}
	default:
		return nil, false
	}
	cfg := &config.EndpointPickerConfig{
		APIVersion:         apiVersions[0],
		Kind:               configKind,
		SchedulingProfiles: []config.SchedulingProfile{{Name: name, Plugins: refs}},
	}
	for _, ref := range refs {
		cfg.Plugins = append(cfg.Plugins, config.Plugin{Type: ref.PluginRef})
	}
	return cfg, true
}

// Builtins are the names that [Builtin] knows.
func Builtins() []string {
	return []string{
		"default", "expected-cost", "lmetric", "llm-d-sticky", "llm-d-blend", "least-request", "round-robin", "random",
	}
}

var apiVersions = [...]string{"llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1"}

const configKind = "EndpointPickerConfig"

// Compile checks an EndpointPickerConfig strictly: an unknown plug-in type, an
// unknown parameter or a section that is not supported is a *config.Problem
// whose Path is relative to cfg. A configuration without plug-ins (or nil) is
// llm-d's own default: its blend of prefix, queue and KV use.
func Compile(cfg *config.EndpointPickerConfig) (*Profile, error) {
	if cfg == nil {
		cfg = &config.EndpointPickerConfig{}
	}
	c := &compiler{cfg: cfg, byName: map[string]int{}, profile: &Profile{
		name:  "default",
		index: indexParams{blocks: maxBlocks, capacity: unknownCapacity, reported: true},
	}}
	for _, step := range []func() *config.Problem{c.header, c.sections, c.plugins, c.sources, c.scheduling, c.producers} {
		if p := step(); p != nil {
			return nil, p
		}
	}
	return c.profile, nil
}

type compiler struct {
	cfg     *config.EndpointPickerConfig
	byName  map[string]int // plug-in name → place in cfg.Plugins
	built   []built
	profile *Profile
}

func problem(path, what, hint string) *config.Problem {
	return &config.Problem{Path: path, What: what, Hint: hint}
}

func (c *compiler) note(format string, args ...any) {
	c.profile.notes = append(c.profile.notes, fmt.Sprintf(format, args...))
}

func (c *compiler) header() *config.Problem {
	if v := c.cfg.APIVersion; v != "" && !slices.Contains(apiVersions[:], v) {
		return problem("apiVersion", fmt.Sprintf("%q is not known", v), "use "+strings.Join(apiVersions[:], " or "))
	}
	if k := c.cfg.Kind; k != "" && k != configKind {
		return problem("kind", fmt.Sprintf("%q is not known", k), "use "+configKind)
	}
	for i, gate := range c.cfg.FeatureGates {
		name, value, _ := strings.Cut(gate, "=")
		path := fmt.Sprintf("featureGates[%d]", i)
		switch {
		case value != "" && value != "true" && value != "false":
			return problem(path, fmt.Sprintf("%q is neither true nor false", value), "write name=true or name=false")
		case value == "false":
		case name == "flowControl":
			return problem(path, "flowControl is not supported",
				"remove it; concurrency-detector as a filter of a scheduling profile refuses with 429 when every member is full")
		default:
			return problem(path, fmt.Sprintf("feature gate %q is not supported", name), "remove it")
		}
	}
	return nil
}

// sections refuses by name what this scheduler does not do, and accepts the
// rest of the data layer where it says what is so anyway.
func (c *compiler) sections() *config.Problem {
	if c.cfg.FlowControl != nil {
		return problem("flowControl", "flow control is not supported",
			"remove it; concurrency-detector as a filter of a scheduling profile refuses with 429 when every member is full")
	}
	if c.cfg.SaturationDetector != nil {
		return problem("saturationDetector", "the section is not supported",
			"refer to the detector in a scheduling profile, where it is a filter")
	}
	if c.cfg.Parser != nil {
		return problem("parser", "the section is not supported", "remove it; the request's path decides how a body is read")
	}
	if c.cfg.RequestHandler != nil {
		return problem("requestHandler", "the section is not supported", "remove it; the request's path decides how a body is read")
	}
	for key := range sorted(c.cfg.DataLayer) {
		switch key {
		case "injectDefaults", "sources":
		case "discovery":
			c.note("dataLayer.discovery has no effect here: a pool's members come from pools[].members")
		default:
			return problem("dataLayer."+key, "the section is not supported", "remove it")
		}
	}
	if on, ok := c.cfg.DataLayer["injectDefaults"].(bool); ok && !on {
		c.note("dataLayer.injectDefaults: false has no effect here: pools[].metrics says what is scraped")
	}
	return nil
}

// plugins builds every declared plug-in, so that a bad one is refused whether
// it is referred to or not.
func (c *compiler) plugins() *config.Problem {
	if len(c.cfg.Plugins) == 0 && len(c.cfg.SchedulingProfiles) == 0 {
		name, blend := c.profile.name, *c.cfg
		def, _ := Builtin("llm-d-blend")
		blend.Plugins, blend.SchedulingProfiles = def.Plugins, def.SchedulingProfiles
		blend.SchedulingProfiles[0].Name = name
		c.cfg = &blend
	}
	table, refused := pluginTable(), refusedTypes()
	for i, p := range c.cfg.Plugins {
		path := fmt.Sprintf("plugins[%d]", i)
		if p.Type == "" {
			return problem(path+".type", "is missing", "name the plug-in's type")
		}
		if hint, ok := refused[p.Type]; ok {
			return problem(path+".type", fmt.Sprintf("plug-in type %q is not supported", p.Type), hint)
		}
		row, ok := table[p.Type]
		if !ok {
			return problem(path+".type", fmt.Sprintf("plug-in type %q is not known", p.Type), nearest(p.Type, table))
		}
		name := p.Name
		if name == "" {
			name = p.Type
		}
		if _, twice := c.byName[name]; twice {
			return problem(path+".name", fmt.Sprintf("plug-in %q is declared twice", name), "give one of them another name")
		}
		params := &params{path: path + ".parameters", tree: p.Parameters}
		b := built{name: name, kind: p.Type}
		row.build(params, &b)
		if problem := params.finish(); problem != nil {
			return problem
		}
		c.byName[name] = i
		c.built = append(c.built, b)
		c.profile.notes = append(c.profile.notes, b.notes...)
	}
	return nil
}

// sources checks the references of the data layer. What is scraped is the
// pool's affair; the types that may be named here say so themselves.
func (c *compiler) sources() *config.Problem {
	refer := func(path string, tree map[string]any) *config.Problem {
		name, ok := tree["pluginRef"].(string)
		if !ok {
			return problem(path+".pluginRef", "is missing", "name a plug-in")
		}
		if _, ok := c.byName[name]; !ok {
			return problem(path+".pluginRef", fmt.Sprintf("plug-in %q is not declared", name), "declare it under plugins")
		}
		return nil
	}
	sources := &params{path: "dataLayer", tree: c.cfg.DataLayer}
	for _, source := range sources.list("sources") {
		if p := refer(source.path, source.tree); p != nil {
			return p
		}
		source.text("pluginRef", "")
		for _, extractor := range source.list("extractors") {
			extractor.text("pluginRef", "")
			if p := refer(extractor.path, extractor.tree); p != nil {
				return p
			}
		}
		if p := source.finish(); p != nil {
			return p
		}
	}
	return sources.fault
}

func (c *compiler) scheduling() *config.Problem {
	profiles := c.cfg.SchedulingProfiles
	if len(profiles) > 1 {
		return problem("schedulingProfiles[1]", fmt.Sprintf("a second profile, %q, is not supported", profiles[1].Name),
			"keep one; profiles for disaggregated serving are not supported")
	}
	refs, path := []config.PluginRef(nil), "plugins"
	if len(profiles) == 1 {
		refs, path = profiles[0].Plugins, "schedulingProfiles[0].plugins"
		if profiles[0].Name != "" {
			c.profile.name = profiles[0].Name
		}
	} else { // llm-d: one profile with everything that is declared
		for _, b := range c.built {
			if b.filter != nil || b.scorer != nil || b.picker != nil {
				refs = append(refs, config.PluginRef{PluginRef: b.name})
			}
		}
	}
	picker := ""
	for i, ref := range refs {
		at := fmt.Sprintf("%s[%d]", path, i)
		k, ok := c.byName[ref.PluginRef]
		if !ok {
			return problem(at+".pluginRef", fmt.Sprintf("plug-in %q is not declared", ref.PluginRef), "declare it under plugins")
		}
		b := &c.built[k]
		if ref.Weight != nil && b.scorer == nil {
			return problem(at+".weight", fmt.Sprintf("%q is not a scorer", ref.PluginRef), "remove the weight")
		}
		switch {
		case b.filter != nil:
			c.profile.filters = append(c.profile.filters, namedFilter{b.name, b.filter})
		case b.scorer != nil:
			weight := 1.0
			if ref.Weight != nil {
				weight = *ref.Weight
			}
			if !(weight >= 0 && weight <= 1e6) {
				return problem(at+".weight", fmt.Sprintf("%v is out of range", weight), "0 to 1e6")
			}
			if len(c.profile.scorers) == maxScorers {
				return problem(at, fmt.Sprintf("more than %d scorers", maxScorers), "remove some")
			}
			c.profile.columns = append(c.profile.columns, Column{Name: b.name, Weight: weight})
			c.profile.scorers = append(c.profile.scorers, b.scorer)
			if b.session != nil {
				if c.profile.session != nil {
					return problem(at, "a second session affinity", "keep one")
				}
				c.profile.session = b.session
			}
		case b.picker != nil:
			if picker != "" {
				return problem(at, fmt.Sprintf("a second picker, after %q", picker), "keep one")
			}
			picker = b.name
			c.profile.picker = *b.picker
		default:
			return problem(at+".pluginRef", fmt.Sprintf("%q is neither filter, scorer nor picker", ref.PluginRef),
				"take it out of the profile; declaring it is enough")
		}
	}
	if picker == "" {
		c.profile.picker = pickerOf(maxScore, defaultEndpoints)
	}
	return nil
}

// producers applies the producers' parameters and checks that every plug-in
// that names a producer names one that is there: a scorer bound to a producer
// that is not would score nothing and say nothing.
func (c *compiler) producers() *config.Problem {
	for i, b := range c.built {
		if b.index != nil {
			c.profile.index = *b.index
		}
		c.profile.served = c.profile.served || b.served
		for _, ref := range b.produced {
			k, declared := c.byName[ref.name]
			if ref.name == ref.kind || declared && c.built[k].kind == ref.kind {
				continue
			}
			return problem(fmt.Sprintf("plugins[%d].parameters.%s", i, ref.param),
				fmt.Sprintf("no %s is named %q", ref.kind, ref.name), "name one that is declared, or leave the parameter out")
		}
	}
	return nil
}
