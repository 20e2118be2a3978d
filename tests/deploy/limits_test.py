#!/usr/bin/env python3
"""The memory and the threads that deploy/compose.yaml and deploy/systemd grant are enough for normd
as it is by default: it lowers none of its budgets.

    limits_test.py --normd=build/dev/bin/normd

RLIMIT_DATA stands for the limit of a control group, which needs root: normd judges both alike.
Exits with 77 without PyYAML.
"""

import argparse
import pathlib
import re
import sys

from process import Normd

try:
    import yaml
except ImportError:
    print("skipped: no PyYAML (Debian's package python3-yaml)")
    sys.exit(77)

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
UNITS = {"m": 1 << 20, "g": 1 << 30}
LOWERED = "of memory are left"


def grants():
    """The name, bytes of memory and number of threads of each place."""
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    service = yaml.safe_load(text)["services"]["normd"]
    yield "compose.yaml", service["mem_limit"], service["pids_limit"]
    unit = (DEPLOY / "systemd/normd.service").read_text(encoding="utf-8")
    yield ("normd.service", re.search(r"^MemoryMax=(\w+)$", unit, re.MULTILINE).group(1),
           int(re.search(r"^TasksMax=(\d+)$", unit, re.MULTILINE).group(1)))


def start(normd, limit):
    """What normd says at the start with so much memory, and how many threads it has then."""
    command = [sys.executable, "-c",
               "import os, resource, sys; size = int(sys.argv[1]); "
               "resource.setrlimit(resource.RLIMIT_DATA, (size, size)); "
               "os.execv(sys.argv[2], sys.argv[2:])", str(limit)]
    with Normd(normd, DEPLOY / "models", "--http_listen=", before=command) as server:
        status = pathlib.Path(f"/proc/{server.pid}/status").read_text(encoding="utf-8")
        return "\n".join(server.output), int(re.search(r"^Threads:\s+(\d+)$", status,
                                                       re.MULTILINE).group(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--normd", required=True)
    options = parser.parse_args()
    faults = []
    for place, memory, tasks in grants():
        size = int(memory[:-1]) * UNITS[memory[-1].lower()]
        said, threads = start(options.normd, size)
        if LOWERED in said:
            faults.append(f"{place}: {memory} of memory, and budgets are lowered:\n{said}")
        if LOWERED not in start(options.normd, size // 2)[0]:
            faults.append(f"{place}: with half of {memory} no budget is lowered: is it looked at?")
        if threads * 2 > tasks:
            faults.append(f"{place}: {tasks} threads, wanted twice the {threads} of an idle server "
                          "on this machine")
        print(f"{place}: {memory} of memory, {threads} of {tasks} threads")
    if faults:
        print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
