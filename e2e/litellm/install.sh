#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0
#
# Installs LiteLLM's proxy into an environment of its own in .cache/litellm, once,
# and prints where its program is. It is only measured beside ours. The release
# is an older one on purpose: two of 2026 carried a credential stealer
# (1.82.7, 1.82.8), so it is taken by exact version, only as wheels, and run with
# an empty environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

version=1.74.9
dir=$PWD/.cache/litellm/$version
program=$dir/bin/litellm
if [[ ! -f $dir/done ]]; then
  echo "installing litellm[proxy] $version" >&2
  rm -rf "$dir"
  mkdir -p "$(dirname "$dir")"
  {
    python3 -m venv "$dir" &&
      "$dir/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: "litellm[proxy]==$version"
  } >&2 || {
    rm -rf "$dir"
    echo "e2e/litellm: litellm[proxy] $version could not be installed" >&2
    exit 1
  }
  touch "$dir/done"
fi
echo "$program"
