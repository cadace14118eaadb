// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/config"
)

// deployment is one entry of model_list.
type deployment struct {
	at    int    // index in model_list
	group string // model_name
	model string // name at the server; may hold *
	word  string // before the slash: a key of litellmKinds
	site  site
	account
	share     map[string]float64 // weight, rpm and tpm, those that are written
	effective float64            // the share among the deployments of its name; negative: none is written
	provider  *providerDraft
	order     int
	ordered   bool
	defaults  []yamlField // in the order of their names
	can       capabilities
	timeouts  timeoutDraft
	retries   int // further attempts; negative: none are written
	id        string
}

// site is everything about a provider but its accounts. Deployments with equal
// sites share a provider.
type site struct {
	dialect      config.ProviderKind
	base         ref
	quirks       string
	region       ref
	project      ref
	version      ref
	headers      string // NAME: VALUE lines
	allowHTTP    bool
	allowPrivate bool
	cooldown     cooldown
	label        string // for the name
}

// account is what a credential is made of.
type account struct {
	secret, access, session secretText
	organization            ref
}

// secretText is a secret: a variable, or what stands in the file, which is
// copied nowhere.
type secretText struct{ variable, text string }

func (s secretText) none() bool { return s == secretText{} }

type capabilities struct {
	context, output   int
	tools, structured string // "", "true", "false"
	lacks             string // modalities that it has not, with spaces around
}

// params are litellm_params with the credential that they name.
type params struct {
	im     *litellmImport
	path   string
	own    *treeNode
	shared *treeNode
}

// get is the value of the first key that is there.
func (p *params) get(keys ...string) (path string, n *treeNode) {
	for _, key := range keys {
		if v := p.own.take(key); v != nil && n == nil {
			path, n = below(p.path, key), v
		}
	}
	for _, key := range keys {
		if v := p.shared.take(key); v != nil && n == nil {
			path, n = below(p.path, "litellm_credential_name"), v
		}
	}
	return path, n
}

// text is a text of the configuration, in which os.environ/NAME is a variable.
func (p *params) text(example string, keys ...string) ref {
	path, n := p.get(keys...)
	switch {
	case n == nil:
		return ""
	case n.kind >= treeMap:
		p.im.lost(path, "it is no text")
		return ""
	}
	if name, ok := environment(n.text); ok {
		return p.im.named(name, example)
	}
	return literal(strings.TrimSpace(n.text))
}

// secret is one that must not be copied.
func (p *params) secret(keys ...string) secretText {
	path, n := p.get(keys...)
	switch {
	case n == nil || n.kind < treeMap && n.text == "":
		return secretText{}
	case n.kind >= treeMap && !slices.Contains(keys, "vertex_credentials"):
		p.im.lost(path, "it is no text")
		return secretText{}
	case n.kind >= treeMap:
		return secretText{text: fmt.Sprintf("mapping in line %d", n.line)}
	}
	if name, ok := environment(n.text); ok {
		p.im.named(name, exampleText)
		return secretText{variable: name}
	}
	return secretText{text: n.text}
}

func (im *litellmImport) readDeployment(i int, n *treeNode) error {
	path := indexed("model_list", i)
	if n.kind != treeMap {
		return wrongType(path, n, treeMap)
	}
	name, own, about := n.take("model_name"), n.take("litellm_params"), n.take("model_info")
	if own != nil && own.kind != treeMap {
		return wrongType(path+".litellm_params", own, treeMap)
	}
	if about != nil && about.kind != treeMap {
		return wrongType(path+".model_info", about, treeMap)
	}
	im.rest(path, "model_list", n)
	switch {
	case name == nil || name.kind >= treeMap || name.text == "":
		im.lost(path, "it has no model_name")
		return nil
	case own == nil:
		im.lost(path, "it has no litellm_params")
		return nil
	}
	p := &params{im: im, path: path + ".litellm_params", own: own}
	if at, c := p.get("litellm_credential_name"); c != nil {
		if shared := im.shared[c.text]; shared != nil {
			p.shared, shared.used = shared.values, true
		} else {
			im.lost(at, "credential_list has no such entry")
		}
	}
	d := &deployment{at: i, group: name.text, share: map[string]float64{}, retries: -1}
	kind, ok := p.kind(d)
	if ok {
		ok = p.place(d, kind)
	}
	if !ok {
		readAll(own) // the reason stands above
		return nil
	}
	p.account(d, kind)
	p.routing(d)
	p.parameters(d)
	p.about(d, about, path+".model_info")
	organizations := p.organizations(d)
	im.rest(p.path, "litellm_params", own)
	for _, organization := range organizations {
		copied := *d
		copied.organization = organization
		im.deployments = append(im.deployments, &copied)
	}
	return nil
}

