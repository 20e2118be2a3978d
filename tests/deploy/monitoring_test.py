#!/usr/bin/env python3
"""Every query of the dashboard and of the rules returns data.

A real normd under load, a real Prometheus that scrapes it each second and evaluates the rules. A
query of an alert is asked for the series that it compares: a healthy server makes no comparison
true. What only a machine with a GPU has comes from a page in the exporters' format. On the way: a
legend names labels that its query gives, each metric is documented, each alert has its runbook, and
the request log's flags give lines. Exits with 77, which ctest shows as skipped, where Prometheus is
missing.
"""

import argparse
import contextlib
import http.server
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

from process import Process

SKIPPED = 77
LIMIT_S = 45
SOURCE = pathlib.Path(__file__).resolve().parents[2]
RULES = SOURCE / "deploy/prometheus/rules"
DASHBOARD = SOURCE / "deploy/grafana/dashboards/normd.json"
DOCS = SOURCE / "docs/metrics.md"
GRAFANA_VARIABLES = {"$__rate_interval": "10s", "$instance": ".*", "$model": ".*"}

# What DCGM's exporter, and normd with a GPU, have on top.
DCGM_GAUGES = [
    "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_PROF_DRAM_ACTIVE",
    "DCGM_FI_PROF_PCIE_RX_BYTES", "DCGM_FI_PROF_PCIE_TX_BYTES",
]
DCGM_LABELS = ('gpu="0",UUID="GPU-0",pci_bus_id="00000000:01:00.0",device="nvidia0",'
               'modelName="a GPU",Hostname="a host"')
GPU_PAGE = "".join(f"# TYPE {name} gauge\n{name}{{{DCGM_LABELS}}} 1\n" for name in DCGM_GAUGES) + """\
# TYPE normd_pool_bytes gauge
normd_pool_bytes{pool="cuda:0 pinned",state="used"} 1
normd_pool_bytes{pool="cuda:0 pinned",state="free"} 3
"""

CONFIG = """
global: {{ scrape_interval: 1s, evaluation_interval: 1s }}
rule_files: ["{rules}/*.yml"]
scrape_configs:
  - job_name: normd
    static_configs: [{{ targets: ["{target}"] }}]
  - job_name: dcgm
    static_configs: [{{ targets: ["{gpu}"] }}]
"""


class GpuPage(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(GPU_PAGE.encode())

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def gpu_page():
    """The address of a server of the page, while the block lasts."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), GpuPage) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class Prometheus:
    def __init__(self, address):
        self._root = f"http://{address}/api/v1/"

    def get(self, path, **parameters):
        url = self._root + path + "?" + urllib.parse.urlencode(parameters)
        with contextlib.closing(urllib.request.urlopen(url, timeout=10)) as answer:
            return json.load(answer)["data"]

    def series(self, query):
        """The labels of each series with a number. An HTTP error is a query that does not parse."""
        samples = self.get("query", query=query)["result"]
        return [sample["metric"] for sample in samples if sample["value"][1] != "NaN"]


def split_top_level(text, separator):
    """`text` cut at each match of `separator` that stands in no bracket and no quotes."""
    parts, depth, begin, at = [], 0, 0, 0
    while at < len(text):
        if text[at] == '"':
            at = re.compile(r'"(\\.|[^"\\])*"').match(text, at).end()
            continue
        match = separator.match(text, at) if depth == 0 else None
        if match:
            parts.append(text[begin:at])
            at = begin = match.end()
            continue
        depth += (text[at] in "([{") - (text[at] in ")]}")
        at += 1
    return [part.strip() for part in parts + [text[begin:]]]


def compared(condition):
    """The queries whose values an alert's condition compares with numbers."""
    condition = condition.strip()
    parts = split_top_level(condition, re.compile(r"\b(and|or|unless)\b"))
    if len(parts) > 1:
        return [query for part in parts for query in compared(part)]
    sides = split_top_level(condition, re.compile(r"[<>=!]=|[<>]"))
    if len(sides) > 1:
        return [sides[0]]
    if condition.startswith("(") and condition.endswith(")"):
        return compared(condition[1:-1])
    sys.exit(f"alert without a comparison: {condition}")


def dashboard_targets():
    """Each query with its legend."""
    targets = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"]
            for name, value in GRAFANA_VARIABLES.items():
                query = query.replace(name, value)
            assert "$" not in query, query
            targets.add((query, target["legendFormat"]))
    return targets


def dashboard_queries():
    return {query for query, _ in dashboard_targets()}


def rule_queries(rules):
    queries = set()
    for rule in rules:
        if rule["type"] == "recording":
            queries.update([rule["name"], rule["query"]])
        else:
            queries.update(compared(rule["query"]))
    return queries


def headings(markdown):
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ +(.+)$", markdown, re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles}


def check_alerts(rules, faults):
    anchors = headings(DOCS.read_text())
    for rule in (rule for rule in rules if rule["type"] == "alerting"):
        for key in ("summary", "description", "runbook"):
            if not rule["annotations"].get(key):
                faults.append(f"alert {rule['name']}: no {key}")
        page, _, anchor = rule["annotations"].get("runbook", "").partition("#")
        if page != "docs/metrics.md" or anchor not in anchors:
            faults.append(f"alert {rule['name']}: no runbook {page}#{anchor}")
        if rule["labels"].get("severity") not in ("page", "ticket"):
            faults.append(f"alert {rule['name']}: severity is neither page nor ticket")


def check_records(rules, faults):
    readers = "\n".join(dashboard_queries() | {rule["query"] for rule in rules})
    faults.extend(f"recorded, but never read: {rule['name']}" for rule in rules
                  if rule["type"] == "recording" and rule["name"] not in readers)


def check_variables(prometheus, faults):
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()
        if not prometheus.get(f"label/{label}/values", **{"match[]": metric}):
            faults.append(f"variable {variable['name']}: {variable['query']} has no value")


def check_legends(prometheus, faults):
    for query, legend in sorted(dashboard_targets()):
        labels = {label for series in prometheus.series(query) for label in series}
        faults.extend(f"legend {legend}: {query} has no label {label}"
                      for label in set(re.findall(r"{{(\w+)}}", legend)) - labels)


def check_documented(metrics_address, faults):
    docs = DOCS.read_text()
    with contextlib.closing(urllib.request.urlopen(f"http://{metrics_address}/metrics")) as answer:
        text = answer.read().decode()
    for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE):
        if f"`{name}" not in docs:
            faults.append(f"{name} is not in docs/metrics.md")


