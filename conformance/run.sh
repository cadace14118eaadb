#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0

# Runs the public conformance suites against Penstock on the rig, each in a
# cluster of its own, and writes reports to conformance/reports; and as "own"
# Penstock's own tests in a cluster, for what no suite asks.
#
#   conformance/run.sh [inference|inference-epp|http-core|gateway|own]... [-- FLAGS OF THE SUITE]
#
# Without names: inference inference-epp gateway. The last line says how many
# tests passed, failed and were skipped; the exit code is 0 if none failed.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/.." && pwd)"
cache="${PENSTOCK_CACHE:-$root/.cache}"
export PENSTOCK_CACHE="$cache"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

names=()
while [ $# -gt 0 ] && [ "$1" != "--" ]; do names+=("$1"); shift; done
[ "${1:-}" = "--" ] && shift
[ ${#names[@]} -gt 0 ] || names=(inference inference-epp gateway)

echo "building the suites and Penstock" >&2
mkdir -p "$cache/conformance" "$here/reports"
(cd "$here/suites" && GOFLAGS= GOWORK=off CGO_ENABLED=0 go test -c -trimpath -o "$cache/conformance/suites.test" . &&
  GOFLAGS= GOWORK=off CGO_ENABLED=0 go test -c -trimpath -o "$cache/conformance/own.test" ./own &&
  GOFLAGS= GOWORK=off CGO_ENABLED=0 go build -trimpath -o "$cache/conformance/stage" ./stage &&
  GOFLAGS= GOWORK=off CGO_ENABLED=0 go build -trimpath -o "$cache/conformance/prepare" ./prepare)
(cd "$root" && CGO_ENABLED=0 go build -trimpath -o "$cache/conformance/penstock" ./cmd/penstock)
version="$(git -C "$root" describe --tags --always --dirty 2>/dev/null || echo dev)"

failed=0
summary=""
for name in "${names[@]}"; do
  rig=(--penstock "$cache/conformance/penstock")
  flags=(-test.v -gateway-class=penstock -cleanup-base-resources=false "-report-output=$work/$name.yaml"
    -organization=penstock -project=penstock -url=https://github.com/penstock/penstock "-version=$version"
    -contact=https://github.com/penstock/penstock/issues -usable-address=10.245.200.7 -unusable-address=192.0.2.7)
  suite="$cache/conformance/suites.test"
  depth="    " # of the tests of the suite among the results
  case "$name" in inference*) depth="$depth$depth" ;; esac
  case "$name" in
    inference) flags+=(-test.run '^TestInference$') ;;
    inference-epp)
      flags+=(-test.run '^TestInference$')
      # The picker of the suite's manifests becomes Penstock's own.
      rig+=(--image "registry.k8s.io/gateway-api-inference-extension/lwepp=penstock epp --test-plugins") ;;
    http-core) flags+=(-test.run '^TestGatewayAPI$' -conformance-profiles=GATEWAY-HTTP -supported-features=Gateway,HTTPRoute,ReferenceGrant) ;;
    gateway) flags+=(-test.run '^TestGatewayAPI$' -conformance-profiles=GATEWAY-HTTP,GATEWAY-GRPC) ;; # features: as the GatewayClass says
    own)
      suite="$cache/conformance/own.test" depth=""
      rig+=(--programs +epp --image "rig.test/stage=$cache/conformance/stage")
      flags=(-test.v -test.timeout=60m) ;;
    *) echo "conformance/run.sh: no suite $name" >&2; exit 2 ;;
  esac
  log="$cache/conformance/$name.log"
  echo "running $name; its output goes to $log" >&2
  if ! "$here/rig/rig.sh" run "${rig[@]}" --crds "$root/deploy/crds" --logs "$cache/conformance/$name-cluster" -- \
    bash -c '"$1" "$2" && shift 2 && exec "$@"' inside "$cache/conformance/prepare" "$root/deploy/manifests/controller.yaml" \
    "$suite" "${flags[@]}" "$@" >"$log" 2>&1; then
    failed=1
  fi
  count() { grep -cE "^$depth--- $1: " "$log" || true; }
  passed=$(count PASS) broken=$(count FAIL) skipped=$(count SKIP)
  [ "$passed" -gt 0 ] || { failed=1; tail -40 "$log" >&2; }
  grep -E "^$depth--- FAIL: |^--- FAIL: " "$log" >&2 || true
  [ "$name" != own ] || grep -E '^    [a-z_]+_test\.go:[0-9]+: ' "$log" >&2 || true # what was measured
  [ ! -f "$work/$name.yaml" ] || cp "$work/$name.yaml" "$here/reports/$name.yaml"
  summary="$summary $name: $passed passed, $broken failed, $skipped skipped;"
done
echo "conformance:${summary%;}"
exit $failed
