#!/usr/bin/env python3
"""The binaries are hardened: position independent, relocations read-only and bound at the start, no
executable stack, no libraries from the working folder, the stack's canaries and the C library's
checked functions in use; and every source file was compiled so.

    hardening_test.py --commands=build/dev/compile_commands.json --compiler=c++ BINARY...

Binaries are read with readelf (binutils). With --compiler a small program is built well and once
without each of these, and the test must notice each. Exits with 77 without readelf.
"""

import argparse
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77

PROGRAM = r"""
#include <cstdio>
#include <cstring>
int main(int argc, char** argv) {
  char text[16];
  std::strcpy(text, argv[argc - 1]);
  std::puts(text);
}
#ifdef WRITTEN_CODE
asm(".text; .quad main");
#endif
"""
HARDENED = ["-O2", "-fPIE", "-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2",
            "-pie", "-Wl,-z,relro,-z,now,-z,noexecstack"]
# What takes one thing away, and a word of what the test then says.
WEAKENED = {
    ("-fno-pie", "-no-pie"): "position independent",
    ("-Wl,-z,norelro",): "GNU_RELRO",
    ("-Wl,-z,lazy",): "BIND_NOW",
    ("-Wl,-z,execstack",): "GNU_STACK",
    ("-fno-stack-protector",): "__stack_chk_fail",
    ("-U_FORTIFY_SOURCE",): "_FORTIFY_SOURCE",
    ("-Wl,-rpath,::",): "RPATH",
    ("-Wl,-rpath,/usr/lib:lib",): "RPATH",
    ("-DWRITTEN_CODE", "-Wl,-z,notext"): "TEXTREL",
}


def readelf(option, path):
    return subprocess.run(["readelf", "--wide", option, path], check=True, capture_output=True,
                          text=True).stdout


def run_path(dynamic):
    return [folder for paths in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic)
            for folder in paths.split(":")]


def faults_of_binary(path):
    segments, dynamic = readelf("--program-headers", path), readelf("--dynamic", path)
    symbols = readelf("--dyn-syms", path)
    stack = re.search(r"GNU_STACK.*\s([R W]+E?)\s+0(?:x[0-9a-f]+)?$", segments, re.MULTILINE)
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
    # To the loader an empty one is the working folder.
    if any(not re.match(r"/|\$ORIGIN(/|$)", folder) for folder in run_path(dynamic)):
        yield f"RPATH {run_path(dynamic)}: libraries come from the working folder"
    if "__stack_chk_fail" not in symbols:
        yield "no call of __stack_chk_fail: no stack protector"
    if not re.search(r"\b__(mem|st[rp]|v?s?n?printf|read|recv|poll|fdelt)\w*_chk\b", symbols):
        yield "no checked function (__memcpy_chk and its like): no _FORTIFY_SOURCE"


def faults_of_command(arguments):
    """Checks one compilation. The binaries alone would not show a single library without the flags.
    """
    protector = [one for one in arguments if re.match(r"-f(no-)?stack-protector", one)]
    fortify = [one for one in arguments if re.match(r"-[DU]_FORTIFY_SOURCE", one)]
    optimised = [one for one in arguments if re.fullmatch(r"-O\w*", one)]
    if not protector or protector[-1] != "-fstack-protector-strong":
        yield "no -fstack-protector-strong"
    # It means nothing without optimisation.
    if optimised and optimised[-1] != "-O0":
        if not fortify or not re.fullmatch(r"-D_FORTIFY_SOURCE=[23]", fortify[-1]):
            yield "no -D_FORTIFY_SOURCE=2"
    if not re.search(r"-f(PIC|PIE|pic|pie)\b", " ".join(arguments)):
        yield "neither -fPIC nor -fPIE"


def faults_of_commands(path):
    """Faults of C++ compilations: programs contain nothing else but CUDA, which nvcc compiles."""
    commands = [entry for entry in json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
                if entry["file"].endswith(".cc")]
    if not commands:
        yield "no commands"
    for entry in commands:
        for fault in faults_of_command(shlex.split(entry["command"])):
            yield f"{entry['file']}: {fault}"


def faults_of_this_test(compiler):
    """What it does not notice."""
    with tempfile.TemporaryDirectory() as folder:
        source, binary = pathlib.Path(folder) / "program.cc", pathlib.Path(folder) / "program"
        source.write_text(PROGRAM, encoding="utf-8")
        for flags, word in [((), None), *WEAKENED.items()]:
            subprocess.run([compiler, *HARDENED, *flags, source, "-o", binary], check=True,
                           capture_output=True)
            said = list(faults_of_binary(binary))
            if word is None and said:
                yield f"a hardened program: {said}"
            elif word is not None and not (len(said) == 1 and word in said[0]):
                yield f"a program with {' '.join(flags)}: {said}, wanted a word of {word}"
    for missing in ("-fstack-protector-strong", "-D_FORTIFY_SOURCE=2", "-fPIE"):
        if len(list(faults_of_command([one for one in HARDENED if one != missing]))) != 1:
            yield f"a compilation without {missing} goes unnoticed"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--commands")
    parser.add_argument("--compiler")
    parser.add_argument("binaries", nargs="+")
    options = parser.parse_args()
    if shutil.which("readelf") is None:
        print("skipped: no readelf (Debian's package binutils)")
        return SKIPPED
    faults = [f"{path}: {fault}" for path in options.binaries for fault in faults_of_binary(path)]
    if options.commands:
        faults += faults_of_commands(options.commands)
    if options.compiler:
        faults += faults_of_this_test(options.compiler)
    print("\n".join(faults) or f"{len(options.binaries)} binaries hardened")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
