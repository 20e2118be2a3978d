#!/usr/bin/env python3
"""Compares Model and ModelNew of the files in kernelbench/ as KernelBench does, and times them.

    python3 examples/kernelbench_run.py [--device=cuda] [--batch=N] [FILE...]

Both models are made after the same seed. A copy of the first input is the limit of what reads and
writes a tensor once. --batch takes fewer samples than the problem's own, for a machine with less
memory.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from types import ModuleType

import torch
from timing import medians, table

FOLDER = Path(__file__).parent / "kernelbench"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(problem: ModuleType, name: str, device: str, compiled: bool) -> None:
    models = []
    for kind in (problem.Model, problem.ModelNew):
        torch.manual_seed(42)
        models.append(kind(*problem.get_init_inputs()).to(device))
    with torch.device(device):
        inputs = problem.get_inputs()
    theirs, ours = models
    if isinstance(getattr(ours, "layer", None), torch.nn.Module):
        ours.layer.prepare()
    expected, result = theirs(*inputs), ours(*inputs)
    error = (result - expected).abs().max().item()
    assert torch.allclose(result, expected, rtol=1e-4, atol=1e-4), error
    target = torch.empty_like(inputs[0])
    runs = {"eager": lambda: theirs(*inputs), "normd.torch": lambda: ours(*inputs)}
    if compiled:
        fast = torch.compile(theirs)
        runs["torch.compile"] = lambda: fast(*inputs)
    runs["copy of the first input"] = lambda: target.copy_(inputs[0])
    calls, rounds = (4, 15) if device == "cuda" else (1, 5)
    table(name, medians(runs, device, rounds, calls), error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    for path in options.files or sorted(FOLDER.glob("*.py")):
        problem = load(path)
        if options.batch:
            problem.batch_size = options.batch
        with torch.no_grad():
            run(problem, path.stem, options.device, options.compile)
        if options.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
