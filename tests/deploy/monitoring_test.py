#!/usr/bin/env python3
"""Every query of the dashboard and of the rules returns data, whatever protocol clients speak.

A real normd under load, a real Prometheus that scrapes it each second and evaluates the rules: once
with clients of both protocols, once with KServe's alone. A query of an alert is asked for the
series that it compares: a healthy server makes no comparison true. What only a machine with a GPU
or a kubelet has comes from a page in the exporters' format. On the way: a legend names labels that
its query gives, each metric is documented, each alert has its runbook, and the request log's flags
give lines. Exits with 77, which ctest shows as skipped, where Prometheus is missing.
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

from process import Normd, Process

SKIPPED = 77
LIMIT_S = 90
SOURCE = pathlib.Path(__file__).resolve().parents[2]
RULES = SOURCE / "deploy/prometheus/rules"
DASHBOARD = SOURCE / "deploy/grafana/dashboards/normd.json"
DOCS = SOURCE / "docs/metrics.md"
RATE_INTERVAL = "10s"
# The arguments of the programs that load the server, and of those whose requests fail.
MIX = "instance_norm_64:1x64x28x28,group_norm_64_8:2x64x14x14,layer_norm_1024:8x1024"
LOADS = {"normd": [f"--mix={MIX},instance_norm_64:4x64x28x28:float32:0.1:stream"],
         "oip": [f"--mix={MIX}"]}
WRONG = ["--model=instance_norm_64", "--shape=1x63x1x1"]
METHODS = {"normd": {"Normalize", "NormalizeStream"}, "oip": {"ModelInfer"}}

# What DCGM's exporter, the kubelet, and normd with a GPU have on top.
DCGM_GAUGES = [
    "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_PROF_DRAM_ACTIVE",
    "DCGM_FI_PROF_PCIE_RX_BYTES", "DCGM_FI_PROF_PCIE_TX_BYTES",
]
DCGM_LABELS = ('gpu="0",UUID="GPU-0",pci_bus_id="00000000:01:00.0",device="nvidia0",'
               'modelName="a GPU",Hostname="a host"')
EXPORTED = "".join(
    f"# TYPE {name} gauge\n{name}{{{DCGM_LABELS}}} 1\n" for name in DCGM_GAUGES) + """\
# TYPE normd_pool_bytes gauge
normd_pool_bytes{pool="cuda:0 pinned",state="used"} 1
normd_pool_bytes{pool="cuda:0 pinned",state="free"} 3
# TYPE container_cpu_cfs_periods_total counter
container_cpu_cfs_periods_total{namespace="models",pod="normd-0",container="normd"} PERIODS
# TYPE container_cpu_cfs_throttled_periods_total counter
container_cpu_cfs_throttled_periods_total{namespace="models",pod="normd-0",container="normd"} 1
"""

CONFIG = """
global: {{ scrape_interval: 1s, evaluation_interval: 1s }}
rule_files: ["{rules}/*.yml"]
scrape_configs:
  - job_name: models/pods
    static_configs: [{{ targets: ["{target}"], labels: {{ namespace: models, pod: normd-0 }} }}]
  - job_name: exporters
    static_configs: [{{ targets: ["{exporters}"] }}]
"""

POLICY = """
role { name: "caller" infer: "*" observe: true }
identity { name: "anybody" role: "caller" anonymous: true }
"""


class Exporters(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(EXPORTED.replace("PERIODS", str(time.monotonic())).encode())

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def exporters_page():
    """The address of a server of the page, while the block lasts."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Exporters) as server:
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
    """The queries of an alert's condition that have to give series: what it compares with numbers,
    what it only asks for, and what it would be alarmed not to find."""
    condition = re.sub(r"^on \([^)]*\)", "", condition.strip()).strip()
    parts = split_top_level(condition, re.compile(r"\b(and|or|unless)\b"))
    if len(parts) > 1:
        return [query for part in parts for query in compared(part)]
    if condition.startswith("(") and condition.endswith(")"):
        return compared(condition[1:-1])
    absent = re.fullmatch(r"absent\((.*)\)", condition)
    return [absent[1] if absent else split_top_level(condition, re.compile(r"[<>=!]=|[<>]"))[0]]


def dashboard_variables(kind):
    return [variable for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]
            if variable["type"] == kind]


def dashboard_targets():
    """Each query with its legend, and with all of every variable."""
    values = {"$__rate_interval": RATE_INTERVAL}
    for variable in dashboard_variables("query") + dashboard_variables("custom"):
        values["$" + variable["name"]] = variable["allValue"]
    targets = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"]
            for name, value in values.items():
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


def check_data_source(faults):
    """Each Grafana gives its data sources names of its own, so the dashboard has a variable."""
    source, = dashboard_variables("datasource")
    # The dashboard has an uid too.
    used = set(re.findall(r'"uid": "([^"]*)"', DASHBOARD.read_text())) - {"normd"}
    if source["query"] != "prometheus" or used != {f"${{{source['name']}}}"}:
        faults.append(f"data sources of the dashboard: {sorted(used)}")


