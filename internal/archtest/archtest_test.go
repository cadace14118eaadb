// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package archtest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/archtest"
)

// order is who may import whom, directly. Longest chain: cmd, proxy, extproc,
// epp, pool, llm, internal/jsonedit.
const order = `
none                                  < config sim internal
sim                                   < bench
internal                              < llm pool provider proxy extproc quota
config llm                            < auth quota cache guard usage provider pool
none                                  < usage/ledger/spool
config llm usage usage/ledger/spool   < usage/ledger
config llm usage                      < usage/otlp
auth config                           < auth/keystore
config llm pool                       < epp
config llm pool epp                   < epp/kvevents extproc admin
auth                                  < admin
auth quota cache guard usage provider < proxy
config llm pool epp extproc           < proxy
none                                  < api
config pool                           < xds
config pool api                       < kube
config api kube xds                   < kube/controller
everything                            < cmd e2e conformance
`

var forbidden = []archtest.Forbidden{
	{Path: "k8s.io", Only: []string{"kube", "api", "conformance"}, Reason: "a data plane without Kubernetes must build and run without its libraries"},
	{Path: "sigs.k8s.io", Only: []string{"kube", "api", "conformance"}, Reason: "a data plane without Kubernetes must build and run without its libraries"},
	{Path: "github.com/envoyproxy", Only: []string{"extproc", "xds", "conformance"}, Reason: "Envoy's protobufs are the wire format of extproc and xds, not a vocabulary"},
	{Path: "google.golang.org/grpc", Only: []string{"extproc", "xds", "kube", "cmd", "conformance", "usage/otlp", "internal/otlptest"}, Reason: "gRPC is the transport of extproc, xds and OTLP"},
	{Path: "go.opentelemetry.io/otel/sdk", Only: []string{"usage", "cmd"}, Reason: "others use the API; the process decides on the SDK"},
	{Path: "github.com/stretchr/testify", Reason: "tests use the standard library and go-cmp"},
	{Path: "github.com/onsi", Reason: "tests use the standard library and go-cmp"},
	{Path: "github.com/golang/mock", Reason: "fakes, not mocks: package sim is the fake model server"},
	{Path: "go.uber.org/mock", Reason: "fakes, not mocks: package sim is the fake model server"},
	{Path: "github.com/google/go-cmp", Tests: true, Only: []string{"internal/golden"}, Reason: "it may panic and is for tests"},
	{Path: "github.com/rogpeppe/go-internal", Only: []string{"e2e"}, Tests: true, Reason: "it runs the scripts of e2e"},
	{Path: "github.com/spf13", Only: []string{"cmd"}, Reason: "the command line belongs to cmd"},
	{Path: "gopkg.in/yaml.v2", Reason: "goccy/go-yaml gives positions, which errors need"},
	{Path: "gopkg.in/yaml.v3", Reason: "goccy/go-yaml gives positions, which errors need"},
	{Path: "sigs.k8s.io/yaml", Only: []string{"kube", "api", "conformance"}, Reason: "goccy/go-yaml gives positions, which errors need"},
	{Path: "github.com/goccy/go-yaml", Only: []string{"config", "pool", "cmd", "kube", "xds"}, Tests: true, Reason: "YAML is a form of config; pool reads its members file, nobody else reads any"},
	{Path: "github.com/redis", Only: []string{"quota", "cache"}, Reason: "stores that gateways share have one owner each"},
	{Path: "github.com/sirupsen/logrus", Reason: "logs are slog"},
	{Path: "go.uber.org/zap", Reason: "logs are slog"},
	{Path: "log", Exact: true, Tests: true, Only: []string{"proxy", "admin", "cmd", "sim", "bench"}, Reason: "logs are slog; net/http's ErrorLog alone needs the old type"},
	{Path: "math/rand", Exact: true, Reason: "math/rand/v2 has no seed to forget"},
	{Path: "io/ioutil", Reason: "deprecated"},
	{Path: "plugin", Reason: "plug-ins are compiled in"},
	{Path: "net/http/httputil", Tests: true, Only: []string{"bench"}, Reason: "proxy owns every hop; ReverseProxy is what it is measured against"},
}

