#!/usr/bin/env python3
"""PyTorch and these kernels side by side on one GPU: a copy, eager, torch.compile, ours.

Calls libnorm_kernels.so through its C ABI on the tensors' own memory, on PyTorch's current stream.
Prints one line for each workload, and checks all three against float64. Times are medians over
tensors that are taken in turn, so that no call finds its input in the cache:

  ms      by CUDA events around one call, as a program pays for it, launch included
  graph   by CUDA events around a replay of 16 captured calls, divided by 16: the device's time alone

Usage: compare_torch.py [--library build/release/lib/libnorm_kernels.so] [--only TEXT]
                        [--json FILE] [--no-compile] [--repetitions N]
"""

import argparse
import ctypes
import json
import math
import sys
import warnings

import torch
import torch.nn.functional as F

DTYPES = {torch.float32: 1, torch.float64: 2, torch.float16: 3, torch.bfloat16: 4}
MEAN_VARIANCE, MEAN_SQUARE, GIVEN = 0, 1, 2
ACTIVATIONS = {None: 0, "silu": 3}
GRAPH_CALLS = 16
ROTATED_BYTES = 256 << 20


class Spec(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("statistics", ctypes.c_uint8),
                ("dtype", ctypes.c_uint8), ("layout", ctypes.c_uint8),
                ("activation", ctypes.c_uint8), ("channels", ctypes.c_int64),
                ("groups", ctypes.c_int64), ("eps", ctypes.c_double),
                ("leaky_slope", ctypes.c_float), ("reserved", ctypes.c_uint32)]


class Vector(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_uint32),
                ("reserved", ctypes.c_uint32)]


class Params(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
                ("gamma", Vector), ("beta", Vector), ("mean", Vector), ("variance", Vector)]


class Segment(ctypes.Structure):
    _fields_ = [("x", ctypes.c_void_p), ("y", ctypes.c_void_p), ("samples", ctypes.c_int64),
                ("spatial", ctypes.c_int64)]


class Launch(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
                ("stream", ctypes.c_void_p), ("workspace", ctypes.c_void_p),
                ("workspace_bytes", ctypes.c_size_t), ("strategy", ctypes.c_char_p)]


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

    def prepare(self, spec, params, x, y, samples, spatial):
        """A function that enqueues the normalization of x into y; it keeps what it points to."""
        segment = Segment(x.data_ptr(), y.data_ptr(), samples, spatial)
        size = ctypes.c_size_t()
        self.check(self.lib.norm_cuda_workspace_bytes(self.device, ctypes.byref(spec),
                                                      ctypes.byref(segment), ctypes.c_size_t(1),
                                                      None, ctypes.byref(size)))
        workspace = torch.empty(max(size.value, 1), dtype=torch.uint8, device=x.device)
        launch = Launch(ctypes.sizeof(Launch), 0, None, workspace.data_ptr(), size.value, None)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.check(self.lib.norm_cuda_workspace_init(ctypes.c_void_p(workspace.data_ptr()), size,
                                                     stream))
        arguments = (self.device, ctypes.byref(spec), ctypes.byref(params), ctypes.byref(segment),
                     ctypes.c_size_t(1), ctypes.byref(launch))
        normalize, check = self.lib.norm_cuda_normalize, self.check
        current_stream = torch.cuda.current_stream

        def call():
            launch.stream = current_stream().cuda_stream
            result = normalize(*arguments)
            if result:
                check(result)

        call.keep = (segment, workspace, launch, x, y, spec, params)
        return call