func readAll(n *treeNode) {
	for i := range n.entries {
		n.entries[i].read = true
	}
}

// kind finds the provider, and the model's name there.
func (p *params) kind(d *deployment) (litellmKind, bool) {
	_, n := p.get("model")
	if n == nil || n.kind >= treeMap || n.text == "" {
		p.im.lost(p.path+".model", "it is missing")
		return litellmKind{}, false
	}
	at := p.path + ".model"
	word, rest, slashed := strings.Cut(n.text, "/")
	if _, c := p.get("custom_llm_provider"); c != nil && c.kind == treeText {
		if word != c.text || !slashed {
			word, rest = c.text, n.text
		}
	} else if _, known := litellmKinds[word]; !known || !slashed {
		bare := ""
		for _, b := range litellmBare {
			if strings.HasPrefix(n.text, b.begins) {
				bare = b.kind
				break
			}
		}
		switch {
		case bare != "":
			word, rest = bare, n.text
		case n.text == "*":
			word, rest = "openai", "*"
			p.im.different(at, "every name is asked of OpenAI; LiteLLM finds the provider by the name: write a pattern for each (claude-*)")
		case slashed:
			p.im.lost(at, fmt.Sprintf("there is no provider of the kind %s", shortly(word)))
			return litellmKind{}, false
		default:
			p.im.lost(at, "the name does not say which provider it is of; write openai/NAME or the like")
			return litellmKind{}, false
		}
	}
	kind, known := litellmKinds[word]
	if !known {
		p.im.lost(at, fmt.Sprintf("there is no provider of the kind %s", shortly(word)))
		return litellmKind{}, false
	}
	if rest == "" {
		p.im.lost(at, "it names no model")
		return litellmKind{}, false
	}
	d.word = word
	var why string
	if d.model, why = upstreamName(kind.dialect, word, rest, d); why != "" {
		p.im.lost(at, why)
		return litellmKind{}, false
	}
	return kind, true
}

// shortly is a word of the file for a message.
func shortly(s string) string {
	if r := []rune(s); len(r) > 40 {
		s = string(r[:40]) + "…"
	}
	return fmt.Sprintf("%q", s)
}

// upstreamName is the model's name in the provider's own API, without the words
// by which LiteLLM chooses among APIs.
func upstreamName(dialect config.ProviderKind, word, name string, d *deployment) (upstream, why string) {
	switch dialect {
	case config.ProviderAzure:
		for _, w := range []string{"o_series/", "gpt5_series/", "responses/", "global/", "us/", "eu/", "global-standard/"} {
			name = strings.TrimPrefix(name, w)
		}
	case config.ProviderOpenAI:
		name = strings.TrimPrefix(name, "responses/")
		if word == "fireworks_ai" && !strings.HasPrefix(name, "accounts/") && !strings.Contains(name, "*") {
			name = "accounts/fireworks/models/" + name
		}
	case config.ProviderVertex:
		name = strings.TrimPrefix(name, "gemini/")
		if !strings.HasPrefix(name, "gemini-") && name != "*" || strings.Contains(name, "/") {
			return "", "of Vertex AI only Gemini models are served, not those of other publishers and endpoints"
		}
	case config.ProviderBedrock:
		for _, w := range []string{"converse/", "invoke/", "converse_like/"} {
			name = strings.TrimPrefix(name, w)
		}
		if region, rest, ok := strings.Cut(name, "/"); ok && awsRegion(region) {
			d.site.region, name = ref(region), rest
		}
		if !strings.HasPrefix(name, "arn:") && strings.Contains(name, "/") || strings.Contains(name, "embed") || strings.Contains(name, "rerank") {
			return "", "of Bedrock the models of the Converse API are served, not agents, embeddings and imported ones"
		}
	}
	return name, ""
}