var budget = archtest.Budget{
	FileLines:        800,
	FunctionLines:    120,
	StructFields:     25,
	InterfaceMethods: 5,
	PackageLines:     300,

	Functions: archtest.Allow{
		"config.meanings": "a table: a line per key",
		"cmd/penstock.TestStreamsSurviveMembersAndReloads": "one scenario, told in order",
	},
	Files: archtest.Allow{
		"api/v1alpha1/zz_generated.deepcopy.go": "made by controller-gen in one file",
	},
	Structs: archtest.Allow{},
	Packages: archtest.Allow{
		"internal/sse":          "a wire format of its own (WHATWG server-sent events), with its fuzz target",
		"internal/postgrestest": "a real server for the tests of several packages",
		"internal/redistest":    "a real server for the tests of several packages",
		"internal/otlptest":     "a collector for the tests of several packages",
		"internal/golden":       "the one runner of text cases, for tests only",
	},
}

// state lists package-level variables that stay.
var state = archtest.Allow{
	"internal/golden.update": "the test flag -update must exist before flags are parsed",
	"cmd/penstock.version":   "set by the linker (-ldflags -X)",
	"quota.quiet":            "the library of Redis has one logger, which is taken away once",
	"llm.fields":             "the inverse of the table fieldNames, computed once",
	"llm.modelTooLong":       "a text with a constant in it",
}

func TestImportOrder(t *testing.T) {
	o, err := archtest.ParseOrder(order)
	if err != nil {
		t.Fatal(err)
	}
	report(t, archtest.Imports(module(t), o, "proxy", "cmd"))
}

func TestStandardLibraryOnly(t *testing.T) {
	report(t, archtest.StandardOnly(module(t), map[string][]string{
		"sim":   nil, // so that a fault of the product cannot hide in its own test
		"bench": {"sim"},
	}))
}

func TestForbiddenImports(t *testing.T) { report(t, archtest.ForbiddenImports(module(t), forbidden)) }
func TestSizes(t *testing.T)            { report(t, archtest.Sizes(module(t), budget)) }
func TestHiddenState(t *testing.T)      { report(t, archtest.HiddenState(module(t), state)) }
func TestPackageComments(t *testing.T)  { report(t, archtest.PackageComments(module(t))) }

func TestMetrics(t *testing.T) { report(t, archtest.Metrics(module(t), "penstock_")) }

func TestHeader(t *testing.T) {
	report(t, archtest.Header(module(t),
		"// SPDX-FileCopyrightText: The Penstock Authors",
		"// SPDX-License-Identifier: Apache-2.0"))
}

func TestNames(t *testing.T) {
	report(t, archtest.Names(module(t),
		[]string{"util", "utils", "common", "helper", "helpers", "types", "constants", "mocks", "base", "core", "manager", "framework", "interface", "interfaces", "runner", "misc", "shared", "lib"},
		[]string{"Manager", "Helper", "Impl", "Info", "Data"}))
}

// TestNoKubernetesInTheDataPlane asks the go command for everything that the
// packages of the data plane are built from, not their direct imports alone.
func TestNoKubernetesInTheDataPlane(t *testing.T) {
	args := []string{"list", "-deps", "-f", "{{.ImportPath}}"}
	for _, dir := range []string{"proxy", "epp", "pool", "llm"} {
		if _, err := os.Stat(filepath.Join(root, dir)); err == nil {
			args = append(args, "./"+dir)
		}
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	if !strings.Contains(string(out), "github.com/penstock/penstock/llm\n") {
		t.Fatalf("go list does not list llm itself:\n%s", out)
	}
	for dep := range strings.Lines(string(out)) {
		if strings.HasPrefix(dep, "k8s.io/") || strings.HasPrefix(dep, "sigs.k8s.io/") {
			t.Errorf("the data plane is built from %s", strings.TrimSpace(dep))
		}
	}
}

const root = "../.."

func module(t *testing.T) *archtest.Module {
	t.Helper()
	m, err := archtest.Load(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Packages) < 5 {
		t.Fatalf("only %d packages found below %s", len(m.Packages), root)
	}
	return m
}

func report(t *testing.T, vs []archtest.Violation) {
	t.Helper()
	for _, v := range vs {
		t.Error(v)
	}
}
