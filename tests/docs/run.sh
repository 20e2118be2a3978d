#!/usr/bin/env bash
# Runs the pages' snippets (pages_test.py) with the Python client in a virtual environment.
#
#   run.sh PYTHON VENV BIN KERNELS TRITON_VENV [PAGE...]    see tests/client/python/environment.sh; without
#                                                           TRITON_VENV (tests/oip makes it) Triton's client is left out
set -euo pipefail
python=$1 venv=$2 bin=$3 kernels=$4 triton=$5
shift 5
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
"$root/tests/client/python/environment.sh" "$python" "$venv" "$kernels"
options=()
! "$triton/bin/python" -c "import tritonclient" 2>/dev/null || options+=("--triton=$triton/bin/python")
exec "$python" -B "$root/tests/docs/pages_test.py" --bin="$bin" --python="$venv/bin/python" "${options[@]}" "$@"
