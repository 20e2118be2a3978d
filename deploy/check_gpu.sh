#!/usr/bin/env bash
# Examines normd on a machine with an NVIDIA GPU. It lies in the folder checks/ of a bundle that
# `deploy/bundle.sh --checks` made, and needs no more than the driver; what it also finds
# (compute-sanitizer, PyTorch) it uses.
#
#   checks/check_gpu.sh [SECTION...]
#
#   tests      the tests labelled cuda; one that skips counts as a failure
#   sanitize   the same tests under compute-sanitizer: memcheck, racecheck, synccheck
#   sanitize_normd  normd under memcheck, from its start through a verified load to its stop
#   kernels    norm_bench: every norm against a copy of the same tensor, and the fused layer
#   compare    a copy, PyTorch eager, torch.compile and these kernels, side by side
#   link       device_bench: what a lane makes of the link to the GPU
#   serve      normd on the GPU: every demo model against float64, a load, raw echo beside normd
#   soak       normd under full load for --soak seconds: memory of host and device must not grow; then
#              SIGTERM amid a load: whatever was accepted is answered, and normd ends with 0
#
# Without a section: all of them, in this order.
#   --out=DIR      logs and JSON files (./gpu_checks)
#   --limit=S      seconds for each program at most (300); what a sanitizer has not reached by then
#                  is said
#   --soak=S       seconds of the soak (120)
#   --device=D     as normd's flag (cuda)
set -euo pipefail

checks=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=$checks/../bin
models=$checks/../models
out=gpu_checks
limit=300
soak=120
device=cuda
sections=()
for argument in "$@"; do
  case $argument in
    --out=*) out=${argument#*=} ;;
    --limit=*) limit=${argument#*=} ;;
    --soak=*) soak=${argument#*=} ;;
    --device=*) device=${argument#*=} ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit ;;
    tests | sanitize | sanitize_normd | kernels | compare | link | serve | soak) sections+=("$argument") ;;
    *) echo "check_gpu: unknown argument '$argument' (see --help)" >&2; exit 2 ;;
  esac
