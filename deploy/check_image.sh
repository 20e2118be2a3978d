#!/usr/bin/env bash
# Builds the image of the Dockerfile and runs its entry point, without a Docker engine or a registry:
# the base image comes from debootstrap, buildah builds in a chroot, and the run happens in
# namespaces of its own with what `docker run --read-only --cap-drop=ALL
# --security-opt=no-new-privileges --security-opt=seccomp=deploy/seccomp.json` gives: a read-only root,
# the image's user, no capabilities and no way to any, only the calls of the profile, a network that
# holds nothing but the service, and the entry point as process 1.
#
#   sudo deploy/check_image.sh               all of it; needs buildah, debootstrap, curl, iproute2,
#                                            python3, libseccomp2
#   sudo deploy/check_image.sh --base=IMAGE  builds on IMAGE (from a registry) instead
#   sudo deploy/check_image.sh --programs=build/release/bin
#                                            the image for CPUs with the programs of a build on this
#                                            machine, which must be what the base is: seconds instead
#                                            of a quarter of an hour
#   sudo deploy/check_image.sh --target=cuda the image for GPUs, for architecture 90 alone. NVIDIA's
#                                            base images are not needed: this machine's toolkit is
#                                            mounted into the build, and without a GPU the service
#                                            falls back to the CPU. It runs without the profile,
#                                            which has none of the calls of CUDA's driver
#
# Images and containers stay in build/image (buildah --root build/image/storage ...), so that a
# second run reuses the base.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$PWD/build/image
base=localhost/normd-base
target=cpu
toolkit=/usr/local/cuda
inside=''
programs=''
for argument in "$@"; do
  case $argument in
    --base=*) base=${argument#*=} ;;
    --target=cpu | --target=cuda) target=${argument#*=} ;;
    --programs=*) programs=$(realpath "${argument#*=}") ;;
    --inside=*) inside=${argument#*=} ;;  # This script's own: the part that runs in namespaces.
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "deploy/${0##*/}"; exit ;;
    *) echo "check_image: unknown argument '$argument' (see --help)" >&2; exit 2 ;;
  esac
done

section() { printf '\n=== %s ===\n' "$*"; }
die() { printf 'check_image: %s\n' "$*" >&2; exit 1; }
buildah() {
  command buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$@"
}
# config FIELD: a list of the image's configuration, one element per line.
config() {
  buildah inspect --type image --format "{{range .Docker.Config.$1}}{{println .}}{{end}}" normd |
    sed '/^$/d'
}

make_base() {
  if buildah inspect --type image "$base" >/dev/null 2>&1; then return; fi
  local container root
  container=$(buildah from scratch)
  root=$(buildah mount "$container")
  debootstrap --variant=minbase bookworm "$root" >"$work/debootstrap.log" 2>&1 ||
    { tail "$work/debootstrap.log" >&2; die 'debootstrap failed'; }
  rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*
  buildah config --cmd bash "$container"
  buildah commit --quiet --rm "$container" "$base"
}

