#!/usr/bin/env bash
# Create a virtual environment; on a Debian that splits venv off, install the missing package first if we may.
set -euo pipefail
python=$1 venv=$2
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "==> installing python$version-venv"
    apt-get update -qq && apt-get install -y -qq "python$version-venv" >/dev/null
  else
    echo "Python's venv module is missing: install the package python$version-venv, then run make again." >&2
    exit 1
  fi
fi
"$python" -m venv "$venv"
"$venv/bin/python" -m pip --disable-pip-version-check --quiet install --upgrade pip
