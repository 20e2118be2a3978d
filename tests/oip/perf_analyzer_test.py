#!/usr/bin/env python3
"""PyPI's perf_analyzer, unmodified, against a real normd, over gRPC and over HTTP.

By concurrency, by request rate, over streams, with a percentile, of several inputs and of a type that
is not FP32: it must measure, without a failed request, and read the server's statistics. Exits
with 77, which ctest shows as skipped, where it does not run: it needs glibc 2.38.
"""

import csv
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

from served import LIMIT_S, SKIPPED, Server, command_line

GLIBC = (2, 38)  # The wheel's program needs it.
SHAPE = ["--shape", "x:1,64,16,16"]

# Each mode's arguments, and how many loads it measures.
MODES = {
    "concurrency": (["-m", "instance_norm_64", *SHAPE, "--concurrency-range", "1:4:3"], 2),
    "request rate": (["-m", "instance_norm_64", *SHAPE, "--request-rate-range", "200"], 1),
    "streaming": (["-m", "instance_norm_64", *SHAPE, "--streaming", "--concurrency-range", "4"], 1),
    "percentile": (["-m", "instance_norm_64", *SHAPE, "--percentile", "99",
                    "--concurrency-range", "2"], 1),
    "several inputs": (["-m", "fused_linear_512", "--shape", "x:4,512", "--shape", "y:4,512",
                        "--concurrency-range", "2"], 1),
    "shared memory": (["-m", "instance_norm_64", *SHAPE, "--shared-memory", "system",
                       "--output-shared-memory-size", "65536", "--concurrency-range", "2"], 1),
    "a version": (["-m", "rms_norm_4096", "-x", "1", "--shape", "x:2,4096",
                   "--concurrency-range", "2"], 1),
}


def measure(program, protocol, address, arguments, folder):
    """The lines of its report, one a load."""
    report = pathlib.Path(folder) / "report.csv"
    report.unlink(missing_ok=True)
    # Machines that tests share are never stable: the second of two short windows counts.
    done = subprocess.run(
        [program, "-u", address, "-i", protocol, *arguments, "-f", report,
         "--measurement-interval", "500", "--stability-percentage", "999", "--max-trials", "3"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3 * LIMIT_S,
        check=False)
    if done.returncode != 0 or not report.exists():
        raise AssertionError(f"exit code {done.returncode}:\n{done.stdout}")
    with open(report, newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def check(name, lines, loads, streams):
    if len(lines) != loads:
        raise AssertionError(f"{name}: {len(lines)} lines, wanted {loads}: {lines}")
    for line in lines:
        if not float(line["Inferences/Second"]) > 0:
            raise AssertionError(f"{name}: {line}")
        if not 0 < float(line["p50 latency"]) <= float(line["p99 latency"]):
            raise AssertionError(f"{name}: {line}")
        # From ModelStatistics.
        if not streams and not float(line["Server Compute Infer"]) >= 0:
            raise AssertionError(f"{name}: {line}")


def main():
    parser = command_line(__doc__)
    parser.add_argument("--perf_analyzer", help="the program",
                        default=pathlib.Path(sys.executable).parent / "perf_analyzer")
    options = parser.parse_args()
    name, version = platform.libc_ver()
    if name == "glibc" and tuple(int(part) for part in version.split(".")) < GLIBC:
        print(f"skipped: perf_analyzer needs glibc {'.'.join(map(str, GLIBC))}, here is {version}")
        return SKIPPED
    with Server(options, "--shared_memory=named") as server, tempfile.TemporaryDirectory() as folder:
        for protocol, address in (("grpc", server.address), ("http", server.http)):
            for name, (arguments, loads) in MODES.items():
                if protocol == "http" and "--streaming" in arguments:
                    continue  # Triton's HTTP has no streams either.
                lines = measure(os.fspath(options.perf_analyzer), protocol, address, arguments, folder)
                check(f"{protocol}: {name}", lines, loads, "--streaming" in arguments)
                print(f"passed: {protocol}: {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