# What the Dockerfile's builder leaves in /out, and its last stage over it.
build_from_programs() {
  local out=$work/out
  rm -rf "$out"
  mkdir -p "$out"/usr/local/bin "$out"/usr/share/doc/normd
  for program in normd normctl normload; do
    strip -o "$out/usr/local/bin/$program" "$programs/$program"
  done
  cp -r deploy/models "$out/models"
  rm -rf "$out"/models/*.py "$out"/models/__pycache__  # As .dockerignore leaves them out.
  cp LICENSE "$out/usr/share/doc/normd"
  ./deploy/image/make_root.py "$out" --version="$1" --revision="$2"
  sed -n '/^FROM scratch AS cpu/,$p' Dockerfile | sed 's|^COPY --from=builder /out |COPY . |' \
    >"$work/Dockerfile"
  buildah build --isolation chroot --format docker --build-arg VERSION="$1" --build-arg REVISION="$2" \
    -f "$work/Dockerfile" -t normd "$out"
}

build_image() {
  local version revision cuda=()
  if [[ $target == cuda ]]; then
    [[ -x $toolkit/bin/nvcc ]] || die "no CUDA toolkit in $toolkit"
    cuda=(--volume "$(realpath "$toolkit"):/usr/local/cuda:ro" --build-arg CUDA_BUILD_BASE="$base"
      --build-arg CUDA_BASE="$base" --build-arg CUDA_ARCHITECTURES=90-real)
  fi
  version=$(sed -n 's/^project(normd VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
  revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
  if [[ -n $programs ]]; then build_from_programs "$version" "$revision"; return; fi
  buildah build --isolation chroot --format docker --target "$target" "${cuda[@]}" \
    --build-arg BASE="$base" --build-arg VERSION="$version" \
    --build-arg REVISION="$revision" -t normd .
}

# in_image COMMAND...: confined, as the image's user, with its root, its PATH and nothing else.
in_image() { /usr/bin/env -i PATH="$image_path" "${confined[@]}" --root="$root" -- "$@"; }

# process_1: the entry point's id out here.
process_1() { awk '{print $1}' "/proc/$outer_pid/task/$outer_pid/children"; }

# show_confinement PID: what the kernel says that the process may, and whether it is as little as it
# should be.
show_confinement() {
  local status fault=''
  status=$(grep -E '^(Uid|Gid|Groups|Cap[A-Z][a-z]+|NoNewPrivs|Seccomp):' "/proc/$1/status")
  printf '%s\n' "$status"
  grep -qE '^Uid:(\s+10001){4}$' <<<"$status" || fault+=' uid'
  [[ $(grep -cE '^Cap[A-Z][a-z]+:\s+0+$' <<<"$status") == 5 ]] || fault+=' capabilities'
  grep -qE '^NoNewPrivs:\s+1$' <<<"$status" || fault+=' no_new_privs'
  [[ $target == cuda ]] || grep -qE '^Seccomp:\s+2$' <<<"$status" || fault+=' seccomp'
  [[ -z $fault ]] || die "process 1 is not confined:$fault"
}

# start_image: the entry point as process 1 of a namespace of its own.
start_image() {
  unshare --pid --fork --kill-child --mount-proc="$root/proc" \
    /usr/bin/env -i PATH="$image_path" "${confined[@]}" --root="$root" -- "${entrypoint[@]}" \
    >"$work/normd.log" 2>&1 &
  outer_pid=$!
  trap 'kill -KILL "$outer_pid"' EXIT  # And the child with it.
  for ((i = 0; i < 150; i++)); do
    if in_image "${healthcheck[@]}" >/dev/null 2>&1; then return; fi
    kill -0 "$outer_pid" 2>/dev/null || break
    sleep 0.2
  done
  cat "$work/normd.log" >&2
  die 'the entry point does not become healthy'
}

# stop_image: what `docker stop` does first.
stop_image() {
  local code=0
  kill -TERM "$(process_1)"
  for ((i = 0; i < 300; i++)); do
    kill -0 "$outer_pid" 2>/dev/null || break
    sleep 0.2
  done
  ((i < 300)) || die 'process 1 still runs a minute after SIGTERM'
  wait "$outer_pid" || code=$?
  trap - EXIT
  tail -n 3 "$work/normd.log"
  [[ $code == 0 ]] || die "SIGTERM to process 1: exit code $code, wanted 0"
  echo 'SIGTERM to process 1: exit code 0'
}

# Runs in namespaces of network and mounts that end with it.
run_inside() {
  root=$work/root
  # By its path: the image, whose PATH the process has, has no interpreter.
  confined=("$(python3 -c 'import sys; print(sys.executable)')" -B tests/deploy/confine.py
    --user=10001:10001)
  if [[ $target == cpu ]]; then confined+=(--profile=deploy/seccomp.json); fi
  image_path=$(config Env | sed -n 's/^PATH=//p')
  mapfile -t entrypoint < <(config Entrypoint; config Cmd)
  mapfile -t healthcheck < <(config Healthcheck.Test | sed 1d)
  ip link set lo up
  mkdir -p "$root"
  mount --bind "$1" "$root"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
  mount -o remount,bind,ro "$root"

  section 'Run the entry point, confined, on a read-only root'
  if in_image normctl random /models/x.npy --shape=1 2>/dev/null; then die 'the root can be written to'; fi
  start_image
  printf '%s\n' "${entrypoint[*]}"
  show_confinement "$(process_1)"
  echo "health check: $(in_image "${healthcheck[@]}")"
  in_image normctl models
  in_image normctl random /tmp/x.npy --shape=2x64x56x56
  in_image normctl normalize --model group_norm_64_8 /tmp/x.npy -o /tmp/y.npy \
    --verify --model_repository=/models
  curl -sS --fail http://127.0.0.1:8002/metrics | ./deploy/latency_table.py
  stop_image

  section "Run it on another repository, as -v does"
  mkdir "$root/tmp/models"
  cp -r deploy/models/rms_norm_4096 "$root/tmp/models/"
  mount --bind "$root/tmp/models" "$root/models"
  start_image
  in_image normctl models
  stop_image
}

[[ $(id -u) == 0 ]] || die 'run it as root (chroot isolation and mounts need it)'
for tool in buildah unshare curl ip python3; do
  type -P "$tool" >/dev/null || die "$tool is not installed"
done
mkdir -p "$work"

if [[ -n $inside ]]; then
  run_inside "$inside"
  exit
fi

section 'Base image'
if [[ -n $programs ]]; then
  [[ $target == cpu ]] || die '--programs makes the image for CPUs alone'
  base=scratch
elif [[ $base == localhost/normd-base ]]; then
  type -P debootstrap >/dev/null || die 'debootstrap is not installed'
  make_base
fi
echo "$base"

section 'Build'
build_image

section 'Configuration'
for field in User Env Entrypoint Cmd Healthcheck ExposedPorts StopSignal Labels; do
  printf '%-13s %s\n' "$field" \
    "$(buildah inspect --type image --format "{{.Docker.Config.$field}}" normd)"
done
user=$(buildah inspect --type image --format '{{.Docker.Config.User}}' normd)
[[ $user == 10001:10001 ]] || die "the image's user is '$user', wanted 10001:10001"

container=$(buildah from normd)
trap 'buildah rm "$container" >/dev/null' EXIT
root_of_image=$(buildah mount "$container")
unshare --net --mount --propagation private \
  deploy/check_image.sh --target="$target" \
  --inside="$root_of_image"

section 'Passed'
du -sh --apparent-size "$root_of_image" | awk '{print "image: " $1 " unpacked"}'
if [[ $target == cpu ]]; then
  mebibytes=$(du -s --apparent-size --block-size=1M "$root_of_image" | cut -f1)
  ((mebibytes < 150)) || die "the image has $mebibytes MiB unpacked, wanted fewer than 150"
fi
