#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0
#
# Sees to it that there is a PostgreSQL server, and prints the directory of its
# programs (initdb, postgres): POSTGRES_BIN, the system's, or the one of Debian's
# packages, unpacked into .cache/postgres. Nothing is installed or started.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

have() { # the newest directory below $1 with both programs
  local dir
  for dir in $(ls -d "$1"/usr/lib/postgresql/*/bin 2>/dev/null | sort -rV); do
    if [[ -x $dir/initdb && -x $dir/postgres ]]; then echo "$dir"; return 0; fi
  done
  return 1
}

if [[ -n ${POSTGRES_BIN:-} ]]; then
  echo "$POSTGRES_BIN"
  exit
fi
if have ""; then exit; fi
dir=$PWD/.cache/postgres
if have "$dir"; then exit; fi
command -v apt-get >/dev/null || { echo "e2e/postgres: there is no PostgreSQL and no apt-get; install one, or set POSTGRES_BIN" >&2; exit 1; }
echo "fetching postgresql from Debian's packages" >&2
rm -rf "$dir" && mkdir -p "$dir/packages"
if [[ $(id -u) = 0 && -z $(apt-cache search --names-only '^postgresql-[0-9]+$' 2>/dev/null) ]]; then apt-get update -qq >&2 || true; fi
version=$(apt-cache search --names-only '^postgresql-[0-9]+$' | sed -n 's/^postgresql-\([0-9]*\) .*/\1/p' | sort -rV | head -1)
[[ -n $version ]] || { echo "e2e/postgres: Debian's packages have no PostgreSQL here; install one, or set POSTGRES_BIN" >&2; exit 1; }
# The libraries that it needs and this system lacks come along.
mapfile -t packages < <(apt-get install --print-uris -qq -y --no-install-recommends "postgresql-$version" 2>/dev/null | sed -n "s/^'[^']*\/\([^_']*\)_.*/\1/p")
(cd "$dir/packages" && apt-get download -qq "${packages[@]:-postgresql-$version}" >&2) || { echo "e2e/postgres: postgresql-$version could not be had" >&2; exit 1; }
for p in "$dir"/packages/*.deb; do dpkg -x "$p" "$dir"; done
rm -rf "$dir/packages"
have "$dir" || { echo "e2e/postgres: the packages hold no server" >&2; exit 1; }
