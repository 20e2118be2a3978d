#!/usr/bin/env python3
"""The rules by promtool: each alert fires on what it is for, and on nothing else.

Each server of a case has a protocol of its own and a scrape job of its own name, so what is
expected of each holds for each protocol alone and under foreign names. Beside them is a program
that is not normd and has all the faults that other programs' series can show. Exits with 77, which
ctest shows as skipped, where promtool is missing.
"""

import dataclasses
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PROMETHEUS = SOURCE / "deploy/prometheus"
RULES = [PROMETHEUS / "rules/normd.recording.yml", PROMETHEUS / "rules/normd.alerts.yml"]
SKIPPED = 77

sys.path.insert(0, str(PROMETHEUS))
import methods  # noqa: E402

# The method that the clients of each job call.
JOBS = dict(zip(["normd", "kubernetes-pods", "models/kserve", "triton", "fifth", "sixth",
"seventh"],
                methods.METHODS))
ANSWERED = [job for job, method in JOBS.items() if method not in methods.STREAMS]

OTHER = {
    'up{job="other",instance="o"}': "0x1800",
    'process_start_time_seconds{job="other",instance="o"}': "0+1x1800",
    'process_open_fds{job="other",instance="o"}': "100x1800",
    'process_max_fds{job="other",instance="o"}': "100x1800",
    'container_cpu_cfs_throttled_periods_total{namespace="o",pod="o",container="c"}': "0+9x1800",
    'container_cpu_cfs_periods_total{namespace="o",pod="o",container="c"}': "0+9x1800",
}


def each(metric, values, labels="", jobs=JOBS):
    """A series for each job, with `labels`, in which METHOD is the job's method."""
    more = f",{labels}" if labels else ""
    return {f'{metric}{{job="{job}",instance="a",namespace="n",pod="{job}"'
            f'{more.replace("METHOD", JOBS[job])}}}': values for job in jobs}


def requests(code, values):
    return each("normd_requests_total", values,
                f'model="m",version="1",method="METHOD",code="{code}"')


def durations(quick, every):
    name = "normd_request_duration_seconds"
    return {**each(f"{name}_bucket", quick, 'model="m",method="METHOD",le="0.1"'),
            **each(f"{name}_count", every, 'model="m",method="METHOD"')}


def throttled(periods):
    """The kubelet's series: so many of each minute's 600 periods were cut short."""
    made = {}
    for job in JOBS:
        of_pod = f'{{job="kubelet",namespace="n",pod="{job}",container="normd"}}'
        made[f"container_cpu_cfs_throttled_periods_total{of_pod}"] = f"0+{periods}x300"
        made[f"container_cpu_cfs_periods_total{of_pod}"] = "0+600x300"
    return made


@dataclasses.dataclass
class Case:
    name: str
    series: dict
    # (time, {alert: its jobs}); "" is no job.
    fires: list
    # Alerts that are not looked at, since others are what the case is for.
    beside: tuple = ()
    scraped: bool = True  # There is a normd.
    ready: str = "1x1800"

    def test(self, interval):
        series = {**OTHER, **self.series}
        if self.scraped:
            series = {**each("up", "1x1800"), **each("normd_ready", self.ready), **series}
        no = f',alertname!~"{"|".join(self.beside)}"' if self.beside else ""
        query = f'count by (alertname, job) (ALERTS{{alertstate="firing"{no}}})'
        return {
            "name": self.name,
            "interval": interval,
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {"expr": query, "eval_time": time,
                 "exp_samples": [{"labels": labels_of(alert, job), "value": 1}
                                 for alert, jobs in alerts.items() for job in jobs]}
                for time, alerts in self.fires]}


def labels_of(alert, job):
    return f'{{alertname="{alert}"' + (f', job="{job}"}}' if job else "}")


BUDGETS = ("NormdErrorBudget.*", "NormdLatencyBudget.*")

