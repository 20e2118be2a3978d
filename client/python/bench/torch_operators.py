#!/usr/bin/env python3
"""normd.torch beside PyTorch: the host's cost of a call, and on a GPU replays beside the C ABI.

    python3 bench/torch_operators.py --library=.../libnorm_kernels.so [--only=host,graphs]
    python3 bench/torch_operators.py --device=cpu [--only=slices]

`host` makes calls on small tensors, in turns, and gives the medians of the host's microseconds of
one call: of PyTorch's built-in, of normd.torch's for the same work, and their difference. On the
CPU it is the processor time of one thread, the work on some hundred elements included. Its last
line has one built-in in both columns, called by its binding and by torch.ops, as ours are.
`graphs` replays 16 captured calls: of normd.torch, of the kernels' C ABI on the same tensors, and
of PyTorch. `slices` normalizes columns and heads of fused projections, in turns as they are and by
way of a copy, and gives the ratio of the medians. Headline tensors and blocks:
examples/kernelbench_run.py and examples/blocks.py.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import normd.torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "kernels" / "bench"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import compare_torch  # type: ignore[import-not-found]
import torch_library  # type: ignore[import-not-found]
from timing import medians  # type: ignore[import-not-found]

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


def slice_pair(x: torch.Tensor) -> Pair:
    size = x.shape[-1]
    weight = torch.randn(size, device=x.device, dtype=x.dtype)
    return (
        lambda: normd.torch.rms_norm(x, size, weight),
        lambda: normd.torch.rms_norm(x.contiguous(), size, weight),
    )


def slices(device: str) -> None:
    tokens = 16384 if device == "cuda" else 1024
    print("slices, us a call               as they are    copied  ratio")
    for name, sizes, columns in (
        ("heads, 32 of 48 x 128", (tokens, 48, 128), slice(32)),
        ("heads, 8 of 48 x 128", (tokens, 48, 128), slice(32, 40)),
        ("columns, 4096 of 12288", (tokens, 12288), slice(4096)),
    ):
        for dtype in (torch.float32, torch.bfloat16):
            calls = slice_pair(torch.randn(sizes, device=device, dtype=dtype)[:, columns])
            runs = dict(zip(("ours", "copied"), calls, strict=True))
            times = medians(runs, device, ROUNDS, 1, time.process_time)
            ours, copied = (1e3 * each for each in times.values())
            label = f"{name} {dtype}".replace("torch.", "")
            print(f"{label:<32} {ours:10.1f} {copied:9.1f} {ours / copied:6.2f}")


def replayed(library: Any, op: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Prints one line of `graphs`."""
    groups = 32 if op == "group_norm" else None
    workload = compare_torch.Workload(op, shape, dtype, groups=groups)
    parameters = workload.parameters()
    x = next(iter(workload.tensors(1)))
    y = torch.empty_like(x)
    weight, bias = parameters[:2]
    ours: dict[str, Callable[[], Tensor]] = {
        "rms_norm": lambda: normd.torch.rms_norm(x, shape[1], weight, eps=1e-5),
        "layer_norm": lambda: normd.torch.layer_norm(x, shape[1], weight, bias),
        "group_norm": lambda: normd.torch.group_norm(x, 32, weight, bias),
        "instance_norm": lambda: normd.torch.instance_norm(x, None, None, weight, bias),
    }
    direct = workload.ours(library, x, y, parameters)
    eager = workload.function(*parameters)
    runs: dict[str, Callable[[int], object]] = {
        "normd.torch": lambda _: ours[op](),
        "C ABI": lambda _: direct(),
        "eager": lambda _: eager(x),
    }
    times = torch_library.graph_times(runs, 101)
    assert torch.equal(ours[op](), y)
    first, second, third = (times[name] * 1e3 for name in runs)
    name = f"{op} {dtype} {list(shape)}".replace("torch.", "")
    print(f"{name:<44} {first:6.2f} {second:6.2f} {first / second:6.3f} {third:6.2f}")


def graphs(library_path: str) -> None:
    library = torch_library.Library(library_path)
    print("replayed, us a call                      normd.torch  C ABI  ratio  eager")
    for op, shape, dtype in (
        ("rms_norm", (1, 4096), torch.bfloat16),
        ("rms_norm", (16, 4096), torch.bfloat16),
        ("rms_norm", (256, 4096), torch.bfloat16),
        ("layer_norm", (64, 768), torch.bfloat16),
        ("layer_norm", (1024, 5120), torch.bfloat16),
        ("group_norm", (2, 320, 64, 64), torch.float16),
        ("instance_norm", (1, 64, 56, 56), torch.float32),
    ):
        replayed(library, op, shape, dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default="host,graphs,slices")
    options = parser.parse_args()
    on_cpu = options.device == "cpu"
    if not on_cpu and "graphs" in options.only and options.library is None:
        parser.error("--library: missing, wanted libnorm_kernels.so")
    if on_cpu:
        torch.set_num_threads(1)
    print(torch.__version__, "cpu" if on_cpu else torch.cuda.get_device_name())
    with torch.no_grad():
        if "host" in options.only:
            host(options.device)
        if "graphs" in options.only and not on_cpu:
            graphs(options.library)
        if "slices" in options.only:
            slices(options.device)


if __name__ == "__main__":
    main()
