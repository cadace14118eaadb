// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Package config holds the whole configuration of a gateway as one value.
//
// [Config] is the only intermediate representation: the YAML file is one form
// of it, and every other source compiles to it. What grows by itself (members,
// usage) is data with a home of its own and never part of it.
//
// Left to others: what plug-ins a picker profile may use (package epp, through
// [Options].Check), reading certificates and members files when they change.
//
// Start reading at [Config]; [Load] is the file front end: strict decoding,
// defaults, validation, errors of the form file:line:col: path: what; hint.
// The steps are in load.go; tree.go is the only file that knows the YAML
// library.
//
// Field tags are the one place of defaults and bounds: default, enum, min, max;
// file marks a path (made absolute; "read": this package reads the file itself)
// and unset:"inherit" a section whose unset fields stay zero.
//
// A Config is immutable once Load has returned it: readers share it freely.
package config

import "time"

// Config is everything the operator decides. The zero value is not valid; use
// [Load] or [Parse].
type Config struct {
	Listeners []Listener `yaml:"listeners"`
	Admin     Admin      `yaml:"admin"`
	Ops       Ops        `yaml:"ops"`
	Pools     []Pool     `yaml:"pools"`
	Pickers   []Picker   `yaml:"pickers"` // named picker profiles, beside the built-in ones
	// PickerListeners let other gateways ask for picks (Endpoint Picker
	// Protocol).
	PickerListeners []PickerListener `yaml:"pickerListeners"`
	Providers       []Provider       `yaml:"providers"` // managed model APIs
	Models          []Model          `yaml:"models"`
	Tenants         []Tenant         `yaml:"tenants"` // who may ask, by key
	Keys            Keys             `yaml:"keys"`    // the store of keys that the admin API makes
	Quota           Quota            `yaml:"quota"`   // where the use of their limits is kept
	Routes          []Route          `yaml:"routes"`  // none: every listener serves every model at the root path
	HTTPRoutes      []HTTPRoute      `yaml:"httpRoutes"`
	Timeouts        Timeouts         `yaml:"timeouts"`
	Retries         Retries          `yaml:"retries"`
	Prices          Prices           `yaml:"prices"`
	Limits          Limits           `yaml:"limits"`
	Records         Records          `yaml:"records"`
	Ledger          Ledger           `yaml:"ledger"` // what was used, and what it cost
	Telemetry       Telemetry        `yaml:"telemetry"`
	SLOs            []SLO            `yaml:"slos"` // objectives
	Log             Log              `yaml:"log"`
}

// Listener is one address on which clients are served.
type Listener struct {
	Name    string `yaml:"name"`
	Address string `yaml:"address"` // host:port; empty host is every interface
	// Port is the one that clients use, for redirects, where another leads to
	// the address; 0: the address's.
	Port int `yaml:"port" min:"0" max:"65535"`
	// Anonymous lets anybody in; without it a key of one of the tenants is
	// asked for. Where a provider is configured, which costs money, an address
	// that is not loopback needs AllowRemote too.
	Anonymous   bool       `yaml:"anonymous"`
	AllowRemote bool       `yaml:"allowRemote"`
	TLS         *ServerTLS `yaml:"tls"`      // nil: plaintext
	Sections    []Section  `yaml:"sections"` // nil: one for every host
	HTTP2       *bool      `yaml:"http2"`    // nil: true. Over TLS by ALPN; over plaintext by prior knowledge (h2c)
	// DebugHeaders shows the endpoint and the pick in response headers.
	DebugHeaders bool `yaml:"debugHeaders"`
	// RoutingHeaders tell in each answer the target that served, the attempts and
	// why a fallback was taken (X-Penstock-…); nil: true.
	RoutingHeaders *bool `yaml:"routingHeaders"`
	// UpgradePaths are cleaned request paths on which an Upgrade is passed on.
	UpgradePaths []string `yaml:"upgradePaths"`
}

