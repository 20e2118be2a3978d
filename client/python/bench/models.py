#!/usr/bin/env python3
"""Whole models with normd's norms beside eager's: the models of the tests, in Markdown.

    python3 bench/models.py [--only=Llama,convnext] [--width=512] [--length=128] [--side=128]
                            [--device=cuda]

For each: how many norms are replaced and left; the largest error against float64, in float32 and
bfloat16, over eager's; and eager's time over normd's. On the CPU that is with one thread and two,
of the processor's time, so that other programs count little; on a GPU called, compiled, and
replayed from a graph. Both run in turns. It needs transformers,
diffusers, timm and torchvision, or as many of them as --only asks for.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for folder in ("tests", "examples"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / folder))
DTYPES = ("float32", "bfloat16")
WAYS = ("called", "compiled", "replayed")


def speed(eager: Callable[[], Any], ours: Callable[[], Any], device: str, rounds: int) -> float:
    """Eager's time over ours, of each the first quartile of short turns.

    On two busy cores that is within 0.04 for two copies of one model, the shortest of long turns
    within 0.14.
    """
    from timing import milliseconds  # type: ignore[import-not-found]

    def time_of(call: Callable[[], Any], calls: int) -> float:
        return float(milliseconds(call, device, calls, time.process_time))

    time_of(ours, 2)
    calls = max(1, round(2 / time_of(eager, 2)))
    times: dict[Any, list[float]] = {eager: [], ours: []}
    for i in range(rounds):
        for call in (eager, ours) if i % 2 else (ours, eager):
            times[call].append(time_of(call, calls))
    quartile = {call: statistics.quantiles(each, n=4)[0] for call, each in times.items()}
    return quartile[eager] / quartile[ours]


def prepared(model: Any, inputs: Any, way: str) -> Callable[[], Any]:
    """A call of the model in one of WAYS."""
    import torch

    if way == "compiled":
        model = torch.compile(model)

    def call() -> Any:
        return model(**inputs)

    if way != "replayed":
        return call
    stream: Any = torch.cuda.Stream
    with torch.cuda.stream(stream()):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def speeds(eager: Any, ours: Any, inputs: Any, options: argparse.Namespace) -> list[str]:
    import torch

    on_cpu = options.device == "cpu"
    found = []
    for way in options.threads.split(",") if on_cpu else WAYS:
        if on_cpu:
            torch.set_num_threads(int(way))
        first, second = (
            prepared(model, inputs, "called" if on_cpu else way) for model in (eager, ours)
        )
        found.append(f"{speed(first, second, options.device, options.rounds):.2f}")
    return found


def line(architecture: Any, options: argparse.Namespace) -> str:
    import torch
    from test_torch_architectures import (  # type: ignore[import-not-found]
        double_reference,
        error,
        first_tensor,
        to,
    )

    import normd.torch

    model, inputs = architecture.build(), architecture.inputs()
    reference = double_reference(model, inputs)
    errors, times = [], []
    for name in DTYPES:
        dtype = getattr(torch, name)
        eager = copy.deepcopy(model).to(options.device, dtype)
        given = {key: value.to(options.device) for key, value in to(inputs, dtype).items()}
        ours = copy.deepcopy(eager)
        report = normd.torch.replace(ours)
        pair = [error(first_tensor(each(**given)).cpu(), reference) for each in (ours, eager)]
        errors.append(pair[0] / pair[1])
        times += speeds(eager, ours, given, options)
    counts = f"{len(report.replaced)} | {len(report.left)}"
    return f"| {architecture} | {counts} | {max(errors):.2f} | {' | '.join(times)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--width", default="64")
    parser.add_argument("--length", default="17")
    parser.add_argument("--side", default="32")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    for name in ("width", "length", "side"):
        os.environ[f"NORMD_MODELS_{name.upper()}"] = getattr(options, name)
    import torch
    from torch_architectures import ARCHITECTURES  # type: ignore[import-not-found]

    ways = WAYS if options.device == "cuda" else options.threads.split(",")
    heads = [f"{dtype}, {way}" for dtype in DTYPES for way in ways]
    print(f"| model | replaced | left | error | {' | '.join(heads)} |")
    print("|" + "---|" * (4 + len(heads)))
    wanted = options.only.split(",")
    for each in ARCHITECTURES:
        found = importlib.util.find_spec(each.package.partition(".")[0]) is not None
        if found and any(name in str(each) for name in wanted):
            with torch.no_grad():
                print(line(each, options), flush=True)


if __name__ == "__main__":
    main()