done
[[ ${#sections[@]} -gt 0 ]] || sections=(tests sanitize sanitize_normd kernels compare link serve soak)
mkdir -p "$out"
export NORMD_TEST_GOLDEN=$checks/golden NORMD_TEST_MODELS=$models
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
  # A cluster's barriers are more than synccheck follows by itself.
  for tool in memcheck racecheck 'synccheck --num-cuda-barriers=65536'; do
    for test in $(cuda_tests); do
      name=${tool%% *}-$(basename "$test")
      code=0
      # shellcheck disable=SC2086
      limited "$name" compute-sanitizer --tool $tool --error-exitcode 86 "$test" \
        --gtest_filter='-*Large*:*Lost*' || code=$?
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

# normd_below PID: the normd among the descendants of PID.
normd_below() {
  local pid
  for pid in $(pgrep -P "$1"); do
    if [[ $(<"/proc/$pid/comm") == normd ]]; then echo "$pid"; else normd_below "$pid"; fi
  done
}

# The signal must go to normd itself.
run_sanitize_normd() {
  local sanitizer code=0
  if ! command -v compute-sanitizer >/dev/null; then
    note - 'sanitize_normd: no compute-sanitizer on this machine'
    return
  fi
  start_server compute-sanitizer --tool memcheck --error-exitcode 86 || return 0
  limited memcheck-normd-load "$bin/normload" --server=127.0.0.1:28001 --concurrency=8 \
    --mix="$mix" --warmup=0s --duration=5s --timeout=60s --verify --verify_every=10 \
    --model_repository="$models" || code=$?
  [[ $code == 0 ]] || { tail -n 20 "$out/memcheck-normd-load.log"; note FAILED "normload: exit code $code"; }
  sanitizer=$normd_pid
  kill -TERM "$(normd_below "$sanitizer")" || kill -TERM "$sanitizer"
  code=0
  wait "$sanitizer" || code=$?
  normd_pid=''
  if [[ $code == 0 ]]; then
    note ok "memcheck of normd: $(grep 'ERROR SUMMARY' "$out/normd.log" | tail -n 1)"
  else
    grep -E '^=========' "$out/normd.log" | head -n 30 || true
    note FAILED "memcheck of normd: exit code $code"
  fi
}

run_kernels() {
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader || true
  show norm_bench "$checks/norm_bench" --device=cuda --min_time=0.2 --json="$out/norm_bench.json"
  show norm_bench_linear "$checks/norm_bench" --device=cuda --min_time=0.2 \
    --linear=1x8192x8192,64x8192x8192,1024x8192x8192 --json="$out/norm_bench_linear.json" \
    --precisions=float32,tf32,bf16,float32_strict
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
  show device_bench "$checks/device_bench" --host=true --idle=true --small=true --lanes=4,10 --seconds=1
}

# What loads a server with every kind of request.
mix=instance_norm_64:1x64x56x56:float32:3,group_norm_64_8:2x64x28x28:float32:2
mix+=,layer_norm_1024:64x1024:float32:1,rms_norm_4096:16x4096:bfloat16:1
mix+=,group_norm_320_32_silu_last:1x16x16x320:float16:1,fused_linear_512:32x512:y=32x512

stop_server() {
  [[ -n $normd_pid ]] || return 0
  kill -TERM "$normd_pid" 2>/dev/null || true
  wait "$normd_pid" || note FAILED "normd: exit code $?"
  normd_pid=''
}
trap stop_server EXIT

# start_server [COMMAND...]: normd, as an argument of that command.
start_server() {
  local i
  if "$bin/normctl" health --server=127.0.0.1:28001 >/dev/null 2>&1; then
    note FAILED 'port 28001 is in use: another server answers there'
    return 1
  fi
  "$@" "$bin/normd" --model_repository="$models" --device="$device" --listen=127.0.0.1:28001 \
    --metrics_listen=127.0.0.1:28002 --lame_duck=1s >"$out/normd.log" 2>&1 &
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

# verify MODEL SHAPE DTYPE [ARGUMENT...]
verify() {
  local file=$out/$1.npy
  "$bin/normctl" random "$file" --shape="$2" --dtype="$3" >/dev/null
  if limited "verify-$1" "$bin/normctl" normalize --server=127.0.0.1:28001 --model "$1" "$file" \
    -o "$out/y.npy" --verify --model_repository="$models" "${@:4}"; then
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
  "$bin/normctl" random "$out/second.npy" --shape=300x512 --dtype=float32 >/dev/null
  verify fused_linear_512 300x512 float32 --y="$out/second.npy"
  show normload "$bin/normload" --server=127.0.0.1:28001 --concurrency=32 --connections=8 \
    --mix="$mix" --warmup=1s --duration=5s --verify --verify_every=100 \
    --model_repository="$models" --json="$out/normload.json"
  stop_server
  show serving_bench "$checks/serving_bench" --device="$device" \
    --sizes=1024,65536,262144,1048576,4194304,16777216 --rounds=7 --round=400ms \
    --json="$out/serving_bench.json"
  show serving_bench_idle "$checks/serving_bench" --device="$device" \
    --connections=1 --sizes=1024,65536 --rounds=7 --round=400ms
  # 7.5 GB in all.
  show stream_bench "$checks/stream_bench" --device="$device" --streams=8 --rounds=3 \
    --tensor_bytes=939524096
}

# The memory of normd and of every device, in MiB.
memory() {
  awk '/^VmRSS/{printf "%d ", $2 / 1024}' "/proc/$normd_pid/status"
  { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null || echo 0; } |
    awk '{sum += $1} END {print sum}'
}

# Everything is at its size after the first quarter; growth is what the rest adds to its peak.
run_soak() {
  local load code=0 end growth refused
  start_server || return 0
  "$bin/normload" --server=127.0.0.1:28001 --concurrency=24 --connections=16 --duration="${soak}s" \
    --mix="$mix,instance_norm_64:1x64x256x256:float32:1" --warmup=0s --quiet \
    --json="$out/soak.json" >"$out/soak.log" 2>&1 &
  load=$!
  end=$((SECONDS + soak - 1))
  : >"$out/soak_memory.txt"
  while ((SECONDS < end)); do
    sleep 1
    memory >>"$out/soak_memory.txt"
  done
  wait "$load" || code=$?
  cat "$out/soak.log"
  if [[ $code == 0 ]]; then note ok "soak: ${soak} s without an error"; else note FAILED "soak: normload's exit code $code"; fi
  growth=$(awk '{host[NR] = $1; gpu[NR] = $2}
    END {
      for (i = 1; i <= NR; ++i) {
        if (i <= NR / 4) { if (host[i] > h0) h0 = host[i]; if (gpu[i] > g0) g0 = gpu[i] }
        else { if (host[i] > h1) h1 = host[i]; if (gpu[i] > g1) g1 = gpu[i] }
      }
      printf "host %d -> %d MiB, device %d -> %d MiB", h0, h1, g0, g1
      exit h1 > 1.05 * h0 + 16 || g1 > g0 + 2
    }' "$out/soak_memory.txt") && code=0 || code=$?
  if [[ $code == 0 ]]; then note ok "soak: $growth"; else note FAILED "soak: memory grows: $growth"; fi

  "$bin/normload" --server=127.0.0.1:28001 --concurrency=64 --connections=16 --duration=8s \
    --mix="$mix" --warmup=0s --quiet >"$out/stop.log" 2>&1 &
  load=$!
  sleep 3
  stop_server
  wait "$load" || true  # It says that the server has gone.
  refused=$(grep -cE '^ +(CANCELLED|INTERNAL|UNKNOWN|DEADLINE_EXCEEDED|DATA_LOSS|ABORTED) +[0-9]' "$out/stop.log" || true)
  grep -E '^ +(requests|[A-Z_]+) +[0-9]' "$out/stop.log" || true
  if [[ $refused == 0 ]] && grep -q 'stopped' "$out/normd.log"; then
    note ok 'SIGTERM amid a load: all that was accepted is answered; only UNAVAILABLE afterwards'
  else
    note FAILED 'SIGTERM amid a load lost requests'
  fi
}

for section in "${sections[@]}"; do
  printf '\n=== %s ===\n' "$section"
  "run_$section"
done
printf '\n=== summary ===\n'
printf '%s\n' "${summary[@]}"
[[ $failures == 0 ]]
