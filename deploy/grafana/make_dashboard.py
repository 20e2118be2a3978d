#!/usr/bin/env python3
"""Writes dashboards/normd.json, which Grafana provisions. --check compares instead.

A panel is one line here: its title, its unit and its queries, each with the legend of its series.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "prometheus"))
from methods import ALL, FAULT, METHODS  # noqa: E402

OUTPUT = pathlib.Path(__file__).parent / "dashboards" / "normd.json"
# A variable of the dashboard: each Grafana gives its data sources names of its own.
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

# Every series of normd has the first label; those of a model have both.
SERVER = 'instance=~"$instance"'
MODEL = 'instance=~"$instance", model=~"$model"'
COMPUTED = MODEL + ', method=~"$method"'
# Keeps the targets that have series of normd: other programs have these names too.
OF_NORMD = "and on (job, instance) normd_ready"


def rate(metric, labels):
    return f"rate({metric}{{{labels}}}[$__rate_interval])"


def total(metric, labels, by=""):
    return f"sum{f' by ({by})' if by else ''} ({rate(metric, labels)})"


def quantile(q, histogram, labels, by=""):
    le = f"{by}, le" if by else "le"
    return f"histogram_quantile({q}, sum by ({le}) ({rate(histogram + '_bucket', labels)}))"


def mean(histogram, labels, by):
    return f"{total(histogram + '_sum', labels, by)} / {total(histogram + '_count', labels, by)}"


REQUESTS = "normd_requests_total"
DURATION = "normd_request_duration_seconds"
STAGE = "normd_stage_duration_seconds"

# (row, panels); a panel: (kind, width of 24, title, unit, description, [(query, legend)...])
ROWS = [
    ("Overview", [
        ("stat", 3, "Ready", "none", "Servers that are ready for requests.",
         [(f"sum(normd_ready{{{SERVER}}})", "ready")]),
        ("stat", 3, "Up for", "s", "Since the youngest of them started.",
         [(f"time() - max(process_start_time_seconds{{{SERVER}}} {OF_NORMD})", "up")]),
        ("stat", 3, "Requests", "reqps", "Those that compute, whatever their end.",
         [(total(REQUESTS, COMPUTED), "requests")]),
        ("stat", 3, "Faults of the service", "percentunit", f"Share that ended with {FAULT}.",
         [(f"({total(REQUESTS, f'{COMPUTED}, code=~{chr(34)}{FAULT}{chr(34)}')} or vector(0))"
           f" / {total(REQUESTS, COMPUTED)}", "faults")]),
        ("stat", 3, "p50", "s", "Half of the requests are answered within this time.",
         [(quantile(0.5, DURATION, COMPUTED), "p50")]),
        ("stat", 3, "p99", "s", "99 in 100 are answered within this time.",
         [(quantile(0.99, DURATION, COMPUTED), "p99")]),
        ("stat", 3, "Received", "Bps", "Messages with tensors.",
         [(total("normd_payload_bytes_total", f'{SERVER}, direction="in"'), "in")]),
        ("stat", 3, "Sent", "Bps", "Messages with tensors.",
         [(total("normd_payload_bytes_total", f'{SERVER}, direction="out"'), "out")]),
        ("graph", 12, "Requests by code", "reqps", "Those that compute.",
         [(total(REQUESTS, COMPUTED, "code"), "{{code}}")]),
        ("graph", 12, "Response time", "s",
         "From the arrival of a request to the hand-over of its response.",
         [(quantile(q, DURATION, COMPUTED), f"p{q * 100:g}") for q in (0.5, 0.9, 0.99, 0.999)]),
        ("graph", 12, "Requests by method", "reqps", "Which protocols clients speak.",
         [(total(REQUESTS, COMPUTED, "method"), "{{method}}")]),
        ("graph", 12, "p99 by method", "s", "A NormalizeStream lasts as long as its client takes.",
         [(quantile(0.99, DURATION, COMPUTED, "method"), "{{method}}")]),
        ("table", 24, "Builds and devices", "none", "What runs where.",
         [(f"normd_build_info{{{SERVER}}}", ""), (f"normd_device_info{{{SERVER}}}", "")]),
    ]),
    ("Models", [
        ("graph", 8, "Requests by model", "reqps", 'No model: none that is loaded was meant.',
         [(total(REQUESTS, COMPUTED, "model, version"), "{{model}} {{version}}")]),
        ("graph", 8, "p50 by model", "s", "Response time.",
         [(quantile(0.5, DURATION, COMPUTED, "model"), "{{model}}")]),
        ("graph", 8, "p99 by model", "s", "Response time.",
         [(quantile(0.99, DURATION, COMPUTED, "model"), "{{model}}")]),
        ("heatmap", 16, "Response times", "s", "How many requests took how long.",
         [(total(DURATION + "_bucket", COMPUTED, "le"), "{{le}}")]),
        ("graph", 8, "Load time by model", "s", "Mean over all loads since the start.",
         [(f"sum by (model) (normd_model_load_duration_seconds_sum{{{MODEL}}})"
           f" / sum by (model) (normd_model_load_duration_seconds_count{{{MODEL}}} > 0)",
           "{{model}}")]),
        ("graph", 8, "Model versions", "short", "Failed: the last load; an older state may serve.",
         [(f"sum by (state) (normd_model_versions{{{SERVER}}})", "{{state}}")]),
        ("graph", 8, "Failed loads", "short", "In five minutes.",
         [(f"sum(increase(normd_model_load_failures_total{{{SERVER}}}[5m]))", "failed")]),
        ("graph", 8, "Looks at the model repository", "short",
         "In five minutes. Incomplete: a folder could not be listed.",
         [(f"sum by (result) (increase(normd_model_repository_polls_total{{{SERVER}}}[5m]))",
           "{{result}}")]),
    ]),
    ("Stages", [
        ("graph", 8, "Mean by stage", "s", "Stacked: where the time of a mean request goes.",
         [(mean(STAGE, MODEL, "stage"), "{{stage}}")]),
        ("graph", 8, "p50 by stage", "s", "",
         [(quantile(0.5, STAGE, MODEL, "stage"), "{{stage}}")]),
        ("graph", 8, "p99 by stage", "s", "",
         [(quantile(0.99, STAGE, MODEL, "stage"), "{{stage}}")]),
    ]),
    ("Batches", [
        ("graph", 6, "Requests in a batch", "none", "Mean and p99.",
         [(mean("normd_batch_requests", MODEL, "model"), "mean {{model}}"),
          (quantile(0.99, "normd_batch_requests", MODEL, "model"), "p99 {{model}}")]),
        ("graph", 6, "Bytes in a batch", "bytes", "Mean and p99 of the input.",
         [(mean("normd_batch_bytes", MODEL, "model"), "mean {{model}}"),
          (quantile(0.99, "normd_batch_bytes", MODEL, "model"), "p99 {{model}}")]),
        ("graph", 6, "Batches", "ops", "Per second.",
         [(total("normd_batch_requests_count", MODEL, "model"), "{{model}}")]),
        ("heatmap", 6, "Sizes of batches", "none", "How many batches held how many requests.",
         [(total("normd_batch_requests_bucket", MODEL, "le"), "{{le}}")]),
    ]),
    ("Saturation", [
        ("graph", 8, "Time in which calls had to wait", "percentunit",
         "For a thread or for a lane. A ticket comes at 90% over 15 minutes.",
         [(f"normd_saturation_ratio{{{SERVER}}}", "{{instance}}")]),
        ("graph", 8, "Queue, share of its limit", "percentunit", "At 1 requests are rejected.",
         [(f"instance_model:normd_queue_requests:ratio{{{MODEL}}}", "{{instance}} {{model}}")]),
        ("graph", 8, "Requests in the queue", "none", "",
         [(f"sum by (model) (normd_queue_requests{{{MODEL}}})", "{{model}}")]),
        ("graph", 8, "Rejected", "reqps", "By reason; over HTTP before a call begins, by status.",
         [(total("normd_rejected_total", MODEL, "reason"), "{{reason}}"),
          (total("normd_requests_refused_total", SERVER, "status"), "HTTP {{status}}")]),
        ("graph", 8, "Bytes in flight, share of the budget", "percentunit",
         "At 1 requests are rejected.",
         [(f"instance:normd_inflight_bytes:ratio{{{SERVER}}}", "{{instance}}")]),
        ("graph", 8, "Memory pools", "bytes", "Used, and free for reuse.",
         [(f"sum by (pool, state) (normd_pool_bytes{{{SERVER}}})", "{{pool}} {{state}}")]),
        ("graph", 8, "Pools, share in use", "percentunit",
         "Of a pinned pool: at 1 responses take the slower way.",
         [(f"instance_pool:normd_pool_used:ratio{{{SERVER}}}", "{{instance}} {{pool}}")]),
        ("graph", 8, "Processors in use", "none", "By the process.",
         [(f"{rate('process_cpu_seconds_total', SERVER)} {OF_NORMD}", "{{instance}}")]),
        ("graph", 8, "Resident memory", "bytes", "Of the process.",
         [(f"process_resident_memory_bytes{{{SERVER}}} {OF_NORMD}", "{{instance}}")]),
        ("graph", 8, "File descriptors, share in use", "percentunit", "",
         [(f"instance:process_open_fds:ratio{{{SERVER}}}", "{{instance}}")]),
        ("graph", 8, "Rejected for lack of room, share", "percentunit", "A ticket comes at 1%.",
         [(f"instance:normd_rejected:ratio_rate5m{{{SERVER}}}", "{{instance}}")]),
        ("graph", 8, "Processors' limit: share of periods that were cut short", "percentunit",
         "From the kubelet; none outside of Kubernetes.",
         [("pod_container:normd_cpu_throttled:ratio_rate5m", "{{pod}} {{container}}")]),
    ]),
    ("Devices", [
        ("graph", 8, "Lanes' time in use", "percentunit", "At 1 more load only waits.",
         [(rate("normd_lane_busy_seconds_total", SERVER), "{{instance}} {{device}} {{lane}}")]),
        ("graph", 8, "Lanes", "none", "A retired lane comes back with a restart.",
         [(f"sum by (instance, device, state) (normd_lanes{{{SERVER}}})",
           "{{instance}} {{device}} {{state}}")]),
        ("graph", 8, "Bytes over the link", "Bps", "To the device (in) and back (out).",
         [(total("normd_device_copied_bytes_total", SERVER, "instance, device, direction"),
           "{{instance}} {{device}} {{direction}}")]),
        ("graph", 8, "GPU: time in use", "percent", "From DCGM's exporter: some kernel runs.",
         [("DCGM_FI_DEV_GPU_UTIL", "{{Hostname}} {{gpu}}")]),
        ("graph", 8, "GPU: memory's time in use", "percentunit", "From DCGM's exporter.",
         [("DCGM_FI_PROF_DRAM_ACTIVE", "{{Hostname}} {{gpu}}")]),
        ("graph", 8, "GPU: PCIe", "Bps", "From DCGM's exporter.",
         [("DCGM_FI_PROF_PCIE_RX_BYTES", "{{Hostname}} {{gpu}} in"),
          ("DCGM_FI_PROF_PCIE_TX_BYTES", "{{Hostname}} {{gpu}} out")]),
        ("graph", 8, "GPU: memory in use", "mbytes", "From DCGM's exporter.",
         [("DCGM_FI_DEV_FB_USED", "{{Hostname}} {{gpu}}")]),
        ("graph", 8, "GPU: power and temperature", "none", "From DCGM's exporter: W and °C.",
         [("DCGM_FI_DEV_POWER_USAGE", "{{Hostname}} {{gpu}} W"),
          ("DCGM_FI_DEV_GPU_TEMP", "{{Hostname}} {{gpu}} °C")]),
        ("graph", 8, "GPU: last error (XID)", "none", "From DCGM's exporter; 0 is none.",
         [("DCGM_FI_DEV_XID_ERRORS", "{{Hostname}} {{gpu}}")]),
    ]),
    ("Shared memory", [
        ("graph", 8, "Bytes by plane", "Bps",
         "In messages, the messages' own bytes among them; in regions, the tensors'.",
         [(total("normd_payload_bytes_total", SERVER, "direction"), "messages {{direction}}"),
          (total("normd_shared_tensor_bytes_total", SERVER, "direction, memory"), "regions {{memory}} {{direction}}")]),
        ("graph", 8, "Regions, mapped", "bytes", "",
         [(f"sum by (kind) (normd_shared_region_bytes{{{SERVER}}})", "{{kind}}")]),
        ("graph", 8, "Regions: count, refused and broken", "short",
         "Refused registrations and broken regions per second.",
         [(f"sum by (kind) (normd_shared_regions{{{SERVER}}})", "{{kind}}"),
          (total("normd_shared_regions_refused_total", SERVER, "reason"), "refused: {{reason}}"),
          (total("normd_shared_regions_broken_total", SERVER), "broken"),
          (total("normd_shared_connections_ended_total", SERVER, "reason"), "connections ended: {{reason}}")]),
    ]),
    ("Errors and objectives", [
        ("graph", 8, "Requests that did not end with OK", "reqps", "",
         [(total(REQUESTS, f'{MODEL}, code!="OK"', "model, method, code"),
           "{{model}} {{method}} {{code}}")]),
        ("graph", 8, "Faults of the service, share", "percentunit",
         "The objective allows 0.1%; a page comes at 1.44% over 1 h.",
         [(f"job:normd_slo_errors:ratio_rate{w}", w) for w in ("5m", "1h", "6h", "3d")]),
        ("graph", 8, "Responses after more than 100 ms, share", "percentunit",
         "The objective allows 1%; a page comes at 14.4% over 1 h.",
         [(f"job:normd_slo_slow:ratio_rate{w}", w) for w in ("5m", "1h", "6h", "3d")]),
    ]),
    ("Certificate, policy and log", [
        ("graph", 8, "Certificate expires in", "s", "Only with TLS.",
         [(f"normd_certificate_not_after_seconds{{{SERVER}}} - time()", "{{instance}}")]),
        ("graph", 8, "Certificates and policies that were read anew", "short",
         "In five minutes. Refused: the one before goes on to hold.",
         [(f"sum by (result) (increase(normd_{what}_reloads_total{{{SERVER}}}[5m]))",
           f"{what} {{{{result}}}}") for what in ("certificate", "policy")]),
        ("graph", 8, "Lines of the log that were lost", "short", "In five minutes.",
         [(f"sum(increase(normd_log_lines_lost_total{{{SERVER}}}[5m]))", "lost")]),
    ]),
]

HEIGHT = {"stat": 4, "graph": 8, "heatmap": 8, "table": 6}
# A table: one row for each series of all its queries, without what is the same in all.
MERGED = [{"id": "merge", "options": {}},
          {"id": "organize", "options": {"excludeByName": {
              "Time": True, "Value #A": True, "Value #B": True, "__name__": True}}}]
TYPE = {"stat": "stat", "graph": "timeseries", "heatmap": "heatmap", "table": "table"}


def options(kind, unit):
    if kind == "heatmap":
        return {"calculate": False, "yAxis": {"unit": unit}}
    if kind == "graph":
        return {"legend": {"displayMode": "list", "placement": "bottom"},
                "tooltip": {"mode": "multi", "sort": "desc"}}
    return {}


def panel(number, x, y, kind, width, title, unit, description, queries):
    custom = {}
    if title == "Mean by stage":
        custom = {"stacking": {"mode": "normal"}, "fillOpacity": 40}
    targets = []
    for ref, (query, legend) in zip("ABCDEFGH", queries):
        target = {"refId": ref, "expr": query, "legendFormat": legend, "datasource": DATASOURCE}
        if kind == "table":
            target.update(format="table", instant=True)
        if kind == "heatmap":
            target.update(format="heatmap")
        targets.append(target)
    return {
        "id": number,
        "type": TYPE[kind],
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": width, "h": HEIGHT[kind]},
        "fieldConfig": {"defaults": {"unit": unit, "custom": custom}, "overrides": []},
        "options": options(kind, unit),
        "targets": targets,
        **({"transformations": MERGED} if kind == "table" else {}),
    }


def layout():
    panels = []
    y = 0
    for row, members in ROWS:
        panels.append({"id": len(panels) + 1, "type": "row", "title": row, "collapsed": False,
                       "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}, "panels": []})
        y += 1
        x = height = 0
        for kind, width, *rest in members:
            if x + width > 24:
                x, y, height = 0, y + height, 0
            panels.append(panel(len(panels) + 1, x, y, kind, width, *rest))
            x += width
            height = max(height, HEIGHT[kind])
        y += height
    return panels


def source_variable():
    return {"name": "datasource", "label": "data source", "type": "datasource",
            "query": "prometheus", "refresh": 1, "multi": False, "includeAll": False}


def method_variable():
    return {"name": "method", "type": "custom", "query": ",".join(METHODS), "multi": True,
            "includeAll": True, "allValue": ALL, "current": {"text": "All", "value": "$__all"}}


def variable(name, query):
    return {"name": name, "type": "query", "datasource": DATASOURCE, "query": query,
            "definition": query, "refresh": 2, "multi": True, "includeAll": True,
            "allValue": ".*", "sort": 1, "current": {"text": "All", "value": "$__all"}}


def dashboard():
    return {
        "uid": "normd",
        "title": "normd",
        "tags": ["normd"],
        "schemaVersion": 38,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [source_variable(),
                                variable("instance", "label_values(normd_ready, instance)"),
                                variable("model", "label_values(normd_queue_requests, model)"),
                                method_variable()]},
        "panels": layout(),
    }


def main():
    text = json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"
    if sys.argv[1:] == ["--check"]:
        if not OUTPUT.exists() or OUTPUT.read_text(encoding="utf-8") != text:
            sys.exit(f"{OUTPUT} is not what make_dashboard.py writes: run it")
        return
    if sys.argv[1:]:
        sys.exit("usage: make_dashboard.py [--check]")
    OUTPUT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
