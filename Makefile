# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0

# `make help` lists the targets. Nothing here needs a container or a GPU. What
# is fetched besides Go modules goes to .cache/ and is used from there.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS   += --no-print-directory

VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
ARGS        ?=
CHECK       ?=
FUZZTIME    ?= 30s
BENCH       ?= .
BENCHTIME   ?= 1s
COUNT       ?= 1
PKG         ?= ./...
TESTTIMEOUT ?= 12m

# Pinned: a newer one may find more, which is then a commit of its own.
STATICCHECK_VERSION := v0.8.2
STATICCHECK := .cache/staticcheck-$(STATICCHECK_VERSION)/staticcheck
CONTROLLER_GEN_VERSION := v0.21.0
CONTROLLER_GEN := .cache/controller-gen-$(CONTROLLER_GEN_VERSION)/controller-gen

GOFILES = $(shell find . -name '*.go' -not -path './.cache/*' -not -path '*/node_modules/*')

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

.PHONY: build
build: prerequisites ## build bin/penstock
	go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o bin/penstock ./cmd/penstock

.PHONY: demo
demo: build ## run four simulated servers behind a gateway and compare pickers (ARGS=--once to exit after)
	bin/penstock demo $(ARGS)

.PHONY: test
test: test-go test-sdk ## run every test: Go with the race detector, end to end, real clients

# Some tests run a real Envoy. Without it (no network, first run) they say so
# and leave it out; in CI they fail.
.PHONY: envoy
envoy:
	@e2e/envoy/install.sh >/dev/null || echo "*** Envoy could not be had: THE TESTS WITH IT DO NOT RUN ***" >&2

# Likewise for a real Redis.
.PHONY: redis
redis:
	@e2e/redis/install.sh >/dev/null || echo "*** redis-server could not be had: THE TESTS WITH IT DO NOT RUN ***" >&2

# Likewise PostgreSQL, for the tests of the ledger.
.PHONY: postgres
postgres:
	@e2e/postgres/install.sh >/dev/null || echo "*** PostgreSQL could not be had: THE TESTS WITH IT DO NOT RUN ***" >&2

.PHONY: test-go
test-go: race-prerequisites envoy redis postgres ## run the Go tests with the race detector
	go test -race -timeout $(TESTTIMEOUT) $(PKG)
	go test -run Allocat ./epp ./usage/ledger # what the race detector leaves out, since it empties pools

.PHONY: test-sdk
test-sdk: build ## run the OpenAI clients for Python, Node and Go against a gateway
	e2e/sdk/run.sh

# Needs chromium; without it the test is left out aloud, and in CI fails.
.PHONY: test-console
test-console: build ## walk the web console in a real browser against the demo (screenshots in .cache/console/shots)
	e2e/console/run.sh

# Takes two minutes. What cannot work is named, with the reason, in matrix.py.
.PHONY: sdk-matrix
sdk-matrix: build ## run real clients against every kind of backend, and print what works (ARGS=names of clients, backends, scenarios)
	e2e/sdk/matrix/run.sh $(ARGS)

.PHONY: test-vllm
test-vllm: build ## run the gateway in front of a real vLLM on CPU (large download, not part of test)
	@if [ ! -x e2e/vllm/run.sh ]; then echo "make test-vllm: e2e/vllm/run.sh is not in this checkout" >&2; exit 1; fi
	e2e/vllm/run.sh

.PHONY: e2e
e2e: prerequisites ## run the scripts of e2e/ alone
	go test -timeout $(TESTTIMEOUT) ./e2e/

.PHONY: check
check: prerequisites fmt-check generate-check vet staticcheck archtest ## run the checks that execute nothing: gofmt, generated files, vet, staticcheck, the rules of the house

.PHONY: fmt-check
fmt-check:
	@out=$$(gofmt -l $(GOFILES)); if [ -n "$$out" ]; then echo "not formatted by gofmt (make fmt):"; echo "$$out"; exit 1; fi

.PHONY: fmt
fmt: ## format the Go files
	gofmt -w $(GOFILES)

.PHONY: vet
vet:
	go vet -tags cluster ./...

.PHONY: archtest
archtest:
	go test ./internal/archtest/

