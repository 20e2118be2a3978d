#!/usr/bin/env python3
"""Lets PyPI's PyTorch be imported without NVIDIA's 2 GB of libraries, for tests on the CPU.

    VENV/bin/python cuda_stubs.py    changes the PyTorch of that virtual environment

PyTorch's wheel for Linux is linked with CUDA's libraries, which come as packages of their own. For each
that the loader does not find, this writes beside PyTorch's own a library of that name, all of whose
functions return cudaErrorInsufficientDriver: torch.cuda.is_available() is False then, and PyTorch calls
no others. Needs cc and binutils' nm and readelf.
"""

import collections
import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile

INSUFFICIENT_DRIVER = 35


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needed(library):
    return re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "-dW", library))


def is_found(name, folder):
    program = f"import ctypes; ctypes.CDLL({name!r})"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    return (folder / name).exists() or found.returncode == 0


def versions_of(library):
    """{version: the library that it is wanted of}"""
    owners, owner = {}, None
    for line in output("readelf", "-VW", library).splitlines():
        if match := re.search(r"File: (\S+)", line):
            owner = match[1]
        elif match := re.search(r"Name: (\S+)\s+Flags", line):
            owners[match[1]] = owner
    return owners


def write_stub(folder, name, symbols):
    """symbols: {version or "": names}"""
    script, code = [], []
    for version, names in symbols.items():
        code += [f"long {each}(void) {{ return {INSUFFICIENT_DRIVER}; }}" for each in sorted(names)]
        if version:
            script.append(f"{version} {{ global: {' '.join(f'{each};' for each in sorted(names))} }};")
    with tempfile.TemporaryDirectory() as temporary:
        source = pathlib.Path(temporary) / "stub.c"
        source.write_text("\n".join(code) + "\n")
        command = ["cc", "-w", "-shared", "-fPIC", "-fno-builtin", "-O1", f"-Wl,-soname,{name}",
                   "-o", folder / name, source]
        if script:
            versions = pathlib.Path(temporary) / "versions"
            versions.write_text("\n".join(script) + "\n")
            command.append(f"-Wl,--version-script={versions}")
        subprocess.run(command, check=True)


def main():
    spec = importlib.util.find_spec("torch")
    folder = pathlib.Path(spec.origin).parent / "lib"
    libraries = sorted(folder.glob("*.so*"))
    missing = {name for each in libraries for name in needed(each)
               if re.match(r"lib(cu|nv|nccl)", name) and not is_found(name, folder)}
    defined = set(re.findall(r"^\S+ [A-Z] (\w+)", output("nm", "-DP", "--defined-only", *libraries), re.M))
    wanted = collections.defaultdict(lambda: collections.defaultdict(set))
    plain = set()
    for each in libraries:
        owners = versions_of(each)
        for symbol in re.findall(r"^(\S+) U", output("nm", "-DP", "--undefined-only", each), re.M):
            name, _, version = symbol.partition("@")
            version = version.lstrip("@")
            if owners.get(version) in missing:
                wanted[owners[version]][version].add(name)
            elif not version and re.match(r"(cu|nv|nccl)[A-Za-z]", name):
                plain.add(name)
    for name in missing:
        # What has no version does not say whose it is: each library has all of it.
        write_stub(folder, name, {**wanted[name], "": plain - defined})


if __name__ == "__main__":
    main()