// ServerTLS is a server's certificate. PEM files are read again when they change.
type ServerTLS struct {
	Cert     string `yaml:"cert" file:"path"`
	Key      string `yaml:"key" file:"path"`
	ClientCA string `yaml:"clientCA" file:"path"` // set: a client certificate is required
	// The same as PEM text, for certificates that come without files.
	CertPEM     string `yaml:"certPEM"`
	KeyPEM      Secret `yaml:"keyPEM"`
	ClientCAPEM string `yaml:"clientCAPEM"`
	// AcceptInvalid asks for a client certificate and lets the others in too.
	AcceptInvalid bool `yaml:"acceptInvalid"`
}

// Admin is the full administration interface. On loopback it needs nothing; an
// address that others reach needs users or certificates of clients.
type Admin struct {
	Address string `yaml:"address" default:"127.0.0.1:9901"` // default 127.0.0.1:9901; "off" for none
	// AllowRemote must be said for an address that is not loopback and has no
	// certificate: tokens pass in clear then.
	AllowRemote bool        `yaml:"allowRemote"`
	TLS         *ServerTLS  `yaml:"tls"` // with clientCA: whoever has a certificate of it has every right
	Users       []AdminUser `yaml:"users"`
}

// AdminUser may use the administration interface with a bearer token.
type AdminUser struct {
	Name string `yaml:"name"`
	Role string `yaml:"role" enum:"viewer|operator|admin"`
	Hash string `yaml:"hash" private:"true"` // sha256:HEX, the digest of the token
}

// Ops serves health and metrics only, for probes and Prometheus. Empty: none.
type Ops struct {
	Address string `yaml:"address"`
}

// Protocol is how members are spoken to.
type Protocol string

// The protocols of a pool.
const (
	HTTP  Protocol = "http"  // HTTP/1.1, plaintext
	H2C   Protocol = "h2c"   // HTTP/2 with prior knowledge, plaintext
	HTTPS Protocol = "https" // HTTP/2 or HTTP/1.1 by ALPN
)

// Pool is a set of model servers that serve the same models.
type Pool struct {
	Name string `yaml:"name"`
	// Plain members are no model servers: requests pass unread, to members in
	// turn. Only HTTP routes lead there.
	Plain    bool     `yaml:"plain"`
	Members  Members  `yaml:"members"`
	Protocol Protocol `yaml:"protocol" default:"http" enum:"http|h2c|https"` // default http
	// APIKey is sent to the members as a bearer token in place of the
	// client's; empty: none is sent.
	APIKey  Secret     `yaml:"apiKey"`
	TLS     *ClientTLS `yaml:"tls"`                                                  // only with protocol https
	Engine  Engine     `yaml:"engine" default:"auto" enum:"auto|vllm|sglang|trtllm"` // default auto
	Metrics Metrics    `yaml:"metrics"`
	Picker  PickerRef  `yaml:"picker"`
	// Paths are request paths served besides the OpenAI ones; nil is
	// [DefaultPaths]. Engine administration is refused here.
	Paths    []string `yaml:"paths"`
	Ejection Ejection `yaml:"ejection"`
	Probe    *Probe   `yaml:"probe"` // nil: no active probe
}

// Engine names the table of metric names that a pool's members use.
type Engine string

// The engines whose metrics are known; Auto tries each table on the page.
const (
	Auto   Engine = "auto"
	VLLM   Engine = "vllm"
	SGLang Engine = "sglang"
	TRTLLM Engine = "trtllm"
)

// Members says where a pool's members come from; exactly one of Static, DNS,
// File and External is set.
type Members struct {
	External bool     `yaml:"external"`                                   // from the control plane
	Static   []Member `yaml:"static"`                                     // an entry may also be a plain "host:port"
	DNS      string   `yaml:"dns"`                                        // host:port, resolved to every A and AAAA record
	File     string   `yaml:"file" file:"path"`                           // YAML list like static; watched
	Refresh  Duration `yaml:"refresh" default:"5s" min:"100ms" max:"24h"` // of DNS; default 5s
}