# Without the tool (no network, first run) the check is skipped aloud; in CI
# that is a failure.
.PHONY: staticcheck
staticcheck:
	@if [ ! -x $(STATICCHECK) ]; then \
	  echo "fetching staticcheck $(STATICCHECK_VERSION)"; \
	  GOBIN=$(CURDIR)/$(dir $(STATICCHECK)) GOFLAGS= go install honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK_VERSION) || { \
	    echo "*** staticcheck could not be had: THIS CHECK DID NOT RUN ***" >&2; \
	    if [ "$${CI:-}" = true ]; then exit 1; else exit 0; fi; }; \
	fi; \
	if [ -x $(STATICCHECK) ]; then echo "staticcheck ./..."; $(STATICCHECK) -tags cluster ./...; fi

# Writes below the directory given, so that the check can compare without
# touching the tree. Every file begins with its licence: the build tag, by which
# the generator knows its own work, goes below it.
define generate
  @$(CONTROLLER_GEN) object:headerFile=api/header.txt paths=./api/... output:object:dir=$(1)/api/v1alpha1
  @$(CONTROLLER_GEN) crd paths=./api/... output:crd:dir=$(1)/deploy/crds
  @cd $(1)/api/v1alpha1 && awk 'NR<=2 {tag[NR]=$$0; next} {print} NR==5 {print tag[1]; print tag[2]}' zz_generated.deepcopy.go > zz.tmp && mv zz.tmp zz_generated.deepcopy.go
endef

