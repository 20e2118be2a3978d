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
unset PYTHONDONTWRITEBYTECODE  # PyTorch takes some 5 s to compile, each time that it is imported.

packages() { "$python" -B "$root/tests/support/python_packages.py" "$venv" "$@"; }

packages -r "$package/tests/requirements.txt" || exit

# Again only if something of it is newer.
installed=$venv/installed sources=("$package"/{CMakeLists.txt,README.md,native,pyproject.toml,src})
if [[ ! -e $installed || -n $(find "${sources[@]}" "$kernels" -newer "$installed" -print -quit) ]]; then
  touch "$installed.now"
  "$root/build/tools/uv/bin/uv" pip install --quiet --python "$venv/bin/python" \
    --no-build-isolation --no-deps --reinstall \
    --config-settings=cmake.define.NORMD_KERNELS_LIBRARY="$kernels" "$package"
  mv "$installed.now" "$installed"
fi

# Without the 2 GB of NVIDIA's libraries that PyPI's PyTorch asks for: cuda_stubs.py takes their place.
if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
  if packages --no-deps 'torch>=2.10' && packages -r "$package/tests/requirements_torch.txt"; then
    "$venv/bin/python" "$root/tests/client/python/cuda_stubs.py"
    "$venv/bin/python" -c 'import torch._inductor'  # Compiled once, for tests beside each other.
  else
    echo 'no PyTorch from PyPI: its tests skip'
  fi
fi
if [[ -n ${NORMD_ARCHITECTURES:-} ]]; then
  # Without their needs, among which are PyTorch's CUDA libraries.
  models=(transformers diffusers timm torchvision)
  if ! packages --no-deps "${models[@]}" ||
    ! packages -r "$package/tests/requirements_architectures.txt"; then
    echo 'not all packages of models from PyPI: their tests skip'
  fi
fi
