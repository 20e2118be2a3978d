#!/usr/bin/env python3
"""normd.Client's calls with CUDA tensors, by the way that they go, on one GPU.

    python3 bench/device_calls.py --normd_bin=build/release/bin [--sizes=65536,16777216]

Microseconds of a call, its result on the device and waited for: medians of rounds in turns.
`copied` copies on the device, into memory that the server has opened; `region` has its tensors
there; `shared` copies to the host's shared memory and back; `sent` sends messages, or streams of
more than 64 MiB; `torch` is normd.torch in this process, without a server. Bits are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import calls
import torch

import normd
import normd.torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from timing import medians  # type: ignore[import-not-found]

MODEL, CHANNELS = "instance_norm_64", 64
WAYS = ("copied", "region", "shared", "sent", "torch")


def callers(address: str, size: int, stack: contextlib.ExitStack) -> dict[str, Callable[[], Any]]:
    """The ways to make the same call."""

    def client(**options: Any) -> normd.Client:
        return stack.enter_context(normd.Client(address, **options))

    x = torch.randn(1, CHANNELS, size // 4 // CHANNELS, device="cuda")
    near = client(device_memory="require")
    shared = client(device_memory="off", stream_above=1 << 31)
    sent = client(device_memory="off", shared_memory="off")
    region = stack.enter_context(near.share(2 * x.nbytes + 4096, device=x.device))
    x_there, y_there = region.tensor(tuple(x.shape)), region.tensor(tuple(x.shape))
    x_there.copy_(x)
    weight, bias = affine()
    return {
        "copied": lambda: near.normalize(MODEL, x),
        "region": lambda: near.normalize(MODEL, x_there, out=y_there),
        "shared": lambda: shared.normalize(MODEL, x),
        "sent": lambda: sent.normalize(MODEL, x),
        "torch": lambda: normd.torch.instance_norm(x, weight, bias),
    }


def affine() -> tuple[Any, Any]:
    """The model's weight and bias."""
    from safetensors.torch import load_file

    (path,) = (calls.REPOSITORY / MODEL).glob("*/params.safetensors")
    found = load_file(path, device="cuda")
    return found["weight"], found["bias"]


def waited_for(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call, and the end of the device's work."""

    def call_and_wait() -> Any:
        result = call()
        torch.cuda.synchronize()
        return result

    return call_and_wait


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--normd_bin", type=Path, required=True)
    parser.add_argument("--sizes", default="65536,1048576,16777216,67108864,268435456")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no GPU")
    print(torch.__version__, torch.cuda.get_device_name())
    print("bytes        " + "".join(f"{way:>10}" for way in WAYS))
    with tempfile.TemporaryDirectory() as sockets, contextlib.ExitStack() as stack:
        flags = ("--device=cuda:0", "--shared_memory_cuda")
        server, address = calls.start(options.normd_bin, sockets, *flags)
        stack.callback(server.terminate)
        for size in map(int, options.sizes.split(",")):
            with contextlib.ExitStack() as clients, torch.no_grad():
                ways = callers(address, size, clients)
                found = {way: waited_for(call) for way, call in ways.items()}
                expected = found["copied"]()
                assert all(torch.equal(call(), expected) for call in found.values())
                times = medians(found, "cpu", options.rounds, calls=20)
            print(f"{size:<13}" + "".join(f"{1e3 * times[way]:10.0f}" for way in WAYS), flush=True)


if __name__ == "__main__":
    main()