class Workload:
    """One normalization: its tensors, PyTorch's function for it, and ours."""

    def __init__(self, op, shape, dtype, groups=None, activation=None, channels_last=False):
        self.op, self.shape, self.dtype = op, shape, dtype
        self.groups, self.activation, self.channels_last = groups, activation, channels_last

    @property
    def name(self):
        text = self.op + (f":{self.groups}" if self.groups else "")
        text += f"+{self.activation}" if self.activation else ""
        text += " " + str(self.dtype).replace("torch.", "")
        return text + (" last " if self.channels_last else " first ") + "x".join(
            map(str, self.shape))

    @property
    def row_norm(self):
        return self.op in ("layer_norm", "rms_norm")

    def tensors(self, count):
        for seed in range(count):
            torch.manual_seed(seed)
            x = torch.rand(self.shape, device="cuda", dtype=torch.float32).mul_(3).sub_(1)
            x = x.to(self.dtype)
            yield x.contiguous(memory_format=torch.channels_last) if self.channels_last else x

    def parameters(self):
        torch.manual_seed(1000)
        channels = math.prod(self.shape[1:]) if self.row_norm else self.shape[1]
        value = lambda low, high: torch.rand(channels, device="cuda").mul_(high - low).add_(low)
        dtype = self.dtype
        gamma, beta = value(0.5, 1.5).to(dtype), value(-0.5, 0.5).to(dtype)
        return gamma, beta, value(-0.5, 0.5).to(dtype), value(0.1, 2).to(dtype)

    def function(self, gamma, beta, mean, variance):
        """PyTorch's function of x; works in float64 too, given float64 parameters."""
        groups, size = self.groups, tuple(self.shape[1:])
        act = F.silu if self.activation == "silu" else (lambda v: v)
        return {
            "instance_norm": lambda x: act(F.instance_norm(x, weight=gamma, bias=beta)),
            "group_norm": lambda x: act(F.group_norm(x, groups, gamma, beta)),
            "layer_norm": lambda x: act(F.layer_norm(x, size, gamma.view(size), beta.view(size))),
            "rms_norm": lambda x: act(F.rms_norm(x, size, gamma.view(size), 1e-5)),
            "batch_norm": lambda x: act(F.batch_norm(x, mean, variance, gamma, beta)),
        }[self.op]

    def ours(self, library, x, y, parameters):
        samples, channels = self.shape[0], self.shape[1]
        spatial = math.prod(self.shape[2:])
        if self.row_norm:
            channels, spatial = channels * spatial, 1
        groups = {"group_norm": self.groups, "layer_norm": 1, "rms_norm": 1}.get(self.op, channels)
        statistics = {"rms_norm": MEAN_SQUARE, "batch_norm": GIVEN}.get(self.op, MEAN_VARIANCE)
        spec = Spec(ctypes.sizeof(Spec), statistics, DTYPES[self.dtype], int(self.channels_last),
                    ACTIVATIONS[self.activation], channels, groups, 1e-5, 0.0, 0)
        vector = lambda t: Vector(t.data_ptr(), DTYPES[t.dtype], 0)
        absent = Vector(None, 1, 0)
        gamma, beta, mean, variance = parameters
        given = statistics == GIVEN
        params = Params(ctypes.sizeof(Params), 0, vector(gamma),
                        absent if self.op == "rms_norm" else vector(beta),
                        vector(mean) if given else absent, vector(variance) if given else absent)
        return library.prepare(spec, params, x, y, samples, spatial)


def workloads():
    f32, f16, bf16 = torch.float32, torch.float16, torch.bfloat16
    lines = [Workload("instance_norm", (112, 64, 512, 512), f32),
             Workload("group_norm", (112, 64, 512, 512), f32, groups=8),
             Workload("batch_norm", (112, 64, 512, 512), f32)]
    for dtype in (f32, bf16):
        for shape in ((32768, 1024), (16384, 4096), (8192, 8192), (4096, 32768)):
            lines.append(Workload("layer_norm", shape, dtype))
            lines.append(Workload("rms_norm", shape, dtype))
    for shape in ((16, 512, 128, 128), (2, 320, 64, 64), (32, 256, 64, 64)):
        for last in (False, True):
            lines.append(Workload("group_norm", shape, f16, 32, "silu", last))
    lines.append(Workload("layer_norm", (16, 4194304), f32))
    for shape in ((1, 64, 512, 512), (1, 64, 56, 56), (8, 64, 56, 56), (8, 64, 32, 32)):
        lines.append(Workload("instance_norm", shape, f32))
    lines.append(Workload("group_norm", (8, 64, 32, 32), f32, 4))
    lines.append(Workload("group_norm", (8, 64, 32, 32), f32, 4, None, True))
    lines.append(Workload("batch_norm", (8, 64, 56, 56), f32))
    lines.append(Workload("layer_norm", (64, 768), f32))
    return lines


