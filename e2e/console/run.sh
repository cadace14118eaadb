#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0

# Walks the console in a real browser, against `penstock demo` and against a
# gateway with users. Screenshots are kept in .cache/console/shots.
#
#   e2e/console/run.sh
#   CHROMIUM=/path/to/chromium e2e/console/run.sh
#
# What is missing is told aloud and the test left out; with CI=true that fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

here=e2e/console
cache=$PWD/.cache/console
export PENSTOCK=${PENSTOCK:-$PWD/bin/penstock}

absent() {
  echo "*** $*: THE CONSOLE WAS NOT TESTED ***" >&2
  if [ "${CI:-}" = true ]; then exit 1; else exit 0; fi
}

[ -x "$PENSTOCK" ] || { echo "e2e/console: $PENSTOCK is missing; make build" >&2; exit 1; }
command -v node >/dev/null && command -v npm >/dev/null || absent "node and npm are not installed"
CHROMIUM=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)}
[ -n "$CHROMIUM" ] || absent "chromium is not installed (apt-get install chromium, or set CHROMIUM)"
export CHROMIUM

mkdir -p "$cache/node" "$cache/shots"
if ! cmp -s $here/package-lock.json "$cache/node/ready"; then
  cp $here/package.json $here/package-lock.json "$cache/node/"
  (cd "$cache/node" && npm ci --silent --no-audit --no-fund) || absent "playwright-core and axe-core could not be fetched"
  cp $here/package-lock.json "$cache/node/ready"
fi
cp $here/walk.mjs $here/steps.mjs "$cache/node/" # beside node_modules
SHOTS=$cache/shots DOCS=$PWD/docs/console.md exec node "$cache/node/walk.mjs"
