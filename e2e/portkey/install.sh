#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0
#
# Fetches Portkey's open gateway (npm @portkey-ai/gateway) into .cache/portkey,
# once, and prints where its start script is. It is only measured beside ours.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

version=1.15.2
dir=$PWD/.cache/portkey/$version
script=$dir/node_modules/@portkey-ai/gateway/build/start-server.js
if [[ ! -f $script ]]; then
  command -v npm >/dev/null || { echo "e2e/portkey: npm is not installed" >&2; exit 1; }
  echo "fetching @portkey-ai/gateway $version" >&2
  mkdir -p "$dir"
  (cd "$dir" && npm install --ignore-scripts --no-audit --no-fund --silent --prefix . "@portkey-ai/gateway@$version" >&2) || {
    rm -rf "$dir"
    echo "e2e/portkey: @portkey-ai/gateway $version could not be had" >&2
    exit 1
  }
fi
echo "$script"
