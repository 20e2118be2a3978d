#!/usr/bin/env bash
# Examines normd on a machine with an NVIDIA GPU. It lies in the folder checks/ of a bundle that
# `deploy/bundle.sh --checks` made, and needs no more than the driver; what it also finds
# (compute-sanitizer, PyTorch) it uses.
#
#   checks/check_gpu.sh [SECTION...]
#
#   tests      the tests labelled cuda; one that skips counts as a failure
#   sanitize   the same tests under compute-sanitizer: memcheck, racecheck, synccheck
#   kernels    norm_bench: every norm against a copy of the same tensor; linear_bench: the fused layer
#   compare    a copy, PyTorch eager, torch.compile and these kernels, side by side
#   link       device_bench: what a lane makes of the link to the GPU
#   serve      normd on the GPU: every demo model against float64, a load, raw echo beside normd
#
# Without a section: all of them, in this order.
#   --out=DIR      logs and JSON files (./gpu_checks)
#   --limit=S      seconds for each program at most (300); what a sanitizer has not reached by then
#                  is said
#   --device=D     as normd's flag (cuda)
set -euo pipefail

checks=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=$checks/../bin
models=$checks/../models
out=gpu_checks
limit=300
device=cuda
sections=()
for argument in "$@"; do
  case $argument in
    --out=*) out=${argument#*=} ;;
    --limit=*) limit=${argument#*=} ;;
    --device=*) device=${argument#*=} ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit ;;
    tests | sanitize | kernels | compare | link | serve) sections+=("$argument") ;;
    *) echo "check_gpu: unknown argument '$argument' (see --help)" >&2; exit 2 ;;
  esac
done
[[ ${#sections[@]} -gt 0 ]] || sections=(tests sanitize kernels compare link serve)
mkdir -p "$out"
export NORMD_TEST_GOLDEN=$checks/golden
PATH=$PATH:/usr/local/cuda/bin
normd_pid=''
failures=0
summary=()

# note RESULT TEXT: a line of the summary; RESULT other than ok counts as a failure.
note() {
  summary+=("$(printf '%-6s %s' "$1" "$2")")
  [[ $1 == ok || $1 == - ]] || failures=$((failures + 1))
}

# limited NAME COMMAND...: runs it within the limit, its output in $out/NAME.log; its exit code.
limited() {
  local name=$1 code=0
  shift
  timeout --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1 || code=$?
  return "$code"
}

# show NAME COMMAND...: the same, and prints the output.
show() {
  local code=0
  limited "$@" || code=$?
  cat "$out/$1.log"
  if [[ $code == 0 ]]; then note ok "$1"; else note FAILED "$1 (exit code $code)"; fi
}

cuda_tests() { find "$checks" -maxdepth 1 -name '*_test' | sort; }

run_tests() {
  local test name code counts
  for test in $(cuda_tests); do
    name=$(basename "$test")
    code=0
    limited "$name" "$test" --gtest_brief=1 || code=$?
    counts=$(grep -E '^\[ +(PASSED|FAILED|SKIPPED) +\] [0-9]+ test' "$out/$name.log" | tr -s '\n ' ' ')
    if [[ $code != 0 ]]; then
      tail -n 40 "$out/$name.log"
      note FAILED "$name: exit code $code; $counts"
    elif grep -q '^\[  PASSED  \] 0 tests' "$out/$name.log"; then
      note FAILED "$name: nothing ran; $counts"
    else
      note ok "$name: $counts"
    fi
  done
}

run_sanitize() {
  local tool test name code
  if ! command -v compute-sanitizer >/dev/null; then
    note - 'sanitize: no compute-sanitizer on this machine'
    return
  fi
  for tool in memcheck racecheck synccheck; do
    for test in $(cuda_tests); do
      name=$tool-$(basename "$test")
      code=0
      limited "$name" compute-sanitizer --tool "$tool" --error-exitcode 86 "$test" \
        --gtest_filter='-*Large*' || code=$?
      case $code in
        0) note ok "$name: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$out/$name.log" | tail -n 1)" ;;
        124 | 137) note - "$name: nothing found in ${limit} s," \
                        "$(grep -c '^\[       OK' "$out/$name.log" || true) cases ran" ;;
        *) grep -E '^=========' "$out/$name.log" | head -n 30 || true
           note FAILED "$name: exit code $code" ;;
      esac
    done
  done
}