// Member is one model server as configured.
type Member struct {
	Address string            `yaml:"address"` // host:port
	Labels  map[string]string `yaml:"labels"`
}

// ClientTLS is how members prove themselves to the gateway.
type ClientTLS struct {
	CA                 string `yaml:"ca" file:"path"` // PEM file; empty: the system's
	Cert               string `yaml:"cert" file:"path"`
	Key                string `yaml:"key" file:"path"`
	ServerName         string `yaml:"serverName"`
	InsecureSkipVerify bool   `yaml:"insecureSkipVerify"`
	// The same as PEM text.
	CAPEM   string `yaml:"caPEM"`
	CertPEM string `yaml:"certPEM"`
	KeyPEM  Secret `yaml:"keyPEM"`
	// SubjectAltNames, of which the certificate must have one: "dns:NAME" or
	// "uri:URI". nil: ServerName.
	SubjectAltNames []string `yaml:"subjectAltNames"`
	// Pins are the SHA-256 of public keys (SubjectPublicKeyInfo) in base64, as in
	// RFC 7469. One of them must be in the chain that is verified; nil: any chain.
	Pins []string `yaml:"pins"`
}

// Metrics says how members are scraped.
type Metrics struct {
	Path     string   `yaml:"path"`                                         // default /metrics (trtllm: /prometheus/metrics)
	Interval Duration `yaml:"interval" default:"100ms" min:"10ms" max:"1h"` // default 100ms, jittered; the floor of the adaptive interval
	Timeout  Duration `yaml:"timeout" default:"1s" min:"1ms" max:"1m"`      // default 1s
	Stale    Duration `yaml:"stale" default:"2s" min:"10ms" max:"1h"`       // a page older than this counts as stale; default 2s
	// MaxCPU is the share of one core that scraping a pool may use; the
	// interval stretches to stay below it. Default 0.15.
	MaxCPU float64 `yaml:"maxCPU" default:"0.15" min:"0.001" max:"64"`
	Off    bool    `yaml:"off"`
}

// Ejection takes a member out after consecutive failures (refused
// connections, resets, 5xx; never 4xx) and lets it back slowly.
type Ejection struct {
	Failures   int      `yaml:"failures" default:"3" min:"1" max:"1000"`    // consecutive; default 3; a refused connection ejects at once
	Base       Duration `yaml:"base" default:"2s" min:"1ms" max:"1h"`       // first time out; doubles; default 2s
	Max        Duration `yaml:"max" default:"60s" min:"1ms" max:"24h"`      // longest time out; default 60s
	SlowReturn Duration `yaml:"slowReturn" default:"10s" min:"0s" max:"1h"` // ramp from a small share to the full one; default 10s
	MaxPercent int      `yaml:"maxPercent" default:"50" min:"0" max:"100"`  // of the pool out at once for failures short of a refused connection; default 50
}

// Probe asks each member's health path.
type Probe struct {
	Path     string   `yaml:"path" default:"/health"`                    // default /health
	Interval Duration `yaml:"interval" default:"2s" min:"10ms" max:"1h"` // default 2s
	Timeout  Duration `yaml:"timeout" default:"1s" min:"1ms" max:"10m"`  // default 1s
	Failures int      `yaml:"failures" default:"2" min:"1" max:"1000"`   // consecutive until out; default 2
}

// PickerRef chooses a pool's picker: a built-in profile or one of
// [Config.Pickers] by name, in this process; or a picker elsewhere.
type PickerRef struct {
	Profile string        `yaml:"profile" default:"default"` // means nothing with Remote
	Remote  *RemotePicker `yaml:"remote"`
}

// FailureMode is what becomes of a request when its picker fails. A refusal is
// a decision and no failure.
type FailureMode string

// The failure modes of the Endpoint Picker Protocol.
const (
	FailClose FailureMode = "FailClose" // 503, or 504 when it took too long
	FailOpen  FailureMode = "FailOpen"  // a ready member by round robin
)

