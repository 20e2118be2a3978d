#!/usr/bin/env python3
"""The host's cost of a call of normd.torch beside PyTorch's built-in for the same work.

    python3 bench/torch_operators.py [--device=cpu]

Makes calls on small tensors, in turns, and gives the medians of the host's microseconds of one
call: of PyTorch's built-in, of normd.torch's, and their difference. On the CPU it is the processor
time of one thread, the work on some hundred elements included. The last line has one built-in in
both columns, called by its binding and by torch.ops, as ours are. Headline tensors and blocks:
examples/kernelbench_run.py and examples/blocks.py; replays: kernels/bench/compare_torch.py.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

import normd.torch

ROUNDS, CALLS = 41, 200
Pair = tuple[Callable[[], object], Callable[[], object]]


def host_pairs(device: str) -> dict[str, Pair]:
    """{name: (the built-in, normd.torch's)}"""
    rows, features, side = (8, 1024, 8) if device == "cuda" else (4, 64, 4)
    x, weight = torch.randn(rows, features, device=device), torch.randn(features, device=device)
    image, scale = torch.randn(2, 32, side, side, device=device), torch.randn(32, device=device)
    mean, variance = torch.zeros(32, device=device), torch.ones(32, device=device)
    pairs: dict[str, Pair] = {
        "layer_norm": (
            lambda: functional.layer_norm(x, (features,), weight, weight),
            lambda: normd.torch.layer_norm(x, features, weight, weight),
        ),
        "rms_norm": (
            lambda: functional.rms_norm(x, (features,), weight, 1e-6),
            lambda: normd.torch.rms_norm(x, features, weight, eps=1e-6),
        ),
        "group_norm": (
            lambda: functional.group_norm(image, 4, scale, scale),
            lambda: normd.torch.group_norm(image, 4, scale, scale),
        ),
        "instance_norm": (
            lambda: functional.instance_norm(image, weight=scale, bias=scale),
            lambda: normd.torch.instance_norm(image, None, None, scale, scale),
        ),
        "batch_norm": (
            lambda: functional.batch_norm(image, mean, variance, scale, scale),
            lambda: normd.torch.batch_norm(image, mean, variance, scale, scale),
        ),
    }
    layers = (
        ("nn.LayerNorm", nn.LayerNorm(features), normd.torch.LayerNorm(features), x),
        ("nn.GroupNorm", nn.GroupNorm(4, 32), normd.torch.GroupNorm(4, 32), image),
    )
    for name, theirs, ours, tensor in layers:
        on_device = theirs.to(device), ours.to(device)
        pairs[name] = tuple(  # type: ignore[assignment]
            lambda layer=each, tensor=tensor: layer(tensor) for each in on_device
        )
    by_torch_ops = torch.ops.aten.native_layer_norm.default
    pairs["torch.native_layer_norm"] = (
        lambda: torch.native_layer_norm(x, (features,), weight, weight, 1e-5),
        lambda: by_torch_ops(x, (features,), weight, weight, 1e-5),
    )
    return pairs


def host_microseconds(call: Callable[[], object], device: str) -> float:
    clock = time.process_time
    if device == "cuda":
        torch.cuda.synchronize()
        clock = time.perf_counter
    begin = clock()
    for _ in range(CALLS):
        call()
    return (clock() - begin) / CALLS * 1e6


def host(device: str) -> None:
    print("host, us a call          built-in  normd.torch  difference")
    for name, pair in host_pairs(device).items():
        times = [[host_microseconds(call, device) for call in pair] for _ in range(ROUNDS)]
        theirs, ours = (statistics.median(each) for each in zip(*times[3:], strict=True))
        print(f"{name:<24} {theirs:8.2f} {ours:12.2f} {ours - theirs:11.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    on_cpu = options.device == "cpu"
    if on_cpu:
        torch.set_num_threads(1)
    print(torch.__version__, "cpu" if on_cpu else torch.cuda.get_device_name())
    with torch.no_grad():
        host(options.device)


if __name__ == "__main__":
    main()
