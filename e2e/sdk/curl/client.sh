#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Penstock Authors
# SPDX-License-Identifier: Apache-2.0

# Runs curl against a gateway, a line per case.
# Environment: GATEWAY_URL (with /v1), ADMIN_URL (optional), MODEL.
# The cases are those of the SDK clients, as far as curl has them.
set -uo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# send STATUS PATH BODY [FLAG...]: the answer goes to $work/body and $work/head.
send() {
  local want=$1 path=$2 body=$3 got; shift 3
  got=$(curl -sS --max-time 60 -o "$work/body" -D "$work/head" -w '%{http_code}' "$@" \
    -H 'content-type: application/json' --data-binary "$body" "$GATEWAY_URL$path") || return 1
  [ "$got" = "$want" ] || { echo "status $got, want $want: $(head -c 300 "$work/body")"; return 1; }
}
has() { grep -qE -- "$1" "$work/body" || { echo "the answer lacks $1: $(head -c 300 "$work/body")"; return 1; }; }
lacks() { ! grep -qE -- "$1" "$work/body" || { echo "the answer has $1"; return 1; }; }

messages='"messages": [{"role": "user", "content": "Why is the sky blue?"}]'
chat="{\"model\": \"$MODEL\", \"max_tokens\": 16, $messages}"
stream="{\"model\": \"$MODEL\", \"max_tokens\": 16, \"stream\": true, $messages}"

models() { curl -fsS --max-time 60 "$GATEWAY_URL/models" >"$work/body" && has "\"$MODEL\""; }
chat() { send 200 /chat/completions "$chat" && has '"finish_reason"' && has "\"model\": ?\"$MODEL\""; }
chat_stream() {
  send 200 /chat/completions "$stream" -N && has '^data: \[DONE\]' && lacks '"usage": ?\{' && has "\"model\": ?\"$MODEL\""
}
http2() { send 200 /chat/completions "$stream" -N --http2-prior-knowledge && has '^data: \[DONE\]' && grep -q '^HTTP/2 200' "$work/head"; }
gzip_body() {
  printf %s "$chat" | gzip >"$work/chat.gz"
  send 200 /chat/completions "@$work/chat.gz" -H 'content-encoding: gzip' && has '"finish_reason"'
}
embeddings() { send 200 /embeddings "{\"model\": \"$MODEL\", \"input\": [\"one\", \"two\"]}" && has '"embedding"'; }
responses() { send 200 /responses "{\"model\": \"$MODEL\", \"input\": \"hello\", \"max_output_tokens\": 16}" && has '"output_text"'; }
not_found() { send 404 /chat/completions "{\"model\": \"no-such-model\", $messages}" && has model_not_found; }
bad_request() { send 400 /chat/completions '{"model": ' && has '"error"' && grep -qi '^x-request-id: ' "$work/head"; }
too_large() {
  { printf '{"model": "%s", "messages": [{"role": "user", "content": "' "$MODEL"; head -c 2097152 /dev/zero | tr '\0' x; printf '"}]}'; } >"$work/large"
  send 413 /chat/completions "@$work/large" && has '"error"'
}
# The answer would take 20 s.
cancel() {
  curl -sSN --max-time 1 -o "$work/body" -H 'content-type: application/json' --data-binary \
    "{\"model\": \"$MODEL\", \"max_tokens\": 20000, \"ignore_eos\": true, \"stream\": true, $messages}" "$GATEWAY_URL/chat/completions" 2>/dev/null
  local code=$?
  [ $code = 28 ] || { echo "curl ends with $code; its time limit (28) was to cut the stream"; return 1; }
  has '^data: ' || return 1
  [ -n "${ADMIN_URL:-}" ] || return 0
  for _ in $(seq 100); do
    curl -fsS --max-time 10 "$ADMIN_URL/pools" >"$work/pools" || return 1
    grep -oE '^ +"requests": [0-9]+' "$work/pools" | grep -qv ' 0$' || return 0
    sleep 0.1
  done
  echo "requests are in flight 10 s after the client left"
  return 1
}

for name in models chat chat_stream http2 gzip_body embeddings responses not_found bad_request too_large cancel; do
  if why=$("$name" 2>&1); then
    echo "curl $name ok"
  else
    failed=1
    echo "curl $name FAILED $why" | tr '\n' ' '
    echo
  fi
done
exit $failed