// OnInvalidPick is what becomes of a request whose picker named no member of
// the pool.
type OnInvalidPick string

// The answers to a pick of strangers.
const (
	InvalidFallback OnInvalidPick = "fallback" // a ready member by round robin
	InvalidReject   OnInvalidPick = "reject"   // 503
)

// RemotePicker is a picker that speaks the Endpoint Picker Protocol over gRPC.
type RemotePicker struct {
	Address       string         `yaml:"address"`  // host:port, resolved to every A and AAAA record
	External      bool           `yaml:"external"` // in place of Address: the set [PickerSet] from the control plane
	TLS           *ClientTLS     `yaml:"tls"`      // nil: plaintext
	FailureMode   FailureMode    `yaml:"failureMode" default:"FailClose" enum:"FailClose|FailOpen"`
	OnInvalidPick OnInvalidPick  `yaml:"onInvalidPick" default:"fallback" enum:"fallback|reject"`
	Timeout       Duration       `yaml:"timeout" default:"5s" min:"1ms" max:"10m"`         // of a pick, queueing there included
	MaxPending    int            `yaml:"maxPending" default:"1024" min:"1" max:"1000000"`  // picks that wait for an answer at a time
	MaxMessage    Size           `yaml:"maxMessage" default:"4MiB" min:"64KiB" max:"1GiB"` // largest message taken from the picker
	SubsetHint    bool           `yaml:"subsetHint"`                                       // name the ready members with each request
	Refresh       Duration       `yaml:"refresh" default:"5s" min:"100ms" max:"24h"`       // of the addresses
	Health        PickerHealth   `yaml:"health"`
	Response      PickerResponse `yaml:"response"`
}

// PickerHealth is how the replicas of a picker are checked (gRPC health
// protocol). A replica that does not know the protocol, or the service, counts
// as ready while it can be connected to.
type PickerHealth struct {
	Service  string   `yaml:"service" default:"envoy.service.ext_proc.v3.ExternalProcessor"`
	Port     int      `yaml:"port" min:"0" max:"65535"` // 0: the picker's own, with its TLS; another one is spoken to in plaintext
	Interval Duration `yaml:"interval" default:"2s" min:"50ms" max:"1h"`
	Timeout  Duration `yaml:"timeout" default:"1s" min:"1ms" max:"1m"`
	Off      bool     `yaml:"off"`
}

// ResponseMode is how much of an answer a remote picker is shown.
type ResponseMode string

// The modes. None of them delays the body of an answer.
const (
	ResponseOff     ResponseMode = "off"     // nothing: the picker sees the stream end after its pick
	ResponseHeaders ResponseMode = "headers" // the head with the endpoint that served, and at the end the usage
	ResponseFull    ResponseMode = "full"    // a copy of the body too
)

// PickerResponse is the response phase.
type PickerResponse struct {
	Mode        ResponseMode `yaml:"mode" default:"headers" enum:"off|headers|full"`
	HeadTimeout Duration     `yaml:"headTimeout" default:"200ms" min:"0s" max:"1m"`  // longest wait for edits of the answer's head; 0s: none, and no edits
	Delay       Duration     `yaml:"delay" default:"20ms" min:"0s" max:"10s"`        // pieces of a body are gathered for so long
	Buffer      Size         `yaml:"buffer" default:"256KiB" min:"64KiB" max:"1GiB"` // of a body that the picker has not taken yet
	MaxStall    Duration     `yaml:"maxStall" default:"0s" min:"0s" max:"1m"`        // the longest, in all, that a full buffer may hold up one answer; then the copy ends
}

// PickerListener is one address of a pool's picker (envoy.service.ext_proc.v3).
type PickerListener struct {
	Pool      string     `yaml:"pool"`
	Address   string     `yaml:"address" default:":9002"`
	Health    string     `yaml:"health" default:":9003"`                          // gRPC health, plaintext; "off" for none. The address itself answers too
	TLS       *ServerTLS `yaml:"tls"`                                             // nil: a self-signed certificate of its own
	Plaintext bool       `yaml:"plaintext"`                                       // no TLS at all
	Streams   int        `yaml:"streams" default:"100000" min:"1" max:"10000000"` // at a time; more are refused
}