.PHONY: generate
generate: $(CONTROLLER_GEN) ## write the deep copies of api/ and the schemas in deploy/crds
	$(call generate,.)
	cp deploy/crds/*.yaml deploy/helm/penstock/crds/

# The tests of the controller that need an API server, in a cluster of their own.
define controller-test
	@mkdir -p .cache/cluster
	CGO_ENABLED=0 go test -c -trimpath -tags cluster -o .cache/cluster/controller.test ./kube/controller
	conformance/rig/rig.sh run --programs coredns --crds deploy/crds -- bash -c 'cd kube/controller && PENSTOCK_TEST_KUBECONFIG="$$KUBECONFIG" ../../.cache/cluster/controller.test -test.v -test.timeout $(TESTTIMEOUT) -test.run $(1)'
endef

.PHONY: test-cluster
test-cluster: prerequisites ## test the controller at a real API server, which the rig brings up (the first build takes minutes)
	$(call controller-test,^TestCluster)

.PHONY: bench-cluster
bench-cluster: prerequisites ## measure the controller with 1,000 routes, 200 pools and 5,000 pods at a real API server
	$(call controller-test,TestScale)

.PHONY: test-helm
test-helm: prerequisites ## render the chart and hold it to the types of Kubernetes (a module of its own)
	cd deploy/helmtest && go vet ./... && go test ./...

.PHONY: test-openapi
test-openapi: prerequisites ## hold the admin API to its OpenAPI document with a validator of OpenAPI 3.1 (a module of its own; the first build takes minutes)
	cd e2e/openapi && go vet ./... && go test -count=1 ./...

.PHONY: test-manifests
test-manifests: prerequisites ## have a real API server check the manifests, the examples and the rendered chart, without making anything of them
	rm -rf .cache/manifests && mkdir -p .cache/manifests .cache/conformance
	cd deploy/helmtest && go vet ./... && go test -count=1 . -keep $(CURDIR)/.cache/manifests
	cd conformance/suites && GOFLAGS= GOWORK=off CGO_ENABLED=0 go build -trimpath -o $(CURDIR)/.cache/conformance/prepare ./prepare
	conformance/rig/rig.sh run --programs coredns --crds deploy/crds -- .cache/conformance/prepare -dry-run deploy/manifests deploy/examples examples/kubernetes .cache/manifests

# Without the tool (no network, first run) the check is skipped aloud; in CI
# that is a failure.
.PHONY: generate-check
generate-check:
	@$(MAKE) $(CONTROLLER_GEN) >/dev/null || { \
	  echo "*** controller-gen could not be had: GENERATED FILES WERE NOT CHECKED ***" >&2; \
	  if [ "$${CI:-}" = true ]; then exit 1; else exit 0; fi; }
	@if [ -x $(CONTROLLER_GEN) ]; then $(MAKE) generate-compare; fi

.PHONY: generate-compare
generate-compare:
	@rm -rf .cache/generated && mkdir -p .cache/generated/api/v1alpha1
	$(call generate,.cache/generated)
	@diff -r .cache/generated/deploy/crds deploy/crds && \
	  diff .cache/generated/api/v1alpha1/zz_generated.deepcopy.go api/v1alpha1/zz_generated.deepcopy.go || { \
	  echo "generated files are out of date: make generate" >&2; exit 1; }

$(CONTROLLER_GEN):
	@mkdir -p $(dir $@)
	GOBIN=$(CURDIR)/$(dir $@) GOFLAGS= go install sigs.k8s.io/controller-tools/cmd/controller-gen@$(CONTROLLER_GEN_VERSION)

.PHONY: bench
bench: bench-go bench-system ## run every benchmark

# Takes about five minutes. CHECK=--check fails on a figure over its budget; on
# a machine that does other things meanwhile that says nothing.
.PHONY: bench-system
bench-system: build ## measure whole processes beside a ReverseProxy, and nginx if installed: CPU per request and chunk, 9,000 streams, scraping
	bin/penstock bench system $(CHECK)

.PHONY: bench-peers-epp
bench-peers-epp: build ## compare the picker in process, in another process and behind a real Envoy
	ENVOY="$$(e2e/envoy/install.sh)" bin/penstock bench peers $(ARGS)

.PHONY: bench-peers-llm
bench-peers-llm: build ## compare with other AI gateways in front of the same provider (Portkey's, LiteLLM's)
	PORTKEY="$$(e2e/portkey/install.sh)" LITELLM="$$(e2e/litellm/install.sh)" bin/penstock bench gateways $(ARGS)

.PHONY: bench-go
bench-go: prerequisites ## run the Go benchmarks (BENCH=regexp PKG=./epp/ COUNT=6 for benchstat)
	go test -run '^$$' -bench '$(BENCH)' -benchmem -benchtime $(BENCHTIME) -count $(COUNT) $(PKG)

.PHONY: fuzz
fuzz: prerequisites ## run every fuzz target for FUZZTIME (default 30s)
	@n=0; for pkg in $$(go list $(PKG)); do \
	  for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "== $$pkg $$target"; \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$pkg; \
	    n=$$((n+1)); \
	  done; \
	done; \
	if [ $$n = 0 ]; then echo "no fuzz target found" >&2; exit 1; fi; \
	echo "$$n fuzz targets passed"

.PHONY: conformance
conformance: prerequisites ## run the public suites of the Gateway API and its inference extension on a real API server (ARGS=names; docs/conformance.md)
	conformance/run.sh $(ARGS)

.PHONY: rig-up
rig-up: prerequisites ## start a Kubernetes cluster of local processes and print its KUBECONFIG (docs/rig.md; ARGS=flags; the first build takes minutes)
	@conformance/rig/rig.sh up $(ARGS)

.PHONY: rig-down
rig-down: ## end the cluster that rig-up started
	@conformance/rig/rig.sh down

.PHONY: rig-test
rig-test: prerequisites ## test the rig itself: pods, Services, volumes, tokens, and that nothing is left behind
	conformance/rig/rig.sh build --programs echo-basic,coredns,apiclient
	cd conformance/rig && CGO_ENABLED=0 GOFLAGS= go test -trimpath -count=1 -timeout $(TESTTIMEOUT) ./...

.PHONY: docs
docs: build ## write the reference pages in docs/ from the binary
	bin/penstock docs cli > docs/cli.md
	bin/penstock docs config > docs/config.md

.PHONY: prerequisites
prerequisites:
	@mkdir -p .cache bin
	@command -v go >/dev/null || { echo "Go is not installed; version $$(sed -n 's/^go //p' go.mod) or newer is needed (https://go.dev/dl/)" >&2; exit 1; }
	@want=$$(sed -n 's/^go //p' go.mod); have=$$(GOTOOLCHAIN=local go env GOVERSION | sed 's/^go//; s/[^0-9.].*//'); \
	if [ "$$(printf '%s\n%s\n' "$$want" "$$have" | sort -V | head -1)" != "$$want" ] && [ "$$(go env GOTOOLCHAIN)" = local ]; then \
	  echo "Go $$have is too old: $$want or newer is needed (https://go.dev/dl/)" >&2; exit 1; fi

.PHONY: race-prerequisites
race-prerequisites: prerequisites
	@command -v "$$(go env CC)" >/dev/null || { echo "the race detector needs a C compiler; install gcc or clang (found no $$(go env CC))" >&2; exit 1; }

.PHONY: clean
clean: ## remove what was built and fetched
	rm -rf bin .cache
