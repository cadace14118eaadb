// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/config"
)

// This file reads a LiteLLM proxy configuration. Deployments are read in
// import_deployment.go, what they become is in import_model.go.

// importLiteLLM translates the text of a LiteLLM proxy configuration. What it
// gives is accepted by package config once the variables in it are set. The
// report is there beside an error too, if the file could be read.
func importLiteLLM(text []byte) ([]byte, *importReport, error) {
	root, repeated, err := readImport(text)
	if err != nil {
		return nil, nil, err
	}
	if root.kind != treeMap {
		return nil, nil, wrongType("", root, treeMap)
	}
	im := &litellmImport{root: root, report: &importReport{}, use: map[string]string{}, shared: map[string]*sharedCredential{}, taken: map[string]bool{}, secrets: map[secretText]string{}, byName: map[string]*modelDraft{}}
	takenNames(root, im.taken)
	for _, line := range repeated {
		im.report.tell(fmt.Sprintf("line %d", line), notCarried, "the key comes again in the same mapping; the last one counts")
	}
	if err := im.read(); err != nil {
		return nil, im.report, err
	}
	made, err := im.make()
	return made, im.report, err
}

// litellmImport is one translation.
type litellmImport struct {
	root   *treeNode
	report *importReport
	use    map[string]string            // variables that the output names, with an example value
	taken  map[string]bool              // variables that the file sets or reads
	shared map[string]*sharedCredential // credential_list, by name

	router, settings, general *treeNode // sections; nil: there is none
	deployments               []*deployment
	cooldown                  cooldown
	options                   routingOptions

	secrets   map[secretText]string // variables for what stands in the file
	providers []*providerDraft
	models    []*modelDraft
	byName    map[string]*modelDraft
	wildcards []wildcard
	retries   retryDraft
	timeouts  timeoutDraft
	body      int // limits.body in MiB; 0: the default
	hash      ref // of the master key; "": there is none
	jsonLog   bool
}

// routingOptions are what router_settings say about choosing.
type routingOptions struct {
	weighted bool // simple-shuffle, and what is like it
	limits   bool // usage-based: rpm and tpm alone are weights
	sticky   bool // affinity is asked for
	checks   bool // requests that do not fit are kept away
}

type retryDraft struct {
	attempts, perTarget int // 0: unset
	backoff             time.Duration
}

// maxDeployments keeps the output below the bounds of package config.
const maxDeployments = 2_000

func wrongType(path string, n *treeNode, want treeKind) error {
	return &config.Problem{Line: n.line, Col: 1, Path: path, What: fmt.Sprintf("must be %s, not %s", want, n.kind)}
}

func (im *litellmImport) lost(path, why string)      { im.report.tell(path, notCarried, why) }
func (im *litellmImport) todo(path, why string)      { im.report.tell(path, doThis, why) }
func (im *litellmImport) different(path, why string) { im.report.tell(path, carriedDifferently, why) }

// section is a mapping at the top level.
func (im *litellmImport) section(name string) (*treeNode, error) {
	n := im.root.take(name)
	if n != nil && n.kind != treeMap {
		return nil, wrongType(name, n, treeMap)
	}
	return n, nil
}

func (im *litellmImport) read() (err error) {
	if n := im.root.take("include"); n != nil {
		return &config.Problem{Line: n.line, Col: 1, Path: "include", What: "names other files", Hint: "join them into one file first: LiteLLM puts their keys into this one"}
	}
	if im.router, err = im.section("router_settings"); err != nil {
		return err
	}
	if im.settings, err = im.section("litellm_settings"); err != nil {
		return err
	}
	if im.general, err = im.section("general_settings"); err != nil {
		return err
	}
	list := im.root.take("model_list")
	switch {
	case list == nil || list.kind == treeList && len(list.items) == 0:
		return errors.New("has no model_list: models in LiteLLM's database are not read; export them into the file")
	case list.kind != treeList:
		return wrongType("model_list", list, treeList)
	}
	if err := im.readShared(); err != nil {
		return err
	}
	im.readGeneral()
	im.readRouting()
	im.readCooldown()
	im.readRetries()
	im.timeouts = im.readTimeouts(func(keys ...string) (string, *treeNode) { return im.setting(keys...) })
	for i, n := range list.items {
		if err := im.readDeployment(i, n); err != nil {
			return err
		}
		if len(im.deployments) > maxDeployments {
			return &config.Problem{Line: n.line, Col: 1, Path: "model_list", What: fmt.Sprintf("has more than %d deployments", maxDeployments), Hint: "split it"}
		}
	}
	im.readParameters()
	im.readVariables()
	return nil
}

