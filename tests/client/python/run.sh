#!/usr/bin/env bash
# Installs the Python client into a virtual environment and tests it.
#
#   run.sh PYTHON VENV BIN [KERNELS]    VENV is made if need be; BIN is the folder of normd and normctl;
#                                       KERNELS is the libnorm_kernels.so that the package carries
#
# Exit code 77, which ctest shows as skipped: the packages that it needs cannot be had. Where PyTorch
# alone cannot be had, the tests that need it skip.
set -euo pipefail
python=$1 venv=$2 bin=$3 kernels=${4:-$(dirname "$3")/lib/libnorm_kernels.so}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
package=$root/client/python

skip() { echo "skipped: $*"; exit 77; }

log=$(mktemp)
trap 'rm -f "$log"' EXIT

"$python" -m venv "$venv" >"$log" 2>&1 || { cat "$log"; skip "$python -m venv fails"; }
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)
"${pip[@]}" install --timeout 20 --retries 2 -r "$package/tests/requirements.txt" >"$log" 2>&1 ||
  { tail -n 5 "$log"; skip 'no packages from PyPI'; }
"${pip[@]}" install --no-build-isolation --no-deps --force-reinstall \
  --config-settings=cmake.define.NORMD_KERNELS_LIBRARY="$kernels" "$package"

# Without the 2 GB of NVIDIA's libraries that PyPI's PyTorch asks for: cuda_stubs.py takes their place.
if ! "$venv/bin/python" -c 'import torch' 2>"$log"; then
  if "${pip[@]}" install --timeout 20 --retries 2 --no-deps 'torch>=2.10' >"$log" 2>&1 &&
    "${pip[@]}" install --timeout 20 --retries 2 -r "$package/tests/requirements_torch.txt" >"$log" 2>&1; then
    "$venv/bin/python" "$root/tests/client/python/cuda_stubs.py"
  else
    tail -n 5 "$log"
    echo 'no PyTorch from PyPI: its tests skip'
  fi
fi

cd "$package"
export PATH="$venv/bin:$PATH" RUFF_CACHE_DIR=$venv/ruff_cache MYPY_CACHE_DIR=$venv/mypy_cache
ruff check .
ruff format --check .
mypy
python -m pytest -q -p no:cacheprovider --normd_bin="$bin"
