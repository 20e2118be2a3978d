#!/usr/bin/env python3
"""Writes golden.txt for golden_test.cc: PyTorch float32's own distance from its float64, on the CPU.

    python3 -m venv venv && venv/bin/pip install torch numpy
    venv/bin/python tests/support/golden/make_golden.py > tests/support/golden/golden.txt

The data sets are made of integer hashes, so that the test can make the same ones.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F

EPS = 1e-5


def normalize(op, x, groups):
    """x is [N, C, S] or, for LayerNorm and RMSNorm, [N, C]."""
    if op == "instance_norm":
        return F.instance_norm(x, eps=EPS)
    if op == "group_norm":
        return F.group_norm(x, groups, eps=EPS)
    if op == "layer_norm":
        return F.layer_norm(x, x.shape[1:], eps=EPS)
    return F.rms_norm(x, x.shape[1:], eps=EPS)


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


def main():
    torch.set_num_threads(1)
    print(f"# PyTorch {torch.__version__}, CPU; made by make_golden.py")
    for data in ("uniform", "normal", "large_mean", "constant", "outlier", "front"):
        for rows, length in ((8, 1000), (4, 4096), (2, 262144)):
            x = data_set(data, rows, length)
            for op in ("instance_norm", "group_norm", "layer_norm", "rms_norm"):
                of_channels = op in ("instance_norm", "group_norm")
                shaped = x.reshape(1, rows, length) if of_channels else x
                error = (normalize(op, shaped, rows).double() -
                         normalize(op, shaped.double(), rows)).abs()
                print(f"{op} {data} {rows} {length} {error.max().item():.6e} "
                      f"{error.pow(2).mean().sqrt().item():.6e}")


if __name__ == "__main__":
    main()
