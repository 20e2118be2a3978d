#!/usr/bin/env python3
"""Searches the sources' includes for circles between files and for upward arrows between folders.

A header and the source of its name count as one file: what either includes, both do. Which folder may
include which says the table of ARCHITECTURE.md; what a folder may include, it may reach through another
that may. Tests may include everything, and nothing may include tests.

    tests/lint/includes.py [ROOT]

Prints each finding and exits with 1 if there is any.
"""

import graphlib
import pathlib
import re
import sys

FOLDERS = ("base", "client", "flags", "kernels", "operations", "server", "tests", "wire")
SUFFIXES = (".h", ".cc", ".cuh", ".cu")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)


def sources(root):
    """The sources' paths from the root on."""
    files = (file for folder in FOLDERS for file in (root / folder).rglob("*"))
    return sorted(file.relative_to(root) for file in files if file.suffix in SUFFIXES)


def includes(root):
    """All pairs of a source and a file of this repository that it includes."""
    for source in sources(root):
        for name in INCLUDE.findall((root / source).read_text()):
            if (root / name).is_file():
                yield source, pathlib.PurePath(name)


def circle(pairs):
    """One circle of files, as lines to print; none if there is none."""
    whose = {}  # For a file and one that it includes, both without suffix: one such include.
    graph = {}
    for source, included in pairs:
        a, b = source.with_suffix(""), included.with_suffix("")
        if a != b:
            whose[a, b] = f"{source} includes {included}"
            graph.setdefault(a, set()).add(b)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        # Each file of the list is included by the next.
        way = error.args[1][::-1]
        return ["files that include each other:"] + ["  " + whose[step] for step in zip(way, way[1:])]
    return []


def table(text):
    """What each folder may include, as the table of ARCHITECTURE.md says: {folder: set of folders}."""
    rows = re.findall(r"^\| `([a-z_]+/[a-z_/.]*)` \| ([^|]*) \| ([^|]*) \|", text, re.MULTILINE)
    folders = [folder.rstrip("/") for folder, _, _ in rows]
    named = {"everything": set(folders)}
    for folder, (_, libraries, _) in zip(folders, rows):
        for name in [folder.split("/")[-1]] + re.findall(r"`(\w+)`", libraries):
            named[name] = {folder}
    may = {}
    for folder, (_, _, included) in zip(folders, rows):
        names = re.findall(r"\w+", included.split(";")[0])
        may[folder] = set().union(*(named.get(name, set()) for name in names)) - {folder}
    return may


def reach(may):
    """The table with what each folder reaches through others; a circle in it raises CycleError."""
    reached = {}
    for folder in graphlib.TopologicalSorter(may).static_order():
        reached[folder] = may[folder].union(*(reached[other] for other in may[folder]))
    return reached


def upward(pairs, reached):
    """Includes that the table does not allow, as lines to print."""

    def folder_of(path):
        names = ["/".join(path.parts[:count]) for count in range(len(path.parts), 0, -1)]
        return next((name for name in names if name in reached), path.parts[0])

    for source, included in pairs:
        a, b = folder_of(source), folder_of(included)
        if a != b and a != "tests" and b not in reached.get(a, set()):
            yield f"{source} includes {included}: {a} is not above {b} in ARCHITECTURE.md"


def findings(root):
    pairs = list(includes(root))
    may = table((root / "ARCHITECTURE.md").read_text())
    if not pairs or not may:
        return [f"{root}: no includes or no table of folders: not the root of the tree?"]
    try:
        reached = reach(may)
    except graphlib.CycleError as error:
        return ["ARCHITECTURE.md: folders that may include each other: " + " ".join(error.args[1])]
    return circle(pairs) + list(upward(pairs, reached))


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    found = findings(root)
    print("\n".join(found) if found else f"{len(sources(root))} files, no circle, no upward arrow")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
