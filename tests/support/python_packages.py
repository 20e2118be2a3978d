#!/usr/bin/env python3
"""Makes a virtual environment with packages from PyPI, and runs a test in it.

    python_packages.py VENV [ARGUMENT...] [-- TEST [ARGUMENT...]]

VENV is made if need be. The first arguments are those of `uv pip install`: packages, -r FILE. uv comes
from PyPI itself. It takes a fraction of pip's time, and fetches once what several environments need.

Exits with 77, which ctest shows as skipped, where the packages cannot be had.
"""

import fcntl
import os
import pathlib
import subprocess
import sys
import venv

SKIPPED = 77
LIMIT_S = 900
TOOLS = pathlib.Path(__file__).resolve().parents[2] / "build/tools"


def uv():
    """The program, in an environment of its own, which is made if need be."""
    folder = TOOLS / "uv"
    program = folder / "bin/uv"
    TOOLS.mkdir(parents=True, exist_ok=True)
    with open(TOOLS / "uv.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Tests run beside each other.
        if not program.exists():
            venv.create(folder, with_pip=True, clear=True)
            run(folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                "--timeout", "20", "--retries", "1", "uv")
    return program


def run(*command):
    subprocess.run(command, check=True, timeout=LIMIT_S)


def main():
    given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)
    folder, packages, test = pathlib.Path(given[0]), given[1:end], given[end + 1:]
    python = folder / "bin/python"
    try:
        if not python.exists():
            run(uv(), "venv", "--quiet", "--clear", "--python", sys.executable, folder)
        if packages:
            run(uv(), "pip", "install", "--quiet", "--python", python, *packages)
    except (subprocess.SubprocessError, OSError) as error:
        print(f"skipped: {' '.join(packages)}: {error}")
        return SKIPPED
    if test:
        os.execv(python, [python, "-B", *test])
    return 0


if __name__ == "__main__":
    sys.exit(main())
