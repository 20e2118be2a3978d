#!/usr/bin/env python3
"""Writes a model of the fused layer at full size into a model repository: config.textproto and
1/params.safetensors with float32 weights, 256 MiB at 8192 x 8192.

  make_fused_linear.py REPOSITORY [--features 8192] [--in_features N] [--precision tf32] [--seed 1]

The weights are uniform in +-1 / sqrt(in_features), as torch.nn.Linear initializes them. They are
written a row at a time and are the same on every machine for the same arguments.
"""

import argparse
import array
import json
import pathlib
import random
import struct
import sys

PRECISIONS = {"float32": "PRECISION_FLOAT32", "tf32": "PRECISION_TF32",
              "bf16": "PRECISION_BFLOAT16", "float32_strict": "PRECISION_FLOAT32_STRICT"}

CONFIG = """\
description: "Linear, InstanceNorm over {out} features, then (z + y) * y with a second input y."
linear_norm {{
  in_features: {in_}
  out_features: {out}
  precision: {precision}
  epilogue {{ add: true multiply: true }}
}}
"""


def write_parameters(path, in_features, out_features, seed):
    weight_bytes = 4 * in_features * out_features
    header = {"__metadata__": {"format": "pt"},
              "linear.weight": {"dtype": "F32", "shape": [out_features, in_features],
                                "data_offsets": [0, weight_bytes]},
              "linear.bias": {"dtype": "F32", "shape": [out_features],
                              "data_offsets": [weight_bytes, weight_bytes + 4 * out_features]}}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    generator = random.Random(seed)
    scale = 2.0 * in_features ** -0.5 / 2 ** 32
    unwritten = path.with_suffix(".tmp")  # The server leaves such names alone.
    with open(unwritten, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for count in [in_features] * out_features + [out_features]:
            words = array.array("I", generator.randbytes(4 * count))
            row = array.array("f", [(word - 2147483647.5) * scale for word in words])
            if sys.byteorder == "big":
                row.byteswap()
            row.tofile(file)
    unwritten.replace(path)


def main():
    parser = argparse.ArgumentParser(description="Writes a fused layer at full size.")
    parser.add_argument("repository", type=pathlib.Path)
    parser.add_argument("--name", help="default: fused_linear_<features>")
    parser.add_argument("--features", type=int, default=8192, help="out_features")
    parser.add_argument("--in_features", type=int, help="default: as --features")
    parser.add_argument("--precision", choices=sorted(PRECISIONS), default="float32")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    in_features = args.in_features or args.features
    if in_features < 1 or args.features < 1:
        parser.error("--features, --in_features: wanted at least 1")

    folder = args.repository / (args.name or f"fused_linear_{args.features}")
    (folder / "1").mkdir(parents=True, exist_ok=True)
    write_parameters(folder / "1" / "params.safetensors", in_features, args.features, args.seed)
    (folder / "config.textproto").write_text(
        CONFIG.format(in_=in_features, out=args.features, precision=PRECISIONS[args.precision]))
    print(f"{folder}: {args.features} x {in_features}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
