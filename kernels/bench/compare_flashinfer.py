#!/usr/bin/env python3
"""FlashInfer's norm kernels and these side by side on one GPU, in bfloat16.

Compiles FlashInfer's CUDA templates with the flags of its own build and calls them, and
libnorm_kernels.so through its C ABI, on the tensors' own memory. FlashInfer's Python functions call
these templates with FLASHINFER_USE_CUDA_NORM=1; otherwise they prefer kernels in CuTe DSL, which
are not measured here.

Prints one line for each workload. Times are medians over replays of captured graphs, in
microseconds for one launch. Copy, FlashInfer and ours take turns, each over tensors of its own that
are taken in turn. The copy moves as many bytes as the workload reads and writes.

  FlashInfer          with programmatic dependent launch, which its LayerNorm does not have
  without PDL         the same kernel without it
  of copy             the copy's time divided by ours
  FlashInfer / ours   the faster of FlashInfer's two times divided by ours: above 1, ours is faster
  error               against float64. For a bfloat16 y it is the largest error in units in the last
                      place, those of 2^-10 for smaller elements; for a float8 y it is the share of
                      elements that differ from the quantized float64 result

With a residual, FlashInfer works in place and normalizes the sum before it is rounded; these
kernels normalize the rounded sum. Each is held against its own definition. The sums themselves must
be exactly those of float64, rounded. Ours writes outputs of its own; with --in-place it overwrites
its inputs as well.

FlashInfer's LayerNorm takes float32 parameters alone. Ours with bfloat16 ones stands beside its
RMSNorm, which reads no beta and takes no mean.

Usage: compare_flashinfer.py --flashinfer DIR [--library build/release/lib/libnorm_kernels.so]
                             [--nvcc PATH] [--only TEXT] [--in-place] [--repetitions N]
"""

import argparse
import ctypes
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import compare_torch
from torch_library import (DTYPES, GRAPH_CALLS, Launch, Library, Params, Spec, Vector,
                           graph_times)

EPS = 1e-5
OUTPUT_SCALE = 11 / 1024  # A float exactly, with which no y of these tensors is saturated.
FLOAT8_E4M3 = 2
MOST_SETS = 16
ROTATED_BYTES = 4 << 30
MOST_LAUNCHES = 13  # For each captured call: 208 in a graph.

SHAPES = ((1, 4096), (16, 4096), (64, 8192), (256, 4096), (1024, 5120), (4096, 4096), (8192, 7168),
          (16384, 4096))
QUANTIZED_SHAPES = ((256, 4096), (16384, 4096), (8192, 7168))
GEMMA_SHAPES = ((16, 4096), (16384, 4096))
LAYER_SHAPES = ((16, 4096), (256, 4096), (16384, 4096))

# FlashInfer's functions: the shapes to measure, and the arguments by WRAPPER's names.
FUNCTIONS = {
    "RMSNorm": (SHAPES, "x, gamma, y, rows, d, d, d, eps, pdl, stream"),
    "FusedAddRMSNorm": (SHAPES, "x, residual, gamma, rows, d, d, d, eps, pdl, stream"),
    "RMSNormQuant": (QUANTIZED_SHAPES, "x, gamma, y, rows, d, d, d, scale, eps, pdl, stream"),
    "FusedAddRMSNormQuant": (
        QUANTIZED_SHAPES, "x, residual, gamma, y, rows, d, d, d, d, scale, eps, pdl, stream"),
    "GemmaRMSNorm": (GEMMA_SHAPES, "x, gamma, y, rows, d, d, d, eps, pdl, stream"),
    "GemmaFusedAddRMSNorm": (GEMMA_SHAPES, "x, residual, gamma, rows, d, d, d, eps, pdl, stream"),
    "LayerNorm": (LAYER_SHAPES, "x, gamma, beta, y, rows, d, eps, stream"),
}
SMALL_SHAPES = SHAPES[:4]  # For LayerNorm with bfloat16 parameters.
HEADER = "flashinfer/norm.cuh"
WRAPPER = """
extern "C" int {name}(__nv_bfloat16* x, __nv_bfloat16* residual, {y_type}* y, {gamma_type}* gamma,
                      float* beta, float* scale, uint32_t rows, uint32_t d, float eps, bool pdl,
                      cudaStream_t stream) {{
  const cudaError_t error = flashinfer::norm::{name}({arguments});
  return error != cudaSuccess ? error : cudaGetLastError();
}}
"""
ARGUMENT_TYPES = (*[ctypes.c_void_p] * 6, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_float,
                  ctypes.c_bool, ctypes.c_void_p)