// sharedCredential is an entry of credential_list.
type sharedCredential struct {
	path   string
	values *treeNode
	used   bool
}

// readShared reads credential_list.
func (im *litellmImport) readShared() error {
	list := im.root.take("credential_list")
	if list == nil {
		return nil
	}
	if list.kind != treeList {
		return wrongType("credential_list", list, treeList)
	}
	for i, n := range list.items {
		path := indexed("credential_list", i)
		if n.kind != treeMap {
			return wrongType(path, n, treeMap)
		}
		n.take("credential_info")
		name, values := n.take("credential_name"), n.take("credential_values")
		if !name.is(treeText) || !values.is(treeMap) {
			im.lost(path, "it has no credential_name, or no credential_values")
			continue
		}
		im.shared[name.text] = &sharedCredential{path: path + ".credential_values", values: values}
		im.rest(path, "credential_list", n)
	}
	return nil
}

// setting is a key of router_settings, or else of litellm_settings, with its
// path; the first of several names that is there.
func (im *litellmImport) setting(keys ...string) (path string, n *treeNode) {
	for _, s := range []struct {
		name string
		node *treeNode
	}{{"router_settings", im.router}, {"litellm_settings", im.settings}} {
		for _, key := range keys {
			switch v := s.node.take(key); {
			case v == nil:
			case n == nil:
				path, n = below(s.name, key), v
			default:
				im.lost(below(s.name, key), path+" says it too, and goes before")
			}
		}
	}
	return path, n
}

// count reads a whole number between low and high.
func (im *litellmImport) count(path string, n *treeNode, low, high int) (int, bool) {
	if n == nil {
		return 0, false
	}
	f, ok := n.number()
	switch {
	case n.is(treeText) && strings.HasPrefix(n.text, "os.environ/"):
		im.todo(path, "the number stands in a variable; write it into the output")
	case !ok || f != math.Trunc(f):
		im.lost(path, "it is no whole number")
	case f < float64(low) || f > float64(high):
		im.lost(path, fmt.Sprintf("the number must be from %d to %d", low, high))
	default:
		return int(f), true
	}
	return 0, false
}

// seconds reads a time span, which LiteLLM writes as a number of seconds.
func (im *litellmImport) seconds(path string, n *treeNode, most time.Duration) time.Duration {
	if n == nil {
		return 0
	}
	f, ok := n.number()
	switch {
	case n.is(treeText) && strings.HasPrefix(n.text, "os.environ/"):
		im.todo(path, "the number stands in a variable; write it into the output")
	case !ok:
		im.lost(path, "it is no number of seconds")
	case f == 0:
	case f < 0.001 || f > most.Seconds():
		im.lost(path, fmt.Sprintf("the time must be from 1ms to %s", config.Duration(most)))
	default:
		return time.Duration(math.Round(f*1000)) * time.Millisecond
	}
	return 0
}

