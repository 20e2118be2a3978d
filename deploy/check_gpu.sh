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
#   churn      eight clients that share memory of the host and of the GPU with normd, come, verify every
#              response and go, of which one is killed every second, until --churn requests are
#              answered; then for 20 s with normd under memcheck: nothing may be left of them
#
# Without a section: all of them, in this order.
#   --out=DIR      logs and JSON files (./gpu_checks)
#   --limit=S      seconds for each program at most (300); what a sanitizer has not reached by then
#                  is said
#   --soak=S       seconds of the soak (120)
#   --churn=N      requests of the churn (1000000), which has --limit to be answered
#   --device=D     as normd's flag (cuda)
set -euo pipefail

checks=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=$checks/../bin
models=$checks/../models
out=gpu_checks
limit=300
soak=120
churn=1000000
device=cuda
sections=()
for argument in "$@"; do
  case $argument in
    --out=*) out=${argument#*=} ;;
    --limit=*) limit=${argument#*=} ;;
    --soak=*) soak=${argument#*=} ;;
    --churn=*) churn=${argument#*=} ;;
    --device=*) device=${argument#*=} ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit ;;
    tests | sanitize | sanitize_normd | kernels | compare | link | serve | soak | churn)
      sections+=("$argument") ;;
    *) echo "check_gpu: unknown argument '$argument' (see --help)" >&2; exit 2 ;;
  esac