def median_ms(run, repetitions, calls=1):
    """run(i) enqueues repetition i."""
    times = []
    for i in range(repetitions + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run(i)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / calls)
    times = sorted(times[3:])
    return times[len(times) // 2]


def graph_ms(run, repetitions):
    """None where the calls cannot be captured."""
    try:
        for i in range(2):
            run(i)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(GRAPH_CALLS):
                run(i)
        return median_ms(lambda i: graph.replay(), repetitions, GRAPH_CALLS)
    except RuntimeError:
        torch.cuda.synchronize()
        return None


def error(actual, reference):
    difference = (actual.double() - reference).abs_()
    return difference.div_(reference.abs().clamp_(min=1)).max().item()


def measure(workload, library, options):
    elements = math.prod(workload.shape)
    size = elements * torch.empty((), dtype=workload.dtype).element_size()
    sets = min(16, max(1, ROTATED_BYTES // (2 * size) + 1))
    xs = list(workload.tensors(sets))
    ys = [torch.empty_like(x) for x in xs]
    parameters = workload.parameters()
    eager = workload.function(*parameters)
    calls = [workload.ours(library, x, y, parameters) for x, y in zip(xs, ys)]
    # The float64 reference of the first samples: the whole tensor would not always fit.
    few = min(workload.shape[0], max(1, (1 << 28) // max(1, elements // workload.shape[0]) // 8))
    reference = workload.function(*(p.double() for p in parameters))(xs[0][:few].double())
    ys[0].fill_(float("nan"))
    calls[0]()
    row = {"workload": workload.name, "ours_error": error(ys[0][:few], reference),
           "eager_error": error(eager(xs[0])[:few], reference)}
    runs = {"copy": lambda i: ys[i % sets].copy_(xs[i % sets]),
            "eager": lambda i: eager(xs[i % sets]),
            "ours": lambda i: calls[i % sets]()}
    if options.compile:
        torch._dynamo.reset()
        compiled = torch.compile(eager)
        row["compile_error"] = error(compiled(xs[0])[:few], reference)
        runs["compile"] = lambda i: compiled(xs[i % sets])
    del reference
    for name, run in runs.items():
        row[name + "_ms"] = median_ms(run, options.repetitions)
        if size < (64 << 20):
            row[name + "_graph_ms"] = graph_ms(run, options.repetitions)
    return row


def table_line(row):
    def cell(key):
        value = row.get(key)
        return "         -" if value is None else f"{value:10.4f}"

    names = ("copy", "eager", "compile", "ours")
    # The device's time decides where a launch costs as much as the work.
    kind = "_graph_ms" if row.get("ours_graph_ms") and row.get("copy_graph_ms") else "_ms"
    ratio = row["copy" + kind] / row["ours" + kind]
    return (f"{row['workload']:52s}" + "".join(cell(n + "_ms") for n in names) +
            "".join(cell(n + "_graph_ms") for n in names) + f" {ratio:6.3f}" +
            f" {row['eager_error']:9.1e} {row['ours_error']:9.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="build/release/lib/libnorm_kernels.so")
    parser.add_argument("--only", default="", help="keeps the lines that contain it")
    parser.add_argument("--json", help="writes the rows as a list of objects")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--repetitions", type=int, default=20)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("compare_torch: no CUDA device")
    warnings.filterwarnings("ignore")
    library = Library(options.library)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    print(f"{'workload':52s}" + "".join(f"{n:>10s}" for n in ("copy", "eager", "compile", "ours")) +
          "".join(f"{n:>10s}" for n in ("g.copy", "g.eager", "g.comp.", "g.ours")) +
          "  ratio eager err  ours err")
    rows = []
    with torch.no_grad():
        for workload in workloads():
            if options.only not in workload.name:
                continue
            try:
                rows.append(measure(workload, library, options))
                print(table_line(rows[-1]), flush=True)
            except RuntimeError as failure:
                rows.append({"workload": workload.name, "failure": str(failure)})
                print(f"{workload.name:52s} {failure}", flush=True)
            torch.cuda.empty_cache()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    if any("failure" in row for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
