#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0

# Runs curl and the OpenAI clients for Python, Node and Go, unchanged, against a
# gateway in front of four simulated servers. Prints a matrix, a line per case.
#
#   e2e/sdk/run.sh                     start everything, run all clients
#   e2e/sdk/run.sh python node         these clients only
#   GATEWAY_URL=http://…/v1 MODEL=m e2e/sdk/run.sh    against what runs already
#
# A client whose runtime is missing is skipped aloud; with CI=true that fails.
# Clients are fetched once into .cache/sdk. Every process started here is ended
# by its id.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

here=e2e/sdk
cache=$PWD/.cache/sdk
penstock=${PENSTOCK:-$PWD/bin/penstock}
work=$(mktemp -d)
pids=()
mkdir -p "$cache"

finish() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$work"
}
trap finish EXIT

fail() { echo "e2e/sdk: $*" >&2; exit 1; }

# A free port of 127.0.0.1: one on which nothing answers.
free_port() {
  local port
  for _ in $(seq 100); do
    port=$((20000 + RANDOM % 12000))
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then echo "$port"; return; fi
  done
  fail "no free port found"
}

# wait_for WHAT FILE PID COMMAND...: until the command succeeds, 30 s at most.
wait_for() {
  local what=$1 log=$2 pid=$3; shift 3
  for _ in $(seq 300); do
    if "$@" >/dev/null 2>&1; then return; fi
    kill -0 "$pid" 2>/dev/null || { cat "$log" >&2; fail "$what ended"; }
    sleep 0.1
  done
  cat "$log" >&2
  fail "$what is not ready after 30 s"
}

start_gateway() {
  [ -x "$penstock" ] || fail "$penstock is missing; make build"
  "$penstock" sim --servers 4 --port 0 --model llama-8b >"$work/sim.out" 2>"$work/sim.err" &
  pids+=($!)
  wait_for "penstock sim" "$work/sim.err" $! bash -c "[ \$(grep -c '^http://' '$work/sim.out') = 4 ]"
  local members port admin
  members=$(sed -nE 's|^http://([^ /]+).*|"\1"|p' "$work/sim.out" | paste -sd, -)
  port=$(free_port)
  admin=$(free_port)
  cat >"$work/penstock.yaml" <<YAML
listeners:
  - name: public
    address: "127.0.0.1:$port"
    anonymous: true
admin: {address: "127.0.0.1:$admin"}
pools:
  - name: llama
    members: {static: [$members]}
models:
  - name: chat
    targets: [{pool: llama, model: llama-8b}]
limits: {body: 1MiB}
records: {path: "$work/records.jsonl"}
YAML
  "$penstock" run -c "$work/penstock.yaml" >"$work/run.out" 2>"$work/run.err" &
  pids+=($!)
  export GATEWAY_URL="http://127.0.0.1:$port/v1" ADMIN_URL="http://127.0.0.1:$admin" MODEL=chat
  wait_for "penstock run" "$work/run.err" $! "$penstock" get pools --admin "127.0.0.1:$admin"
}

# Each client: prepare (fetch, build) and run. prepare prints why it cannot.
prepare_python() {
  command -v python3 >/dev/null || { echo "python3 is not installed"; return 1; }
  local want venv
  want=$(sha256sum "$here/python/requirements.txt" | cut -c1-12)
  venv=$cache/python-$want
  if [ ! -e "$venv/ready" ]; then
    rm -rf "$venv"
    python3 -m venv "$venv" >"$work/prepare" 2>&1 || { echo "python3 -m venv failed: $(tail -1 "$work/prepare")"; return 1; }
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/python/requirements.txt" >"$work/prepare" 2>&1 ||
      { echo "pip install failed: $(tail -1 "$work/prepare")"; return 1; }
    touch "$venv/ready"
  fi
  ln -sfn "$venv" "$cache/python"
}
run_python() { "$cache/python/bin/python" "$here/python/client.py"; }

prepare_node() {
  command -v node >/dev/null && command -v npm >/dev/null || { echo "node and npm are not installed"; return 1; }
  mkdir -p "$cache/node"
  if ! cmp -s "$here/node/package.json" "$cache/node/ready"; then
    cp "$here/node/package.json" "$cache/node/package.json"
    (cd "$cache/node" && npm install --silent --no-audit --no-fund --no-package-lock) >"$work/prepare" 2>&1 ||
      { echo "npm install failed: $(tail -1 "$work/prepare")"; return 1; }
    cp "$here/node/package.json" "$cache/node/ready"
  fi
  cp "$here/node/client.mjs" "$cache/node/client.mjs" # beside its node_modules
}
run_node() { node "$cache/node/client.mjs"; }

prepare_curl() { command -v curl >/dev/null || { echo "curl is not installed"; return 1; }; }
run_curl() { "$here/curl/client.sh"; }

# Without the optimizer the generated client compiles in a third of the time.
prepare_go() {
  (cd "$here/go" && go build -gcflags='github.com/openai/...=-N -l' -o "$cache/go-client" .) >"$work/prepare" 2>&1 ||
    { echo "go build failed: $(tail -1 "$work/prepare")"; return 1; }
}
run_go() { "$cache/go-client"; }

clients=("$@")
[ ${#clients[@]} -gt 0 ] || clients=(curl python node go)
failed=0
ready=()
for client in "${clients[@]}"; do
  if why=$("prepare_$client"); then
    ready+=("$client")
  else
    echo "*** the $client client DID NOT RUN: $why ***" >&2
    [ "${CI:-}" != true ] || failed=1
  fi
done

[ -n "${GATEWAY_URL:-}" ] || start_gateway
: "${MODEL:?MODEL must name a model}"
for client in "${ready[@]}"; do
  if ! "run_$client" >"$work/$client.out" 2>"$work/$client.err"; then
    failed=1
    cat "$work/$client.err" >&2
  fi
  cat "$work/$client.out" >>"$work/all"
done

# The matrix: a row per case, a column per client.
awk -v clients="${ready[*]:-}" '
  { if (!($2 in seen)) { seen[$2] = 1; order[++n] = $2 } result[$2, $1] = $3
    if ($3 == "ok") passed++; else { failed++; print "FAILED " $0 } }
  END {
    columns = split(clients, c, " ")
    printf "%-18s", "case"; for (i = 1; i <= columns; i++) printf "%-8s", c[i]; print ""
    for (k = 1; k <= n; k++) {
      printf "%-18s", order[k]
      for (i = 1; i <= columns; i++) { r = result[order[k], c[i]]; printf "%-8s", r == "" ? "-" : r }
      print ""
    }
    printf "%d passed, %d failed\n", passed, failed
    exit n == 0 || failed > 0
  }' <"${work}/all" || failed=1
exit $failed
