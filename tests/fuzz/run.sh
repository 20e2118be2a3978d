#!/usr/bin/env bash
# Builds the fuzzers (preset asan) and runs them, each from its seeds in tests/fuzz/corpus.
#
#   tests/fuzz/run.sh [NAME...]     half a minute each, as many at once as there are processors
#     --seconds=N | --runs=N        so long, or so many executions, each
#     --jobs=N                      so many at once
#     --split=N                     N processes of each, with seeds of their own, which share the
#                                   executions of --runs
#     --decoders                    those of decoders alone, which need less to be built: what CI runs
#     --corpus=FOLDER               begins with FOLDER/NAME too, and keeps there what reaches further
#
# The last line counts executions and findings. An input that breaks something is kept in
# build/asan/findings; `build/asan/bin/NAME FILE` plays it again. The exit code is 0 without a
# finding, 77 where there is no clang++ with libFuzzer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

limit=-max_total_time=30
jobs=$(nproc)
split=1
runs=
only=
corpus=
names=()
all=()
for argument in "$@"; do
  value=${argument#*=}
  case $argument in
    --seconds=*) limit=-max_total_time=$value ;;
    --runs=*) runs=$value ;;
    --split=*) split=$value ;;
    --jobs=*) jobs=$value ;;
    --decoders) only=decoder ;;
    --corpus=*) corpus=$value ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit ;;
    -*) echo "fuzz: unknown argument '$argument' (see --help)" >&2; exit 2 ;;
    *) names+=("$argument") ;;
  esac
done

[[ -z $runs ]] || limit=-runs=$(((runs + split - 1) / split))

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' >"$scratch/empty.cc"
if ! clang++ -fsanitize=fuzzer,address "$scratch/empty.cc" -o "$scratch/empty" 2>"$scratch/log"; then
  echo 'fuzz: skipped: no clang++ with libFuzzer (apt-get install clang libclang-rt-dev)'
  exit 77
fi

cmake --preset asan >"$scratch/log" || { cat "$scratch/log" >&2; exit 1; }
declare -A max_bytes
while read -r name bytes kind; do
  max_bytes[$name]=$bytes
  [[ -n $only && $kind != "$only" ]] || all+=("$name")
done <build/asan/fuzzers.txt
[[ ${#names[@]} -gt 0 ]] || names=("${all[@]}")
for name in "${names[@]}"; do
  [[ -n ${max_bytes[$name]:-} ]] || { echo "fuzz: no fuzzer '$name' (${all[*]})" >&2; exit 2; }
done
cmake --build build/asan --target "${names[@]}"

findings=$PWD/build/asan/findings
mkdir -p "$findings"

# run NAME NUMBER: leaves NAME.NUMBER.log and NAME.NUMBER.rc in the scratch folder.
run() {
  local name=$1 number=$2 grown=$scratch/corpus/$1 rc=0
  [[ -z $corpus ]] || grown=$corpus/$name
  mkdir -p "$grown"
  # No single allocation is large: what an input merely claims is not allocated.
  build/asan/bin/"$name" "$limit" \
    -max_len="${max_bytes[$name]}" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=64 \
    -print_final_stats=1 -artifact_prefix="$findings/$name-" \
    "$grown" "tests/fuzz/corpus/$name" >"$scratch/$name.$number.log" 2>&1 || rc=$?
  echo "$rc" >"$scratch/$name.$number.rc"
}

for name in "${names[@]}"; do
  for ((number = 1; number <= split; number++)); do
    while (($(jobs -rp | wc -l) >= jobs)); do wait -n; done
    run "$name" "$number" &
  done
done
wait

total=0 failed=0
for name in "${names[@]}"; do
  count=$(sed -n 's/^stat::number_of_executed_units: *//p' "$scratch/$name".*.log | awk '{n += $1} END {print n + 0}')
  coverage=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$scratch/$name".*.log | sort -n | tail -n 1)
  total=$((total + count))
  printf '%-20s %10s executions, %5s edges\n' "$name" "$count" "${coverage:-0}"
  for ((number = 1; number <= split; number++)); do
    [[ $(cat "$scratch/$name.$number.rc") != 0 ]] || continue
    failed=$((failed + 1))
    grep -v -E '^#|^"' "$scratch/$name.$number.log" | tail -n 40
  done
done
echo "${#names[@]} fuzzers, $total executions, $failed findings"
[[ $failed == 0 ]]
