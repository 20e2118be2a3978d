#!/usr/bin/env python3
"""PyTorch and these kernels side by side on one GPU: a copy, eager, torch.compile, ours.

Calls libnorm_kernels.so through its C ABI on the tensors' own memory, on PyTorch's current stream.
Prints one line for each workload, and checks all three against float64. The four take turns, over
up to 16 tensors and results that are taken in turn: of 2 MiB and more, none is found in the cache.
Compilation and first calls are left out. Medians, in ms:

  copy, eager, compile, ours   CUDA events around 8 calls, by 8: what a program pays, which waits
                               for its launches where the tensor is small
  g.copy and so on             around a replay of 16 captured calls, by 16: the device's time alone,
                               for tensors under 1 GiB
  /copy, /eager, /comp.        how often ours runs meanwhile; of eager and torch.compile the worse
                               of both ways

The last lines are the seeds' fused layer: see compare_torch_linear.py. All take about 100 s, most
of it torch.compile's; --lines takes some.

Usage: compare_torch.py [--library build/release/lib/libnorm_kernels.so] [--only TEXT]
                        [--lines 1-12] [--list] [--json FILE] [--no-compile] [--mode MODE]
                        [--repetitions N]
"""

import argparse
import ctypes
import json
import math
import sys
import warnings

import torch
import torch.nn.functional as F

import compare_torch_linear
from torch_library import (DTYPES, Launch, Library, Params, Spec, Vector, call_times,
                           graph_times)


class Segment(ctypes.Structure):
    _fields_ = [("x", ctypes.c_void_p), ("y", ctypes.c_void_p), ("samples", ctypes.c_int64),
                ("spatial", ctypes.c_int64)]


MEAN_VARIANCE, MEAN_SQUARE, GIVEN = 0, 1, 2
ACTIVATIONS = {None: 0, "silu": 3}
ROTATED_BYTES = 256 << 20
CALLS = 8  # Per sample.


def prepare(library, spec, params, x, y, samples, spatial):
    """A function that enqueues the normalization of x into y; it keeps what it points to."""
    segment = Segment(x.data_ptr(), y.data_ptr(), samples, spatial)
    size = ctypes.c_size_t()
    library.check(library.lib.norm_cuda_workspace_bytes(
        library.device, ctypes.byref(spec), ctypes.byref(segment), ctypes.c_size_t(1), None,
        ctypes.byref(size)))
    workspace = torch.empty(max(size.value, 1), dtype=torch.uint8, device=x.device)
    launch = Launch(ctypes.sizeof(Launch), 0, None, workspace.data_ptr(), size.value, None)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    library.check(library.lib.norm_cuda_workspace_init(ctypes.c_void_p(workspace.data_ptr()), size,
                                                       stream))
    arguments = (library.device, ctypes.byref(spec), ctypes.byref(params), ctypes.byref(segment),
                 ctypes.c_size_t(1), ctypes.byref(launch))
    normalize, check = library.lib.norm_cuda_normalize, library.check
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

    def __init__(self, op, shape, dtype, groups=None, activation=None, channels_last=False,
                 affine=True):
        self.op, self.shape, self.dtype, self.affine = op, shape, dtype, affine
        self.groups, self.activation, self.channels_last = groups, activation, channels_last

    @property
    def name(self):
        text = self.op + (f":{self.groups}" if self.groups else "")
        text += f"+{self.activation}" if self.activation else ""
        text += "" if self.affine else " plain"
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
        if not self.affine:
            gamma = beta = None
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
        params = Params(ctypes.sizeof(Params), 0, vector(gamma) if self.affine else absent,
                        vector(beta) if self.affine and self.op != "rms_norm" else absent,
                        vector(mean) if given else absent, vector(variance) if given else absent)
        return prepare(library, spec, params, x, y, samples, spatial)


def workloads():
    f32, f16, bf16 = torch.float32, torch.float16, torch.bfloat16
    lines = [Workload("instance_norm", (112, 64, 512, 512), f32),
             Workload("instance_norm", (112, 64, 512, 512), f32, affine=False),
             Workload("group_norm", (112, 64, 512, 512), f32, groups=8),
             Workload("batch_norm", (112, 64, 512, 512), f32)]
    for dtype in (f32, bf16):
        for shape in ((32768, 1024), (16384, 4096), (8192, 8192), (4096, 32768)):
            lines.append(Workload("layer_norm", shape, dtype))
            lines.append(Workload("rms_norm", shape, dtype))
    lines.append(Workload("layer_norm", (16384, 4096), f16))
    lines.append(Workload("layer_norm", (16384, 4097), f32))
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


# The seeds' third layer: compare_torch_linear.py has the other numbers of samples.
LINEAR_LINES = (("float32", torch.float32, 1024), ("tf32", torch.float32, 1024),
                ("bf16", torch.bfloat16, 1024))


def error(actual, reference):
    difference = (actual.double() - reference).abs_()
    return difference.div_(reference.abs().clamp_(min=1)).max().item()