def check_variables(prometheus, faults):
    for variable in dashboard_variables("query"):
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


def wait_for_data(prometheus, queries, loads, failing, faults):
    pending = set(queries)
    deadline = time.monotonic() + LIMIT_S
    while pending and time.monotonic() < deadline:
        for command in failing:  # For the panels of errors.
            subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)
        pending = {query for query in pending if not prometheus.series(query)}
        time.sleep(0.5)  # Another scrape.
    for load in loads:
        if not load.running():
            faults.append("normload has ended: " + "\n".join(map(str, load.output)))
    faults.extend(f"no data: {query}" for query in sorted(pending))


def check_protocols(prometheus, protocols, faults):
    """What came is what was meant to: nothing of another protocol computes."""
    every = {method for methods in METHODS.values() for method in methods}
    wanted = {method for protocol in protocols for method in METHODS[protocol]}
    found = {series["method"] for series in prometheus.series("normd_requests_total")} & every
    if found != wanted:
        faults.append(f"methods that compute: {sorted(found)}, wanted {sorted(wanted)}")


def check(prometheus, metrics, protocols, loads, failing):
    faults = []
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    queries = dashboard_queries() | rule_queries(rules)
    faults.extend(f"of DCGM's exporter, but in no query: {name}"
                  for name in DCGM_GAUGES if name not in queries)
    check_alerts(rules, faults)
    check_records(rules, faults)
    check_data_source(faults)
    wait_for_data(prometheus, queries, loads, failing, faults)
    check_protocols(prometheus, protocols, faults)
    check_legends(prometheus, faults)
    check_variables(prometheus, faults)
    check_documented(metrics, faults)
    for group in prometheus.get("rules")["groups"]:
        faults.extend(f"{rule['name']}: {rule['lastError']}" for rule in group["rules"]
                      if rule.get("lastError"))
    print(f"{' and '.join(protocols)}: {len(rules)} rules and {len(queries)} queries")
    return faults


def start_loads(stack, arguments, protocols, server):
    return [stack.enter_context(Process(
        arguments.normload, *server, f"--protocol={protocol}", "--rate=100", "--warmup=0s",
        "--duration=1h", "--quiet", *LOADS[protocol])) for protocol in protocols]


def failing_calls(arguments, protocols, server):
    """Requests that the server refuses, of no model and of one."""
    calls = [[arguments.normload, *server, f"--protocol={protocol}", *WRONG]
             for protocol in protocols]
    if "normd" in protocols:
        calls.append([arguments.normctl, "model", "none_of_this_name", *server])
    return calls


def run(arguments, folder, protocols):
    subprocess.run([SOURCE / "deploy/make_certificates.sh", f"--dir={folder}"], check=True,
                   capture_output=True)
    policy, config = folder / "policy.textproto", folder / "prometheus.yml"
    policy.write_text(POLICY)
    with contextlib.ExitStack() as stack:
        normd = stack.enter_context(Normd(
            arguments.normd, SOURCE / "deploy/models",
            f"--tls_cert={folder}/server.crt", f"--tls_key={folder}/server.key",
            "--metrics_tls=false", f"--policy_file={policy}", "--log_sample_every=100"))
        exporters = stack.enter_context(exporters_page())
        config.write_text(CONFIG.format(rules=RULES, target=normd.metrics, exporters=exporters))
        prometheus = stack.enter_context(Process(
            "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
            "--web.listen-address=127.0.0.1:0"))
        server = [f"--server={normd.address}", f"--tls_ca={folder}/ca.crt"]
        loads = start_loads(stack, arguments, protocols, server)
        address = prometheus.wait_for(r'msg="Listening on" address=(127\.0\.0\.1:\d+)').group(1)
        prometheus.wait_for("Server is ready to receive web requests")
        faults = check(Prometheus(address), normd.metrics, protocols, loads,
                       failing_calls(arguments, protocols, server))
    check_request_log(normd.output, faults)
    if normd.exit_code != 0:
        faults.append(f"normd ended with {normd.exit_code}")
    return [f"{' and '.join(protocols)}: {fault}" for fault in faults]


def main():
    parser = argparse.ArgumentParser()
    for program in ("normd", "normload", "normctl"):
        parser.add_argument(f"--{program}", required=True)
    arguments = parser.parse_args()
    if shutil.which("prometheus") is None:
        print("skipped: no prometheus (Debian's package, or deploy/setup.sh --test)")
        return SKIPPED
    faults = []
    for protocols in (["normd", "oip"], ["oip"]):
        with tempfile.TemporaryDirectory() as folder:
            faults += run(arguments, pathlib.Path(folder), protocols)
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
