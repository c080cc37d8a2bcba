#!/usr/bin/env bash
# Install the Debian packages that some tests want, where we may; say what is left out where we may not.
# Arguments: command:package pairs; a package is installed only if its command is missing.
set -euo pipefail
missing=()
for pair in "$@"; do
  command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "==> installing ${missing[*]}"
  # A server that Debian would start by itself is kept down: tests start their own on free ports.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
  fi
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null ||
    echo "==> could not install ${missing[*]}: the tests that need them will say that they are skipped"
else
  echo "==> not root on Debian, so not installing ${missing[*]}: the tests that need them will say that they are skipped"
fi