def in_turn(function, xs):
    """A call for each of xs in turn, whose result lives until its next turn, as ours do.

    Memory that is freed at once would be the next result's too, and stay in the cache.
    """
    results = [None] * len(xs)

    def run(i):
        results[i % len(xs)] = function(xs[i % len(xs)])

    return run if len(xs) > 1 else lambda i: function(xs[0])


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
    if any(part.isnan().any().item() for part in ys[0].split(few)):
        raise RuntimeError("the result has elements that were not written")
    row = {"workload": workload.name, "ours_error": error(ys[0][:few], reference),
           "eager_error": error(eager(xs[0])[:few], reference)}
    runs = {"copy": lambda i: ys[i % sets].copy_(xs[i % sets]),
            "eager": in_turn(eager, xs),
            "ours": lambda i: calls[i % sets]()}
    if options.compile:
        torch._dynamo.reset()
        compiled = torch.compile(eager, mode=options.mode)
        row["compile_error"] = error(compiled(xs[0])[:few], reference)
        runs["compile"] = in_turn(compiled, xs)
    del reference
    repetitions = options.repetitions if size < (1 << 30) else options.repetitions // 4 + 1
    times = call_times(runs, repetitions, CALLS)
    row.update((name + "_ms", ms) for name, ms in times.items())
    if size < (1 << 30):
        times = graph_times(runs, options.repetitions)
        row.update((name + "_graph_ms", ms) for name, ms in times.items())
    for name in ("copy", "eager", "compile"):
        row["times_" + name] = speed(row, name)
    return row


def speed(row, name):
    """How often ours runs in the time of the other.

    Where calls were also replayed, the worse of both ways, and of a copy the replayed alone: a
    launch costs as much as its work there.
    """
    ratios = {kind: row[name + kind] / row["ours" + kind] for kind in ("_ms", "_graph_ms")
              if row.get(name + kind) and row.get("ours" + kind)}
    if name == "copy" and "_graph_ms" in ratios:
        return ratios["_graph_ms"]
    return min(ratios.values(), default=None)


NAMES = ("copy", "eager", "compile", "ours")


def header():
    return (f"{'workload':50s}" + "".join(f"{n:>9s}" for n in NAMES) +
            "".join(f"{n:>9s}" for n in ("g.copy", "g.eager", "g.comp.", "g.ours")) +
            "  /copy /eager /comp. eager err ours err")


def table_line(row):
    def cell(key, form, width):
        value = row.get(key)
        return "-".rjust(width) if value is None else format(value, form).rjust(width)

    return (f"{row['workload']:50s}" + "".join(cell(n + "_ms", ".4f", 9) for n in NAMES) +
            "".join(cell(n + "_graph_ms", ".4f", 9) for n in NAMES) +
            "".join(cell("times_" + n, ".2f", 7) for n in NAMES[:3]) +
            cell("eager_error", ".1e", 10) + cell("ours_error", ".1e", 9))


def parse_lines(text):
    """"3-8" as range(2, 8)."""
    first, _, last = text.partition("-")
    return range(int(first) - 1, int(last or first))


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="build/release/lib/libnorm_kernels.so")
    parser.add_argument("--only", default="", help="keeps the lines that contain it")
    parser.add_argument("--lines", type=parse_lines, default=range(1000),
                        help="keeps those from one number to another, such as 1-12")
    parser.add_argument("--list", action="store_true", help="prints the lines' names")
    parser.add_argument("--json", help="writes the rows as a list of objects")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--mode", help="torch.compile's, such as max-autotune-no-cudagraphs")
    parser.add_argument("--repetitions", type=int, default=20)
    return parser.parse_args()


def main():
    options = parse_options()
    lines = [(workload.name, workload) for workload in workloads()]
    lines += [(f"fused_linear {line[0]} {line[2]}", line) for line in LINEAR_LINES]
    lines = [(i, name, line) for i, (name, line) in enumerate(lines)
             if i in options.lines and options.only in name]
    if options.list:
        for i, name, _ in lines:
            print(i + 1, name)
        return
    if not torch.cuda.is_available():
        sys.exit("compare_torch: no CUDA device")
    warnings.filterwarnings("ignore")
    library = Library(options.library)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    print(header())
    rows = []
    with torch.no_grad():
        for _, _, workload in lines:
            if not isinstance(workload, Workload):
                continue
            try:
                rows.append(measure(workload, library, options))
                print(table_line(rows[-1]), flush=True)
            except RuntimeError as failure:
                rows.append({"workload": workload.name, "failure": str(failure)})
                print(f"{workload.name:50s} {failure}", flush=True)
            torch.cuda.empty_cache()
        linear = [line for _, _, line in lines if not isinstance(line, Workload)]
        rows += compare_torch_linear.compare(library, linear, options)
    slower = [row["workload"] for row in rows
              if any((row.get("times_" + n) or 9) < 1 for n in ("eager", "compile"))]
    print(f"{len(rows)} lines; slower than eager or torch.compile: {', '.join(slower) or 'none'}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    if any("failure" in row for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