HEALTHY = {
    **each("normd_lanes", "0x300", 'device="cpu",state="retired"'),
    **each("process_start_time_seconds", "100x60 200x240"),
    **requests("OK", "0+6000x60 0+6000x100 600000x140"),
    **requests("INVALID_ARGUMENT", "0+3000x60 0+3000x100 300000x140"),
    **requests("UNAVAILABLE", "0+3x60 0+3x100 300x140"),
    **durations("0+8990x60 0+8990x100 899000x140", "0+9000x60 0+9000x100 900000x140"),
    **each("normd_saturation_ratio", "0.8x300"),
    **each("normd_queue_requests", "500x300", 'model="m"'),
    **each("normd_queue_limit_requests", "1024x300"),
    **each("normd_inflight_bytes", "800x300"),
    **each("normd_inflight_limit_bytes", "1000x300"),
    **each("normd_lane_busy_seconds_total", "0+54x300", 'device="cpu",lane="cpu:0"'),
    **each("normd_pool_bytes", "1000x300", 'pool="host",state="used"'),
    **each("normd_pool_bytes", "0x300", 'pool="host",state="free"'),
    **each("process_open_fds", "70x300"),
    **each("process_max_fds", "100x300"),
    **each("normd_model_versions", "0x300", 'state="failed"'),
    **each("normd_model_versions", "7x300", 'state="loaded"'),
    **each("normd_certificate_not_after_seconds", "5000000x300"),
    **each("normd_certificate_reloads_total", "0x100 1x200", 'result="taken"'),
    **each("normd_certificate_reloads_total", "0x300", 'result="refused"'),
    **each("normd_policy_reloads_total", "0x300", 'result="refused"'),
    **each("normd_log_lines_lost_total", "0x300"),
    **throttled(60),
}

SATURATED = {
    **each("normd_saturation_ratio", "0.95x40"),
    **each("normd_queue_requests", "900x40", 'model="m"'),
    **each("normd_queue_requests", "9x40", 'model="quiet"'),
    **each("normd_queue_limit_requests", "1000x40"),
    **each("normd_inflight_bytes", "950x40"),
    **each("normd_inflight_limit_bytes", "1000x40"),
    **each("normd_lane_busy_seconds_total", "0+60x40", 'device="cuda:0",lane="0"'),
    **each("normd_lane_busy_seconds_total", "0+58x40", 'device="cuda:0",lane="1"'),
    **each("normd_lane_busy_seconds_total", "0+6x40", 'device="cuda:1",lane="0"'),
    **each("normd_pool_bytes", "87x40", 'pool="cuda:0 pinned",state="used"'),
    **each("normd_pool_bytes", "13x40", 'pool="cuda:0 pinned",state="free"'),
    **each("process_open_fds", "90x40"),
    **each("process_max_fds", "100x40"),
    **throttled(300),
}

# A twentieth of what computes, beside a hundred times as many calls that do not.
REJECTED = {
    **requests("OK", "0+950x70"), **requests("RESOURCE_EXHAUSTED", "0+50x70"),
    **each("normd_requests_total", "0+100000x70",
           'model="",version="",method="ListModels",code="OK"')}
NOT_COMPUTED = {
    **requests("OK", "0+1000x70"),
    **each("normd_requests_total", "0+1000x70",
           'model="",version="",method="ListModels",code="RESOURCE_EXHAUSTED"'),
    **each("normd_rejected_total", "0+1000x70", 'model="",reason="identity_rate"')}

