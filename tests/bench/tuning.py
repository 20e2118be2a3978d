#!/usr/bin/env python3
"""The tables of docs/tuning.md: normd with one knob at several values, loaded by normload in turns, as
medians of the rounds.

    python3 tests/bench/tuning.py --bin=build/release/bin --rounds=3

prints them in Markdown. With --reports=DIR it also keeps the HTML reports of the sweeps."""

import argparse
import contextlib
import pathlib
import statistics
import tempfile

from overload import normload, start

SMALL = ["--model=rms_norm_4096", "--shape=4x4096"]
LANES_ALONE = ["--max_inline_bytes=0"]


def measure(options, folder, variants, *flags):
    """The results of each variant (its server's flags) over the rounds."""
    results = {name: [] for name in variants}
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(start(options, *server_flags))
                   for name, server_flags in variants.items()}
        for _ in range(options.rounds):
            for name, server in servers.items():
                results[name].append(normload(options, folder, server, "--warmup=500ms", *flags)["result"])
    return results


def ok(result):
    return result["ok_per_s"]


def batch(result):
    return result["batch_requests"]["mean"]


def percentile(key):
    return lambda result: result["response_time"][key] / 1e3


def print_table(first, columns, results):
    """A row for each variant; columns: the name, what to take of a result, its format."""
    print(f"\n| {first} | " + " | ".join(name for name, _, _ in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name, runs in results.items():
        cells = [format(statistics.median(map(take, runs)), how) for _, take, how in columns]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def delay_against_rate(options, folder):
    """One sweep each."""
    points = {}
    for delay in ("0", "1ms"):
        with start(options, *LANES_ALONE, f"--max_queue_delay={delay}") as server:
            page = [f"--html={options.reports}/delay_{delay}.html"] if options.reports else []
            report = normload(options, folder, server, "--warmup=500ms", *SMALL, "--sweep=rate=250..8000*2", *page)
            points[delay] = {point["load"]: point["result"] for point in report["points"]}
    print("\n| offered/s | p50 ms, no delay | p50 ms, 1 ms | requests in a batch, no delay | 1 ms |")
    print("|---|---|---|---|---|")
    for rate in points["0"]:
        both = [points["0"][rate], points["1ms"][rate]]
        print(f"| {rate:g} | " + " | ".join(f"{percentile('p50_us')(r):.2f}" for r in both) + " | " +
              " | ".join(f"{batch(r):.2f}" for r in both) + " |", flush=True)


def tables(options, folder):
    p50, p99 = ("p50 ms", percentile("p50_us"), ".2f"), ("p99 ms", percentile("p99_us"), ".1f")
    rate, batches = ("ok/s", ok, ",.0f"), ("requests in a batch", batch, ".1f")
    delay_against_rate(options, folder)
    print_table("delay", [rate, p50, batches], measure(
        options, folder, {delay: [*LANES_ALONE, f"--max_queue_delay={delay}"]
                          for delay in ("0", "200us", "1ms", "5ms")}, *SMALL, "--concurrency=32"))
    inline = {"off (`0`)": LANES_ALONE, "on": []}
    print_table("inline", [rate, p50], measure(options, folder, inline, *SMALL, "--concurrency=4"))
    print_table("inline, 500/s", [p50], measure(options, folder, inline, *SMALL, "--rate=500"))
    print_table("lanes", [rate, p50, p99], measure(
        options, folder, {lanes: [*LANES_ALONE, f"--cpu_lanes={lanes}"] for lanes in ("1", "2", "4")},
        "--model=instance_norm_64", "--shape=1x64x56x56", "--concurrency=16"))
    print_table("pool", [rate, p50], measure(
        options, folder, {"0": ["--pool_bytes=0"], "256 MiB": []},
        "--model=instance_norm_64", "--shape=4x64x56x56", "--concurrency=16"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--models", default="deploy/models")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--reports", help="folder for the HTML reports of the sweeps")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tables(options, pathlib.Path(folder))


if __name__ == "__main__":
    main()