// readGeneral reads who may ask, and what else has a place here.
func (im *litellmImport) readGeneral() {
	const path = "general_settings.master_key"
	switch n := im.general.take("master_key"); {
	case n == nil:
		im.different(path, "without it, and without LITELLM_MASTER_KEY, LiteLLM lets everybody in; so does the output, on this machine alone (127.0.0.1): list tenants with keys before others may reach it")
	case !n.is(treeText) && n.kind != treeInt || n.text == "":
		im.lost(path, "it is no text")
	case strings.HasPrefix(n.text, "os.environ/") && !isVariable(n.text):
		im.lost(path, "it is no name of a variable")
	default:
		im.different(path, "here it is the key of the tenant imported, which may ask for every model; it administers nothing")
		if name, ok := environment(n.text); ok {
			hash := im.fresh(name+"_HASH", exampleHash)
			im.hash = variable(hash)
			im.todo(path, fmt.Sprintf(`a key is known here by its digest only: export %s="sha256:$(printf %%s "$%s" | sha256sum | cut -d' ' -f1)"`, hash, name))
		} else {
			sum := sha256.Sum256([]byte(n.text))
			im.hash = ref("sha256:" + hex.EncodeToString(sum[:]))
		}
	}
	if n := im.general.take("max_request_size_mb"); n != nil {
		im.body, _ = im.count("general_settings.max_request_size_mb", n, 1, 2048)
	}
	if n := im.settings.take("json_logs"); n != nil {
		im.jsonLog, _ = n.truth()
	}
}

// Values that the variables of the output might have.
const (
	exampleHash    = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	exampleURL     = "https://api.example.com/v1"
	exampleRegion  = "eu-west-1"
	exampleVersion = "2024-10-21"
	exampleText    = "example"
)

func (im *litellmImport) readRouting() {
	const path = "router_settings.routing_strategy"
	strategy := "simple-shuffle"
	if n := im.router.take("routing_strategy"); n != nil {
		strategy = n.text
	}
	switch strategy {
	case "simple-shuffle":
		im.options.weighted = true
	case "usage-based-routing", "usage-based-routing-v2":
		im.options.weighted, im.options.limits = true, true
		im.different(path, "shares by rpm or tpm are kept as weights; what is left of a limit is not looked at, but a provider's 429 is")
	case "least-busy", "latency-based-routing":
		im.different(path, "the faster and less busy one of two drawn at random is taken (affinity: none, and no weights)")
	case "cost-based-routing":
		im.lost(path, "prices are not known; give the cheaper target the lower priority")
	default:
		im.lost(path, "no such strategy is known; the faster and less busy one of two is taken")
	}
	at, n := im.setting("enable_pre_call_checks", "enable_pre_call_check")
	if im.options.checks, _ = n.truth(); im.options.checks {
		im.different(at, "capabilities of targets keep requests away that do not fit; the prompt's tokens are estimated, and rpm is no limit")
	}
	if n := im.router.take("optional_pre_call_checks"); n.is(treeList) {
		at := "router_settings.optional_pre_call_checks"
		for i, item := range n.items {
			switch item.text {
			case "prompt_caching", "deployment_affinity", "session_affinity":
				im.options.sticky = true
				im.different(indexed(at, i), "prompts of a tenant that begin alike stay at one target (affinity: auto), where no weight is written")
			default:
				im.lost(indexed(at, i), "there is no such check")
			}
		}
	}
	if path, n := im.setting("drop_params"); n != nil {
		im.different(path, "what a target has no word for is always left out, and named in the header x-penstock-dropped")
	}
	if n := im.router.take("enable_weighted_failover"); n != nil {
		if on, _ := n.truth(); !on {
			return
		}
		im.different("router_settings.enable_weighted_failover", "always holds: after a failure the next target is drawn among those not tried")
	}
}

// cooldown is that of a provider, as it is written; the zero value is the
// default.
type cooldown struct {
	after    int
	duration time.Duration
}

// never is how many failures begin a cool-down where LiteLLM has none.
const never = 1000