// Picker is a named picker profile in the shape of EndpointPickerConfig
// (llm-d), given inline or in a file of its own.
type Picker struct {
	Name   string                `yaml:"name"`
	File   string                `yaml:"file" file:"read"`
	Config *EndpointPickerConfig `yaml:"config"`
}

// Route limits what is served where. The most specific route wins: exact host
// before wildcard before none, then the longest path prefix.
type Route struct {
	Name      string   `yaml:"name"`
	Listeners []string `yaml:"listeners"` // "listener" or "listener/section"; nil: every listener
	Hosts     []string `yaml:"hosts"`     // exact or "*.suffix"; nil: every host
	// PathPrefix is cut off before the API path is read; default "/".
	PathPrefix string   `yaml:"pathPrefix" default:"/"`
	Models     []string `yaml:"models"` // exact or with a trailing *; nil: every model
}

// Timeouts are per phase; zero means "not set here" in a Model.
type Timeouts struct {
	Connect    Duration `yaml:"connect" default:"2s" min:"1ms" max:"1h"`     // default 2s
	FirstToken Duration `yaml:"firstToken" default:"5m" min:"1ms" max:"24h"` // from the end of the upload to the first byte of a stream; default 5m
	Idle       Duration `yaml:"idle" default:"60s" min:"1ms" max:"24h"`      // between two chunks of a stream; default 60s
	Total      Duration `yaml:"total" default:"30m" min:"1ms" max:"168h"`    // default 30m
	Ping       Duration `yaml:"ping" default:"15s" min:"1ms" max:"168h"`     // of silence in a stream, after which the client gets a comment; default 15s
	FirstPing  Duration `yaml:"firstPing" min:"0s" max:"168h"`               // the same before the first output: from then on the status is 200; default: never
}

// Limits bound what one client can make the gateway hold.
type Limits struct {
	Body           Size     `yaml:"body" default:"32MiB" min:"1KiB" max:"4GiB"`             // default 32MiB, after decompression
	BodiesInFlight Size     `yaml:"bodiesInFlight" default:"2GiB" min:"1KiB" max:"1024GiB"` // of all requests together; default 2GiB; over it: 503
	Headers        Size     `yaml:"headers" default:"64KiB" min:"4KiB" max:"16MiB"`         // default 64KiB
	JSONDepth      int      `yaml:"jsonDepth" default:"128" min:"8" max:"10000"`            // default 128
	HeaderTimeout  Duration `yaml:"headerTimeout" default:"10s" min:"10ms" max:"10m"`       // default 10s
	UploadIdle     Duration `yaml:"uploadIdle" default:"30s" min:"10ms" max:"1h"`           // between two reads of a request body, or messages of one to a picker; default 30s
	WriteIdle      Duration `yaml:"writeIdle" default:"60s" min:"10ms" max:"1h"`            // a client that takes no byte for so long is cut; default 60s
	KeepAlive      Duration `yaml:"keepAlive" default:"150s" min:"10ms" max:"24h"`          // idle connections; default 150s
	Streams        int      `yaml:"streams" default:"1000" min:"1" max:"1000000"`           // concurrent requests per HTTP/2 connection; default 1000
	// Connections of clients at a time on all listeners; more wait to be
	// accepted. Never more than half of the open files that the process may
	// have, so that each can be served by a connection to a member.
	Connections int      `yaml:"connections" default:"16384" min:"1" max:"10000000"` // default 16384
	Drain       Duration `yaml:"drain" default:"10m" min:"0s" max:"24h"`             // at shutdown; default 10m
	LameDuck    Duration `yaml:"lameDuck" default:"0s" min:"0s" max:"10m"`           // before the drain: not ready, and serving on; default 0s
}

