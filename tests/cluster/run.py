#!/usr/bin/env python3
"""A fleet of normd on one machine, in network namespaces, and what may befall it.

    sudo tests/cluster/run.py --bin=build/release/bin              # all, 100,000 requests or more each
    sudo tests/cluster/run.py --bin=build/dev/bin --short          # what the test suite runs
    sudo tests/cluster/run.py --bin=build/release/bin --only=kill  # those whose name has this

Prints a line for each scenario: requests sent, answered, retried, lost, the responses verified against float64,
and the p99. Exits with 77, which ctest shows as skipped, where no network namespaces can be made.
"""

import argparse
import os
import pathlib
import shutil
import sys
import time
import traceback

import cases
import network
# Each adds its own to cases.CASES.
import outages
import lanes
import balancing
import versions
import links

SOURCE = pathlib.Path(__file__).resolve().parents[2]
# What the short form has time for.
SHORT = ("rolling update at full load", "kill -9 of a replica", "SIGSTOP",
         "a replica whose lanes fail at once", "a poisoned", "delay and loss on the way to all", "no replica is left:")


def find_haproxy():
    tools = SOURCE / "build/tools/haproxy"
    path = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin:{tools}/usr/sbin")
    libraries = ":".join(str(one) for one in tools.glob("usr/lib/*-linux-gnu"))
    return path, libraries


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--rate", type=int, help="requests per second of open loops")
    options = parser.parse_args()
    why = network.missing()
    if why:
        print(f"skipped: {why}")
        return 77
    setup = cases.Setup(options.bin.resolve(), SOURCE, options.short)
    setup.haproxy, setup.haproxy_libraries = find_haproxy()
    if options.rate:
        setup.rate = options.rate
    failed = ran = 0
    for name, function in cases.CASES:
        if options.only not in name or (options.short and not options.only
                                        and not name.startswith(SHORT)):
            continue
        begun = time.monotonic()
        try:
            results = function(setup)
        except Exception:
            failed += 1
            print(f"FAILED  {name}\n{traceback.format_exc()}", flush=True)
            continue
        if isinstance(results, str):
            print(f"skipped {name}: {results}", flush=True)
            continue
        ran += 1
        print(f"ok      {name} ({time.monotonic() - begun:.0f} s)", flush=True)
        for result in results:
            print(f"        {result.line()}", flush=True)
    print(f"{ran} passed, {failed} failed")
    return 1 if failed else 0 if ran else 77


if __name__ == "__main__":
    sys.exit(main())
