#!/usr/bin/env bash
# Every shell script passes bash's parser and, where it is installed, shellcheck. Run from the root
# of the tree.
set -euo pipefail

mapfile -t scripts < <(find .ci deploy tests -type f -perm -u+x -exec grep -l '^#!\(/usr/bin/env bash\|/bin/sh\)$' {} + |
                       sort)
[[ ${#scripts[@]} -gt 0 ]] || { echo 'no scripts found: not the root of the tree?' >&2; exit 1; }
for script in "${scripts[@]}"; do
  bash -n "$script"
done
if ! command -v shellcheck >/dev/null; then
  echo 'skipped: shellcheck is not installed'
  exit 77
fi
shellcheck "${scripts[@]}"
echo "${#scripts[@]} scripts"
