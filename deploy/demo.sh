#!/usr/bin/env bash
# The whole service in one run: installs what is missing, builds, serves the demo models, normalizes
# a tensor on two of them and checks the responses against float64, shows the latencies that
# Prometheus would scrape, runs a short load test and stops the server. Needs Debian 12 or
# Ubuntu 24.04 and no GPU.
#
#   --keep              leaves the server running, and says how to stop it
#   --port=N            gRPC port (8001)
#   --metrics_port=N    metrics port (8002)
#   --http_port=N       HTTP port (8000)
#   --device=D          auto, cpu or cuda (auto: a GPU if the machine has one and a CUDA compiler)
#   --no-setup          installs nothing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

port=8001 metrics_port=8002 http_port=8000 device=auto keep='' setup=yes
for argument in "$@"; do
  case $argument in
    --keep) keep=yes ;;
    --port=*) port=${argument#*=} ;;
    --metrics_port=*) metrics_port=${argument#*=} ;;
    --http_port=*) http_port=${argument#*=} ;;
    --device=*) device=${argument#*=} ;;
    --no-setup) setup='' ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "deploy/${0##*/}"; exit ;;
    *) echo "demo: unknown argument '$argument' (see --help)" >&2; exit 2 ;;
  esac
done

bin=build/release/bin
work=build/demo
server=127.0.0.1:$port
models=(instance_norm_64 group_norm_64_8)
shape=2x64x512x512
normd_pid=''

section() { printf '\n=== %s ===\n' "$*"; }
say() { printf '%s\n' "$*"; }
die() { printf 'demo: %s\n' "$*" >&2; exit 1; }
run() { printf '$ %s\n' "$*"; "$@"; }
# /dev/dxg: in Windows's subsystem for Linux.
has_gpu() { compgen -G '/dev/nvidia[0-9]*' >/dev/null || [[ -e /dev/dxg ]]; }

# stop_server: SIGTERM, then waits; leaves normd's exit code in stop_code.
stop_server() {
  kill -TERM "$normd_pid" 2>/dev/null || true
  stop_code=0
  wait "$normd_pid" || stop_code=$?
  normd_pid=''
}

clean_up() {
  [[ -z $normd_pid ]] || stop_server
  rm -f "$work"/*.npy
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

section 'Set-up'
if [[ -n $setup ]]; then run ./deploy/setup.sh; else say 'left out (--no-setup)'; fi
for p in "$port" "$metrics_port" "$http_port"; do
  if (exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null; then
    die "port $p is in use; choose others with --port=N, --metrics_port=N and --http_port=N"
  fi
done

section 'Build'
# The kernels for GPUs are most of what there is to compile.
cuda=AUTO
if [[ $device == cpu ]] || { [[ $device == auto ]] && ! has_gpu; }; then
  say 'For CPUs alone: no GPU is asked for, or there is none here.'
  cuda=OFF
fi
run cmake --preset release -DNORMD_CUDA=$cuda
run cmake --build --preset release --target normd normctl normload
built_after=$SECONDS

section 'Start the server'
mkdir -p "$work"
say "\$ $bin/normd --model_repository=deploy/models --listen=$server \\"
say "    --metrics_listen=127.0.0.1:$metrics_port --http_listen=127.0.0.1:$http_port \\"
say "    --device=$device >$work/normd.log 2>&1 &"
"$bin/normd" --model_repository=deploy/models --listen="$server" \
  --metrics_listen="127.0.0.1:$metrics_port" --http_listen="127.0.0.1:$http_port" \
  --device="$device" >"$work/normd.log" 2>&1 &
normd_pid=$!
for ((i = 0; ; i++)); do
  if "$bin/normctl" health --server="$server" >/dev/null 2>&1; then break; fi
  kill -0 "$normd_pid" 2>/dev/null || { cat "$work/normd.log" >&2; die 'normd did not start'; }
  ((i < 150)) || { cat "$work/normd.log" >&2; die 'normd is not serving after 30 s'; }
  sleep 0.2
done
run "$bin/normctl" health --server="$server"
run "$bin/normctl" models --server="$server"

section "Normalize a $shape float32 tensor; check every element against float64"
run "$bin/normctl" random "$work/x.npy" --shape="$shape"
for model in "${models[@]}"; do
  run "$bin/normctl" normalize --server="$server" --model "$model" "$work/x.npy" \
    -o "$work/$model.npy" --verify --model_repository=deploy/models
done

section 'The fused layer: a matrix product, a norm, and a second input; checked likewise'
if "$bin/normctl" model --server="$server" fused_linear_512 2>/dev/null | grep -q READY; then
  run "$bin/normctl" random "$work/x.npy" --shape=32x512
  run "$bin/normctl" random "$work/y.npy" --shape=32x512 --seed=2
  run "$bin/normctl" normalize --server="$server" --model fused_linear_512 "$work/x.npy" \
    --y="$work/y.npy" -o "$work/fused_linear_512.npy" --verify --model_repository=deploy/models
  say 'Tensors of any size go through a stream of both inputs:'
  run "$bin/normctl" normalize --server="$server" --stream=always --model fused_linear_512 \
    "$work/x.npy" --y="$work/y.npy" -o "$work/streamed.npy" --verify --model_repository=deploy/models
else
  say 'left out: this device does not compute it'
fi

section 'Load test: 64 KiB tensors, 8 at a time, for 5 seconds'
run "$bin/normload" --server="$server" --model=instance_norm_64 --shape=1x64x16x16 \
  --concurrency=8 --connections=4 --warmup=1s --duration=5s --verify --verify_every=100 \
  --model_repository=deploy/models --json="$work/load.json"

section 'What Prometheus scrapes, as percentiles'
say "\$ curl -s http://127.0.0.1:$metrics_port/metrics | ./deploy/latency_table.py"
curl -sS --fail "http://127.0.0.1:$metrics_port/metrics" >"$work/metrics.txt"
./deploy/latency_table.py <"$work/metrics.txt"

if [[ -n $keep ]]; then
  section 'The server keeps running'
  say "HTTP on 127.0.0.1:$http_port, gRPC on $server,"
  say "metrics on http://127.0.0.1:$metrics_port/metrics, log in $work/normd.log."
  say "Stop it with: kill $normd_pid"
  disown "$normd_pid"
  normd_pid=''
else
  section 'Stop the server: SIGTERM, which finishes what was accepted'
  say "\$ kill -TERM $normd_pid"
  stop_server
  tail -n 3 "$work/normd.log"
  [[ $stop_code == 0 ]] || die "normd ended with exit code $stop_code"
  say 'normd ended with exit code 0'
fi

section 'Summary'
for model in "${models[@]}"; do
  say "$model on $shape: every element within tolerance of float64"
done
python3 - "$work/load.json" <<'END'
import json, sys
result = json.load(open(sys.argv[1]))["result"]
times = result["response_time"]
print(f"load test: {result['ok_per_s']:.0f} requests/s, p50 {times['p50_us'] / 1e3:.2f} ms, "
      f"p99 {times['p99_us'] / 1e3:.2f} ms, {result['errors']} errors in {result['requests']}")
END
say "reports: $work/load.json, $work/metrics.txt"
say "time: $built_after s for set-up and build, $SECONDS s in all"
