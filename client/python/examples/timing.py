"""Times of several ways to compute the same, in turns, so that all see the same machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch


def milliseconds(
    call: Callable[[], object],
    device: str,
    calls: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """The time of one of `calls` consecutive calls, by the clock; on CUDA the device's time."""
    if device == "cpu":
        begin = clock()
        for _ in range(calls):
            call()
        return (clock() - begin) / calls * 1e3
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(calls):
        call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / calls


def medians(
    runs: Mapping[str, Callable[[], object]],
    device: str,
    rounds: int = 15,
    calls: int = 4,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """The median of each run's milliseconds, over rounds in which all take a turn."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 2):
        for name, run in runs.items():
            taken = milliseconds(run, device, calls, clock)
            if turn >= 2:  # The first calls compile and allocate.
                times[name].append(taken)
    return {name: statistics.median(values) for name, values in times.items()}


def table(title: str, times: Mapping[str, float], error: float) -> None:
    """Prints the times, each also as a multiple of the first."""
    first = next(iter(times.values()))
    print(f"{title}: largest difference {error:.1e}")
    for name, value in times.items():
        print(f"  {name:<28} {value:9.4f} ms  {first / value:5.2f} times as fast as the first")