NVCC_FLAGS = ("-O3", "-std=c++17", "-use_fast_math", "--expt-relaxed-constexpr", "-DNDEBUG",
              "-DENABLE_BF16", "-DENABLE_FP8", "-shared", "-Xcompiler=-fPIC")


class Workload:
    """One of FlashInfer's functions, whose name says what it computes, on one shape."""

    def __init__(self, function, rows, width):
        self.function, self.rows, self.width = function, rows, width
        self.peer = self  # What FlashInfer computes.
        self.adds = "FusedAdd" in function
        self.quantizes = function.endswith("Quant")
        self.weight_offset = 1.0 if function.startswith("Gemma") else 0.0
        self.is_layer_norm = function == "LayerNorm"
        self.name = (("add + " if self.adds else "") + ("Gemma " if self.weight_offset else "") +
                     ("LayerNorm" if self.is_layer_norm else "RMSNorm") +
                     (" to float8" if self.quantizes else "") + f" {rows}x{width}")
        self.bytes_moved = rows * width * (2 + (1 if self.quantizes else 2) + 4 * self.adds)

    def parameters(self):
        """gamma and beta: float32 for LayerNorm, as FlashInfer's takes them."""
        torch.manual_seed(1000)
        gamma = uniform(self.width, 0.5, 1.5).sub_(self.weight_offset)
        if self.is_layer_norm:
            return gamma, uniform(self.width, -0.5, 0.5)
        return gamma.bfloat16(), None


class NarrowLayerNorm(Workload):
    """LayerNorm with bfloat16 parameters, beside FlashInfer's RMSNorm."""

    def __init__(self, rows, width):
        super().__init__("LayerNorm", rows, width)
        self.peer = Workload("RMSNorm", rows, width)
        self.name += ", bfloat16 parameters, beside RMSNorm"

    def parameters(self):
        return tuple(each.bfloat16() for each in super().parameters())


def uniform(shape, low, high):
    return torch.rand(shape, device="cuda").mul_(high - low).add_(low)


class Tensors:
    """The inputs and outputs of one launch; outputs of their own hold NaN."""

    def __init__(self, workload, seed, in_place):
        torch.manual_seed(seed)
        rows, width = workload.rows, workload.width
        poisoned = lambda size: torch.full((rows, width * size), 0xff, dtype=torch.uint8,
                                           device="cuda")
        self.x = uniform((rows, width), -1, 2).bfloat16()
        self.residual = self.residual_out = None
        if workload.adds:
            self.residual = uniform((rows, width), -1, 2).bfloat16()
            self.residual_out = self.residual if in_place else poisoned(2).view(torch.bfloat16)
        if workload.quantizes:
            self.y = poisoned(1).view(torch.float8_e4m3fn)
        else:
            self.y = self.x if workload.adds and in_place else poisoned(2).view(torch.bfloat16)


def address(tensor):
    return None if tensor is None else tensor.data_ptr()


def wrapper(name):
    return WRAPPER.format(name=name, arguments=FUNCTIONS[name][1],
                          y_type="__nv_fp8_e4m3" if name.endswith("Quant") else "__nv_bfloat16",
                          gamma_type="float" if name == "LayerNorm" else "__nv_bfloat16")


class FlashInfer:
    """The FUNCTIONS that FlashInfer's header has, compiled for the current device."""

    def __init__(self, include, nvcc):
        header = (Path(include) / HEADER).read_text(encoding="utf-8")
        self.functions = [name for name in FUNCTIONS
                          if re.search(rf"\bcudaError_t {name}\(", header)]
        major, minor = torch.cuda.get_device_capability()
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder) / "wrapper.cu", Path(folder) / "wrapper.so"
            source.write_text("".join(map(wrapper, self.functions)), encoding="utf-8")
            subprocess.run([nvcc, *NVCC_FLAGS, f"-arch=sm_{major}{minor}", f"-I{include}",
                            f"-include={HEADER}", "-o", library, source], check=True)
            self.lib = ctypes.CDLL(str(library))
        self.scale = torch.full((1,), OUTPUT_SCALE, device="cuda")

    def prepare(self, workload, tensors, parameters, pdl):
        """A function that enqueues the workload; the caller keeps the tensors alive."""
        function = getattr(self.lib, workload.function)
        function.argtypes = ARGUMENT_TYPES
        arguments = (tensors.x, tensors.residual, tensors.y, *parameters, self.scale)
        arguments = (*map(address, arguments), workload.rows, workload.width, EPS, pdl)

        def call():
            result = function(*arguments, torch.cuda.current_stream().cuda_stream)
            if result:
                raise RuntimeError(f"FlashInfer's {workload.function}: CUDA error {result}")

        return call


