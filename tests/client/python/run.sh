#!/usr/bin/env bash
# Tests the Python client in the virtual environment that environment.sh has made.
#
#   run.sh VENV --lint              ruff and mypy
#   run.sh VENV BIN [ARGUMENT...]   pytest; BIN is the folder of normd and normctl
#
# Exit code 77, which ctest shows as skipped: there is no such environment. Where PyTorch alone could not
# be had, the tests that need it skip.
set -euo pipefail
venv=$1 bin=$2
shift 2
if [[ ! -e $venv/installed ]]; then
  echo "skipped: $venv has no Python client"
  exit 77
fi

cd "$(dirname "${BASH_SOURCE[0]}")/../../../client/python"
unset PYTHONDONTWRITEBYTECODE  # As environment.sh.
export PATH="$venv/bin:$PATH" RUFF_CACHE_DIR=$venv/ruff_cache MYPY_CACHE_DIR=$venv/mypy_cache
if [[ $bin == --lint ]]; then
  ruff check .
  ruff format --check .
  mypy
else
  python -m pytest -q -p no:cacheprovider --normd_bin="$bin" "$@" || rc=$?
  [[ ${rc:-0} != 5 ]] || rc=77  # All of these tests need a package that is not there.
  exit "${rc:-0}"
fi
