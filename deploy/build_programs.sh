#!/usr/bin/env bash
# For the Dockerfile: builds the programs and lays down in a folder what the image takes over.
#
#   deploy/build_programs.sh DIR [CMAKE_OPTION...]
#
#   DIR/usr/local/bin              normd, normctl, normload
#   DIR/models                     the demo models
#   DIR/usr/share/normd            the packages that own their shared libraries, and the script that
#                                  installs these and makes the user
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=$1
shift
cmake --preset release -DNORMD_TESTS=OFF -DNORMD_BENCHMARKS=OFF "$@"
cmake --build --preset release --target normd normctl normload

mkdir -p "$out"/usr/local/bin "$out"/usr/share/normd "$out"/usr/share/doc/normd
cp build/release/bin/{normd,normctl,normload} "$out/usr/local/bin"
strip "$out"/usr/local/bin/*
cp -r deploy/models "$out/models"
cp LICENSE "$out/usr/share/doc/normd"
cp deploy/prepare_image.sh "$out/usr/share/normd"
# The packages' names differ between distributions.
ldd "$out"/usr/local/bin/* | awk '/=> \//{print $3}' | sort -u | xargs -n1 readlink -f |
  sed 's|.*/|*/|' | xargs dpkg -S | cut -d: -f1 | sort -u | tee "$out/usr/share/normd/packages"
