#!/bin/sh
# For the Dockerfile: installs the packages listed beside this script and makes the user that the
# service runs as.
set -eu
apt-get update
DEBIAN_FRONTEND=noninteractive xargs -a "$(dirname "$0")/packages" \
  apt-get install -y --no-install-recommends
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt/*
useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin normd
