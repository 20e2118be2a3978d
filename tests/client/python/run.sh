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

"$root/tests/client/python/environment.sh" "$python" "$venv" "$kernels"

cd "$package"
export PATH="$venv/bin:$PATH" RUFF_CACHE_DIR=$venv/ruff_cache MYPY_CACHE_DIR=$venv/mypy_cache
ruff check .
ruff format --check .
mypy
python -m pytest -q -p no:cacheprovider --normd_bin="$bin"