CASES = [
    Case("a healthy server that is busy, idle and restarted once", HEALTHY,
         [("30m", {}), ("65m", {}), ("150m", {}), ("290m", {})]),
    Case("2% of faults page within the hour, and end soon after",
         {**requests("OK", "0+980x90 88200+1000x60"), **requests("UNAVAILABLE", "0+20x90 1800x60")},
         [("60m", {"NormdErrorBudgetFastBurn": JOBS}), ("125m", {})],
         beside=("NormdErrorBudgetSlowBurn",)),
    Case("one burst of faults does not page",
         {**requests("OK", "0+1000x200"), **requests("UNAVAILABLE", "0x100 200x100")},
         [("103m", {}), ("110m", {})], beside=("NormdErrorBudgetSlowBurn",)),
    Case("faults before any request has succeeded page too", requests("INTERNAL", "0+10x70"),
         [("60m", {"NormdErrorBudgetFastBurn": JOBS})], beside=("NormdErrorBudgetSlowBurn",)),
    Case("a fifth of slow responses pages, of slow streams none",
         durations("0+800x70", "0+1000x70"),
         [("60m", {"NormdLatencyBudgetFastBurn": ANSWERED})],
         beside=("NormdLatencyBudgetSlowBurn",)),
    Case("a twentieth of the requests is rejected", REJECTED, [("30m", {"NormdRejects": JOBS})],
         beside=BUDGETS),
    Case("rejections of what computes nothing are no share of the requests", NOT_COMPUTED,
         [("30m", {})]),
    Case("a scrape fails", each("up", "1x5 0x20"), [("5m", {}), ("20m", {"NormdDown": JOBS})]),
    Case("nothing is scraped", {}, [("4m", {}), ("10m", {"NormdAbsent": [""]})], scraped=False),
    Case("not ready", {}, [("5m", {}), ("20m", {"NormdNotReady": JOBS})], ready="1x5 0x20"),
    Case("a lane retires", each("normd_lanes", "0x5 1x20", 'device="cuda:0",state="retired"'),
         [("5m", {}), ("6m", {"NormdLaneRetired": JOBS})]),
    Case("restarts", each("process_start_time_seconds", "1x5 2x5 3x5 4x10"),
         [("15m", {}), ("20m", {"NormdRestarts": JOBS})]),
    Case("saturation", SATURATED, [
        ("1m", {}),
        ("30m", {"NormdSaturated": JOBS, "NormdQueueNearlyFull": JOBS, "NormdInflightBytesNearlySpent": JOBS,
                 "NormdLanesBusy": JOBS, "NormdPoolExhausted": JOBS,
                 "NormdFileDescriptorsNearlySpent": JOBS})], beside=("NormdCpuThrottled",)),
    Case("throttled", throttled(300), []),  # Expected by pod, below.
    Case("no model", each("normd_model_versions", "1x5 0x20", 'state="loaded"'),
         [("8m", {}), ("20m", {"NormdNoModels": JOBS})], beside=("NormdNotReady",),
         ready="1x5 0x20"),
    Case("a server that may be without a model",
         each("normd_model_versions", "0x25", 'state="loaded"'), [("20m", {})]),
    Case("a model fails", {**each("normd_model_versions", "7x25", 'state="loaded"'),
                           **each("normd_model_versions", "0x5 1x20", 'state="failed"')},
         [("8m", {}), ("20m", {"NormdModelLoadFailed": JOBS})]),
    # The clock of these tests begins at 0: four days are 345600 s.
    Case("a certificate of four days, never renewed",
         {**each("normd_certificate_not_after_seconds", "345600x100"),
          **each("normd_certificate_reloads_total", "0x100", 'result="taken"')},
         [("50m", {}), ("80m", {"NormdCertificateExpires": JOBS})]),
    Case("a certificate of four days, renewed",
         {**each("normd_certificate_not_after_seconds", "345600x100"),
          **each("normd_certificate_reloads_total", "0x5 1x95", 'result="taken"')},
         [("80m", {})]),
    Case("a certificate expires",
         {**each("normd_certificate_not_after_seconds", "600x20"),
          **each("normd_certificate_reloads_total", "0x20", 'result="taken"')},
         [("9m", {}), ("11m", {"NormdCertificateExpired": JOBS})]),
    Case("a certificate is refused",
         each("normd_certificate_reloads_total", "0x5 1x395", 'result="refused"'),
         [("4m", {}), ("10m", {"NormdCertificateRefused": JOBS}), ("370m", {})]),
    Case("a policy is refused", each("normd_policy_reloads_total", "0x5 1x395", 'result="refused"'),
         [("4m", {}), ("10m", {"NormdPolicyRefused": JOBS}), ("370m", {})]),
    Case("lines of the log are lost", each("normd_log_lines_lost_total", "0x5 9x30"),
         [("4m", {}), ("10m", {"NormdLogLinesLost": JOBS}), ("25m", {})]),
]

