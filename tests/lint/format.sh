#!/usr/bin/env bash
# Every C++ and CUDA source is formatted by clang-format 14. Run from the root of the tree; with
# --fix, formats instead of checking.
set -euo pipefail

formatter=
for candidate in clang-format-14 clang-format; do
  if "$candidate" --version 2>/dev/null | grep -q 'version 14\.'; then
    formatter=$candidate
    break
  fi
done
if [[ -z $formatter ]]; then
  echo 'skipped: clang-format 14 is not installed'
  exit 77
fi

mapfile -t sources < <(find base client flags kernels operations server tests wire -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' |
                         sort)
[[ ${#sources[@]} -gt 0 ]] || { echo 'no sources found: not the root of the tree?' >&2; exit 1; }
case ${1:-} in
  --fix) "$formatter" -i "${sources[@]}" ;;
  '') "$formatter" --dry-run --Werror "${sources[@]}" ;;
  *) echo "usage: $0 [--fix]" >&2; exit 2 ;;
esac
echo "${#sources[@]} files"
