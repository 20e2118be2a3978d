#!/usr/bin/env bash
# Installs Envoy's protocol buffers into a virtual environment and runs envoy_test.py.
#
#   run.sh PYTHON VENV    VENV is made if need be
#
# Exit code 77, which ctest shows as skipped: the packages cannot be had.
set -euo pipefail
python=$1 venv=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

skip() { echo "skipped: $*"; exit 77; }

log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$python" -m venv "$venv" >"$log" 2>&1 || { cat "$log"; skip "$python -m venv fails"; }
"$venv/bin/python" -m pip --disable-pip-version-check --quiet install --timeout 20 --retries 2 \
  -r "$here/requirements.txt" >"$log" 2>&1 || { tail -n 5 "$log"; skip 'no packages from PyPI'; }
"$venv/bin/python" -B "$here/envoy_test.py"
