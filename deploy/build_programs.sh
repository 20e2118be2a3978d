#!/usr/bin/env bash
# For the Dockerfile: builds the programs and lays down in a folder what the image takes over.
#
#   deploy/build_programs.sh DIR [CMAKE_OPTION...]
#
#   DIR/usr/local/bin              normd, normctl, normload
#   DIR/usr/local/share/man        their manual pages
#   DIR/models                     the demo models
#   DIR/usr/share/doc/normd        the licence
#
# deploy/image/make_root.py adds the rest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1-} in
  -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "deploy/${0##*/}"; exit ;;
  '' | -*) echo "build_programs: DIR '${1-}', wanted a folder (see --help)" >&2; exit 2 ;;
esac
out=$1
shift
cmake --preset release -DNORMD_TESTS=OFF -DNORMD_BENCHMARKS=OFF "$@"
cmake --build --preset release --target normd normctl normload

mkdir -p "$out"/usr/local/bin "$out"/usr/share/doc/normd
cp build/release/bin/{normd,normctl,normload} "$out/usr/local/bin"
strip "$out"/usr/local/bin/*
deploy/make_man_pages.py build/release/bin "$out/usr/local/share/man"
cp -r deploy/models "$out/models"
cp LICENSE "$out/usr/share/doc/normd"