func (im *litellmImport) readCooldown() {
	const growing = "failures in a row are counted, not those of a minute, and the time doubles up to 5m; a 429 with a hint counts by its hint"
	if path, n := im.setting("allowed_fails"); n != nil {
		if fails, ok := im.count(path, n, 0, 999); ok {
			im.cooldown.after = fails + 1
			im.different(path, "cooldown.after is one more: "+growing)
		}
	}
	if path, n := im.setting("cooldown_time"); n != nil {
		if f, ok := n.number(); ok && f == 0 {
			im.cooldown.after = never
			im.different(path, "a cool-down cannot be switched off; it begins after 1000 failures in a row")
		} else if im.cooldown.duration = im.seconds(path, n, time.Hour); im.cooldown.duration > 0 {
			im.different(path, "cooldown.for: "+growing)
		}
	}
	if path, n := im.setting("disable_cooldowns"); n != nil {
		if off, _ := n.truth(); off {
			im.cooldown = cooldown{after: never}
			im.different(path, "a cool-down cannot be switched off; it begins after 1000 failures in a row")
		}
	}
}

func (im *litellmImport) readRetries() {
	if path, n := im.setting("num_retries", "max_retries"); n != nil {
		if retries, ok := im.count(path, n, 0, 99); ok {
			im.retries.attempts, im.retries.perTarget = retries+1, retries+1
			im.different(path, "retries.attempts is one more, and counts all attempts of a request, those at fallbacks too (models with fallbacks have more); "+
				"retries.budget bounds retries of all requests, and none begins after retries.within")
		}
	}
	if path, n := im.setting("retry_after"); n != nil {
		if wait := im.seconds(path, n, time.Minute); wait > 0 {
			im.retries.backoff = wait
			im.different(path, "retries.backoff: the pause before the same target is tried again doubles and is spread; another target is tried at once")
		}
	}
}

// timeoutDraft are timeouts as LiteLLM means them; 0: unset.
type timeoutDraft struct{ total, first, idle time.Duration }

func (im *litellmImport) readTimeouts(get func(keys ...string) (string, *treeNode)) (t timeoutDraft) {
	if path, n := get("timeout", "request_timeout"); n != nil {
		if t.total = im.seconds(path, n, 168*time.Hour); t.total > 0 {
			im.different(path, "timeouts.total is for the whole request with all its attempts; LiteLLM's is for each attempt")
		}
	}
	if path, n := get("stream_timeout"); n != nil {
		if t.first = im.seconds(path, n, 24*time.Hour); t.first > 0 {
			im.different(path, "timeouts.firstToken is the time until a stream begins; between two pieces it is timeouts.idle")
		}
	}
	if path, n := get("ttft_timeout"); n != nil {
		if first := im.seconds(path, n, 24*time.Hour); first > 0 {
			t.first = first
		}
	}
	if path, n := get("stream_idle_timeout"); n != nil {
		t.idle = im.seconds(path, n, 24*time.Hour)
	}
	return t
}

// readParameters reads default_litellm_params, which every deployment has.
func (im *litellmImport) readParameters() {
	const path = "router_settings.default_litellm_params"
	n := im.router.take("default_litellm_params")
	if n == nil {
		return
	}
	if n.kind != treeMap {
		im.lost(path, "it is no mapping")
		return
	}
	for i := range n.entries {
		e := &n.entries[i]
		if !bodyParameters[e.key] || e.value.kind == treeNull {
			continue
		}
		e.read = true
		if value, why := parameter(e.key, e.value); why != "" {
			im.lost(below(path, e.key), why)
		} else {
			im.variablesIn(e.value)
			for _, d := range im.deployments {
				d.setDefault(e.key, value, false)
			}
		}
	}
	im.rest(path, "litellm_params", n)
}

// readVariables reads environment_variables, whose values are nobody's business.
func (im *litellmImport) readVariables() {
	n := im.root.take("environment_variables")
	for _, e := range entriesOf(n) {
		path := below("environment_variables", e.key)
		switch {
		case !variableForm.MatchString(e.key):
			im.lost(path, "it is no name of a variable")
		case im.use[e.key] != "":
			im.todo(path, fmt.Sprintf("set %s in the environment of penstock: the output reads it", e.key))
		default:
			im.lost(path, "the output does not read this variable")
		}
	}
}

