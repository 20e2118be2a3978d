#!/bin/sh
# For the Dockerfile: installs the packages listed beside this script and makes the user that the
# service runs as.
set -eu
case ${1-} in
  '') ;;
  -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit ;;
  *) echo "prepare_image: unknown argument '$1' (see --help)" >&2; exit 2 ;;
esac
apt-get update
DEBIAN_FRONTEND=noninteractive xargs -a "$(dirname "$0")/packages" \
  apt-get install -y --no-install-recommends
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt/*
useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin normd
