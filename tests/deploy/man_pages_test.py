#!/usr/bin/env python3
"""The manual pages have every flag and command that --help has, once, in roff that man takes without a warning.

Exits with 77, which ctest shows as skipped, without man (Debian: man-db).
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
SOURCE = pathlib.Path(__file__).resolve().parents[2]
FLAG = re.compile(r"^  (--?[a-z]\w*)", re.MULTILINE)
SECTIONS = {"normd": 8, "normctl": 1, "normload": 1}


def run(*command, **options):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60, **options).stdout


def words(text):
    return "".join(text.split())


def faults_of(program, page):
    environment = {**os.environ, "MANWIDTH": "100", "MAN_KEEP_FORMATTING": "", "LC_ALL": "C.UTF-8"}
    shown = subprocess.run(["man", "--warnings", "--no-hyphenation", "--no-justification", "-l", page], check=True,
                           capture_output=True, text=True, env=environment, timeout=60)
    if shown.stderr.strip():
        yield f"{page.name}: {shown.stderr.strip()}"
    helps = [run(program, "--help")]
    if commands := re.search(r"^Commands:\n((?:  .*\n)+)", helps[0], re.MULTILINE):
        helps += [run(program, name, "--help") for name in re.findall(r"^  (\w+)", commands[1], re.MULTILINE)]
        if len(helps) < 10:
            yield f"{page.name}: {len(helps) - 1} commands"
    wanted = sorted(flag for text in helps for flag in FLAG.findall(text))
    found = sorted(re.findall(r"^ {7}(--?[a-z]\w*)", shown.stdout, re.MULTILINE))
    if found != wanted or len(wanted) < 20:
        yield f"{page.name}: flags {set(wanted) ^ set(found) or 'more than once'}"
    # Every sentence is there, unbroken but for the ends of lines.
    text = words(shown.stdout)
    version = run(program, "--version").split()[1]
    for line in (line for one in helps for line in one.splitlines()):
        told = words(line.strip().removeprefix(f"{program.name} ").rstrip(":"))
        if line.startswith(("Usage:", f"{program.name} {version}")):
            continue
        if told not in text and told.rstrip(".") not in text:
            yield f"{page.name}: not there: {line.strip()}"
    if not re.search(rf"^NAME\n +{program.name} - \w", shown.stdout, re.MULTILINE):
        yield f"{page.name}: no NAME that apropos finds"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    options = parser.parse_args()
    if shutil.which("man") is None:
        print("skipped: no man (Debian's package man-db)")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        run(SOURCE / "deploy/make_man_pages.py", options.bin, folder)
        faults = [fault for name, section in SECTIONS.items() for fault in faults_of(
            (options.bin / name).resolve(), pathlib.Path(folder) / f"man{section}/{name}.{section}")]
    print("\n".join(faults[:20]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