func awsRegion(s string) bool {
	parts := strings.Split(s, "-")
	return len(parts) >= 3 && strings.Trim(parts[len(parts)-1], "0123456789") == "" && strings.ToLower(s) == s && !strings.ContainsAny(s, ".:")
}

// place finds out where the provider is.
func (p *params) place(d *deployment, kind litellmKind) bool {
	s := &d.site
	s.dialect, s.quirks, s.label, s.cooldown = kind.dialect, kind.quirks, kind.label, p.im.cooldown
	region := p.text(exampleRegion, "aws_region_name", "vertex_location", "vertex_ai_location", "region_name")
	if !strings.HasPrefix(string(region), "${") {
		region = ref(strings.ToLower(string(region)))
	}
	s.region = cmp.Or(region, s.region)
	at, n := p.get("api_base", "base_url", "aws_bedrock_runtime_endpoint")
	switch {
	case n == nil && kind.asked:
		p.im.lost(p.path, "it has no api_base, which a provider of this kind needs")
		return false
	case n == nil:
		s.base = ref(kind.base)
		if kind.quirks == "ollama" {
			s.allowPrivate = true
		}
	case n.kind >= treeMap:
		p.im.lost(at, "it is no text")
		return false
	default:
		if name, ok := environment(n.text); ok {
			s.base = p.im.named(name, exampleURL)
			p.im.todo(at, fmt.Sprintf("whether the address in %s is plaintext or private is not known here: if so, write allowHTTP or allowPrivate at the provider", name))
			break
		}
		if why := p.address(d, kind, at, n.text); why != "" {
			p.im.lost(at, why)
			return false
		}
	}
	switch s.dialect {
	case config.ProviderAzure:
		if v := p.text(exampleVersion, "api_version"); v != "" {
			s.version = v
		}
		if s.version == "latest" || s.version == "preview" || s.version == "v1" {
			s.version = ""
		}
		if s.label == "azure-ai" && s.version == "" {
			s.version = "2024-05-01-preview"
		}
	case config.ProviderVertex:
		s.project = p.text(exampleText, "vertex_project", "vertex_ai_project")
		if s.project == "" {
			s.project = p.im.named("VERTEXAI_PROJECT", exampleText)
			p.im.todo(p.path+".vertex_project", "it is missing: set VERTEXAI_PROJECT, or write the project into the output")
		}
		if s.region == "" {
			s.region = "us-central1"
			p.im.different(p.path+".vertex_location", "it is missing: us-central1, as in LiteLLM")
		}
	case config.ProviderBedrock:
		if s.region == "" {
			s.region = p.im.named("AWS_REGION", exampleRegion)
			p.im.todo(p.path+".aws_region_name", "it is missing: set AWS_REGION, or write the region into the output")
		}
	default:
		if at, n := p.get("api_version"); n != nil && s.dialect != config.ProviderAnthropic {
			p.im.lost(at, "means nothing for a provider of this kind")
		}
	}
	p.headers(d)
	if at, n := p.get("cooldown_time"); n != nil {
		if s.cooldown.duration = p.im.seconds(at, n, time.Hour); s.cooldown.duration > 0 {
			if s.cooldown.after == never {
				s.cooldown.after = 0
			}
			p.im.different(at, "cooldown.for of a provider of its own")
		}
	}
	return true
}