run_kernels() {
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader || true
  show norm_bench "$checks/norm_bench" --device=cuda --min_time=0.2 --json="$out/norm_bench.json"
  show linear_bench "$checks/linear_bench" 8192 1 64 1024
}

run_compare() {
  if ! python3 -c 'import torch' 2>/dev/null; then
    note - 'compare: no PyTorch on this machine'
    return
  fi
  show compare_torch python3 "$checks/compare_torch.py" \
    --library="$checks/../lib/libnorm_kernels.so" --json="$out/compare_torch.json"
  show compare_torch_linear python3 "$checks/compare_torch_linear.py" \
    --library="$checks/../lib/libnorm_kernels.so"
}

run_link() {
  show device_bench "$checks/device_bench" --lanes=4,8 --chunks=524288,1048576,2097152 --seconds=1
}

stop_server() {
  [[ -n $normd_pid ]] || return 0
  kill -TERM "$normd_pid" 2>/dev/null || true
  wait "$normd_pid" || note FAILED "normd: exit code $?"
  normd_pid=''
}
trap stop_server EXIT

start_server() {
  local i
  if "$bin/normctl" health --server=127.0.0.1:28001 >/dev/null 2>&1; then
    note FAILED 'port 28001 is in use: another server answers there'
    return 1
  fi
  "$bin/normd" --model_repository="$models" --device="$device" --listen=127.0.0.1:28001 \
    --metrics_listen=127.0.0.1:28002 >"$out/normd.log" 2>&1 &
  normd_pid=$!
  for ((i = 0; i < 150; i++)); do
    if "$bin/normctl" health --server=127.0.0.1:28001 >/dev/null 2>&1; then return; fi
    kill -0 "$normd_pid" 2>/dev/null || break
    sleep 0.2
  done
  cat "$out/normd.log"
  note FAILED 'normd does not serve'
  return 1
}

# verify MODEL SHAPE DTYPE
verify() {
  local file=$out/$1.npy
  "$bin/normctl" random "$file" --shape="$2" --dtype="$3" >/dev/null
  if limited "verify-$1" "$bin/normctl" normalize --server=127.0.0.1:28001 --model "$1" "$file" \
    -o "$out/y.npy" --verify --model_repository="$models"; then
    note ok "$1 on $2 $3: every element within tolerance of float64"
  else
    cat "$out/verify-$1.log"
    note FAILED "$1 on $2 $3"
  fi
  rm -f "$file" "$out/y.npy"
}

run_serve() {
  start_server || return 0
  "$bin/normctl" models --server=127.0.0.1:28001
  verify instance_norm_64 8x64x256x256 float32
  verify instance_norm_64_running 4x64x64x64 float32
  verify group_norm_64_8 8x64x256x256 float32
  verify group_norm_320_32_silu_last 2x64x64x320 float16
  verify layer_norm_1024 4096x1024 float32
  verify rms_norm_4096 1024x4096 float32
  verify batch_norm_64 8x64x56x56 float32
  show normload "$bin/normload" --server=127.0.0.1:28001 --concurrency=32 --connections=8 \
    --mix=instance_norm_64:1x64x56x56:float32:3,group_norm_64_8:2x64x28x28:float32:2,layer_norm_1024:64x1024:float32:1 \
    --warmup=1s --duration=5s --verify --verify_every=100 --model_repository="$models" \
    --json="$out/normload.json"
  stop_server
  show serving_bench "$checks/serving_bench" --device="$device" --max_batch_bytes=67108864 \
    --sizes=1024,65536,262144,1048576,4194304 --rounds=7 --round=400ms \
    --json="$out/serving_bench.json"
  show stream_bench "$checks/stream_bench" --device="$device" --streams=8 --rounds=3
}

for section in "${sections[@]}"; do
  printf '\n=== %s ===\n' "$section"
  "run_$section"
done
printf '\n=== summary ===\n'
printf '%s\n' "${summary[@]}"
[[ $failures == 0 ]]