def check_request_log(output, faults):
    lines = [json.loads(line) for line in output if line and line.startswith("{")]
    if not lines:
        faults.append("normd wrote no line for --log_sample_every")
    documented = set(re.findall(r"`(\w+)`", DOCS.read_text()))
    for name in {name for line in lines for name in line} - documented:
        faults.append(f"{name}, of the request log, is not in docs/metrics.md")


def wait_for_data(prometheus, queries, load, arguments, grpc, faults):
    pending = set(queries)
    deadline = time.monotonic() + LIMIT_S
    while pending and time.monotonic() < deadline:
        # Requests that fail, of no model and of one, for the panels of errors.
        for command in ([arguments.normctl, "model", "none_of_this_name"],
                        [arguments.normload, "--model=instance_norm_64", "--shape=1x63x1x1"]):
            subprocess.run([*command, f"--server={grpc}"], capture_output=True, timeout=10,
                           check=False)
        pending = {query for query in pending if not prometheus.series(query)}
        time.sleep(0.5)  # Another scrape.
    if not load.running():
        faults.append("normload has ended: " + "\n".join(map(str, load.output)))
    faults.extend(f"no data: {query}" for query in sorted(pending))


def check(prometheus, arguments, grpc, metrics, load):
    faults = []
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    queries = dashboard_queries() | rule_queries(rules)
    faults.extend(f"on the GPU's page, but in no query: {name}"
                  for name in DCGM_GAUGES if name not in queries)
    check_alerts(rules, faults)
    check_records(rules, faults)
    wait_for_data(prometheus, queries, load, arguments, grpc, faults)
    check_legends(prometheus, faults)
    check_variables(prometheus, faults)
    check_documented(metrics, faults)
    for group in prometheus.get("rules")["groups"]:
        faults.extend(f"{rule['name']}: {rule['lastError']}" for rule in group["rules"]
                      if rule.get("lastError"))
    print(f"{len(rules)} rules and {len(queries)} queries")
    return faults


def run(arguments, folder):
    with Process(arguments.normd, f"--model_repository={SOURCE}/deploy/models", "--device=cpu",
                 "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0", "--lame_duck=0s",
                 "--log_sample_every=100") as normd, gpu_page() as gpu:
        grpc, metrics = normd.wait_for(r"serving: grpc=(\S+) metrics=(\S+)").groups()
        config = folder / "prometheus.yml"
        config.write_text(CONFIG.format(rules=RULES, target=metrics, gpu=gpu))
        with Process("prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                     "--web.listen-address=127.0.0.1:0") as server, \
             Process(arguments.normload, f"--server={grpc}", "--rate=200", "--warmup=0s",
                     f"--duration={LIMIT_S + 15}s", "--quiet", "--mix=instance_norm_64:1x64x28x28,"
                     "group_norm_64_8:2x64x14x14,layer_norm_1024:8x1024,"
                     "instance_norm_64:4x64x28x28:float32:0.1:stream") as load:
            address = server.wait_for(r'msg="Listening on" address=(127\.0\.0\.1:\d+)').group(1)
            server.wait_for("Server is ready to receive web requests")
            faults = check(Prometheus(address), arguments, grpc, metrics, load)
    check_request_log(normd.output, faults)
    if normd.exit_code != 0:
        faults.append(f"normd ended with {normd.exit_code}")
    return faults


def main():
    parser = argparse.ArgumentParser()
    for program in ("normd", "normload", "normctl"):
        parser.add_argument(f"--{program}", required=True)
    arguments = parser.parse_args()
    if shutil.which("prometheus") is None:
        print("skipped: no prometheus (Debian's package, or deploy/setup.sh --test)")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        faults = run(arguments, pathlib.Path(folder))
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
