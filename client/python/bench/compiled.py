#!/usr/bin/env python3
"""Norms among pointwise operations under torch.compile: PyTorch's, normd's, and these decomposed.

    python3 bench/compiled.py [--device=cuda] [--only=rms] [--dtypes=float32,bfloat16] [--threads=1]

For each chain: the microseconds of one call, the least of rounds in which all take turns; of
eager PyTorch, of inductor with PyTorch's norm, with normd's operator, which it cannot fuse, and
with normd.torch.decompose(); and the operator's time over the decomposition's. On the CPU it is the
processor's time, on CUDA the device's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import normd.torch

Chain = Callable[..., Callable[..., Tensor]]


def chains(device: str, dtype: torch.dtype) -> Iterator[tuple[str, Chain, list[Tensor]]]:
    """(name, a function of the norms' module that makes the chain, its tensors)"""

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, dtype=dtype)

    for rows, size in ((64, 768), (8192 if device == "cuda" else 1024, 4096)):
        weight, bias = random(size), random(size)
        tensors = [random(rows, size) for _ in range(3)]

        def layer(norms: Any, size: int = size, w: Tensor = weight, b: Tensor = bias) -> Any:
            return lambda x, r, g: functional.gelu(norms.layer_norm(x + r * g, (size,), w, b)) * g

        def rms(norms: Any, size: int = size, w: Tensor = weight) -> Any:
            return lambda x, r, g: functional.silu(g) * norms.rms_norm(x + r, (size,), w, 1e-6) + r

        def alone(norms: Any, size: int = size, w: Tensor = weight) -> Any:
            return lambda x, r, g: norms.rms_norm(x, (size,), w, 1e-6)

        of_rows: dict[str, Chain] = {"layer_norm": layer, "rms_norm": rms, "rms_norm alone": alone}
        for name, chain in of_rows.items():
            yield f"{name} {rows}x{size}", chain, tensors
    shape = (16, 320, 64, 64) if device == "cuda" else (2, 320, 32, 32)
    weight, bias, mean, variance = (random(320) for _ in range(4))
    tensors = [random(*shape) for _ in range(3)]

    def group(norms: Any) -> Any:
        return lambda x, r, g: functional.silu(norms.group_norm(x + r, 32, weight, bias)) + g

    def batch(norms: Any) -> Any:
        parameters = (mean, variance.abs() + 0.5, weight, bias)
        return lambda x, r, g: functional.relu(norms.batch_norm(x, *parameters) + g)

    for name, chain in (("group_norm", group), ("batch_norm", batch)):
        yield f"{name} {'x'.join(map(str, shape))}", chain, tensors


def microseconds(call: Callable[..., Tensor], tensors: list[Tensor], calls: int) -> float:
    if tensors[0].is_cpu:
        begin = time.process_time()
        for _ in range(calls):
            call(*tensors)
        return (time.process_time() - begin) / calls * 1e6
    event: Any = torch.cuda.Event
    first, last = (event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(calls):
        call(*tensors)
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / calls * 1e3


def line(name: str, chain: Chain, tensors: list[Tensor], rounds: int) -> str:
    torch.compiler.reset()
    decompose = {"pre_grad_custom_pass": normd.torch.decompose()}
    ways = [
        chain(functional),
        torch.compile(chain(functional), fullgraph=True),
        torch.compile(chain(normd.torch), fullgraph=True),
        torch.compile(chain(normd.torch), fullgraph=True, options=decompose),
    ]
    wanted = ways[0](*tensors)
    for way in ways[1:]:
        torch.testing.assert_close(way(*tensors), wanted, atol=0.1, rtol=0.05)
    calls = max(4, round(10_000 / microseconds(ways[0], tensors, 4)))
    times = [[microseconds(way, tensors, calls) for way in ways] for _ in range(rounds)]
    least = [min(each) for each in zip(*times, strict=True)]
    return f"{name:<34}{''.join(f'{each:11.1f}' for each in least)}{least[2] / least[3]:11.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--only", default="")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(torch.__version__, options.device)
    heads = ("eager", "inductor", "operator", "decomposed", "ratio")
    print(f"{'':<34}" + "".join(f"{each:>11}" for each in heads))
    for dtype in options.dtypes.split(","):
        for name, chain, tensors in chains(options.device, getattr(torch, dtype)):
            if options.only in name:
                with torch.no_grad():
                    text = line(f"{name} {dtype}", chain, tensors, options.rounds)
                print(text, flush=True)


if __name__ == "__main__":
    main()