# With ten minutes between their samples.
DAY_LONG = [
    Case("0.4% of faults over a day is a ticket and no page",
         {**requests("OK", "0+9960x200"), **requests("INTERNAL", "0+40x200")},
         [("25h", {"NormdErrorBudgetSlowBurn": JOBS})]),
    Case("4% of slow responses over a day is a ticket", durations("0+960x200", "0+1000x200"),
         [("25h", {"NormdLatencyBudgetSlowBurn": ANSWERED})]),
]

THROTTLED_BY_POD = {
    "expr": 'count by (alertname, namespace, pod, container) (ALERTS{alertstate="firing"})',
    "eval_time": "30m",
    "exp_samples": [{"labels": f'{{alertname="NormdCpuThrottled", namespace="n", pod="{job}", '
                               f'container="normd"}}', "value": 1} for job in JOBS]}

# What one alert says, in full.
TOLD = {
    "alertname": "NormdErrorBudgetFastBurn", "eval_time": "60m",
    "exp_alerts": [{
        "exp_labels": {"job": job, "namespace": "n", "severity": "page"},
        "exp_annotations": {
            "summary": "normd spends its error budget fast",
            "description": "2% of the requests ended with a fault of the service (objective: at "
                           "most 0.1%). At this rate the budget of 30 days is spent within days.",
            "runbook": "docs/metrics.md#normderrorbudgetfastburn"}} for job in JOBS]}


def in_rules(pattern):
    return [found for path in RULES
            for found in re.findall(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)]


def promtool(*arguments):
    told = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True,
                          check=False)
    return "" if told.returncode == 0 else told.stdout + told.stderr


def run(cases, interval):
    tests = [case.test(interval) for case in cases]
    for test in tests:
        if test["name"] == "throttled":
            test["promql_expr_test"].append(THROTTLED_BY_POD)
        if test["name"].startswith("2% of faults"):
            test["alert_rule_test"] = [TOLD]
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "test.yml")  # JSON is YAML too.
        file.write_text(json.dumps({
            "rule_files": [str(path) for path in RULES], "evaluation_interval": interval,
            "group_eval_order": in_rules(r"^  - name: (\S+)$"), "tests": tests}))
        return promtool("test", "rules", file)


class Methods(unittest.TestCase):
    def test_they_are_those_that_the_server_counts_as_inference(self):
        text = (SOURCE / "server/metrics/model_series.cc").read_text(encoding="utf-8")
        body = re.search(r"^bool IsInference\(.*?^}$", text, re.MULTILINE | re.DOTALL)[0]
        self.assertEqual(sorted(re.findall(r"Method::k(\w+)", body)), sorted(methods.METHODS))

    def test_each_has_a_job(self):
        self.assertEqual(list(JOBS.values()), methods.METHODS)

    def test_no_rule_asks_for_a_job(self):
        self.assertEqual(in_rules(r".*\bjob *[=!]~?.*"), [])


class Alerts(unittest.TestCase):
    def test_each_is_seen_to_fire(self):
        fired = {alert for case in CASES + DAY_LONG for _, alerts in case.fires for alert in alerts}
        self.assertEqual(fired | {"NormdCpuThrottled"}, set(in_rules(r"- alert: (\S+)$")))

    def test_the_healthy_server_has_every_series_that_makes_one_fire(self):
        names = {name.split("{")[0] for case in CASES + DAY_LONG for name in case.series}
        self.assertEqual(names - {name.split("{")[0] for name in HEALTHY},
                         {"up", "normd_rejected_total"})  # The first is there by itself.


@unittest.skipUnless(shutil.which("promtool"), "no promtool")
class Promtool(unittest.TestCase):
    def test_takes_the_configuration_and_the_rules(self):
        self.assertEqual(promtool("check", "config", PROMETHEUS / "prometheus.yml"), "")

    def test_what_fires_within_hours(self):
        self.assertEqual(run(CASES, "1m"), "")

    def test_what_fires_within_days(self):
        self.assertEqual(run(DAY_LONG, "10m"), "")


def main():
    result = unittest.main(exit=False, verbosity=2).result
    if not result.wasSuccessful():
        return 1
    if result.skipped:
        print("skipped: no promtool (Debian's package prometheus, or deploy/setup.sh --test)")
        return SKIPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
