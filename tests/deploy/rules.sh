#!/usr/bin/env bash
# Prometheus' own verdict on its configuration and the rules, and the rules' unit tests.
# Exits with 77, which ctest shows as skipped, where promtool is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

command -v promtool >/dev/null || {
  echo "skipped: no promtool (Debian's package prometheus, or deploy/setup.sh --test)"
  exit 77
}
promtool check config deploy/prometheus/prometheus.yml
promtool test rules tests/deploy/alerts_test.yml