func entriesOf(n *treeNode) []treeEntry {
	if n == nil {
		return nil
	}
	return n.entries
}

// leftovers tells of everything that nobody has read.
func (im *litellmImport) leftovers() {
	im.rest("", "", im.root)
	for _, name := range slices.Sorted(maps.Keys(im.shared)) {
		if c := im.shared[name]; c.used {
			im.rest(c.path, "litellm_params", c.values)
		} else {
			im.lost(c.path, "no deployment that is carried names it")
		}
	}
	im.rest("router_settings", "router_settings", im.router)
	im.rest("litellm_settings", "litellm_settings", im.settings)
	im.rest("general_settings", "general_settings", im.general)
}

// rest tells of the keys of n that nobody has read. kind is the part of
// litellmReasons that knows them.
func (im *litellmImport) rest(path, kind string, n *treeNode) {
	for i := range entriesOf(n) {
		e := &n.entries[i]
		if e.read {
			continue
		}
		e.read = true
		key := e.key
		if kind != "" {
			key = kind + "." + key
		}
		at := below(path, e.key)
		switch why := litellmReasons[key]; {
		case why != "" && unsaid(e.value):
		case litellmAnyway[key] != "":
			im.different(at, litellmAnyway[key])
		case why != "":
			im.lost(at, why)
		case strings.Contains(e.key, "_cost") && (kind == "litellm_params" || kind == "model_info"):
			im.lost(at, noPrices)
		case kind == "router_settings" && sdkOnly(e.key):
		default:
			im.lost(at, "the key is not known")
		}
	}
}

// sdkOnly are settings of the library that say nothing about routing.
func sdkOnly(key string) bool {
	return slices.Contains([]string{"set_verbose", "debug_level", "client_ttl", "router_general_settings", "ignore_invalid_deployments", "polling_interval", "default_priority", "max_fallbacks"}, key)
}

// unsaid says that a value is the one that changes nothing.
func unsaid(n *treeNode) bool {
	if on, ok := n.truth(); ok {
		return !on
	}
	return n.kind == treeNull || n.kind == treeList && len(n.items) == 0 || n.kind == treeMap && len(n.entries) == 0
}

var variableForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// environment is the variable that a value of LiteLLM's stands for.
func environment(text string) (name string, ok bool) {
	name, ok = strings.CutPrefix(text, "os.environ/")
	return name, ok && len(name) <= 128 && variableForm.MatchString(name)
}

func isVariable(text string) bool { _, ok := environment(text); return ok }

// named notes that the output reads a variable of the file. example is a value
// that it might have.
func (im *litellmImport) named(name, example string) ref {
	im.use[name] = cmp.Or(im.use[name], example)
	return variable(name)
}

// fresh is a variable that nothing in the file reads.
func (im *litellmImport) fresh(name, example string) string {
	name = strings.Trim(regexpNotName.ReplaceAllString(strings.ToUpper(name), "_"), "_")
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		name = "KEY_" + name
	}
	name = name[:min(len(name), 100)]
	base := name
	for i := 2; im.use[name] != "" || im.taken[name]; i++ {
		name = base + "_" + strconv.Itoa(i)
	}
	im.use[name] = example
	return name
}

var regexpNotName = regexp.MustCompile(`[^A-Z0-9]+`)

// takenNames are the variables that the file sets or reads.
func takenNames(n *treeNode, into map[string]bool) {
	if name, ok := environment(n.text); ok {
		into[name] = true
	}
	for _, e := range n.entries {
		if e.key == "environment_variables" {
			for _, v := range e.value.entries {
				into[v.key] = true
			}
		}
		takenNames(e.value, into)
	}
	for _, item := range n.items {
		takenNames(item, into)
	}
}
