#!/usr/bin/env python3
"""The fused layer beside PyTorch on one GPU: linear, instance norm over features, (z + y) * y.

One line for each precision and number of samples: milliseconds of

  copy    a copy of x, y and the result's memory on the device, once each
  gemm    PyTorch's matrix product alone, in the same precision
  eager   PyTorch's layer; compile: the same under torch.compile
  ours    these kernels, through libnorm_kernels.so

by CUDA events around one call, which also wait for Python, each in turn; around one call that was
enqueued as a whole before it began, each in turn after a pause (c., cool); and around replays of
captured calls in long turns without a pause (h., hot: large products meet the chip's power limit,
and its clock sinks). Medians. Errors are ||out - reference|| / ||reference|| and the largest
difference, against float64, of eager and of ours. "bits" says whether seven samples alone have the
bits that they have in the batch.

Usage: compare_torch_linear.py [--library build/release/lib/libnorm_kernels.so] [--only TEXT]
                               [--features 8192] [--samples 1,2,7,16,64,256,1024] [--tile NAME]
                               [--json FILE] [--no-compile] [--mode MODE]
                               [--repetitions N]
"""

import argparse
import ctypes
import json
import sys
import warnings

import torch

from torch_library import DTYPES, Launch, Library, Vector, call_times, cool_times, graph_times

PRECISIONS = {"float32": 0, "tf32": 1, "bf16": 2, "float32_strict": 3}
# Precision, type of x, y and the result.
LINES = (("float32", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16),
         ("tf32", torch.float16), ("float32", torch.float16), ("float32_strict", torch.float32))
CHECKED_SAMPLES = 64
PAUSE_SECONDS = 0.005  # Before a call: none begins on a chip that another has heated.
HOT_SECONDS = 0.15  # Per turn.
HOT_SAMPLES = 256  # Fewer leave the power limit alone: short turns.


class Spec(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("dtype", ctypes.c_uint8),
                ("precision", ctypes.c_uint8), ("activation", ctypes.c_uint8),
                ("add", ctypes.c_uint8), ("in_features", ctypes.c_int64),
                ("out_features", ctypes.c_int64), ("eps", ctypes.c_double),
                ("leaky_slope", ctypes.c_float), ("multiply", ctypes.c_uint8),
                ("reserved", ctypes.c_uint8 * 3)]


class Params(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
                ("weight", Vector), ("bias", Vector)]


class Segment(ctypes.Structure):
    _fields_ = [("x", ctypes.c_void_p), ("y", ctypes.c_void_p), ("out", ctypes.c_void_p),
                ("samples", ctypes.c_int64)]


class Layer:
    """Weights prepared for one precision and type."""

    def __init__(self, library, weight, bias, dtype, precision, tile):
        self.library, self.dtype = library, dtype
        self.tile = tile.encode() if tile else None
        self.spec = Spec(ctypes.sizeof(Spec), DTYPES[dtype], PRECISIONS[precision], 0, 1,
                         weight.shape[1], weight.shape[0], 1e-5, 0.0, 1)
        vector = lambda t: Vector(t.data_ptr(), DTYPES[t.dtype], 0)
        params = Params(ctypes.sizeof(Params), 0, vector(weight), vector(bias))
        size = ctypes.c_size_t()
        lib, check = library.lib, library.check
        check(lib.norm_cuda_linear_weight_bytes(library.device, ctypes.byref(self.spec),
                                                ctypes.byref(size)))
        self.prepared = torch.empty(size.value, dtype=torch.uint8, device="cuda")
        check(lib.norm_cuda_linear_prepare(
            library.device, ctypes.byref(self.spec), ctypes.byref(params),
            ctypes.c_void_p(self.prepared.data_ptr()), size,
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)))
        torch.cuda.synchronize()

    def call(self, x, y, out):
        """A function that enqueues the layer; it keeps what it points to."""
        lib, check = self.library.lib, self.library.check
        size = ctypes.c_size_t()
        check(lib.norm_cuda_linear_workspace_bytes(
            self.library.device, ctypes.byref(self.spec), ctypes.c_int64(x.shape[0]), self.tile,
            ctypes.byref(size)))
        workspace = torch.empty(size.value, dtype=torch.uint8, device="cuda")
        segment = Segment(x.data_ptr(), y.data_ptr(), out.data_ptr(), x.shape[0])
        launch = Launch(ctypes.sizeof(Launch), 0, None, workspace.data_ptr(), size.value, self.tile)
        arguments = (self.library.device, ctypes.byref(self.spec),
                     ctypes.c_void_p(self.prepared.data_ptr()), ctypes.byref(segment),
                     ctypes.c_size_t(1), ctypes.byref(launch))

        def run():
            launch.stream = torch.cuda.current_stream().cuda_stream
            result = lib.norm_cuda_linear_norm(*arguments)
            if result:
                check(result)

        run.keep = (workspace, segment, launch, x, y, out, self)
        return run


def torch_layer(x, y, weight, bias):
    z = torch.nn.functional.linear(x, weight, bias)
    n = torch.nn.functional.instance_norm(z.unsqueeze(0), eps=1e-5).squeeze(0)
    return (n + y) * y


def errors(actual, reference):
    difference = actual.double() - reference
    return (difference.norm() / reference.norm()).item(), difference.abs().max().item()


