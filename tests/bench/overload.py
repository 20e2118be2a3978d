#!/usr/bin/env python3
"""What normd gives when more is asked than it can do: goodput and latency at 1, 2 and 3 times the load
that it sustains, in turns, as medians of the rounds.

    python3 tests/bench/overload.py --bin=build/release/bin --shape=64x1024

The load that it sustains is the closed loop's rate at the same number of callers. "send" is
the latency from the actual send; of it a client may spend much on its own side, waiting for the server
to take the call. "server" is the time from the call's arrival to its answer's hand-over. Processor time and
page faults of the server, and the client's processor time, are for one call that the server ended.
Further arguments go to normd."""

import argparse
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import tempfile
import time
import urllib.request


def start(options, rest, folder):
    log = open(folder / "normd.log", "w+")
    server = subprocess.Popen(
        [f"{options.bin}/normd", f"--model_repository={options.models}", "--device=cpu",
         "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0", "--lame_duck=0s", *rest],
        stderr=log)
    while server.poll() is None:
        address = re.search(r"serving: grpc=(\S+) metrics=(\S+)", (folder / "normd.log").read_text())
        if address:
            return server, address.group(1), address.group(2)
        time.sleep(0.05)
    raise SystemExit((folder / "normd.log").read_text())


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


def server_usage(server):
    """Processor seconds and page faults of the server so far."""
    fields = pathlib.Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(fields[7])


def client_seconds():
    """Processor time of all load clients that have ended."""
    use = resource.getrusage(resource.RUSAGE_CHILDREN)
    return use.ru_utime + use.ru_stime


def run(options, server, address, folder, *load):
    address, metrics = address
    before = durations(metrics)
    seconds, faults = server_usage(server)
    client = client_seconds()
    report = folder / "report.json"
    subprocess.run(
        [f"{options.bin}/normload", f"--server={address}", f"--model={options.model}",
         f"--shape={options.shape}", f"--connections={options.connections}",
         f"--duration={options.seconds}s", "--max_error_share=1", f"--json={report}", *load],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
    result = json.loads(report.read_text())["result"]
    after = durations(metrics)
    answered = max(1, after[float("inf")] - before.get(float("inf"), 0))
    used, faulted = server_usage(server)
    return {"ok": result["ok_per_s"], "errors": result["errors"] / max(1, result["requests"]),
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
    parser.add_argument("--shape", default="64x1024")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--max_inflight", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2)
    options, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        server, *address = start(options, rest, folder)
        try:
            measure(options, server, address, folder)
            print(f"the server's peak memory: {peak_mib(server):.0f} MiB")
        finally:
            server.terminate()
            server.wait(60)


def measure(options, server, address, folder):
    closed = [f"--concurrency={options.callers}", "--warmup=500ms"]
    samples = {}
    for _ in range(options.rounds):
        sustained = run(options, server, address, folder, *closed)
        samples.setdefault("closed", []).append(sustained)
        for factor in (1, 2, 3):
            samples.setdefault(f"{factor}x", []).append(
                run(options, server, address, folder, f"--rate={factor * sustained['ok']:.0f}",
                    f"--max_inflight={options.max_inflight}", "--warmup=0s"))
    print(f"{'load':8} {'ok/s':>9} {'refused':>8} {'send p50 ms':>12} {'send p99 ms':>12} "
          f"{'server p99 ms':>14} {'server cpu us':>14} {'client cpu us':>14} {'faults':>7}")
    for load, runs in samples.items():
        middle = {key: statistics.median(one[key] for one in runs) for key in runs[0]}
        print(f"{load:8} {middle['ok']:9.0f} {middle['errors']:8.1%} {middle['p50']:12.1f} "
              f"{middle['p99']:12.1f} {middle['server']:14.1f} {middle['server_us']:14.1f} "
              f"{middle['client_us']:14.1f} {middle['faults']:7.1f}")


if __name__ == "__main__":
    main()
