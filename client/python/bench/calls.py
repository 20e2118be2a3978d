#!/usr/bin/env python3
"""Calls per second of normd.Client against bare gRPC and against protobuf's classes, in turns.

    python3 bench/calls.py --normd_bin=build/release/bin [--sizes=1024,1048576,67108864]

All send the same request to the same normd, one call after the other: `bare` the encoded bytes, and
looks at nothing that comes back; `protobuf` builds and reads messages as generated code does;
`pool` is normd.Client as it is on the server's machine, its arrays copied to shared memory, and
`region` with arrays that are there; `triton` is tritonclient's infer, where it is installed. `peak`
is how far the resident memory rises in one call, beyond the input (of `bare`, the encoded request),
as a multiple of the tensor.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np

import normd
from normd import _protocol
from normd.shared_memory import PAGE_BYTES

REPOSITORY = Path(__file__).resolve().parents[3] / "deploy" / "models"
METHOD = _protocol.method("Normalize")
NO_LIMIT = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

WAYS = ["protobuf", "normd", "pool", "region"]
triton: Any = None
with contextlib.suppress(ImportError):
    triton = importlib.import_module("tritonclient.grpc")
    WAYS.append("triton")

Call = Callable[[], object]


def start(folder: Path, sockets: str, *flags_of_device: str) -> tuple[subprocess.Popen[str], str]:
    """A normd on a free port, by default on the CPU, and its address."""
    flags = ["--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0", "--http_listen="]
    flags += flags_of_device or ["--device=cpu"]
    flags += ["--shared_memory=fd", f"--shared_memory_listen=unix://{sockets}/regions"]
    server = subprocess.Popen(
        [folder / "normd", f"--model_repository={REPOSITORY}", *flags, "--lame_duck=0s"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if server.stdout is None:
        raise RuntimeError("normd: no output")
    for line in server.stdout:
        if match := re.search(r"serving: grpc=(\S+)", line):
            threading.Thread(target=server.stdout.read, daemon=True).start()
            return server, match[1]
    sys.exit("normd does not serve")


def tensor(size: int) -> tuple[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """A model and an input of `size` bytes."""
    elements = size // 4
    if elements % 4096 == 0:
        return "rms_norm_4096", np.ones((elements // 4096, 4096), "f4")
    return "instance_norm_64", np.ones((1, 64, elements // 64), "f4")


def callers(address: str, size: int) -> dict[str, Call]:
    """The ways to make the same call."""
    model, x = tensor(size)
    request_type = _protocol.message("normd.v1.NormalizeRequest")
    response_type = _protocol.message("normd.v1.NormalizeResponse")

    def make() -> Any:
        request = request_type(model=model)
        request.inputs.add(dtype=1, shape=x.shape, data=x.tobytes())
        return request

    channel = grpc.insecure_channel(address, NO_LIMIT)
    bare: Any = channel.unary_unary(METHOD)
    typed: Any = channel.unary_unary(
        METHOD, request_type.SerializeToString, response_type.FromString
    )
    encoded = make().SerializeToString()
    client = normd.Client(address, stream_above=1 << 31, shared_memory="off")
    near = normd.Client(address, stream_above=1 << 31)
    region = near.share(2 * size + PAGE_BYTES)
    x_there, y_there = region.array(x.shape), region.array(x.shape)
    x_there[...] = x

    def protobuf() -> object:
        answer = typed(make())
        return np.frombuffer(answer.outputs[0].data, "<f4").reshape(x.shape)

    found: dict[str, Call] = {
        "bare": lambda: bare(encoded),
        "protobuf": protobuf,
        "normd": lambda: client.normalize(model, x),
        "pool": lambda: near.normalize(model, x),
        "region": lambda: near.normalize(model, x_there, out=y_there),
    }
    if triton is not None:
        found["triton"] = triton_caller(address, model, x)
    return found


def triton_caller(address: str, model: str, x: np.ndarray[Any, np.dtype[np.float32]]) -> Call:
    """The same call in the style of tritonclient's examples."""
    client = triton.InferenceServerClient(address)

    def infer() -> object:
        tensor = triton.InferInput("x", x.shape, "FP32")
        tensor.set_data_from_numpy(x)
        return client.infer(model, [tensor]).as_numpy("y")

    return infer


def rates(calls: dict[str, Call], rounds: int, seconds: float) -> dict[str, float]:
    """Calls per second of each: the median of rounds that take turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            count = 0
            begin = time.perf_counter()
            while (elapsed := time.perf_counter() - begin) < seconds or count == 0:
                call()
                count += 1
            found[name].append(count / elapsed)
    return {name: statistics.median(values) for name, values in found.items()}


def peak(address: str, size: int, name: str) -> float:
    """The memory growth of a fresh process in one call, as a multiple of the tensor."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import calls; "
    code += f"calls.print_growth({address!r}, {size}, {name!r})"
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    return float(result.stdout) / size


def print_growth(address: str, size: int, name: str) -> None:
    """Runs in its own process: the growth of the largest resident size in one call, in bytes."""
    callers(address, 4096)[name]()
    call = callers(address, size)[name]
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    Path("/proc/self/clear_refs").write_text("5")  # Resets the peak.
    kept = call()
    status = Path("/proc/self/status").read_text()
    high = re.search(r"VmHWM:\s+(\d+) kB", status)
    del kept
    print(int(high[1]) * 1024 - before if high else 0)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--normd_bin", type=Path, required=True)
    parser.add_argument("--sizes", default="1024,1048576,67108864")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each round")
    arguments = parser.parse_args()
    sockets = tempfile.mkdtemp()
    server, address = start(arguments.normd_bin, sockets)
    try:
        print(
            f"| bytes | bare calls/s | {' | '.join(WAYS)} (of bare) "
            f"| peak: bare, {', '.join(WAYS)} |"
        )
        print(f"|---|---|{'---|' * len(WAYS)}---|")
        for size in map(int, arguments.sizes.split(",")):
            calls = callers(address, size)
            for call in calls.values():
                call()
            found = rates(calls, arguments.rounds, arguments.seconds)
            peaks = ""
            if size >= 1 << 24:
                peaks = ", ".join(f"{peak(address, size, name):.1f}" for name in found)
            shares = [f"{found[name] / found['bare']:.2f}" for name in WAYS]
            print(f"| {size} | {found['bare']:.1f} | {' | '.join(shares)} | {peaks} |", flush=True)
    finally:
        server.terminate()
        server.wait(60)
        shutil.rmtree(sockets)


if __name__ == "__main__":
    main()
