#!/usr/bin/env bash
# Makes a relocatable bundle: normd, normctl and normload with every shared library that they need but
# glibc's own, and the demo models, under one folder. It runs on any x86-64 Linux with glibc 2.36 or
# newer; on a machine with an NVIDIA driver also on its GPUs, without a CUDA installation.
#
#   deploy/bundle.sh [DIR]        the folder, dist/normd by default, is made anew
#   --preset NAME                 release by default
#   --no-setup                    installs nothing
#   --checks                      adds tests and benchmarks for a machine with a GPU (needs nvcc here)
#
#   DIR/bin/normd --model_repository=DIR/models
#   DIR/checks/check_gpu.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=dist/normd
preset=release
setup=yes
targets=(normd normctl normload)
components=(bundle)
while [[ $# -gt 0 ]]; do
  case $1 in
    --preset) preset=$2; shift ;;
    --no-setup) setup= ;;
    --checks) targets+=(gpu_checks); components+=(checks) ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "deploy/${0##*/}"; exit ;;
    -*) echo "bundle: unknown option '$1' (see --help)" >&2; exit 2 ;;
    *) folder=$1 ;;
  esac
  shift
done

if [[ -n $setup ]]; then ./deploy/setup.sh; fi
cmake --preset "$preset"
cmake --build --preset "$preset" --target "${targets[@]}"
[[ ! -e $folder || -x $folder/bin/normd ]] || { echo "bundle: $folder is something else" >&2; exit 1; }
rm -rf "$folder"
for component in "${components[@]}"; do
  cmake --install "build/$preset" --prefix "$folder" --component "$component" --strip >/dev/null
done

# Every library must now come from the bundle, but glibc's own.
mapfile -t programs < <(find "$folder" -type f -perm -u+x ! -name '*.sh' ! -name '*.py' ! -name '*.so*')
outside=$(ldd "${programs[@]}" | awk '/=>/ && $3 != "" {print $3}' | sort -u |
  grep -vF "$(realpath "$folder")/" |
  grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|libutil|ld-linux-x86-64)\.so' || true)
[[ -z $outside ]] || { echo "bundle: these stay outside:" "$outside" >&2; exit 1; }
"$folder/bin/normd" --version
du -sh "$folder" | awk '{print "bundle: " $2 ", " $1}'
