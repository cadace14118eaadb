#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0

# Builds the rig and runs it with the arguments: conformance/rig/rig.sh run -- COMMAND
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cache="${PENSTOCK_CACHE:-$(cd "$here/../.." && pwd)/.cache}"
mkdir -p "$cache/rig/bin"
# In place by renaming: a rig that runs keeps its own file.
(cd "$here" && CGO_ENABLED=0 GOFLAGS= GOWORK=off go build -trimpath -buildvcs=false -ldflags "-s -w" -o "$cache/rig/bin/rig.$$" . &&
  mv "$cache/rig/bin/rig.$$" "$cache/rig/bin/rig")
export PENSTOCK_RIG_SOURCE="$here" PENSTOCK_CACHE="$cache"
exec "$cache/rig/bin/rig" "$@"