done
[[ ${#sections[@]} -gt 0 ]] || sections=(tests sanitize sanitize_normd kernels compare link serve soak churn)
mkdir -p "$out"
export NORMD_TEST_GOLDEN=$checks/golden NORMD_TEST_MODELS=$models
PATH=$PATH:/usr/local/cuda/bin
normd_pid=''
scratch=''
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

# normd's own pid, also below the command that start_server was given.
normd_process() {
  if [[ $(<"/proc/$normd_pid/comm") == normd ]]; then echo "$normd_pid"; else normd_below "$normd_pid"; fi
}

# What sanitizes normd; its exit code tells of what it has found.
memcheck=(compute-sanitizer --tool memcheck --error-exitcode 86)

# stop_sanitized TEXT: stop_server for normd under memcheck, with what that has found. The signal must
# go to normd itself.
stop_sanitized() {
  local code=0
  kill -TERM "$(normd_process)" || kill -TERM "$normd_pid"
  wait "$normd_pid" || code=$?
  normd_pid=''
  if [[ $code == 0 ]]; then
    note ok "memcheck of $1: $(grep 'ERROR SUMMARY' "$out/normd.log" | tail -n 1)"
  else
    grep -E '^=========' "$out/normd.log" | head -n 30 || true
    note FAILED "memcheck of $1: exit code $code"
  fi
}

run_sanitize_normd() {
  local code=0
  if ! command -v compute-sanitizer >/dev/null; then
    note - 'sanitize_normd: no compute-sanitizer on this machine'
    return
  fi
  start_server -- "${memcheck[@]}" || return 0
  limited memcheck-normd-load "$bin/normload" --server=127.0.0.1:28001 --concurrency=8 \
    --mix="$mix" --warmup=0s --duration=5s --timeout=60s --verify --verify_every=10 \
    --model_repository="$models" || code=$?
  [[ $code == 0 ]] || { tail -n 20 "$out/memcheck-normd-load.log"; note FAILED "normload: exit code $code"; }
  stop_sanitized normd
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
  show device_bench "$checks/device_bench" --idle=true --small=true --lanes=4,10 --seconds=1
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
trap 'end_clients; stop_server; rm -rf "$scratch"' EXIT

# start_server [FLAG...] [-- COMMAND...]: normd with these flags too, as an argument of that command.
start_server() {
  local i flags=()
  while [[ $# -gt 0 && $1 != -- ]]; do
    flags+=("$1")
    shift
  done
  [[ $# == 0 ]] || shift
  if "$bin/normctl" health --server=127.0.0.1:28001 >/dev/null 2>&1; then
    note FAILED 'port 28001 is in use: another server answers there'
    return 1
  fi
  "$@" "$bin/normd" --model_repository="$models" --device="$device" --listen=127.0.0.1:28001 \
    --metrics_listen=127.0.0.1:28002 --http_listen= --lame_duck=1s "${flags[@]}" >"$out/normd.log" 2>&1 &
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
  show serving_bench "$checks/serving_bench" --rounds=7 --round=400ms \
    --sizes=1024,65536,262144,1048576,4194304,16777216 -- --device="$device"
  show serving_bench_idle "$checks/serving_bench" --rounds=7 --round=400ms \
    --connections=1 --sizes=1024,65536 -- --device="$device"
  # 7.5 GB in all.
  show stream_bench "$checks/stream_bench" --streams=8 --rounds=3 --tensor_bytes=939524096 \
    -- --device="$device"
}

# The memory of normd and of every device, in MiB.
memory() {
  awk '/^VmRSS/{printf "%d ", $2 / 1024}' "/proc/$(normd_process)/status"
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

# scrape: normd's metrics, to $out/metrics.txt; empty where it does not respond.
scrape() {
  : >"$out/metrics.txt"
  {
    printf 'GET /metrics HTTP/1.1\r\nHost: normd\r\nConnection: close\r\n\r\n' >&3
    timeout 10 cat <&3 >"$out/metrics.txt"
  } 3<>/dev/tcp/127.0.0.1/28002
  [[ -s $out/metrics.txt ]]
} 2>/dev/null

# metric SERIES [LABEL [WITHOUT]]: the sum of the scraped series that begin so, match the one expression
# and not the other; "unknown" where none begins so.
metric() {
  awk -v series="$1" -v label="${2:-}" -v without="${3:-^$}" '
    index($0, series) != 1 {next}
    {known = 1}
    $0 ~ label && $0 !~ without {sum += $NF}
    END {if (known) printf "%d\n", sum; else print "unknown"}' "$out/metrics.txt"
}

# How many Normalize calls normd has answered, by the last scrape.
answered() {
  local count
  count=$(metric 'normd_requests_total{' 'method="Normalize",code="OK"')
  [[ $count != unknown ]] || count=0
  echo "$count"
}

# churn_client NUMBER PLANE REQUESTS: a normload of so many requests after the other until
# $scratch/over is there, with a line for each: gone, or killed, which USR1 does. It ends with one that
# fails, or hangs until TERM.
churn_client() {
  local child='' killed='' code log=$out/churn-client-$1.log flags gpu=0
  trap 'if kill -KILL "$child"; then killed=yes; fi 2>/dev/null' USR1
  trap 'kill -KILL "$child" 2>/dev/null || true' TERM
  flags=(--plane=shm --shared_memory="unix://$scratch/regions")
  if [[ $2 == cuda ]]; then
    [[ $device != cuda:* ]] || gpu=${device#cuda:}
    flags=(--plane=cuda --cuda_device="${gpu%%,*}")
  fi
  while [[ ! -e $scratch/over ]]; do
    killed=''
    "$bin/normload" --quiet --server=127.0.0.1:28001 "${flags[@]}" \
      --mix=instance_norm_64:2x64x33:float32:3,layer_norm_1024:7x1024:bf16 --requests="$3" \
      --duration=60s --timeout=60s --warmup=0s --concurrency=2 --connections=1 --verify \
      --verify_every=1 --model_repository="$models" >"$log" 2>&1 &
    child=$!
    code=138
    while [[ $code == 138 || $code == 143 ]]; do  # These signals end the wait, too.
      code=0
      wait "$child" || code=$?
    done
    child=''
    if [[ $code == 0 ]]; then
      echo gone
    elif [[ $code == 137 && -n $killed ]]; then
      echo killed
    else
      echo "failed: exit code $code, $log: $(tail -n 1 "$log")"
      return
    fi
  done
}

# The shells of the churn's running clients.
loops=()

# end_clients: as an interrupted churn leaves them.
end_clients() {
  local loop
  [[ -z $scratch ]] || : >"$scratch/over"
  for loop in "${loops[@]}"; do kill -TERM "$loop" 2>/dev/null || true; done
  [[ ${#loops[@]} == 0 ]] || wait "${loops[@]}" 2>/dev/null || true
  loops=()
}

# churn_clients REQUESTS SECONDS EACH: eight clients of EACH requests, of which one is killed every
# second, until normd has answered REQUESTS in all and that time is over, or churn_end is there. Then
# the last go by themselves. Nothing where a client has failed before.
churn_clients() {
  local planes=(shm cuda) begin=$SECONDS i
  if grep -q '^failed' "$scratch/clients"; then return; fi
  [[ $device != cpu ]] || planes=(shm shm)
  rm -f "$scratch/over"
  for ((i = 0; i < 8; i++)); do
    churn_client "$i" "${planes[i % 2]}" "$3" >>"$scratch/clients" 2>>"$out/churn-clients.log" &
    loops+=($!)
  done
  for ((i = 0; SECONDS < churn_end; i++)); do
    sleep 1
    if ! jobs -rp | grep -qx "${loops[i % 8]}" || grep -q '^failed' "$scratch/clients"; then break; fi
    kill -USR1 "${loops[i % 8]}" || break
    if scrape && ((SECONDS - begin >= $2 && $(answered) >= $1)); then break; fi
  done
  : >"$scratch/over"
  for ((i = 0; i < 150; i++)); do
    if ! jobs -rp | grep -qvx "$normd_pid"; then break; fi
    sleep 1
  done
  for i in "${loops[@]}"; do
    if jobs -rp | grep -qx "$i"; then kill -TERM "$i"; fi
    wait "$i" || echo "failed: a client's shell, exit code $?" >>"$scratch/clients"
  done
  loops=()
}

# churn_rest: lets go what killed clients have left on devices, and waits until normd has no region.
# Prints what must not grow: MiB of normd and of the devices, normd's descriptors and mappings.
churn_rest() {
  local pid descriptors i
  "$bin/normctl" unregister --all --kind=device --server=127.0.0.1:28001 --timeout=60s >&2 || return 1
  for ((i = 0; i < 100; i++)); do
    if scrape && [[ $(metric 'normd_shared_regions{') == 0 ]]; then break; fi
    sleep 0.2
  done
  [[ $(metric 'normd_shared_regions{') != unknown ]] || return 1
  pid=$(normd_process)
  descriptors=("/proc/$pid/fd"/*)
  echo "$(memory) ${#descriptors[@]} $(wc -l <"/proc/$pid/maps")"
}

# churn_left NAME BEFORE AFTER: whether the churn between two rests has left anything. memcheck keeps
# records of its own, in the memory of normd and of the device.
churn_left() {
  local before after text errors
  read -ra before <<<"$2"
  read -ra after <<<"$3"
  text="host ${before[0]} -> ${after[0]} MiB, device ${before[1]} -> ${after[1]} MiB,"
  text+=" descriptors ${before[2]} -> ${after[2]}, mappings ${before[3]} -> ${after[3]}"
  if [[ $1 == *memcheck* ]]; then
    before[0]=${after[0]}
    before[1]=${after[1]}
  fi
  # gRPC starts and ends threads, whose stacks and arenas are mappings.
  if ((after[0] <= before[0] + 16 && after[1] <= before[1] + 2 && after[2] <= before[2] + 4 &&
    after[3] <= before[3] + 16)); then
    note ok "$1: $text"
  else
    note FAILED "$1: grows: $text"
  fi
  # A killed client's call may come without its message, or after its region has gone. Its
  # registration may come when its memory has gone, and is no request.
  errors=$(metric 'normd_requests_total{' 'method="Normalize"' 'code="(OK|CANCELLED|NOT_FOUND)"')
  text="$(metric 'normd_shared_regions{') regions, $(metric 'normd_inflight_bytes ') bytes inside,"
  text+=" $errors requests that failed"
  if [[ $text == '0 regions, 0 bytes inside, 0 requests that failed' ]]; then
    note ok "$1: $text"
  else
    note FAILED "$1: left $text"
  fi
}

# churn_once NAME REQUESTS EACH: the churn of the server that runs, in two parts, with a rest after each.
churn_once() {
  local name=$1 begin=$SECONDS churn_end=$((SECONDS + limit)) early late count killed text
  : >"$scratch/clients"
  churn_clients "$(($2 / 3))" 7 "$3"
  early=$(churn_rest 2>>"$out/churn-clients.log") || early=''
  churn_clients "$2" 13 "$3"
  late=$(churn_rest 2>>"$out/churn-clients.log") || late=''

  count=$(answered)
  killed=$(grep -c '^killed$' "$scratch/clients" || true)
  text="$count requests in $((SECONDS - begin)) s, of $(wc -l <"$scratch/clients") clients $killed killed"
  if grep -m 4 '^failed' "$scratch/clients"; then
    note FAILED "$name: a client that nobody killed failed; $text"
  elif [[ -z $early || -z $late ]]; then
    tail -n 20 "$out/churn-clients.log"
    note FAILED "$name: normd cannot be asked what is left; $text"
  elif ((count < $2 || killed < 3)); then
    note FAILED "$name: wanted $2 requests and 3 clients killed within $limit s; $text"
  else
    note ok "$name: every response is right; $text"
  fi
  [[ -z $early || -z $late ]] || churn_left "$name" "$early" "$late"
}

run_churn() {
  local flags before
  scratch=$(mktemp -d)
  flags=(--shared_memory_cuda --shared_memory=fd --shared_memory_listen="unix://$scratch/regions")
  # What killed clients leave on devices stays until the rest.
  flags+=(--max_shared_regions=8192 --max_identity_shared_regions=8192)
  : >"$out/churn-clients.log"
  start_server "${flags[@]}" || return 0
  churn_once churn "$churn" 2000
  before=$failures
  stop_server
  [[ $failures != "$before" ]] || note ok 'churn: SIGTERM ends normd with 0'
  if [[ $device == cpu ]] || ! command -v compute-sanitizer >/dev/null; then
    note - 'churn under memcheck: no GPU, or no compute-sanitizer on this machine'
    return
  fi
  # The driver refuses the handle of a client that is killed while it registers.
  start_server "${flags[@]}" -- "${memcheck[@]}" --report-api-errors no || return 0
  churn_once 'churn under memcheck' 0 200
  stop_sanitized 'normd in the churn'
}

for section in "${sections[@]}"; do
  printf '\n=== %s ===\n' "$section"
  "run_$section"
done
printf '\n=== summary ===\n'
printf '%s\n' "${summary[@]}"
[[ $failures == 0 ]]