// address takes apart a base URL.
func (p *params) address(d *deployment, kind litellmKind, at, text string) (why string) {
	s := &d.site
	u, err := url.Parse(strings.TrimSpace(text))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return "it is no URL of a server"
	}
	if u.User != nil {
		u.User = nil
		p.im.todo(at, "it holds a password, which is left out: write it as the secret of a credential")
	}
	if version := u.Query().Get("api-version"); version != "" && s.dialect == config.ProviderAzure {
		s.version = literal(version)
	} else if u.RawQuery != "" {
		p.im.lost(at, "the query of the URL is left out")
	}
	path := strings.TrimRight(u.Path, "/")
	for _, tail := range []string{"/chat/completions", "/completions", "/embeddings", "/messages", "/rerank", "/chat"} {
		path = strings.TrimSuffix(path, tail)
	}
	host := strings.ToLower(u.Hostname())
	switch s.dialect {
	case config.ProviderAzure:
		if i := strings.Index(path, "/openai/deployments"); i >= 0 {
			path = path[:i]
		}
		if s.label == "azure-ai" {
			if !strings.HasSuffix(host, ".services.ai.azure.com") || strings.Contains(path, "/anthropic") {
				return "of Azure AI the addresses below services.ai.azure.com with /models are served"
			}
			path = cmp.Or(path, "/models")
		}
	case config.ProviderAnthropic:
		path = strings.TrimSuffix(path, "/v1")
	case config.ProviderOpenAI:
		if path == "" && kind.quirks != "perplexity" {
			path = "/v1"
			if kind.quirks != "ollama" {
				p.im.different(at, "/v1 is added; LiteLLM would ask for /chat/completions at the root")
			}
		}
	}
	private := privateHost(host)
	s.base = literal((&url.URL{Scheme: u.Scheme, Host: strings.ToLower(u.Host), Path: path}).String())
	s.allowPrivate, s.allowHTTP = private, u.Scheme == "http" && !loopbackHost(host)
	switch {
	case kind.quirks == "" && string(s.base) == config.DefaultBaseURL(s.dialect, ""):
		s.base = ""
	case s.dialect != config.ProviderOpenAI:
	case string(s.base) == kind.base:
	case private && kind.quirks == "" && u.Port() == "11434":
		s.quirks, s.label = "ollama", "ollama"
	case private && kind.quirks == "":
		s.quirks, s.label = "vllm", "vllm"
		p.im.different(at, "a server on a private address is taken for vLLM (quirks: vllm); write quirks: none, or another name, if it is not")
	}
	if own := s.quirks == "vllm" || s.label == "openai" && s.base != ""; own && s.dialect == config.ProviderOpenAI && net.ParseIP(host) == nil && !loopbackHost(host) {
		s.label = hostLabel(host)
	}
	return ""
}

