#!/usr/bin/env python3
"""Whole models with normd's norms beside eager's: the models of the tests, in Markdown.

    python3 bench/models.py [--only=Llama,convnext] [--width=512] [--length=128] [--side=128]

For each: how many norms are replaced and left; the largest error against float64, in float32 and
bfloat16, over eager's; and eager's time over normd's, with one thread and two. Both run in turns;
the time is the processor's, so that other programs count little. It needs transformers, diffusers,
timm and torchvision, or as many of them as --only asks for.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
DTYPES = ("float32", "bfloat16")


def seconds(model: Any, inputs: Any, calls: int) -> float:
    begin = time.process_time()
    for _ in range(calls):
        model(**inputs)
    return (time.process_time() - begin) / calls


def speed(eager: Any, ours: Any, inputs: Any, rounds: int) -> float:
    """Eager's time over ours, of each the first quartile of short turns.

    On two busy cores that is within 0.04 for two copies of one model, the shortest of long turns
    within 0.14.
    """
    seconds(ours, inputs, 2)
    calls = max(1, round(0.002 / seconds(eager, inputs, 2)))
    times: dict[Any, list[float]] = {eager: [], ours: []}
    for i in range(rounds):
        for model in (eager, ours) if i % 2 else (ours, eager):
            times[model].append(seconds(model, inputs, calls))
    quartile = {model: statistics.quantiles(each, n=4)[0] for model, each in times.items()}
    return quartile[eager] / quartile[ours]


def line(architecture: Any, rounds: int, threads: tuple[int, ...]) -> str:
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
    errors, speeds = [], []
    for name in DTYPES:
        dtype = getattr(torch, name)
        eager, given = copy.deepcopy(model).to(dtype), to(inputs, dtype)
        ours = copy.deepcopy(eager)
        report = normd.torch.replace(ours)
        pair = [error(first_tensor(each(**given)), reference) for each in (ours, eager)]
        errors.append(pair[0] / pair[1])
        for count in threads:
            torch.set_num_threads(count)
            speeds.append(f"{speed(eager, ours, given, rounds):.2f}")
    counts = f"{len(report.replaced)} | {len(report.left)}"
    return f"| {architecture} | {counts} | {max(errors):.2f} | {' | '.join(speeds)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--width", default="64")
    parser.add_argument("--length", default="17")
    parser.add_argument("--side", default="32")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--threads", default="1,2")
    options = parser.parse_args()
    for name in ("width", "length", "side"):
        os.environ[f"NORMD_MODELS_{name.upper()}"] = getattr(options, name)
    import torch
    from torch_architectures import ARCHITECTURES  # type: ignore[import-not-found]

    threads = tuple(map(int, options.threads.split(",")))
    heads = [f"{dtype}, {count}" for dtype in DTYPES for count in threads]
    print(f"| model | replaced | left | error | {' | '.join(heads)} |")
    print("|" + "---|" * (4 + len(heads)))
    wanted = options.only.split(",")
    for each in ARCHITECTURES:
        found = importlib.util.find_spec(each.package.partition(".")[0]) is not None
        if found and any(name in str(each) for name in wanted):
            with torch.no_grad():
                print(line(each, options.rounds, threads), flush=True)


if __name__ == "__main__":
    main()
