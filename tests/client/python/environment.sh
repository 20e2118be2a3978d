#!/usr/bin/env bash
# Makes a virtual environment with the Python client and what its tests need.
#
#   environment.sh PYTHON VENV KERNELS    VENV is made if need be; KERNELS is the libnorm_kernels.so that the
#                                         package carries
#
# With NORMD_ARCHITECTURES set, it also installs transformers, diffusers, timm and torchvision, ONNX's
# runtime and pyright, so that the tests that need them do not skip.
#
# Exit code 77: the packages that it needs cannot be had. PyTorch may be missing.
set -euo pipefail
python=$1 venv=$2 kernels=$3
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
if [[ -n ${NORMD_ARCHITECTURES:-} ]]; then
  # Without their needs, among which are PyTorch's CUDA libraries.
  models=(transformers diffusers timm torchvision) needs=$package/tests/requirements_architectures.txt
  if ! "${pip[@]}" install --timeout 20 --retries 2 --no-deps "${models[@]}" >"$log" 2>&1 ||
    ! "${pip[@]}" install --timeout 20 --retries 2 -r "$needs" >"$log" 2>&1; then
    tail -n 5 "$log"
    echo 'not all packages of models from PyPI: their tests skip'
  fi
fi