func loopbackHost(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback() || host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// privateHost says that a name most likely leads to an address that is not
// public, or that an address is one.
func privateHost(host string) bool {
	if ip, err := netip.ParseAddr(host); err == nil {
		return config.RefusedAddress(ip, false) != "" && config.RefusedAddress(ip, true) == ""
	}
	if !strings.Contains(host, ".") {
		return true
	}
	return slices.ContainsFunc([]string{".local", ".internal", ".lan", ".svc", ".localhost", ".home", ".corp", ".intranet", ".private", ".test"},
		func(end string) bool { return strings.HasSuffix(strings.TrimSuffix(host, "."), end) })
}

// hostLabel is the part of a host's name that tells it from others.
func hostLabel(host string) string {
	if _, err := netip.ParseAddr(host); err == nil {
		return strings.NewReplacer(".", "-", ":", "-").Replace(host)
	}
	labels := strings.Split(host, ".")
	if len(labels) > 2 && slices.Contains([]string{"api", "www", "llm", "ai"}, labels[0]) {
		return labels[1]
	}
	return labels[0]
}

var credentialHeaders = []string{"authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie", "x-amz-security-token"}

// headers reads extra_headers. What looks like a secret is not copied.
func (p *params) headers(d *deployment) {
	var lines []string
	for _, key := range []string{"headers", "extra_headers"} {
		at, n := p.get(key)
		if n == nil {
			continue
		}
		if n.kind != treeMap {
			p.im.lost(at, "it is no mapping")
			continue
		}
		for _, e := range n.entries {
			path := below(at, e.key)
			name := strings.ToLower(e.key)
			environ, variable := environment(e.value.text)
			switch {
			case e.value.kind >= treeMap || e.value.kind == treeNull:
				p.im.lost(path, "it is no text")
			case slices.Contains(credentialHeaders, name):
				p.im.lost(path, "the header carries a credential; write it as the secret of the provider's credential")
			case strings.ContainsAny(e.key, ":\n\r \t") || strings.ContainsAny(e.value.text, "\n\r"):
				p.im.lost(path, "it is no header")
			case variable:
				lines = append(lines, e.key+":"+string(p.im.named(environ, exampleText)))
			case secretName(name):
				fresh := p.im.fresh("HEADER_"+e.key, exampleText)
				p.im.todo(path, fmt.Sprintf("it looks like a secret: set %s to it", fresh))
				lines = append(lines, e.key+":${"+fresh+"}")
			default:
				lines = append(lines, e.key+":"+string(literal(strings.TrimSpace(e.value.text))))
			}
		}
	}
	slices.Sort(lines)
	d.site.headers = strings.Join(lines, "\n")
}

func secretName(name string) bool {
	return slices.ContainsFunc([]string{"key", "token", "secret", "auth", "password", "cookie", "credential"}, func(s string) bool { return strings.Contains(name, s) })
}

// account reads the credential.
func (p *params) account(d *deployment, kind litellmKind) {
	d.secret = p.secret("api_key")
	own := d.site.quirks == "vllm" || d.site.quirks == "ollama" || kind.asked && kind.key == "" || d.site.allowPrivate
	if own && d.secret.variable == "" && placeholder(d.secret.text) {
		d.secret = secretText{}
	}
	switch {
	case kind.dialect == config.ProviderBedrock:
		p.aws(d)
	case kind.dialect == config.ProviderVertex:
		d.secret = p.secret("vertex_credentials", "vertex_ai_credentials")
		if d.secret.variable != "" {
			p.im.todo(p.path+".vertex_credentials", fmt.Sprintf("%s must hold the JSON key itself; of a file, write secret: file:/PATH into the output", d.secret.variable))
		}
		if d.secret.none() {
			d.secret = secretText{text: "application default credentials"}
			p.im.todo(p.path+".vertex_credentials", "there are none, and the machine's own are not taken: create a key of a service account")
		}
	case !d.secret.none() || own:
	case d.site.base != "" && string(d.site.base) != kind.base && kind.dialect == config.ProviderOpenAI:
		p.im.different(p.path+".api_key", "it is missing: no credential is sent to this address; LiteLLM would send "+cmp.Or(kind.key, "OPENAI_API_KEY"))
	case kind.key != "":
		d.secret = secretText{variable: kind.key}
		p.im.named(kind.key, exampleText)
		p.im.todo(p.path+".api_key", fmt.Sprintf("it is missing: set %s, as for LiteLLM", kind.key))
	}
}

// placeholder says that a key is one that is written where none is needed.
func placeholder(key string) bool {
	switch strings.ToLower(key) {
	case "", "none", "null", "empty", "dummy", "fake", "fake-key", "fake-api-key", "no-key", "nokey", "not-needed", "not-used", "na", "n/a", "anything", "sk-no-key-required":
		return true
	}
	return false
}

func (p *params) aws(d *deployment) {
	if !d.secret.none() {
		return // a bearer key
	}
	d.access, d.secret, d.session = p.secret("aws_access_key_id"), p.secret("aws_secret_access_key"), p.secret("aws_session_token")
	if !d.access.none() && !d.secret.none() {
		return
	}
	d.access, d.secret, d.session = secretText{variable: "AWS_ACCESS_KEY_ID"}, secretText{variable: "AWS_SECRET_ACCESS_KEY"}, secretText{}
	p.im.named("AWS_ACCESS_KEY_ID", exampleText)
	p.im.named("AWS_SECRET_ACCESS_KEY", exampleText)
	p.im.todo(p.path+".aws_access_key_id", "it is missing: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; roles and profiles of the machine are not taken")
}

// organizations are the accounts that a list makes of one deployment.
func (p *params) organizations(d *deployment) []ref {
	at, n := p.get("organization")
	var list []*treeNode
	switch {
	case n == nil:
		return []ref{""}
	case d.site.dialect != config.ProviderOpenAI || d.secret.none():
		p.im.lost(at, "means nothing for a provider of this kind, or without a key")
		return []ref{""}
	case n.kind == treeList && len(n.items) > 0 && len(n.items) <= 100:
		list = n.items
	default:
		list = []*treeNode{n}
	}
	var out []ref
	for _, item := range list {
		switch name, ok := environment(item.text); {
		case item.kind != treeText:
			p.im.lost(at, "it is no text")
		case ok:
			out = append(out, p.im.named(name, exampleText))
		default:
			out = append(out, literal(item.text))
		}
	}
	if len(out) == 0 {
		return []ref{""}
	}
	return out
}
