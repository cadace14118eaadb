#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0

# Fetches the clients of matrix.py once, into .cache/sdk, and runs it.
#
#   e2e/sdk/matrix/run.sh                        everything
#   e2e/sdk/matrix/run.sh anthropic bedrock tools   these clients, backends and scenarios
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

here=e2e/sdk/matrix
fail() { echo "e2e/sdk/matrix: $*" >&2; exit 1; }

[ -x "${PENSTOCK:-bin/penstock}" ] || fail "${PENSTOCK:-bin/penstock} is missing; make build"
command -v python3 >/dev/null || fail "python3 is not installed"
venv=$PWD/.cache/sdk/matrix-$(sha256sum "$here/requirements.txt" | cut -c1-12)
if [ ! -e "$venv/ready" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv" || fail "python3 -m venv failed"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt" || fail "pip install failed"
  touch "$venv/ready"
fi

# Without Node or Go their clients are left out aloud; with CI=true that fails.
absent() {
  echo "*** the $1 client DOES NOT RUN: $2 ***" >&2
  [ "${CI:-}" != true ] || exit 1
}
node=$PWD/.cache/sdk/node
if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
  absent Node "node and npm are not installed"
elif ! cmp -s e2e/sdk/node/package.json "$node/ready" && ! {
  mkdir -p "$node" && cp e2e/sdk/node/package.json "$node/package.json" &&
    (cd "$node" && npm install --silent --no-audit --no-fund --no-package-lock) && cp e2e/sdk/node/package.json "$node/ready"
}; then
  absent Node "npm install failed"
else
  cp "$here/ask.mjs" "$node/ask.mjs" # beside its node_modules
  export NODE_CLIENT=$node
fi
# Without the optimizer the generated client compiles in a third of the time.
if (cd e2e/sdk/go && go build -gcflags='github.com/openai/...=-N -l' -gcflags='github.com/anthropics/...=-N -l' -o "$venv/../go-ask" ./ask); then
  export GO_CLIENT=$PWD/.cache/sdk/go-ask
else
  absent Go "go build failed"
fi
exec "$venv/bin/python" "$here/matrix.py" "$@"
