#!/usr/bin/env python3
"""Norms among pointwise operations under torch.compile: PyTorch's and normd's operators.

    python3 bench/compiled.py [--device=cuda] [--only=rms] [--dtypes=float32,bfloat16] [--threads=1]

For each chain: the milliseconds of eager PyTorch, of inductor with PyTorch's norm, which it fuses
with what is around it, and with normd's operator, which it cannot; medians of rounds in which all
take turns; and the operator's time over inductor's. normd's layers choose by this
(normd/torch/_decompositions.py).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, relu, silu

import normd.torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from timing import medians  # type: ignore[import-not-found]

# Each takes the module with the norms, three tensors of one shape, and two parameters.
CHAINS: dict[str, Callable[..., Tensor]] = {
    "layer_norm": lambda f, x, r, g, w, b: gelu(f.layer_norm(x + r * g, (len(w),), w, b)) * g,
    "rms_norm": lambda f, x, r, g, w, b: silu(g) * f.rms_norm(x + r, (len(w),), w, 1e-6) + r,
    "rms_norm alone": lambda f, x, r, g, w, b: f.rms_norm(x, (len(w),), w, 1e-6),
    "group_norm": lambda f, x, r, g, w, b: silu(f.group_norm(x + r, 32, w, b)) + g,
    "group_norm alone": lambda f, x, r, g, w, b: silu(f.group_norm(x, 32, w, b)),
    "instance_norm": lambda f, x, r, g, w, b: relu(f.instance_norm(x)) + r,
    "batch_norm": lambda f, x, r, g, w, b: relu(f.batch_norm(x, b, w, w, b) + g),
}


def line(name: str, shape: tuple[int, ...], device: str, dtype: torch.dtype) -> str:
    torch.compiler.reset()
    tensors = [torch.randn(shape, device=device, dtype=dtype) for _ in range(3)]
    size = shape[1]
    weight = torch.rand(size, device=device, dtype=dtype) + 0.5
    tensors += [weight, torch.randn(size, device=device, dtype=dtype)]

    def chain(module: Any) -> Callable[..., Tensor]:
        return lambda *tensors: CHAINS[name](module, *tensors)

    functional, ours = chain(torch.nn.functional), chain(normd.torch)
    ways = {
        "eager": functional,
        "inductor": torch.compile(functional, fullgraph=True),
        "operator": torch.compile(ours, fullgraph=True),
    }
    for way in ways.values():
        torch.testing.assert_close(way(*tensors), functional(*tensors), atol=0.1, rtol=0.05)
    runs = {each: lambda way=way: way(*tensors) for each, way in ways.items()}
    times = list(medians(runs, device, calls=20).values())
    title = f"{name} {'x'.join(map(str, shape))} {dtype}".replace("torch.", "")
    return f"{title:<40}{''.join(f'{each:11.4f}' for each in times)}{times[2] / times[1]:8.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--only", default="")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sides", type=int, nargs="+", default=[16, 32, 64])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    scale = 8 if options.device == "cuda" else 1
    rows = [(64, 768), (1024 * scale, 4096)]
    images = [(2 * scale, 320, side, side) for side in options.sides]
    heads = ("eager", "inductor", "operator")
    print(f"{torch.__version__:<40}{''.join(f'{each:>11}' for each in heads)}{'ratio':>8}")
    for dtype in options.dtypes.split(","):
        for name in CHAINS:
            for shape in rows if name.startswith(("layer", "rms")) else images:
                if options.only in name:
                    with torch.no_grad():
                        print(line(name, shape, options.device, getattr(torch, dtype)), flush=True)


if __name__ == "__main__":
    main()
