#!/usr/bin/env python3
"""The binaries are hardened: position independent, relocations read-only and bound at the start, no
executable stack, the stack's canaries and the C library's checked functions in use.

Takes the binaries' paths; reads them with readelf (binutils).
"""

import re
import subprocess
import sys


def readelf(option, path):
    return subprocess.run(["readelf", "--wide", option, path], check=True, capture_output=True,
                          text=True).stdout


def faults_of(path):
    segments, dynamic = readelf("--program-headers", path), readelf("--dynamic", path)
    symbols = readelf("--dyn-syms", path)
    stack = re.search(r"GNU_STACK.*\s([R W]+E?)\s+0x[0-9a-f]+$", segments, re.MULTILINE)
    if "DYN" not in readelf("--file-header", path):
        yield "its type is not DYN: not position independent"
    if "GNU_RELRO" not in segments:
        yield "no segment GNU_RELRO"
    if not re.search(r"BIND_NOW|FLAGS_1.*\bNOW\b", dynamic):
        yield "neither BIND_NOW nor NOW: relocations stay writable"
    if stack is None or "E" in stack.group(1):
        yield "GNU_STACK is missing or executable"
    if "TEXTREL" in dynamic:
        yield "TEXTREL: its code is written at the start"
    if re.search(r"\b(RPATH|RUNPATH)\b.*\[(?!/|\$ORIGIN)", dynamic):
        yield "a relative RPATH: libraries come from the working directory"
    if "__stack_chk_fail" not in symbols:
        yield "no call of __stack_chk_fail: no stack protector"
    if not re.search(r"\b__(mem|str|v?s?n?printf|read|recv|poll|fdelt)\w*_chk\b", symbols):
        yield "no checked function (__memcpy_chk and its like): no _FORTIFY_SOURCE"


def main():
    faults = [f"{path}: {fault}" for path in sys.argv[1:] for fault in faults_of(path)]
    print("\n".join(faults) or f"{len(sys.argv) - 1} binaries hardened")
    return 1 if faults or len(sys.argv) < 2 else 0


if __name__ == "__main__":
    sys.exit(main())