class BatchTensors(ctypes.Structure):
    """norm_tensors."""

    _fields_ = [("x", ctypes.c_void_p), ("y", ctypes.c_void_p), ("samples", ctypes.c_int64),
                ("spatial", ctypes.c_int64), ("residual", ctypes.c_void_p),
                ("residual_out", ctypes.c_void_p), ("params", ctypes.c_void_p),
                ("other_to_style_tensor", ctypes.c_void_p * 7), ("style_spatial", ctypes.c_int64),
                ("mean_out", ctypes.c_void_p), ("rstd_out", ctypes.c_void_p),
                ("scale_out", ctypes.c_void_p), ("spatial_runs", ctypes.c_int64 * 4),
                ("x_pitch", ctypes.c_int64), ("y_pitch", ctypes.c_int64)]


class Batch(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("tensors_size", ctypes.c_uint32),
                ("tensors", ctypes.POINTER(BatchTensors)), ("count", ctypes.c_size_t)]


def our_arguments(workload, tensors, parameters):
    """The spec, parameters and batch for the C ABI."""
    spec = Spec(ctypes.sizeof(Spec), compare_torch.MEAN_SQUARE, DTYPES[torch.bfloat16],
                channels=workload.width, groups=1, eps=EPS, residual=workload.adds,
                residual_out=workload.adds, weight_offset=workload.weight_offset)
    if workload.is_layer_norm:
        spec.statistics = compare_torch.MEAN_VARIANCE
    if workload.quantizes:
        spec.quantization, spec.output_scale = FLOAT8_E4M3, OUTPUT_SCALE
    gamma, beta = (Vector(address(each), DTYPES[each.dtype] if each is not None else 1, 0)
                   for each in parameters)
    params = Params(ctypes.sizeof(Params), 0, gamma, beta)
    only = BatchTensors(address(tensors.x), address(tensors.y), workload.rows, 1,
                        address(tensors.residual), address(tensors.residual_out), None)
    batch = Batch(ctypes.sizeof(Batch), ctypes.sizeof(BatchTensors), ctypes.pointer(only), 1)
    return spec, params, batch


def prepare_ours(library, workload, tensors, parameters):
    """A function that enqueues the workload; the caller keeps the tensors alive."""
    spec, params, batch = map(ctypes.byref, our_arguments(workload, tensors, parameters))
    lib, check, size = library.lib, library.check, ctypes.c_size_t()
    check(lib.norm_cuda_batch_workspace_bytes(library.device, spec, batch, None,
                                              ctypes.byref(size)))
    workspace = torch.empty(max(size.value, 1), dtype=torch.uint8, device="cuda")
    check(lib.norm_cuda_workspace_init(ctypes.c_void_p(workspace.data_ptr()), size,
                                       ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)))
    launch = Launch(ctypes.sizeof(Launch), 0, None, workspace.data_ptr(), size.value, None)

    def call():
        launch.stream = torch.cuda.current_stream().cuda_stream
        check(lib.norm_cuda_normalize_batch(library.device, spec, params, batch,
                                            ctypes.byref(launch)))

    call.keep = workspace
    return call


def reference(workload, tensors, parameters, rounds_sum):
    """In float64: x (+ residual), and y before it is rounded or quantized."""
    total = tensors.x.double()
    if workload.adds:
        total += tensors.residual.double()
    v = total.bfloat16().double() if rounds_sum else total
    if workload.is_layer_norm:
        v = v - v.mean(-1, keepdim=True)
    gamma, beta = parameters
    y = v * (v.square().mean(-1, keepdim=True) + EPS).rsqrt()
    y *= workload.weight_offset + gamma.double()
    return total, y if beta is None else y + beta.double()


def largest_ulps(y, expected):
    """The largest error in bfloat16's units in the last place."""
    magnitude = expected.abs().clamp_(min=2.0**-10)
    unit = magnitude / torch.frexp(magnitude).mantissa / 256  # A power of two, exactly.
    return ((y.double() - expected).abs_() / unit).max().item()


def differing_share(y, expected):
    quantized = (expected / OUTPUT_SCALE).clamp_(-448, 448).float().to(y.dtype)
    return (y.float() != quantized.float()).sum().item() / y.numel()


