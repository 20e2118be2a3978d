#!/usr/bin/env python3
"""Writes the parameters of the demo models: <model>/1/params.safetensors, beside this script.

The configs (<model>/config.textproto) are written by hand. The parameters are pseudo-random, far
from gamma = 1 and beta = 0, and the same on every machine: the generator is MT19937 seeded by the
model's name, and every value is one multiplication and one addition of its output.

  make_models.py           writes the files
  make_models.py --check   compares them with what it would write; exit code 1 if they differ
"""

import argparse
import json
import pathlib
import random
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent


def to_bfloat16(value):
    """Rounds a float to bfloat16, nearest even; finite values only."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    bits += 0x7FFF + ((bits >> 16) & 1)
    return struct.pack("<H", bits >> 16)


ENCODERS = {
    "F64": (8, lambda value: struct.pack("<d", value)),
    "I64": (8, lambda value: struct.pack("<q", value)),
    "F32": (4, lambda value: struct.pack("<f", value)),
    "F16": (2, lambda value: struct.pack("<e", value)),
    "BF16": (2, to_bfloat16),
}


class Values:
    """Draws the parameters of one model, in the order in which they are asked for."""

    def __init__(self, seed):
        self._random = random.Random(seed)

    def uniform(self, dtype, shape, low, high):
        count = 1
        for dimension in shape:
            count *= dimension
        return dtype, shape, [low + (high - low) * self._random.random() for _ in range(count)]

    def gamma(self, dtype, *shape):
        return self.uniform(dtype, shape, 0.5, 1.5)

    def beta(self, dtype, *shape):
        return self.uniform(dtype, shape, -0.5, 0.5)

    def mean(self, dtype, *shape):
        return self.uniform(dtype, shape, 0.25, 0.75)

    def variance(self, dtype, *shape):
        return self.uniform(dtype, shape, 0.05, 0.15)


def channels(dtype, *shape):
    """The gamma and beta of a norm."""
    return lambda v: {"weight": v.gamma(dtype, *shape), "bias": v.beta(dtype, *shape)}


def running(dtype):
    """Those of 64 channels, with statistics of this type."""
    return lambda v: channels("F32", 64)(v) | {
        "running_mean": v.mean(dtype, 64), "running_var": v.variance(dtype, 64),
        "num_batches_tracked": ("I64", (), [1000])}


def gamma_4096(v):
    return {"weight": v.gamma("BF16", 4096)}


def fused_linear_512(v):
    # As torch.nn.Linear initializes them: uniform in +-1 / sqrt(in_features).
    bound = 512 ** -0.5
    return {"linear.weight": v.uniform("BF16", (512, 512), -bound, bound),
            "linear.bias": v.uniform("F32", (512,), -bound, bound)}


MODELS = {
    "instance_norm_64": channels("F32", 64),
    "instance_norm_64_running": running("F32"),
    "group_norm_64_8": channels("F32", 64),
    "group_norm_320_32_silu_last": channels("F16", 320),
    "layer_norm_1024": channels("F32", 1024),
    "rms_norm_4096": gamma_4096,
    "rms_norm_4096_float8": gamma_4096,
    "batch_norm_64": running("F64"),
    "fused_linear_512": fused_linear_512,
    "add_rms_norm_4096": gamma_4096,
    "style_bank_64_32": channels("F32", 32, 64),
    "layer_norm_channels_384": channels("F32", 384),
}


def safetensors(tensors):
    """The bytes of a safetensors file, laid out as PyTorch's save_file does: wide types first."""
    order = sorted(tensors, key=lambda name: (-ENCODERS[tensors[name][0]][0], name))
    header = {"__metadata__": {"format": "pt"}}
    data = b""
    for name in order:
        dtype, shape, values = tensors[name]
        encoded = b"".join(ENCODERS[dtype][1](value) for value in values)
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [len(data), len(data) + len(encoded)]}
        data += encoded
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # The data begin at a multiple of 8.
    return struct.pack("<Q", len(text)) + text + data


def main():
    parser = argparse.ArgumentParser(description="Writes the parameters of the demo models.")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check

    differing = 0
    for name, parameters in MODELS.items():
        path = HERE / name / "1" / "params.safetensors"
        wanted = safetensors(parameters(Values(name)))
        if check:
            same = path.is_file() and path.read_bytes() == wanted
            differing += not same
            print(f"{'same   ' if same else 'DIFFERS'} {path.relative_to(HERE)}")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(wanted)
            print(f"{len(wanted):6d} bytes {path.relative_to(HERE)}")
    if check:
        configs = {path.parent.name for path in HERE.glob("*/config.textproto")}
        for name in sorted(configs ^ set(MODELS)):
            differing += 1
            print(f"DIFFERS {name}: has either a config.textproto or parameters, not both")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
