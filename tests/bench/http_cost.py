#!/usr/bin/env python3
"""The server's processor time of a call: HTTP with binary tensors, beside an echo by Boost.Beast and gRPC.

    python3 tests/bench/http_cost.py --bin=build/release/bin

In turns, under a closed loop of --connections: wrk (Debian's package) for HTTP, normload for ModelInfer. Prints
the medians of --rounds, and the two ratios: what the echo takes of HTTP's time, and HTTP of gRPC's."""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import tempfile

from overload import normload, start, usage  # Before process: it says where that is.
from process import Process

MODEL = "instance_norm_64"
LUA = """
local file = io.open("{body}", "rb")
wrk.method = "POST"
wrk.body = file:read("*a")
wrk.headers["Inference-Header-Content-Length"] = "{head}"
"""


def cost_us(process, load):
    """The processor time of a process for each call of a load."""
    before = usage(process)[0]
    calls = load()
    return (usage(process)[0] - before) / calls * 1e6


def script(folder, size):
    """wrk's for a tensor of so many bytes."""
    shape = [1, 64, size // 256]
    head = json.dumps({
        "inputs": [{"name": "x", "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": size}}],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}).encode()
    body = folder / f"{size}.body"
    body.write_bytes(head + bytes(size))
    path = folder / f"{size}.lua"
    path.write_text(LUA.format(body=body, head=len(head)))
    return path


def wrk(options, address, lua):
    """The calls that were answered."""
    said = subprocess.run(["wrk", "--threads=1", f"--connections={options.connections}",
                           f"--duration={options.seconds}s", "--timeout=20s", f"--script={lua}",
                           f"http://{address}/v2/models/{MODEL}/infer"],
                          check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in said:
        raise SystemExit(said)
    return int(re.search(r"(\d+) requests in", said)[1])


def grpc(options, folder, server, size):
    return normload(options, folder, server, "--protocol=oip", f"--mix={MODEL}:1x64x{size // 256}:float32",
                    f"--concurrency={options.connections}", "--warmup=0s")["result"]["ok"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--models", default="deploy/models")
    parser.add_argument("--sizes", type=lambda text: [int(one) for one in text.split(",")],
                        default=[1 << 10, 1 << 16, 1 << 20])
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--connections", type=int, default=16)
    options, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as name, Process(f"{options.bin}/http_echo") as echo, \
            start(options, "--http_listen=127.0.0.1:0", *rest) as server:
        folder = pathlib.Path(name)
        echo_address = f"127.0.0.1:{echo.wait_for('[0-9]+')[0]}"
        for size in options.sizes:
            lua = script(folder, size)
            rounds = []
            for _ in range(options.rounds):
                rounds.append((cost_us(echo, lambda: wrk(options, echo_address, lua)),
                               cost_us(server, lambda: wrk(options, server.http, lua)),
                               cost_us(server, lambda: grpc(options, folder, server, size))))
            us = [statistics.median(way) for way in zip(*rounds)]
            of_http = statistics.median(by_echo / by_http for by_echo, by_http, _ in rounds)
            of_grpc = statistics.median(by_http / by_grpc for _, by_http, by_grpc in rounds)
            print(f"{size:8} bytes: echo {us[0]:.1f} us, HTTP {us[1]:.1f}, gRPC {us[2]:.1f}; "
                  f"echo/HTTP {of_http:.2f}, HTTP/gRPC {of_grpc:.2f}", flush=True)


if __name__ == "__main__":
    main()
