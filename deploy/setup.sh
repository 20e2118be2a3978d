#!/usr/bin/env bash
# Installs what the build needs and the machine lacks, from the packages of Debian 12 or Ubuntu
# 24.04. Touches nothing, and needs no root, when nothing is missing.
#
#   deploy/setup.sh          what the build and the demo need
#   deploy/setup.sh --test   also what only the tests need; Prometheus, nginx, HAProxy and nghttpx are
#                            unpacked into build/tools, not installed, so that no service starts
#   deploy/setup.sh --all    also clang, for the presets asan, fuzz and lint
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(
  g++ cmake ninja-build pkg-config
  libgrpc++-dev protobuf-compiler-grpc                   # the protocol
  libprotobuf-dev protobuf-compiler                      # messages and model configs
  libabsl-dev                                            # status, flags, containers, time
  prometheus-cpp-dev libspdlog-dev nlohmann-json3-dev    # metrics, logs, JSON
  libsimdjson-dev                                        # JSON of tensors
  libboost-dev zlib1g-dev                                # HTTP for the metrics
  libssl-dev openssl                                     # TLS, and certificates to try it out
  libhwy-dev libtbb-dev libdnnl-dev                      # the CPU kernels
  libgtest-dev libgmock-dev                              # tests
  curl python3                                           # the demo's scrape, tables and inputs
)
test_packages=(
  python3-h2                                             # HTTP/2 by hand: tests/abuse, tests/tls
  python3-venv                                           # the Python client's tests, PyPI's tritonclient
)
sanitizer_packages=(
  clang libclang-rt-dev lld                              # presets asan and lint, and libFuzzer
)
tools=build/tools

say() { echo "setup: $*"; }
die() { echo "setup: $*" >&2; exit 1; }

is_installed() { [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

check_distribution() {
  local id=unknown version=unknown
  if [[ -r /etc/os-release ]]; then
    # shellcheck source=/dev/null
    read -r id version < <(. /etc/os-release && echo "${ID:-unknown} ${VERSION_ID:-unknown}")
  fi
  case "$id $version" in
    'debian 12' | 'ubuntu 24.04') ;;
    *) die "this is $id $version; the packages are known for Debian 12 and Ubuntu 24.04. Elsewhere" \
           "install their like by hand (the list is in deploy/setup.sh) and pass --no-setup, or" \
           "use the container image (Dockerfile)." ;;
  esac
}

as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "not root, and there is no sudo. As root, run: $*"
  fi
}

apt() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0 "$@"; }

updated=
update_once() {
  [[ -z $updated ]] || return 0
  say 'apt-get update'
  apt update >"$log" 2>&1 || { cat "$log" >&2; die 'apt-get update failed'; }
  updated=yes
}

install_missing() {
  local missing=() package
  for package in "${packages[@]}"; do
    is_installed "$package" || missing+=("$package")
  done
  if [[ ${#missing[@]} == 0 ]]; then
    say 'every package is there'
    return
  fi
  update_once
  say "apt-get install ${missing[*]}"
  apt install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1 ||
    { tail -n 30 "$log" >&2; die 'apt-get install failed'; }
}

# unpack PACKAGE PROGRAM [LIBRARY...]: unless PROGRAM is installed; LIBRARY are packages whose libraries it
# needs. What only tests run need not be installed, which would start a service.
unpack() {
  local package=$1 program=$2 folder=$tools/$1 archive
  shift 2
  if PATH=$PATH:/usr/sbin command -v "$program" >/dev/null; then
    say "$package is installed"
    return
  fi
  if [[ -x $folder/usr/bin/$program || -x $folder/usr/sbin/$program ]]; then
    say "$package is in $folder"
    return
  fi
  update_once
  say "$package: unpacking it into $folder"
  mkdir -p "$folder"
  (cd "$folder" && apt-get -q download "$package" "$@") >"$log" 2>&1 ||
    { cat "$log" >&2; die "apt-get download $package $* failed"; }
  for archive in "$folder"/*.deb; do
    dpkg-deb --extract "$archive" "$folder"
    rm "$archive"
  done
}

# libraries_of PACKAGE: the packages of libraries that it stands on and that are not installed.
libraries_of() {
  local library
  apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
    --no-enhances "$1" | sed -n 's/^ *Depends: \(lib[a-z0-9.+-]*\)$/\1/p' | sort -u |
    while read -r library; do is_installed "$library" || echo "$library"; done
}

what=$*
case $what in
  '' | --test | --all) ;;
  -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "deploy/${0##*/}"; exit ;;
  *) echo "setup: unknown argument '$what' (see --help)" >&2; exit 2 ;;
esac
check_distribution
if [[ -n $what ]]; then packages+=("${test_packages[@]}"); fi
if [[ $what == --all ]]; then packages+=("${sanitizer_packages[@]}"); fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install_missing
if [[ -n $what ]]; then
  unpack prometheus promtool  # the server's scrape is tested against a real one
  unpack nginx nginx          # and what only a proxy stops, with one
  # A fleet behind a proxy, and clients that share a proxy's connection; one scenario each needs them.
  for proxy in 'haproxy haproxy' 'nghttp2-proxy nghttpx'; do
    read -r package program <<<"$proxy"
    mapfile -t libraries < <(libraries_of "$package")
    (unpack "$package" "$program" "${libraries[@]}") || say "no $program: its tests will be skipped"
  done
fi
