// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"reflect"
	"strings"
)

// Reference describes every key as Markdown: a section per top-level key, a
// row per key with its type, default, bounds and meaning.
func Reference() string {
	var b strings.Builder
	about := meanings()
	t := reflect.TypeFor[Config]()
	for i := range t.NumField() {
		f := t.Field(i)
		key := f.Tag.Get("yaml")
		fmt.Fprintf(&b, "## %s\n\n%s\n\n| key | type | default | meaning |\n|---|---|---|---|\n", key, about["Config."+key])
		rows(&b, about, f.Type, key+suffix(f.Type), false)
		b.WriteByte('\n')
	}
	return b.String()
}

// rows writes the fields of a section and of the sections below it.
func rows(b *strings.Builder, about map[string]string, t reflect.Type, path string, inherit bool) {
	t = elem(t)
	for i := range t.NumField() {
		f := t.Field(i)
		key := f.Tag.Get("yaml")
		if key == "" {
			continue
		}
		in := inherit || f.Tag.Get("unset") == "inherit"
		p := path + "." + key
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", p+suffix(f.Type), typeName(f), defaultText(f, in), about[t.Name()+"."+key])
		if e := elem(f.Type); e.Kind() == reflect.Struct {
			rows(b, about, e, p+suffix(f.Type), in)
		}
	}
}

func elem(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t
}

func suffix(t reflect.Type) string {
	if t.Kind() == reflect.Slice {
		return "[]"
	}
	return ""
}

func defaultText(f reflect.StructField, inherit bool) string {
	def, ok := f.Tag.Lookup("default")
	switch {
	case inherit && elem(f.Type).Kind() != reflect.Struct:
		return "the general value"
	case ok:
		return "`" + def + "`"
	}
	return ""
}

func typeName(f reflect.StructField) string {
	t := elem(f.Type)
	name := map[reflect.Kind]string{
		reflect.String: "text", reflect.Bool: "boolean", reflect.Int: "integer",
		reflect.Float64: "number", reflect.Struct: "section", reflect.Map: "mapping",
	}[t.Kind()]
	switch t {
	case durationType:
		name = "duration"
	case sizeType:
		name = "size"
	case usdType:
		name = "USD"
	case secretType:
		name = "secret"
	}
	if f.Type.Kind() == reflect.Slice {
		name = "list of " + name
	}
	if enum, ok := f.Tag.Lookup("enum"); ok {
		name = "`" + strings.Join(strings.Split(enum, "|"), "`, `") + "`"
	}
	low, hasLow := f.Tag.Lookup("min")
	if high, hasHigh := f.Tag.Lookup("max"); hasLow && hasHigh {
		name += fmt.Sprintf(", %s to %s", low, high)
	}
	return name
}

