#!/usr/bin/env python3
"""Writes golden.txt and golden.bin: what PyTorch computes on the CPU, for golden_test.cc.

    python3 -m venv venv && venv/bin/pip install torch numpy
    venv/bin/python tests/support/golden/make_golden.py

golden.txt has one record a line; `tensor` names bytes of golden.bin, `case` is one call, and `error`
is PyTorch float32's own distance from its float64 on a data set of WORKLOADS size, which is made of
integer hashes so that the test can make the same one.
"""

import math
import pathlib

import numpy as np
import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).resolve().parent
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
ACTIVATIONS = {
    "none": lambda v: v,
    "relu": F.relu,
    "leaky_relu": lambda v: F.leaky_relu(v, float(np.float32(0.01))),
    "silu": F.silu,
    "gelu_erf": F.gelu,
    "gelu_tanh": lambda v: F.gelu(v, approximate="tanh"),
}
EPS = 1e-5


def normalize(op, x, p, groups):
    """x is [N, C, S] or, for LayerNorm and RMSNorm, [N, C]; p holds gamma, beta, mean, variance."""
    if op == "instance_norm":
        return F.instance_norm(x, weight=p["gamma"], bias=p["beta"], eps=EPS)
    if op == "instance_norm_given":
        return F.instance_norm(x, p["mean"], p["variance"], p["gamma"], p["beta"],
                               use_input_stats=False, eps=EPS)
    if op == "group_norm":
        return F.group_norm(x, groups, p["gamma"], p["beta"], EPS)
    if op == "layer_norm":
        return F.layer_norm(x, x.shape[1:], p["gamma"], p["beta"], EPS)
    if op == "rms_norm":
        return F.rms_norm(x, x.shape[1:], p["gamma"], EPS)
    if op == "batch_norm":
        return F.batch_norm(x, p["mean"], p["variance"], p["gamma"], p["beta"], False, 0.0, EPS)
    raise ValueError(op)


class Writer:
    def __init__(self):
        self.lines = []
        self.blob = b""

    def tensor(self, name, value):
        dtype = next(k for k, v in DTYPES.items() if v == value.dtype)
        bits = value.contiguous()
        if value.dtype in (torch.float16, torch.bfloat16):
            bits = bits.view(torch.int16)
        self.lines.append(f"tensor {name} {dtype} {value.numel()} {len(self.blob)}")
        self.blob += bits.numpy().tobytes()

    def write(self):
        (HERE / "golden.bin").write_bytes(self.blob)
        (HERE / "golden.txt").write_text("\n".join(self.lines) + "\n")


def write_cases(out):
    torch.manual_seed(1)
    shapes = {"spatial": (3, 6, 3, 35), "flat": (4, 150, 1, 1)}  # N, C, groups, S
    for shape_name, (n, c, groups, s) in shapes.items():
        x64 = torch.randn(n, c, s, dtype=torch.float64) * 1.5 + 0.5
        p64 = {
            "gamma": 1 + 0.5 * torch.rand(c, dtype=torch.float64),
            "beta": torch.randn(c, dtype=torch.float64),
            "mean": torch.randn(c, dtype=torch.float64),
            "variance": 0.5 + torch.rand(c, dtype=torch.float64),
        }
        ops = ["layer_norm", "rms_norm"] if s == 1 else [
            "instance_norm", "instance_norm_given", "group_norm", "batch_norm"]
        for dtype_name, dtype in DTYPES.items():
            prefix = f"{shape_name}.{dtype_name}"
            x = x64.to(dtype)
            p = {k: v.to(dtype) for k, v in p64.items()}
            out.tensor(f"{prefix}.x", x)
            for k, v in p.items():
                out.tensor(f"{prefix}.{k}", v)
            for op in ops:
                flat = x.squeeze(-1) if s == 1 else x
                y = normalize(op, flat, p, groups)
                activations = ACTIVATIONS if op in ("batch_norm", "layer_norm") else ["none"]
                for activation in activations:
                    name = f"{prefix}.{op}.{activation}"
                    out.tensor(f"{name}.y", ACTIVATIONS[activation](y))
                    out.lines.append(f"case {name} {op} {activation} {prefix} {n} {c} {groups} {s}")


def hashed(index, stream):
    """24 uniform bits for each index: a multiplicative hash, the same in golden_test.cc."""
    v = (index.astype(np.uint64) * np.uint64(8) + np.uint64(stream)) * np.uint64(0x9E3779B97F4A7C15)
    v ^= v >> np.uint64(32)
    v *= np.uint64(0xD6E8FEB86659FD93)
    return (v >> np.uint64(40)).astype(np.float64)


def data_set(name, rows, length):
    i = np.arange(rows * length, dtype=np.uint64)
    uniform = hashed(i, 0) / 2**24
    # A sum of four uniform numbers, scaled to variance 1, stands for N(0, 1).
    normal = (sum(hashed(i, k) for k in range(4)) / 2**24 - 2) * math.sqrt(3)
    if name == "uniform":
        x = uniform
    elif name == "normal":
        x = normal
    elif name == "large_mean":
        x = 1e4 + normal
    elif name == "constant":
        x = np.full(rows * length, 3.3)
    elif name == "outlier":
        x = normal
        x[length // 3] = 1e6
    elif name == "front":  # A row that begins unlike it goes on.
        x = np.where(i % length < 100, 5 + normal, 0.7)
    return torch.from_numpy(x.astype(np.float32)).reshape(rows, length)


def write_errors(out):
    ones = {"gamma": None, "beta": None}
    for data in ("uniform", "normal", "large_mean", "constant", "outlier", "front"):
        for rows, length in ((8, 1000), (4, 4096), (2, 262144)):
            x = data_set(data, rows, length)
            for op in ("instance_norm", "group_norm", "layer_norm", "rms_norm"):
                if op in ("instance_norm", "group_norm"):
                    shaped = x.reshape(1, rows, length)
                else:
                    shaped = x
                y32 = normalize(op, shaped, ones, rows).double()
                y64 = normalize(op, shaped.double(), ones, rows)
                error = (y32 - y64).abs()
                out.lines.append(f"error {op} {data} {rows} {length} {error.max().item():.6e} "
                                 f"{error.pow(2).mean().sqrt().item():.6e}")


def main():
    torch.set_num_threads(1)
    out = Writer()
    out.lines.append(f"# PyTorch {torch.__version__}, CPU; made by make_golden.py")
    write_cases(out)
    write_errors(out)
    out.write()


if __name__ == "__main__":
    main()
