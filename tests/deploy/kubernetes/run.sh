#!/usr/bin/env bash
# Installs what validates Kubernetes' objects into a virtual environment and runs kubernetes_test.py.
#
#   run.sh PYTHON VENV [OPTION...]    VENV is made if need be; the options are kubernetes_test.py's
#
# Exit code 77, which ctest shows as skipped: kubectl or the packages cannot be had.
set -euo pipefail
python=$1 venv=$2
shift 2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

skip() { echo "skipped: $*"; exit 77; }

command -v kubectl >/dev/null || skip 'no kubectl'
# Older ones (Debian's is 1.20) carry a kustomize without components and templates' labels.
minor=$(kubectl version --client -o json | sed -n 's/.*"minor": "\([0-9]*\).*/\1/p' | head -n 1)
[[ ${minor:-0} -ge 26 ]] || skip "kubectl 1.$minor, wanted 1.26 or newer"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$python" -m venv "$venv" >"$log" 2>&1 || { cat "$log"; skip "$python -m venv fails"; }
"$venv/bin/python" -m pip --disable-pip-version-check --quiet install --timeout 20 --retries 2 \
  -r "$here/requirements.txt" >"$log" 2>&1 || { tail -n 5 "$log"; skip 'no packages from PyPI'; }
"$venv/bin/python" -B "$here/kubernetes_test.py" "$@"
