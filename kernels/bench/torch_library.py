"""What both comparisons with PyTorch share: libnorm_kernels.so, and times taken in turn."""

import ctypes
import time

import torch

DTYPES = {torch.float32: 1, torch.float64: 2, torch.float16: 3, torch.bfloat16: 4}
GRAPH_CALLS = 16
HOT_TURNS = 4
SKIPPED = 3  # First calls, which allocate and load.
# The device waits for this long, until all kernels of a call are enqueued.
QUEUED_CYCLES = 2_000_000


class Vector(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_uint32),
                ("reserved", ctypes.c_uint32)]


class Spec(ctypes.Structure):
    """norm_spec."""

    _fields_ = [("struct_size", ctypes.c_uint32), ("statistics", ctypes.c_uint8),
                ("dtype", ctypes.c_uint8), ("layout", ctypes.c_uint8),
                ("activation", ctypes.c_uint8), ("channels", ctypes.c_int64),
                ("groups", ctypes.c_int64), ("eps", ctypes.c_double),
                ("leaky_slope", ctypes.c_double), ("residual", ctypes.c_uint8),
                ("residual_out", ctypes.c_uint8), ("gate_to_combine_output", ctypes.c_uint8 * 7),
                ("quantization", ctypes.c_uint8), ("quantization_scale", ctypes.c_uint8),
                ("reserved", ctypes.c_uint8 * 5), ("styles", ctypes.c_int64),
                ("weight_offset", ctypes.c_double), ("scale_offset", ctypes.c_double),
                ("output_scale", ctypes.c_double), ("channel_runs", ctypes.c_int64 * 4)]


class Params(ctypes.Structure):
    """norm_params."""

    _fields_ = [("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
                ("gamma", Vector), ("beta", Vector), ("mean", Vector), ("variance", Vector),
                ("input_bias", Vector)]


class Launch(ctypes.Structure):
    """norm_cuda_launch."""

    _fields_ = [("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
                ("stream", ctypes.c_void_p), ("workspace", ctypes.c_void_p),
                ("workspace_bytes", ctypes.c_size_t), ("strategy", ctypes.c_char_p),
                ("new_workspace", ctypes.c_uint32), ("reserved2", ctypes.c_uint32)]


class Library:
    """libnorm_kernels.so and one CUDA device of it."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.norm_last_error.restype = ctypes.c_char_p
        self.device = ctypes.c_void_p()
        self.check(self.lib.norm_cuda_device_open(torch.cuda.current_device(),
                                                  ctypes.byref(self.device)))

    def check(self, result):
        if result != 0:
            raise RuntimeError(self.lib.norm_last_error().decode())


def _milliseconds(run, calls):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls


def _median(times):
    return sorted(times)[len(times) // 2]


def call_times(runs, repetitions, calls=1):
    """Medians of one of `calls` calls behind one another, of each kind in turn; run(i) is call i.

    The first call after another kind's pays for what that one left in the L2 cache to be written.
    """
    times = {name: [] for name in runs}
    for repetition in range(repetitions + SKIPPED):
        for name, run in runs.items():
            def enqueue():
                for i in range(calls):
                    run(repetition * calls + i)
            times[name].append(_milliseconds(enqueue, calls))
    return {name: _median(values[SKIPPED:]) for name, values in times.items()}


def cool_times(runs, repetitions, pause):
    """Medians of a single call, the device's time alone, each after a pause."""
    times = {name: [] for name in runs}
    for i in range(repetitions + SKIPPED):
        for name, run in runs.items():
            time.sleep(pause)
            torch.cuda._sleep(QUEUED_CYCLES)
            times[name].append(_milliseconds(lambda: run(i), 1))
    return {name: _median(values[SKIPPED:]) for name, values in times.items()}


def _capture(run):
    try:
        for i in range(2):
            run(i)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(GRAPH_CALLS):
                run(i)
        return graph
    except RuntimeError:
        torch.cuda.synchronize()
        return None


def graph_times(runs, repetitions, seconds=0.0):
    """Medians of a call in replays of captured calls: the device's time alone.

    Replays take turns; with `seconds`, each turn lasts so long, its later half counts, and the
    first round does not: a chip at its power limit then has the clock that this work leaves it,
    whatever came before. Calls that cannot be captured are missing.
    """
    graphs = {name: graph for name, run in runs.items() if (graph := _capture(run))}
    times = {name: [] for name in graphs}
    if seconds:
        for turn in range(HOT_TURNS):
            for name, graph in graphs.items():
                turn_times, end = [], time.monotonic() + seconds
                while time.monotonic() < end:
                    turn_times.append(_milliseconds(graph.replay, GRAPH_CALLS))
                if turn > 0:
                    times[name] += turn_times[len(turn_times) // 2:]
        return {name: _median(values) for name, values in times.items()}
    for _ in range(repetitions + SKIPPED):
        for name, graph in graphs.items():
            times[name].append(_milliseconds(graph.replay, GRAPH_CALLS))
    return {name: _median(values[SKIPPED:]) for name, values in times.items()}
