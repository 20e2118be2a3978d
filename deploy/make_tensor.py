#!/usr/bin/env python3
"""Writes a float32 .npy file of uniform values in [0, 1]: make_tensor.py OUT.npy 2 64 512 512.

Needs nothing beyond the standard library, and writes the same file each time.
"""

import array
import math
import random
import sys

BLOCK = 1 << 18  # Elements written at a time.


def main():
    path, shape = sys.argv[1], tuple(int(dimension) for dimension in sys.argv[2:])
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    # The data begin at a multiple of 64; magic and length take 10 bytes, the newline 1.
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    draw = random.Random(1).random
    with open(path, "wb") as out:
        out.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        left = math.prod(shape)
        while left > 0:
            block = array.array("f", [draw() for _ in range(min(left, BLOCK))])
            if sys.byteorder == "big":
                block.byteswap()
            block.tofile(out)
            left -= len(block)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main()
