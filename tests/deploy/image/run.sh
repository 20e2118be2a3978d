#!/usr/bin/env bash
# Installs the SPDX tools into a virtual environment and runs image_test.py.
#
#   run.sh PYTHON VENV ARGUMENTS...    VENV is made if need be
#
# Exit code 77, which ctest shows as skipped: the packages cannot be had, or this is neither Debian nor Ubuntu.
set -euo pipefail
python=$1 venv=$2
shift 2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

skip() { echo "skipped: $*"; exit 77; }

command -v dpkg-query >/dev/null || skip 'no dpkg-query: the image is made of packages of Debian or Ubuntu'
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$python" -m venv "$venv" >"$log" 2>&1 || { cat "$log"; skip "$python -m venv fails"; }
"$venv/bin/python" -m pip --disable-pip-version-check --quiet install --timeout 20 --retries 2 \
  -r "$here/requirements.txt" >"$log" 2>&1 || { tail -n 5 "$log"; skip 'no packages from PyPI'; }
"$venv/bin/python" -B "$here/image_test.py" "$@"