def error(workload, tensors, parameters, call, rounds_sum):
    """Calls once and returns y's error. Raises RuntimeError if y has a NaN, which it is poisoned
    with, or if residual_out is not exact."""
    total, expected = reference(workload, tensors, parameters, rounds_sum)
    call()
    if tensors.y.float().isnan().any():
        raise RuntimeError("y has elements that were not written")
    if workload.adds and not torch.equal(tensors.residual_out, total.bfloat16()):
        raise RuntimeError("residual_out is not the rounded sum")
    return (differing_share if workload.quantizes else largest_ulps)(tensors.y, expected)


def copies(size, count):
    pairs = [torch.empty((2, size), dtype=torch.uint8, device="cuda").random_()
             for _ in range(count)]
    return [lambda pair=pair: pair[0].copy_(pair[1]) for pair in pairs]


def launch_times(kinds, launches, repetitions):
    """{kind: microseconds for a launch}; a captured call makes `launches` of them."""
    def captured(calls):
        def run(i):
            for turn in range(i * launches, (i + 1) * launches):
                calls[turn % len(calls)]()
        return run

    times = graph_times({kind: captured(calls) for kind, calls in kinds.items()}, repetitions)
    if times.keys() != kinds.keys():
        raise RuntimeError(f"not captured: {', '.join(kinds.keys() - times.keys())}")
    return {kind: ms * 1e3 / launches for kind, ms in times.items()}


def measure(workload, flashinfer, library, options):
    """The times of each kind, and the errors of FlashInfer and ours."""
    turns = ROTATED_BYTES // workload.bytes_moved
    sets = range(min(MOST_SETS, turns))
    peer = workload.peer
    parameters, their_parameters = workload.parameters(), peer.parameters()
    theirs = [Tensors(peer, seed, in_place=True) for seed in sets]
    own = [Tensors(workload, seed, options.in_place) for seed in sets]
    kinds = {"copy": copies(workload.bytes_moved // 2, len(sets))}
    for kind in ("plain",) if peer.is_layer_norm else ("pdl", "plain"):
        kinds[kind] = [flashinfer.prepare(peer, each, their_parameters, kind == "pdl")
                       for each in theirs]
    kinds["ours"] = [prepare_ours(library, workload, each, parameters) for each in own]
    their_call = kinds.get("pdl", kinds["plain"])[0]
    errors = (error(peer, theirs[0], their_parameters, their_call, rounds_sum=False),
              error(workload, own[0], parameters, kinds["ours"][0], rounds_sum=True))
    launches = min(MOST_LAUNCHES, max(1, turns // GRAPH_CALLS))
    return launch_times(kinds, launches, options.repetitions), errors


COLUMNS = ("workload", "copy, us", "FlashInfer, us", "without PDL, us", "ours, us", "of copy",
           "FlashInfer / ours", "error: FlashInfer", "error: ours")


def table_line(workload, times, errors):
    cells = [f"{times[kind]:.2f}" if kind in times else "-"
             for kind in ("copy", "pdl", "plain", "ours")]
    theirs = min(times[kind] for kind in ("pdl", "plain") if kind in times)
    cells += [f"{each / times['ours']:.2f}" for each in (times["copy"], theirs)]
    cells += [f"{each:.1e}" if workload.quantizes else f"{each:.3f}" for each in errors]
    return f"| {workload.name} | {' | '.join(cells)} |"


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flashinfer", required=True, metavar="DIR",
                        help=f"the folder of its headers, which holds {HEADER}")
    parser.add_argument("--library", default="build/release/lib/libnorm_kernels.so")
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--only", default="", help="keeps the workloads that contain it")
    parser.add_argument("--in-place", action="store_true", help="ours too, with a residual")
    parser.add_argument("--repetitions", type=int, default=20)
    return parser.parse_args()


def main():
    options = parse_options()
    if not torch.cuda.is_available():
        sys.exit("compare_flashinfer: no CUDA device")
    library = Library(options.library)
    flashinfer = FlashInfer(options.flashinfer, options.nvcc)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, "
          f"medians of {options.repetitions}\n")
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}", flush=True)
    workloads = [Workload(name, *shape) for name in flashinfer.functions
                 for shape in FUNCTIONS[name][0]]
    if "RMSNorm" in flashinfer.functions:
        workloads += [NarrowLayerNorm(*shape) for shape in SMALL_SHAPES]
    failed = False
    for workload in (each for each in workloads if options.only in each.name):
        try:
            line = table_line(workload, *measure(workload, flashinfer, library, options))
        except RuntimeError as failure:
            failed, line = True, f"| {workload.name} | {failure} |"
        print(line, flush=True)
        torch.cuda.empty_cache()
    sys.exit(failed)


if __name__ == "__main__":
    main()
