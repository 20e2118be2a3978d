#!/usr/bin/env python3
"""What normd gives when more is asked than it can do: goodput and latency at 1, 2 and 3 times the load
that it sustains, in turns, as medians of the rounds.

    python3 tests/bench/overload.py --bin=build/release/bin --shape=64x1024

The load that it sustains is the closed loop's rate at the same number of callers. "send" is
the latency from the actual send; of it a client may spend much on its own side, waiting for the server
to take the call. "server" is the time from the call's arrival to its response's hand-over. Processor time and
page faults of the server, and the client's processor time, are for one call that the server ended.
Further arguments go to normd.

    python3 tests/bench/overload.py --timeout=2s --seconds=10 --max_sending=0,32

shows calls whose deadline is shorter than the backlog that their client keeps: with --max_sending=0
gRPC sends the oldest first, with 32 normload the newest once the oldest has spent half its time.
"of closed" compares what was answered in time for each processor second of client and server
together with the closed loop: other work on the machine changes
rates, and hardly this. On a quiet machine compare "rate", the same by wall time."""

import argparse
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "deploy"))
from process import Normd  # noqa: E402


def start(options, *flags):
    """A server without HTTP, unless a flag says where."""
    return Normd(f"{options.bin}/normd", options.models, "--http_listen=", *flags)


def normload(options, folder, server, *flags):
    """The report of a load."""
    report = folder / "report.json"
    subprocess.run([f"{options.bin}/normload", f"--server={server.address}", f"--duration={options.seconds}s",
                    "--max_error_share=1", f"--json={report}", "--quiet", *flags],
                   check=True, stdout=subprocess.DEVNULL, timeout=300)
    return json.loads(report.read_text())


def durations(metrics):
    """How many Normalize calls took at most so many seconds, by seconds, as the server counts."""
    text = urllib.request.urlopen(f"http://{metrics}/metrics").read().decode()
    counts = {}
    for model, bound, count in re.findall(
            r'normd_request_duration_seconds_bucket\{model="(.*?)",method="Normalize",le="(.*?)"\} '
            r'(\S+)', text):
        counts[float(bound)] = counts.get(float(bound), 0) + float(count)
    return counts


def p99(before, after):
    """The bucket's bound, so rounded up."""
    counts = {bound: count - before.get(bound, 0) for bound, count in after.items()}
    return min(bound for bound, count in counts.items() if count >= 0.99 * max(counts.values()))


def usage(process):
    """Its processor seconds and page faults so far."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(fields[7])


def client_seconds():
    """Processor time of all load clients that have ended."""
    use = resource.getrusage(resource.RUSAGE_CHILDREN)
    return use.ru_utime + use.ru_stime


def run(options, server, folder, *load):
    before = durations(server.metrics)
    seconds, faults = usage(server)
    client = client_seconds()
    result = normload(options, folder, server, f"--model={options.model}", f"--shape={options.shape}",
                      f"--connections={options.connections}", *load)["result"]
    after = durations(server.metrics)
    answered = max(1, after[float("inf")] - before.get(float("inf"), 0))
    used, faulted = usage(server)
    ok = max(1, result["requests"] - result["errors"])
    codes = result["codes"]
    return {"us_per_ok": 1e6 * (used - seconds + client_seconds() - client) / ok,
            "server_us_per_ok": 1e6 * (used - seconds) / ok,
            "late": codes.get("DEADLINE_EXCEEDED", 0) / max(1, result["requests"]),
            "refused": codes.get("RESOURCE_EXHAUSTED", 0) / max(1, result["requests"]),
            "ok": result["ok_per_s"],
            "server_us": 1e6 * (used - seconds) / answered, "faults": (faulted - faults) / answered,
            "client_us": 1e6 * (client_seconds() - client) / answered,
            "p50": result["service_time"]["p50_us"] / 1e3,
            "p99": result["service_time"]["p99_us"] / 1e3,
            "server": 1e3 * p99(before, after)}


def peak_mib(server):
    status = pathlib.Path(f"/proc/{server.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--models", default="deploy/models")
    parser.add_argument("--model", default="layer_norm_1024")
    parser.add_argument("--shape", default="64x1024", help="one or several, one after the other")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--max_inflight", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--factors", default="1,2,3,5")
    parser.add_argument("--timeout", default="10s")
    parser.add_argument("--max_sending", default="32", help="one or several, in turns")
    options, rest = parser.parse_known_args()
    for shape in options.shape.split(","):
        options.shape = shape
        with tempfile.TemporaryDirectory() as folder, start(options, *rest) as server:
            measure(options, server, pathlib.Path(folder))
            print(f"the server's peak memory: {peak_mib(server):.0f} MiB")


def measure(options, server, folder):
    samples = {}
    for _ in range(options.rounds):
        sustained = run(options, server, folder, f"--concurrency={options.callers}", "--warmup=500ms")
        samples.setdefault("closed", []).append(sustained)
        for factor in options.factors.split(","):
            for sending in options.max_sending.split(","):
                samples.setdefault(f"{factor}x, sending {sending}", []).append(
                    run(options, server, folder, "--warmup=0s",
                        f"--rate={float(factor) * sustained['ok']:.0f}",
                        f"--max_inflight={options.max_inflight}", f"--timeout={options.timeout}",
                        f"--max_sending={sending}"))
    print(f"{options.shape}, {options.connections} connections, {options.max_inflight} unanswered, "
          f"deadline {options.timeout}")
    print(f"{'load':16} {'ok/s':>8} {'rate':>5} {'of closed':>10} {'late':>7} {'refused':>8} "
          f"{'p50 ms':>8} {'p99 ms':>8} {'server p99':>11} {'server us/ok':>13} {'us/ok':>8}")
    for load, runs in samples.items():
        middle = {key: statistics.median(one[key] for one in runs) for key in runs[0]}
        turns = list(zip(samples["closed"], runs))
        rate = statistics.median(one["ok"] / closed["ok"] for closed, one in turns)
        share = statistics.median(closed["us_per_ok"] / one["us_per_ok"] for closed, one in turns)
        print(f"{load:16} {middle['ok']:8.0f} {rate:5.2f} {share:10.2f} {middle['late']:7.1%} "
              f"{middle['refused']:8.1%} {middle['p50']:8.1f} {middle['p99']:8.1f} "
              f"{middle['server']:11.1f} {middle['server_us_per_ok']:13.0f} "
              f"{middle['us_per_ok']:8.0f}")


if __name__ == "__main__":
    main()
