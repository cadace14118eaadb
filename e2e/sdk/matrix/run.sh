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
exec "$venv/bin/python" "$here/matrix.py" "$@"
