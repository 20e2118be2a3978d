#!/usr/bin/env python3
"""Writes rules/normd.recording.yml, and all rules once more as the Prometheus operator takes them.

The second file is components/monitoring/prometheus_rule.yaml of deploy/kubernetes. --check compares
instead.
"""

import pathlib
import sys

from methods import ALL, ANSWERED, FAULT

HERE = pathlib.Path(__file__).resolve().parent
RECORDING = HERE / "rules/normd.recording.yml"
ALERTS = HERE / "rules/normd.alerts.yml"
OPERATOR = HERE.parent / "kubernetes/components/monitoring/prometheus_rule.yaml"
WINDOWS = ["5m", "30m", "1h", "2h", "6h", "1d", "3d"]

HEAD = """\
# What the alerts and the dashboard read. make_rules.py writes this file. Names:
# level:metric:operation, as in https://prometheus.io/docs/practices/rules/#naming-and-aggregation
#
# Two objectives, over 30 days, of the requests that compute:
#   errors   99.9% end without a fault of the service (the codes below); what the client did wrong
#            (INVALID_ARGUMENT, NOT_FOUND, CANCELLED ...) is no fault
#   latency  99% are answered within 100 ms (a bound of the histogram); a NormalizeStream lasts as
#            long as its client takes and is left out
# docs/metrics.md tells how to change them.

groups:
"""

OPERATOR_HEAD = """\
# The rules of deploy/prometheus/rules as the Prometheus operator takes them.
# deploy/prometheus/make_rules.py writes this file.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: normd
  namespace: normd
  labels: { app.kubernetes.io/name: normd }
spec:
  groups:
"""

REQUESTS = "normd_requests_total"
DURATION = "normd_request_duration_seconds"
# The labels that requests have beside those of their target.
OF_REQUESTS = "model, version, method, code"


def share(aggregation, labels, part, window):
    """The share of the requests that are `part`: 0 where none is, since a code's series begins with
    its first request."""
    every = f'{aggregation} (rate({REQUESTS}{{{labels}}}[{window}]))'
    some = f'{aggregation} (rate({REQUESTS}{{{labels}, {part}}}[{window}]))'
    return [f"({some}", f"or 0 * {every})", f"/ {every}"]


def slow(window):
    labels = f'method=~"{ANSWERED}"'
    return [
        f'1 - sum by (namespace, job) (rate({DURATION}_bucket{{{labels}, le="0.1"}}[{window}]))',
        f"/ sum by (namespace, job) (rate({DURATION}_count{{{labels}}}[{window}]))"]


def throttled(state):
    counted = f'container_cpu_cfs_{state}_total{{container!=""}}'
    return f"sum by (namespace, pod, container) (rate({counted}[5m]))"


# (group, comment, [(record, lines of the expression)...]). Levels keep the labels of a target, such
# as pod and namespace. Series that other programs have too count where the target has normd's.
GROUPS = [
    ("normd-saturation", "", [
        ("instance_device:normd_lane_busy:ratio_rate5m",
         ["avg without (lane) (rate(normd_lane_busy_seconds_total[5m]))"]),
        ("instance_model:normd_queue_requests:ratio",
         ["normd_queue_requests / on (job, instance) group_left normd_queue_limit_requests"]),
        ("instance:normd_inflight_bytes:ratio",
         ["normd_inflight_bytes / normd_inflight_limit_bytes"]),
        ("instance_pool:normd_pool_used:ratio",
         ['sum without (state) (normd_pool_bytes{state="used"})',
          "/ sum without (state) (normd_pool_bytes)"]),
        ("instance:normd_rejected:ratio_rate5m",
         share(f"sum without ({OF_REQUESTS})", f'method=~"{ALL}"', 'code="RESOURCE_EXHAUSTED"',
               "5m")),
        ("instance:process_open_fds:ratio",
         ["process_open_fds / process_max_fds and on (job, instance) normd_ready"]),
        # From the kubelet's cAdvisor.
        ("pod_container:normd_cpu_throttled:ratio_rate5m",
         [throttled("throttled_periods"), f"/ {throttled('periods')}",
          "and on (namespace, pod) normd_ready"]),
    ]),
    ("normd-slo-errors",
     'The share of requests that missed the objective. "or 0 *" gives 0 where no fault ever\n'
     "happened: a code's series begins with its first request.",
     [(f"job:normd_slo_errors:ratio_rate{window}",
       share("sum by (namespace, job)", f'method=~"{ALL}"', f'code=~"{FAULT}"', window))
      for window in WINDOWS]),
    ("normd-slo-latency", "",
     [(f"job:normd_slo_slow:ratio_rate{window}", slow(window)) for window in WINDOWS]),
]


def group_text(name, comment, rules):
    lines = [f"  # {line}" for line in comment.splitlines()]
    lines += [f"  - name: {name}", "    rules:"]
    for record, expression in rules:
        lines.append(f"      - record: {record}")
        if len(expression) == 1:
            lines.append(f"        expr: {expression[0]}")
        else:
            lines.append("        expr: >-")
            lines += [f"          {line}" for line in expression]
    return "\n".join(lines) + "\n"


def indented(text):
    return "".join(f"  {line}" if line.strip() else line for line in text.splitlines(True))


def files():
    recording = HEAD + "\n".join(group_text(*group) for group in GROUPS)
    groups = [text.split("\ngroups:\n", 1)[1]
              for text in (recording, ALERTS.read_text(encoding="utf-8"))]
    return {RECORDING: recording, OPERATOR: OPERATOR_HEAD + "\n".join(map(indented, groups))}


def main():
    if sys.argv[1:] == ["--check"]:
        for path, text in files().items():
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                sys.exit(f"{path} is not what make_rules.py writes: run it")
        return
    if sys.argv[1:]:
        sys.exit("usage: make_rules.py [--check]")
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
