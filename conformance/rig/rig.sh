#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0

# Builds the rig and runs it with the arguments: conformance/rig/rig.sh run -- COMMAND
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cache="${PENSTOCK_CACHE:-$(cd "$here/../.." && pwd)/.cache}"
mkdir -p "$cache/rig/bin"
# Built again only when its sources are others: not by their times, since several
# trees may share the cache. In place by renaming: a rig that runs keeps its own file.
bin="$cache/rig/bin/rig"
sum="$(cd "$here" && find . -type f \( -name '*.go' -o -name go.mod -o -name go.sum \) -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum)"
if [ ! -x "$bin" ] || [ "$(cat "$bin.sum" 2>/dev/null)" != "$sum" ]; then
  rm -f "$bin.sum"
  (cd "$here" && CGO_ENABLED=0 GOFLAGS= GOWORK=off go build -trimpath -buildvcs=false -ldflags "-s -w" -o "$bin.$$" .)
  mv "$bin.$$" "$bin"
  echo "$sum" > "$bin.sum"
fi
export PENSTOCK_RIG_SOURCE="$here" PENSTOCK_CACHE="$cache"
exec "$bin" "$@"