// Records is where the one record per request goes.
type Records struct {
	Path   string `yaml:"path" default:"off" file:"sink"`               // "stdout", "off" or a file; default off
	Buffer int    `yaml:"buffer" default:"8192" min:"1" max:"10000000"` // records in memory; beyond it they are dropped and counted; default 8192
	Rotate Rotate `yaml:"rotate"`
}

// Rotate bounds what a file of records takes of the disk.
type Rotate struct {
	Size Size `yaml:"size" default:"0B" min:"0B" max:"1024GiB"` // of a file, from which on the next one begins; 0: it grows
	Keep int  `yaml:"keep" default:"5" min:"1" max:"1000"`      // files beside the one that is written
}

// Log is the process log, on standard error.
type Log struct {
	Level  string `yaml:"level" default:"info" enum:"debug|info|warn|error"` // debug, info (default), warn, error
	Format string `yaml:"format" default:"text" enum:"text|json"`            // text (default) or json
}

// Duration is a time span written with its unit: 500ms, 2s, 10m.
type Duration time.Duration

// D is the span as the standard library's type.
func (d Duration) D() time.Duration { return time.Duration(d) }

// Size is a number of bytes, written 32MiB, 64KiB, 10MB or as a plain number.
type Size int64

// Secret is a value that is never printed. The file front end fills it from
// ${ENV} or file:; its String and its YAML form are a placeholder.
type Secret string

// EndpointPickerConfig is llm-d's picker configuration (apiVersion
// llm-d.ai/v1alpha1, the older inference.networking.x-k8s.io/v1alpha1 is
// accepted). Parameters stay a tree here: package epp decodes them strictly,
// plugin by plugin.
type EndpointPickerConfig struct {
	APIVersion         string              `yaml:"apiVersion" default:"llm-d.ai/v1alpha1" enum:"llm-d.ai/v1alpha1|inference.networking.x-k8s.io/v1alpha1"`
	Kind               string              `yaml:"kind" default:"EndpointPickerConfig" enum:"EndpointPickerConfig"`
	FeatureGates       []string            `yaml:"featureGates"`
	Plugins            []Plugin            `yaml:"plugins"`
	SchedulingProfiles []SchedulingProfile `yaml:"schedulingProfiles"`
	// The sections below are recognised so that their refusal names them.
	DataLayer          map[string]any `yaml:"dataLayer"`
	FlowControl        map[string]any `yaml:"flowControl"`
	RequestHandler     map[string]any `yaml:"requestHandler"`
	SaturationDetector map[string]any `yaml:"saturationDetector"`
	Parser             map[string]any `yaml:"parser"`
}

// Plugin is one declared plug-in.
type Plugin struct {
	Name       string         `yaml:"name"` // empty: its type
	Type       string         `yaml:"type"`
	Parameters map[string]any `yaml:"parameters"`
}

// SchedulingProfile orders plug-ins by reference.
type SchedulingProfile struct {
	Name    string      `yaml:"name"`
	Plugins []PluginRef `yaml:"plugins"`
}

// PluginRef refers to a [Plugin] by name.
type PluginRef struct {
	PluginRef string   `yaml:"pluginRef"`
	Weight    *float64 `yaml:"weight" min:"0" max:"1000000"` // of a scorer; nil: 1
}

// Problem is an error at a place in the configuration. Packages that check
// their own part (epp its plug-ins) return it with a Path relative to that
// part; the file front end completes path and position.
type Problem struct {
	File      string
	Line, Col int    // 1-based; 0: unknown
	Path      string // pools[0].members.static[1]
	What      string // lower case, no full stop
	Hint      string // what to try; may be empty
}

// DefaultPaths are served by a pool besides the OpenAI paths with a parser of
// their own.
func DefaultPaths() []string {
	return []string{
		"/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech",
		"/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score",
		"/tokenize", "/detokenize", "/classify",
	}
}
