#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0
#
# Sees to it that there is a redis-server, and prints where it is: REDIS_SERVER,
# the system's, or the one of Debian's packages, unpacked into .cache/redis.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [[ -n ${REDIS_SERVER:-} ]]; then
  echo "$REDIS_SERVER"
  exit
fi
for name in redis-server valkey-server; do
  if command -v "$name"; then exit; fi
done
dir=$PWD/.cache/redis
if [[ ! -x $dir/usr/bin/redis-server ]]; then
  command -v apt-get >/dev/null || { echo "e2e/redis: there is no redis-server and no apt-get; install one, or set REDIS_SERVER" >&2; exit 1; }
  echo "fetching redis-server from Debian's packages" >&2
  rm -rf "$dir" && mkdir -p "$dir/packages"
  # The libraries that it needs and this system lacks come along.
  if [[ $(id -u) = 0 && -z $(apt-cache policy redis-server 2>/dev/null) ]]; then apt-get update -qq >&2 || true; fi
  mapfile -t packages < <(apt-get install --print-uris -qq -y --no-install-recommends redis-server 2>/dev/null | sed -n "s/^'[^']*\/\([^_']*\)_.*/\1/p")
  (cd "$dir/packages" && apt-get download -qq "${packages[@]:-redis-server}" >&2) || { echo "e2e/redis: redis-server could not be had" >&2; exit 1; }
  for p in "$dir"/packages/*.deb; do dpkg -x "$p" "$dir"; done
  rm -rf "$dir/packages"
  [[ -x $dir/usr/bin/redis-server ]] || { echo "e2e/redis: the packages hold no redis-server" >&2; exit 1; }
fi
echo "$dir/usr/bin/redis-server"