def reference_of(x, y, weight, bias):
    z = x.double() @ weight.double().t() + bias.double()
    mean, variance = z.mean(1, keepdim=True), z.var(1, unbiased=False, keepdim=True)
    return ((z - mean) / torch.sqrt(variance + 1e-5) + y.double()) * y.double()


def measure(library, weight, bias, dtype, precision, samples, tile, options):
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.manual_seed(samples)
    features_out, features_in = weight.shape
    x = torch.rand(samples, features_in, device="cuda").to(dtype)
    y = torch.rand(samples, features_out, device="cuda").to(dtype)
    out = torch.full_like(y, float("nan"))
    w, b = weight.to(dtype), bias.to(dtype)  # Both compute with the same parameters.
    layer = Layer(library, w, b, dtype, precision, tile)
    ours = layer.call(x, y, out)
    ours()
    few = torch.full_like(out[:7], float("nan"))
    layer.call(x[:7], y[:7], few)()
    checked = slice(0, CHECKED_SAMPLES)
    reference = reference_of(x[checked], y[checked], w, b)
    z = torch.empty_like(y)
    to = [torch.empty_like(t) for t in (x, y, out)]
    runs = {"copy": lambda i: [a.copy_(t) for a, t in zip(to, (x, y, out))],
            "gemm": lambda i: torch.mm(x, w.t(), out=z),
            "eager": lambda i: torch_layer(x, y, w, b),
            "ours": lambda i: ours()}
    type_name = str(dtype).replace("torch.", "")
    row = {"workload": f"fused_linear {precision} {type_name} {samples}",
           "precision": precision, "dtype": type_name, "samples": samples,
           "bits": torch.equal(few.view(torch.uint8), out[:7].view(torch.uint8))}
    row["ours_relative"], row["ours_max"] = errors(out[checked], reference)
    row["eager_relative"], row["eager_max"] = errors(torch_layer(x, y, w, b)[checked],
                                                        reference)
    if options.compile:
        torch._dynamo.reset()
        compiled = torch.compile(torch_layer, mode=options.mode)
        compiled(x, y, w, b)
        runs["compile"] = lambda i: compiled(x, y, w, b)
    for kind, times in (("_ms", call_times(runs, options.repetitions)),
                        ("_cool_ms", cool_times(runs, options.repetitions, PAUSE_SECONDS)),
                        ("_hot_ms", graph_times(runs, options.repetitions,
                                                HOT_SECONDS if samples >= HOT_SAMPLES else 0))):
        row.update((name + kind, ms) for name, ms in times.items())
    kinds = ("_ms", "_cool_ms", "_hot_ms")
    for name in ("eager", "compile"):
        row["times_" + name] = min((row[name + kind] / row["ours" + kind]
                                    for kind in kinds if name + kind in row), default=None)
    operations = 2.0 * samples * features_in * features_out
    row["ours_tflops"] = operations / row["ours_cool_ms"] / 1e9
    return row


COLUMNS = [("copy", "_hot_ms")] + [(name, kind) for kind in ("_ms", "_cool_ms", "_hot_ms")
                                   for name in ("gemm", "eager", "compile", "ours")]


def table_line(row):
    def cell(key):
        value = row.get(key)
        return "        -" if value is None else f"{value:9.4f}"

    return (f"{row['precision']:15s}{row['dtype']:9s}{row['samples']:6d}" +
            "".join(cell(n + kind) for n, kind in COLUMNS) +
            f"{row['ours_tflops']:8.1f}  {row['eager_relative']:7.1e} {row['ours_relative']:7.1e}" +
            f"  {row['eager_max']:7.1e} {row['ours_max']:7.1e}" +
            ("  same" if row["bits"] else "  DIFFER"))


def compare(library, lines, options, features=8192, tile=None):
    """Prints a table of (precision, type, samples), and returns its rows."""
    if not lines:
        return []
    torch.manual_seed(0)
    linear = torch.nn.Linear(features, features).cuda()
    weight, bias = linear.weight.detach(), linear.bias.detach()
    print(f"fused layer, {features} -> {features}")
    prefixes = {"_ms": "", "_cool_ms": "c.", "_hot_ms": "h."}
    print(f"{'precision':15s}{'dtype':9s}{'B':>6s}" +
          "".join(f"{prefixes[kind] + name[:5]:>9s}" for name, kind in COLUMNS) +
          "  TFLOPS  rel.eager   ours  max eager    ours  bits")
    rows = []
    for precision, dtype, samples in lines:
        rows.append(measure(library, weight, bias, dtype, precision, samples, tile, options))
        print(table_line(rows[-1]), flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="build/release/lib/libnorm_kernels.so")
    parser.add_argument("--only", default="", help="keeps the lines that contain it")
    parser.add_argument("--features", type=int, default=8192)
    parser.add_argument("--samples", default="1,2,7,16,64,256,1024")
    parser.add_argument("--tile", help="auto, narrow32, wide: see kernels/cuda/linear/linear_plan.h")
    parser.add_argument("--json", help="writes the rows as a list of objects")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--mode", help="torch.compile's, such as max-autotune-no-cudagraphs")
    parser.add_argument("--repetitions", type=int, default=20)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("compare_torch_linear: no CUDA device")
    warnings.filterwarnings("ignore")
    library = Library(options.library)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    lines = [(precision, dtype, int(samples)) for precision, dtype in LINES
             for samples in options.samples.split(",")
             if options.only in f"{precision} {dtype} {samples}"]
    with torch.no_grad():
        rows = compare(library, lines, options, options.features, options.tile)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    if not all(row["bits"] for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