// meanings is one line per key, by Go type and key.
func meanings() map[string]string {
	return map[string]string{
		"Config.listeners":       "Addresses on which clients are served; at least one, unless there are pickerListeners.",
		"Config.admin":           "The full administration interface.",
		"Config.ops":             "Health and metrics only, for probes and Prometheus.",
		"Config.pools":           "Sets of model servers; at least one.",
		"Config.pickers":         "Named picker profiles, beside the built-in ones (" + strings.Join(BuiltinPickers(), ", ") + ").",
		"Config.pickerListeners": "Addresses on which other gateways ask for picks, by the Endpoint Picker Protocol.",
		"Config.providers":       "Managed model APIs ([providers.md](providers.md)).",
		"Config.models":          "Names that clients may ask for; at least one if there are listeners.",
		"Config.routes":          "What is served where; without routes every listener serves every model at the root path. The most specific route wins: exact host before wildcard before none, then the longest path prefix.",
		"Config.httpRoutes":      "Routes for any HTTP request, by host, path, method, header and query, with the meaning that the Kubernetes Gateway API gives HTTPRoute. The paths of the models' API count as exact paths of routes. What no HTTP route takes is for routes. Where this key is given, even as [], there need be no pools, models and listeners.",
		"Config.quota":           "Where the use of limits is kept ([limits.md](limits.md)).",
		"Config.timeouts":        "Time per phase of a request.",
		"Config.retries":         "Attempts at one request.",
		"Config.limits":          "What one client can make the gateway hold.",
		"Config.records":         "Where the one record per request goes.",
		"Records.rotate":         "Bounds of the files.",
		"Rotate.size":            "Size from which on a file is set aside as path.1 and the next one begins; 0B: it grows, and is the operator's to rotate (SIGHUP opens the path anew).",
		"Rotate.keep":            "Files that are kept beside the one that is written: path.1 is the newest.",
		"Config.ledger":          "Where it is kept who used how much, and what it cost: a row per request. See docs/ledger.md.",
		"Config.telemetry":       "What is sent to an OpenTelemetry collector: traces, records, metrics ([telemetry.md](telemetry.md)).",
		"Config.log":             "The process log, on standard error.",

		"Config.prices": "What tokens cost ([prices.md](prices.md)). The gateway has no price list of its own: what is not listed has no known price.",

		"Prices.version": "Names the table in records; unless set, a digest of its content.",
		"Prices.table":   "Prices by model. They come before those of files.",
		"Prices.files":   "Lists of prices; the first that has a price counts. Read again when they change.",
		"Prices.unknown": "What becomes of a request at a target whose price is not known: allow, or refuse, which leaves such targets out.",

		"PriceFile.path":   "The file.",
		"PriceFile.format": "penstock: a YAML list of entries like those of prices.table; litellm: LiteLLM's model_prices_and_context_window.json.",
		"PriceFile.from":   "First day, UTC, on which the list counts.",
		"PriceFile.text":   "The content, in place of a file.",

		"Price.provider": "Name of a provider; this or pool.",
		"Price.pool":     "Name of a pool; this or provider.",
		"Price.model":    "Name at the provider or pool, or a pattern with one *; unless set, every model. An exact name wins over patterns, then the longest one.",
		"Price.region":   "Region of the provider, or a pattern with one *; unless set, every region.",
		"Price.from":     "First day, UTC, on which the price counts. Of several the latest that has come counts.",
		"Price.rates":    "What is billed. A rate that is left out and has nothing that stands in is not known.",
		"Price.above":    "Rates of requests whose whole prompt is longer; they are for all of the request. What they leave out is as for shorter ones.",
		"Price.tiers":    "Rates of tiers of service. What they leave out is as without the tier.",
		"Price.gpuHour":  "In place of rates: what an hour of one member's accelerators costs. A request is priced by the time that it took, which is an estimate.",
		"Price.share":    "Share of a member that one request takes while it runs, 0 to 1; 1 unless set.",

		"RatesAbove.tokens": "Longer prompts than this, counted with what was cached.",
		"RatesAbove.rates":  "The rates of those.",
		"RatesTier.name":    "As requests and answers have it in service_tier; batch for batches.",
		"RatesTier.rates":   "The rates of the tier.",
		"RatesTier.above":   "And of long prompts in it.",

		"Rates.input":        "USD per million tokens of the prompt that no cache had.",
		"Rates.cacheRead":    "USD per million tokens from a cache; else as input.",
		"Rates.cacheWrite":   "USD per million tokens written to a cache; else as input.",
		"Rates.cacheWrite1h": "Likewise for an hour; else as cacheWrite.",
		"Rates.audioInput":   "USD per million tokens of sound in the prompt; else as input.",
		"Rates.imageInput":   "USD per million tokens of images in the prompt; else as input.",
		"Rates.output":       "USD per million tokens of the answer.",
		"Rates.reasoning":    "USD per million tokens of reasoning; else as output.",
		"Rates.audioOutput":  "USD per million tokens of sound in the answer; else as output.",
		"Rates.imageOutput":  "USD per million tokens of images in the answer; else as output.",
		"Rates.perRequest":   "USD per request, besides.",
		"Rates.perImage":     "USD per image that was made.",
		"Rates.perSearch":    "USD per search of the web by the provider, or per search unit of a rerank.",
		"Rates.perSecond":    "USD per second of sound.",

		"Listener.name":           "Name, in metrics and routes.",
		"Listener.address":        "host:port; without host every interface; port 0 is any free one.",
		"Listener.port":           "Port that clients use, in redirects, where another one leads to the address; unless set, the address's.",
		"Listener.sections":       "Parts with hosts and certificates of their own; a request belongs to the most specific one for its host. Over TLS the server name leads to one, and a request for a host of another is answered 421.",
		"Listener.anonymous":      "Lets anybody in; without it one of the tenants' keys is asked for.",
		"Listener.allowRemote":    "Must be true for an anonymous listener that is not on loopback where a provider is configured.",
		"Listener.routingHeaders": "Tell the target, the attempts and the reason of a fallback in response headers; true unless set.",
		"Listener.tls":            "Serve TLS; without it plaintext.",
		"Listener.http2":          "HTTP/2: by ALPN over TLS, by prior knowledge (h2c) over plaintext; true unless set.",
		"Listener.debugHeaders":   "Show the endpoint and the pick in response headers.",
		"Listener.upgradePaths":   "Cleaned paths on which an Upgrade is passed on.",

		"ServerTLS.cert":          "PEM file with the certificate chain; read again when it changes.",
		"ServerTLS.key":           "PEM file with the private key.",
		"ServerTLS.clientCA":      "PEM file; when set, a client certificate is required.",
		"ServerTLS.certPEM":       "The same as text.",
		"ServerTLS.keyPEM":        "The same as text.",
		"ServerTLS.clientCAPEM":   "The same as text.",
		"ServerTLS.acceptInvalid": "Ask for a client certificate, and let in clients without one or with any.",

		"Section.name": "Name, for routes: listener/section.",
		"Section.host": "Exact, *.suffix, or empty for every host.",
		"Section.tls":  "Certificate; in all sections of a listener or in none.",

		"Attachment.listener": "Listener.",
		"Attachment.section":  "Section; unless set, all of the listener.",
		"Attachment.hosts":    "Hosts, exact or *.suffix, within the section's; unless set, every host of it.",

		"HTTPRoute.name":    "Name, in records and metrics.",
		"HTTPRoute.parents": "Where the route is served.",
		"HTTPRoute.rules":   "What becomes of which requests. Of all rules that match, of all routes, the one with the longer exact host wins, then the longer host, then an exact path, an expression, the longest prefix, a method, more headers, more query parameters, the earlier route, the earlier rule.",

		"HTTPRule.name":     "Name, in records.",
		"HTTPRule.matches":  "Any of these; unless set, every request.",
		"HTTPRule.filters":  "Changes of the request and the answer, or the answer itself.",
		"HTTPRule.backends": "Pools by weight. With none, and no redirect, the answer is 500.",
		"HTTPRule.timeouts": "What ends a request with 504.",
		"HTTPRule.retry":    "When an attempt follows besides those at connections that could not be made.",

		"HTTPMatch.path":    "Path.",
		"HTTPMatch.method":  "Method; unless set, any.",
		"HTTPMatch.headers": "Header fields; several values of one are compared as one, joined by commas.",
		"HTTPMatch.query":   "Query parameters; of several values the first counts.",
		"PathMatch.type":    "exact and regex: the whole path; prefix: whole elements.",
		"PathMatch.value":   "Compared with the path decoded, without dot segments and double slashes; RE2 for regex.",
		"FieldMatch.name":   "Name; of a header in any case.",
		"FieldMatch.type":   "exact, or regex for the whole value.",
		"FieldMatch.value":  "Value, or RE2.",

		"HTTPFilters.requestHeaders":  "Changes of the request's headers.",
		"HTTPFilters.responseHeaders": "Changes of the answer's headers.",
		"HTTPFilters.redirect":        "Answers with a Location; no backends then.",
		"HTTPFilters.rewrite":         "Changes what the backend is asked.",
		"HTTPFilters.mirrors":         "Copies to other pools, whose answers are dropped. Bodies above 1 MiB are not copied.",
		"HTTPFilters.cors":            "Answers preflight requests and marks answers.",
		"FieldEdits.set":              "Fields set in place of what is there. Host and what belongs to a hop stay as they are.",
		"FieldEdits.add":              "Values added.",
		"FieldEdits.remove":           "Fields taken away, before set and add.",
		"Field.name":                  "Name.",
		"Field.value":                 "Value.",
		"Redirect.scheme":             "Scheme; unless set, the request's.",
		"Redirect.host":               "Host; unless set, the request's.",
		"Redirect.port":               "Port; 0 is the scheme's own if one is set, else the listener's.",
		"Redirect.path":               "Path; unless set, the request's.",
		"Redirect.status":             "301, 302, 303, 307 or 308.",
		"PathRewrite.full":            "In place of the whole path.",
		"PathRewrite.prefix":          "In place of the prefix that matched.",
		"Rewrite.host":                "Host that the backend hears; unless set, the client's.",
		"Rewrite.path":                "Path; unless set, the client's.",
		"Mirror.pool":                 "Pool that gets the copies.",
		"Mirror.numerator":            "Share of the requests: numerator.",
		"Mirror.denominator":          "Share of the requests: denominator.",
		"CORS.allowOrigins":           "Origins: *, exact, or with *. at the beginning of the host.",
		"CORS.allowCredentials":       "Let scripts send credentials.",
		"CORS.allowMethods":           "Methods; * is all.",
		"CORS.allowHeaders":           "Request headers; * is all.",
		"CORS.exposeHeaders":          "Answer headers that scripts may read.",
		"CORS.maxAge":                 "How long a browser may keep the answer to a preflight.",

		"HTTPBackend.pool":            "Pool.",
		"HTTPBackend.status":          "Status of an error, in place of a pool that cannot be had.",
		"HTTPBackend.weight":          "Share among the backends; 1 unless set, 0 for none.",
		"HTTPBackend.requestHeaders":  "As in filters, for this backend, after those.",
		"HTTPBackend.responseHeaders": "As in filters, for this backend, before those.",
		"HTTPTimeouts.request":        "For the whole request, retries included; 0 is timeouts.total.",
		"HTTPTimeouts.backend":        "For one attempt up to its end; 0 for no bound of its own.",
		"HTTPRetry.codes":             "Statuses of the backend after which another attempt follows, from 400 to 599. Bodies above 1 MiB are sent once.",
		"HTTPRetry.attempts":          "Attempts besides the first.",
		"HTTPRetry.backoff":           "Wait before the first retry; doubles.",

		"Admin.address":     "host:port, or off.",
		"Admin.allowRemote": "Must be true for an address that is not loopback and has no `tls`: tokens pass in clear.",
		"Admin.tls":         "Certificate; with `clientCA` whoever has a certificate of it has every right.",
		"Admin.users":       "Who may use it, with a bearer token. Where there are some, everybody needs one, on loopback too.",
		"AdminUser.name":    "Name, in the audit trail.",
		"AdminUser.role":    "viewer (reads), operator (also keys, dry runs and profiles) or admin (also tenants, limits and the audit trail).",
		"AdminUser.hash":    "`sha256:` and the digest of the token in hex.",
		"Ops.address":       "host:port; empty for none.",

		"Pool.name":     "Name, in metrics and targets.",
		"Pool.plain":    "The members are no model servers: requests pass unread, to members in turn. Only httpRoutes lead there.",
		"Pool.members":  "Where the members come from: exactly one of static, dns, file and external.",
		"Pool.protocol": "How members are spoken to: HTTP/1.1, HTTP/2 with prior knowledge, or TLS.",
		"Pool.tls":      "How members prove themselves; only with protocol https.",
		"Pool.engine":   "Whose metric names the members use; auto tries each.",
		"Pool.metrics":  "How members are scraped.",
		"Pool.picker":   "How a member is chosen.",
		"Pool.paths":    "Paths served besides the OpenAI ones; unless set: " + strings.Join(DefaultPaths(), ", ") + ".",
		"Pool.apiKey":   "Bearer token sent to the members in place of the client's; none is sent without it.",
		"Pool.ejection": "Takes a member out after consecutive failures and lets it back slowly.",
		"Pool.probe":    "Asks each member's health path; without it no active probe.",

		"Members.external": "The control plane tells the members; not for penstock run.",
		"Members.static":   "Members; an entry may be a plain host:port.",
		"Members.dns":      "host:port, resolved to every A and AAAA record.",
		"Members.file":     "YAML file with a list like static; watched.",
		"Members.refresh":  "How often DNS is asked.",
		"Member.address":   "host:port.",
		"Member.labels":    "Labels, for filters.",

		"ClientTLS.ca":                 "PEM file with the authorities; unless set, the system's.",
		"ClientTLS.cert":               "PEM file with the gateway's own certificate.",
		"ClientTLS.key":                "PEM file with its key.",
		"ClientTLS.serverName":         "Name to expect; unless set, the host that is dialled: a member's, or that of a picker's address.",
		"ClientTLS.insecureSkipVerify": "Believe any certificate, or any with a key of pins.",
		"ClientTLS.caPEM":              "The same as text.",
		"ClientTLS.certPEM":            "The same as text.",
		"ClientTLS.keyPEM":             "The same as text.",
		"ClientTLS.subjectAltNames":    "dns:NAME or uri:URI; the certificate must have one of them. serverName is then sent and not checked.",
		"ClientTLS.pins":               "SHA-256 of public keys in base64 (pin-sha256 of RFC 7469). One must be the server's own or, where it is verified, an authority's above it.",

		"Metrics.path":     "Path of the metrics page; /metrics unless set (trtllm: /prometheus/metrics).",
		"Metrics.interval": "Shortest time between two scrapes of a member, jittered.",
		"Metrics.timeout":  "Longest time for one scrape.",
		"Metrics.stale":    "A page older than this counts as stale.",
		"Metrics.maxCPU":   "Share of one core that scraping the pool may use; the interval stretches to stay below it.",
		"Metrics.off":      "Do not scrape.",

		"Ejection.failures":   "Consecutive failures until a member is out; a refused connection ejects at once.",
		"Ejection.base":       "First time out; it doubles with each further one.",
		"Ejection.max":        "Longest time out.",
		"Ejection.slowReturn": "Time from a small share of the load to the full one.",
		"Ejection.maxPercent": "Share of the pool that may be out at once for failures short of a refused connection.",

		"Probe.path":     "Path that answers 200 when healthy.",
		"Probe.interval": "Time between two probes of a member.",
		"Probe.timeout":  "Longest time for one probe.",
		"Probe.failures": "Consecutive failures until a member is out.",

		"PickerRef.profile": "A built-in picker, or one of pickers.",
		"PickerRef.remote":  "A picker elsewhere, asked by the Endpoint Picker Protocol (gRPC ext_proc).",

		"RemotePicker.address":       "host:port, resolved to every A and AAAA record; each is a replica.",
		"RemotePicker.external":      "The control plane has the addresses; then there is no address here.",
		"RemotePicker.tls":           "How the picker proves itself; plaintext without it. Pickers often have self-signed certificates: insecureSkipVerify must then be said.",
		"RemotePicker.failureMode":   "When the picker fails: FailClose answers 503 or 504, FailOpen takes a ready member by round robin. A refusal is no failure.",
		"RemotePicker.onInvalidPick": "When it names no member of the pool: fallback takes a ready one by round robin, reject answers 503.",
		"RemotePicker.timeout":       "Longest time for a pick, the picker's own queue included.",
		"RemotePicker.maxPending":    "Picks that wait for an answer at a time; more count as a failure.",
		"RemotePicker.maxMessage":    "Largest message taken from the picker.",
		"RemotePicker.subsetHint":    "Name the ready members with each request, as the only ones to pick from.",
		"RemotePicker.refresh":       "How often the address is resolved.",
		"RemotePicker.health":        "How replicas are checked, by the gRPC health protocol.",
		"RemotePicker.response":      "What the picker is shown of the answer.",
		"PickerHealth.service":       "Service asked for. A replica that does not know it counts as ready while it can be connected to.",
		"PickerHealth.port":          "Port of the health service, in plaintext; 0 is the picker's own port and TLS.",
		"PickerHealth.interval":      "Time between two checks of a replica.",
		"PickerHealth.timeout":       "Longest time for one check.",
		"PickerHealth.off":           "Do not check: every address counts as ready.",
		"PickerResponse.mode":        "off: nothing. headers: the head with the endpoint that served, and the usage at the end. full: a copy of the body too. None delays the body.",
		"PickerResponse.headTimeout": "Longest wait for the picker's edits of the answer's head; 0s does without them.",
		"PickerResponse.delay":       "How long pieces of a body are gathered before they are sent.",
		"PickerResponse.buffer":      "Bytes of a body that the picker has not taken yet.",
		"PickerResponse.maxStall":    "Longest time in all that a full buffer may hold up an answer; then the copy ends.",

		"PickerListener.pool":      "Pool to pick from.",
		"PickerListener.address":   "host:port of the ext_proc service.",
		"PickerListener.health":    "host:port of a plaintext gRPC health service, or off. The ext_proc address answers health checks too.",
		"PickerListener.tls":       "Certificate; without it a self-signed one is made at the start.",
		"PickerListener.plaintext": "Serve without TLS.",
		"PickerListener.streams":   "Requests at a time; more are refused.",

		"Picker.name":   "Name, for pools[].picker.profile.",
		"Picker.file":   "File in the shape of EndpointPickerConfig; watched. Taken as it is, without ${…}.",
		"Picker.config": "The same, inline. Either file or config.",

		"EndpointPickerConfig.apiVersion":         "Version of the shape; required in a file.",
		"EndpointPickerConfig.kind":               "Kind of the shape; required in a file.",
		"EndpointPickerConfig.featureGates":       "Names of features, or name=true and name=false.",
		"EndpointPickerConfig.plugins":            "Declared plug-ins.",
		"EndpointPickerConfig.schedulingProfiles": "Which plug-ins a profile uses; unless set, one profile with all.",
		"EndpointPickerConfig.dataLayer":          "Recognised, so that what is not supported is refused by name.",
		"EndpointPickerConfig.flowControl":        "Recognised, so that what is not supported is refused by name.",
		"EndpointPickerConfig.requestHandler":     "Recognised, so that what is not supported is refused by name.",
		"EndpointPickerConfig.saturationDetector": "Recognised, so that what is not supported is refused by name.",
		"EndpointPickerConfig.parser":             "Recognised, so that what is not supported is refused by name.",

		"Plugin.name":               "Name for references; unless set, the type.",
		"Plugin.type":               "Type of the plug-in.",
		"Plugin.parameters":         "Parameters, checked by the plug-in.",
		"SchedulingProfile.name":    "Name of the profile.",
		"SchedulingProfile.plugins": "Plug-ins in order.",
		"PluginRef.pluginRef":       "Name of a plug-in.",
		"PluginRef.weight":          "Weight of a scorer; 1 unless set.",

		"Model.name":              "Name that clients ask for, or a pattern with one `*`: an exact name wins over patterns, then the longest one.",
		"Model.alias":             "Another model of the list that this name stands for; then nothing else is set.",
		"Model.targets":           "Places that serve the model.",
		"Model.fallbacks":         "Targets, or other models, that follow when every target has failed or none can serve a request.",
		"Model.degraded":          "Answer of last resort, made by the gateway; without it the error is told.",
		"Model.affinity":          "auto (unless set): prompts of a tenant that begin alike stay at one of several targets of the same priority, where no weight is written; none: they do not.",
		"Model.reportModel":       "Which name answers carry: asked (unless set) or served.",
		"Model.maxCost":           "USD that one request may cost, by the estimate of its prompt and the bound on its answer; targets at which it may cost more, or whose price is not known, are left out.",
		"Model.timeouts":          "Timeouts of this model.",
		"Model.retries":           "Retries of this model.",
		"Target.pool":             "Name of a pool.",
		"Target.provider":         "Name of a provider, in place of a pool.",
		"Target.priority":         "Lower ones are tried first.",
		"Target.when":             "Condition in CEL over identity and request; see docs/models.md.",
		"Target.defaults":         "Members of the body that are set where the client sets none.",
		"Target.overrides":        "Members of the body that are set whatever the client sets.",
		"Target.capabilities":     "What the target can do; a request that needs more is kept away.",
		"Target.timeouts":         "Timeouts at this target.",
		"Capabilities.context":    "Tokens of the context window; 0: unknown.",
		"Capabilities.output":     "Tokens of an answer at most; 0: unknown.",
		"Capabilities.modalities": "What prompts may hold: text, image, audio, file; unless set, unknown.",
		"Capabilities.tools":      "Tools; unless set, unknown.",
		"Capabilities.structured": "JSON mode and schemas; unless set, unknown.",
		"Capabilities.regions":    "Where requests are processed; unless set, the provider's region.",
		"Fallback.on":             "Classes of failures: general (unless set), contextWindow, contentPolicy.",
		"Fallback.virtualModel":   "Another model of the list, with its targets and fallbacks.",
		"Fallback.pool":           "Name of a pool.",
		"Fallback.provider":       "Name of a provider.",
		"Fallback.model":          "Name at the servers, as at a target.",
		"Fallback.when":           "Condition in CEL.",
		"Fallback.defaults":       "As for a target.",
		"Fallback.overrides":      "As for a target.",
		"Fallback.capabilities":   "As for a target.",
		"Fallback.timeouts":       "As for a target.",
		"Degraded.text":           "What the answer says.",
		"Config.tenants":          "Who may ask, by key. Listeners that are not anonymous ask for one.",
		"Tenant.name":             "Name, in records and conditions; with those above it, acme/search.",
		"Tenant.kind":             "organisation, team or project; unless set, the one below the parent's, organisation without one.",
		"Tenant.parent":           "The tenant above, by its path: acme, or acme/search. What it may not do, those below may not do either.",
		"Tenant.tier":             "Tier, for conditions; unless set, the parent's.",
		"Tenant.regions":          "The only regions in which its requests may be processed; unless set, any.",
		"Tenant.models":           "Models that may be asked for, names or patterns with one `*`; unless set, every one.",
		"Tenant.deny":             "Models that may not be asked for, whatever `models` says, here and below.",
		"Tenant.sources":          "CIDR blocks or addresses of clients; unless set, any.",
		"Tenant.metadata":         "Texts by name, at most 16, for whoever reads the list.",
		"Tenant.limits":           "Limits of all its keys together ([limits.md](limits.md)).",
		"Tenant.users":            "Limits of each end user of the tenant.",
		"Tenant.keys":             "Its keys.",
		"Key.name":                "Name of the key, in records and conditions.",
		"Key.hash":                "`sha256:` and the digest of the key in hex.",
		"Key.tier":                "Tier of requests with this key; unless set, the tenant's.",
		"Key.models":              "Models that may be asked for, names or patterns with one `*`; unless set, every one that the tenant may.",
		"Key.secrets":             "Further digests by which the key is known, for rotation.",
		"KeySecret.hash":          "As Key.hash.",
		"KeySecret.notBefore":     "As of the key.",
		"KeySecret.expires":       "The end of its grace: a time of RFC 3339, or a date; unless set, never.",
		"Key.deny":                "Models that may not be asked for.",
		"Key.sources":             "CIDR blocks or addresses of clients; unless set, those of the tenant.",
		"Key.notBefore":           "From when on the key is taken: a time of RFC 3339, or a date (its midnight, UTC); unless set, from the start.",
		"Key.expires":             "Until when, likewise; unless set, for ever.",
		"Key.disabled":            "Takes the key no more, and keeps it.",
		"Key.metadata":            "Texts by name, as of the tenant.",
		"Config.keys":             "Where tenants and keys are kept that the admin API makes (`penstock keys`), besides those of `tenants`.",
		"Keys.store":              "off, sqlite (one machine) or postgres (a fleet).",
		"Keys.path":               "File of SQLite, on a disk of this machine; made when it is not there.",
		"Keys.dsn":                "PostgreSQL: `postgres://user:password@host:5432/database`.",
		"Keys.pepper":             "Keys the digests (HMAC-SHA-256) under which secrets are stored; at least 16 bytes, kept outside of the store. The same for every gateway.",
		"Keys.oldPeppers":         "Peppers under which keys were made that are still in use.",
		"Keys.refresh":            "How often the store is asked for changes.",
		"Keys.maxStale":           "How long keys are believed while the store cannot be asked, then they are refused (503); 0s: for ever.",
		"Keys.failures":           "Wrong keys a minute from one address (a /64 of IPv6), above which they are answered late, and with 429.",
		"Key.limits":              "Limits of the key, besides those of the tenant.",
		"Users.from":              "Where an end user is named, the first that is there: `user` (or else `safety_identifier`) or `safety_identifier` of the body, `header NAME`.",
		"Users.limits":            "Limits of each of them.",
		"Users.max":               "End users told apart at a time; the rest share one more set of limits.",
		"Limit.requests":          "Requests in the window. A limit has exactly one of the units.",
		"Limit.input":             "Tokens of prompts in the window, those from caches included.",
		"Limit.output":            "Tokens of answers in the window, reasoning included.",
		"Limit.tokens":            "Tokens of prompts and answers in the window.",
		"Limit.weighted":          "Tokens in the window, each times the weight of its kind; a request's sum is rounded up.",
		"Limit.usd":               "US dollars in the window.",
		"Limit.concurrency":       "Requests under way at a time; has no window.",
		"Limit.weights":           "What a token of each kind counts, with weighted.",
		"Limit.per":               "Length of the window: a duration, or `minute`, `hour`, `day`, `week`, `month`, `year`.",
		"Limit.window":            "`bucket`: what was used flows off evenly; `sliding`: what is older than the window does not count; `calendar`: everything is forgotten when a new period begins. Unless set, calendar where per is a word, else bucket.",
		"Limit.zone":              "Time zone of the calendar; unless set, UTC. Weeks begin on Monday.",
		"Limit.models":            "Models that count, names as clients ask for them or patterns with one `*`; unless set, every one.",
		"Limit.mode":              "`shadow` counts and notes what it would have refused, and refuses nothing.",
		"Limit.soft":              "Part of the limit from which on answers carry a warning; 0: none.",
		"Limit.oversize":          "What becomes of a request that is larger than the whole limit: an error that no wait would help against, or `debt`: let in when nothing of the limit is in use, and what follows waits until it has been made up for.",
		"Limit.onStoreFailure":    "While the store is away: refuse, or let in a share without it.",
		"Limit.share":             "The part of the limit that this gateway alone lets in while the store is away, with failOpen.",
		"Weights.input":           "Of input that is neither read from a cache nor written to one.",
		"Weights.cached":          "Of input read from a cache.",
		"Weights.cacheWrite":      "Of input written to a cache.",
		"Weights.output":          "Of output without reasoning.",
		"Weights.reasoning":       "Of reasoning.",
		"Quota.store":             "`memory`: of this process, forgotten at its end; `redis`: Redis or Valkey, shared by gateways.",
		"Quota.redis":             "Where the store is, with redis.",
		"Quota.output":            "Tokens of the answer that are reserved for a request that states no bound, at a model that has none.",
		"Quota.lease":             "How long the reservations of a gateway outlive it in a shared store.",
		"Redis.addresses":         "host:port of the server, or of nodes of the cluster.",
		"Redis.cluster":           "The addresses are nodes of one cluster.",
		"Redis.username":          "User, where the server has any.",
		"Redis.password":          "Password.",
		"Redis.db":                "Number of the database.",
		"Redis.tls":               "TLS to the server; unless set, plaintext.",
		"Redis.prefix":            "Beginning of every key.",
		"Redis.timeout":           "Longest time for a call; after it the store counts as away.",
		"Redis.retry":             "Time between two looks at a store that is away.",
		"Target.model":            "Name at the servers; a `*` in it is what the `*` of the model's name stands for. Unless set, the name that was asked for.",
		"Target.weight":           "Share among the targets; 1 unless set, 0 for none.",

		"Route.name":       "Name, in metrics and records.",
		"Route.listeners":  "Listeners, or listener/section; unless set, every one.",
		"Route.hosts":      "Hosts, exact or *.suffix; unless set, every host.",
		"Route.pathPrefix": "Cut off before the API path is read.",
		"Route.models":     "Models, exact or with a trailing *; unless set, every one.",

		"Timeouts.connect":    "Until a connection to a member stands.",
		"Timeouts.firstToken": "From the end of the upload to the first byte of a stream; an answer that is not streamed has until total.",
		"Timeouts.idle":       "Between two chunks of a stream.",
		"Timeouts.total":      "For the whole request, attempts together.",
		"Timeouts.ping":       "Silence in a stream that has begun, after which its client gets a comment (: keep-alive), so that nothing between takes it for dead. Not for Gemini's API, whose libraries know no comments.",
		"Timeouts.firstPing":  "The same silence before the first output, of a model: then the client gets the head and comments, and what fails later is told inside the stream, with status 200. Unset: the head waits for the output.",
		"Retries.attempts":    "Attempts in all, the first included.",
		"Retries.perTarget":   "Attempts at one provider.",
		"Retries.backoff":     "Pause before the second attempt at one provider, spread between a half and the whole; doubles.",
		"Retries.maxWait":     "Longest wait that a provider may ask for; beyond it the client is told.",
		"Retries.within":      "No further attempt at a provider so long after the request came.",
		"Retries.budget":      "Retries per request over the last 10 s (at least 10 in that time).",

		"Limits.body":           "Longest request body, after decompression; longest answer that is read whole before it is passed on, or that a provider sends compressed.",
		"Limits.bodiesInFlight": "All request bodies held at one time, with the answers that are read whole before they are passed on; over it: 503.",
		"Limits.headers":        "Longest request header.",
		"Limits.jsonDepth":      "Deepest nesting of a request body.",
		"Limits.headerTimeout":  "Time for a client to send its header.",
		"Limits.uploadIdle":     "Between two reads of a request body, or two messages of an unfinished request to a picker listener.",
		"Limits.writeIdle":      "A client that takes no byte for so long is cut.",
		"Limits.keepAlive":      "How long an idle client connection is kept.",
		"Limits.streams":        "Concurrent requests per HTTP/2 connection.",
		"Limits.connections":    "Client connections at a time; more wait to be accepted. At most half of the open files that the process may have.",
		"Limits.drain":          "At shutdown, time for running requests to end.",
		"Limits.lameDuck":       "At shutdown, time before the drain in which health and readiness say no and everything is still served, for load balancers and gateways to notice.",

		"Provider.name":         "Name, in metrics and targets.",
		"Provider.dialect":      "Kind of API: openai and every server that is compatible with it, azure (OpenAI on Azure), anthropic, gemini (Google AI Studio), vertex, bedrock, cohere.",
		"Provider.baseURL":      "Where the API is. Unless set: OpenAI, Anthropic, Google AI Studio or Cohere itself, or the region's host of Vertex AI or Bedrock. For openai with the version in it (/v1), which is added to a URL without a path.",
		"Provider.quirks":       "Whose ways a server that is compatible with OpenAI's has: " + strings.Join(ProviderQuirks(), ", ") + ", or none. Unless set, guessed from the host of baseURL.",
		"Provider.region":       "Part of the URL for bedrock and vertex; elsewhere a label.",
		"Provider.project":      "Project of Google Cloud, for vertex.",
		"Provider.apiVersion":   "For azure, the version of the classic paths (/openai/deployments/…); unless set, the paths below /openai/v1 are used.",
		"Provider.credentials":  "Accounts, among which requests are shared; with none, none is sent.",
		"Provider.headers":      "Header fields set on every request, shown nowhere; file:PATH reads a value from a file. Credentials of the API itself have no place here.",
		"Provider.priceList":    "Name of the provider in a price list of LiteLLM's; unless set, guessed from dialect, quirks and host.",
		"Provider.allowHTTP":    "Must be true for a plaintext baseURL that is not loopback.",
		"Provider.allowPrivate": "Must be true for a baseURL that leads to a private address. Link-local and metadata addresses are always refused.",
		"Provider.timeouts":     "As timeouts, for requests to this provider.",
		"Provider.cooldown":     "Takes a credential out of use for a model after failures.",

		"Credential.name":         "Name, in metrics and the log; unless set, its place in the list, from 1.",
		"Credential.secret":       "Key of the API; for vertex the JSON key of a service account; for bedrock the secret access key, without accessKeyID a bearer key or a key in the JSON that credential processes of AWS print. file:/path is kept as secretFile.",
		"Credential.secretFile":   "File with the secret; read again when it changes, without a restart. A file that cannot be read keeps the last good value.",
		"Credential.weight":       "Share among the credentials; 1 unless set, 0 to be used only when no other is left.",
		"Credential.organization": "OpenAI-Organization, for openai.",
		"Credential.project":      "OpenAI-Project, for openai.",
		"Credential.accessKeyID":  "AWS access key, for bedrock: requests are signed (SigV4) with secret.",
		"Credential.limits":       "Limits of what is sent with it; over them the next credential or target is asked ([limits.md](limits.md)).",
		"Credential.sessionToken": "Session token of a temporary AWS access key.",

		"Cooldown.after": "Failures in a row (connections, 5xx, timeouts, broken streams) until the time out. Rate limits, exhausted accounts and refused credentials cool at once.",
		"Cooldown.for":   "First time out; it doubles with each further one. Also the wait after 429 without a hint of the provider.",
		"Cooldown.max":   "Longest time out; also that of refused credentials and exhausted accounts.",

		"Records.path":   "stdout, off, or a file.",
		"Records.buffer": "Records held in memory; beyond it they are dropped and counted.",

		"Config.slos":   "Objectives of the service ([telemetry.md](telemetry.md)).",
		"SLO.name":      "Name, in metrics, alerts and the console.",
		"SLO.models":    "Names, or patterns with one *, of the models that clients ask for; none: every model.",
		"SLO.tenants":   "Tenants, or patterns with one *, such as acme/*; none: every tenant.",
		"SLO.objective": "ttft: the first token comes under the time given; tpot: so do further tokens, on average; errors: the request does not fail for a reason on this side (a status of 5xx, or a stream that breaks).",
		"SLO.under":     "The time of ttft or tpot.",
		"SLO.target":    "Share of the requests that are to be good.",

		"Telemetry.otlp":       "Where the collector is.",
		"Telemetry.traces":     "Which requests are traced.",
		"Telemetry.metrics":    "Metrics over OTLP, the same as at /metrics.",
		"Telemetry.records":    "Send the record of each request as a log record.",
		"Telemetry.resource":   "Attributes of the gateway as a whole, beside service.name (penstock) and service.version.",
		"Telemetry.buffer":     "Records that wait to be sent; beyond it they are dropped and counted.",
		"OTLP.endpoint":        "Address, such as http://collector:4317; empty: nothing is sent.",
		"OTLP.protocol":        "grpc, or http (protobuf, at /v1/traces, /v1/logs and /v1/metrics below the endpoint).",
		"OTLP.headers":         "Headers of each request to it, such as a credential.",
		"OTLP.tls":             "Of an https endpoint; unset: the system's authorities.",
		"OTLP.timeout":         "Of one request to it.",
		"Traces.sample":        "Share of the requests that begin a trace: 0 is none, 1 all of them.",
		"Traces.parent":        "follow: a client's traceparent decides whether its request is traced; ignore: sample does.",
		"OTLPMetrics.interval": "Between two reports; 0s: none.",
		"OTLPMetrics.genAI":    "Add metrics under the names of the semantic conventions for generative AI: latest (1.42), old (those of before autumn 2026), both or off. Not at /metrics.",

		"Ledger.store":      "sqlite, postgres or off. Unless set: postgres with a dsn, sqlite with a path, else off.",
		"Ledger.path":       "File of SQLite.",
		"Ledger.dsn":        "Address of PostgreSQL, as ${ENV} or file:/path: postgres://user:password@host/database.",
		"Ledger.spool":      "Directory of this gateway alone for rows that the database has not taken yet; they survive the end of the process. Unless set, path with .spool behind it.",
		"Ledger.spoolSize":  "Most that the spool may take on disk; beyond it rows are dropped and counted.",
		"Ledger.interval":   "Time between two batches for the database.",
		"Ledger.buffer":     "Records held in memory until they are in the spool; beyond it they are dropped and counted.",
		"Ledger.retention":  "Rows older than that are deleted, in small steps; 0s keeps them for ever.",
		"Ledger.taskHeader": "Request header that groups requests to a task; with -outcome behind it, the header that says how the task went (success, failure). Not sent on.",
		"Log.level":         "Least level that is written.",
		"Log.format":        "Form of a line.",
	}
}
