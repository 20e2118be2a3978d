#!/usr/bin/env python3
"""The rate of calls against normd_saturation_ratio and the response time, computed inline and by lanes.

    python3 tests/bench/saturation.py --bin=build/release/bin

For each way: the most that a closed loop of --callers gets, then an open loop at shares of that rate, and at one
and a half times it. The gauge, of 10 to 20 s, is read at the end of --seconds. Processor time that the server did
not get on a busy machine counts as busy, so compare within one run. Further arguments go to normd."""

import argparse
import pathlib
import re
import tempfile
import time
import urllib.request

from overload import normload, start

WAYS = {"inline": [], "lanes": ["--max_inline_bytes=0"]}


def load(options, server, folder, *flags):
    return normload(options, folder, server, f"--mix={options.mix}", "--warmup=1s", *flags)["result"]


def gauge(metrics):
    text = urllib.request.urlopen(f"http://{metrics}/metrics", timeout=20).read().decode()
    return float(re.search(r"^normd_saturation_ratio (\S+)$", text, re.MULTILINE).group(1))


def measure(options, way, folder, server):
    gauge(server.metrics)
    time.sleep(12)
    print(f"{way}: idle, saturation {gauge(server.metrics):.2f}", flush=True)
    most = load(options, server, folder, f"--concurrency={options.callers}")["ok_per_s"]
    print(f"{way}: closed loop of {options.callers}, {most:.0f}/s, saturation {gauge(server.metrics):.2f}", flush=True)
    for share in options.shares:
        result = load(options, server, folder, f"--rate={share * most:.0f}")
        print(f"{way}: {share:4.2f} of it, got {result['ok_per_s'] / most:.2f}, "
              f"saturation {gauge(server.metrics):.2f}, "
              f"p50 {result['service_time']['p50_us'] / 1e3:.2f} ms from the send, "
              f"{result['response_time']['p50_us'] / 1e3:.2f} ms from when it was due", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--models", default="deploy/models")
    # Much to compute for each byte, so that the server is what has too little time.
    parser.add_argument("--mix", default="fused_linear_512:64x512:float32:y=64x512")
    parser.add_argument("--seconds", type=int, default=22)
    parser.add_argument("--callers", type=int, default=32)
    parser.add_argument("--shares", type=lambda text: [float(one) for one in text.split(",")],
                        default=[0.1, 0.25, 0.5, 0.75, 0.9, 1.5])
    options, rest = parser.parse_known_args()
    for way in WAYS:
        with tempfile.TemporaryDirectory() as folder, start(options, *WAYS[way], *rest) as server:
            measure(options, way, pathlib.Path(folder), server)


if __name__ == "__main__":
    main()
