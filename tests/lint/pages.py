"""The parts of a Markdown page, as far as this tree's pages use the language."""

import os
import pathlib
import re
import sys
import typing

# Folders that builds make.
MADE = {"build", "dist", "node_modules", "__pycache__"}
ITEM = re.compile(r"( *)([-*+]|\d+[.)]) +")
FENCE = re.compile(r" *(```+|~~~+) *([\w+-]*)")


class Part(typing.NamedTuple):
    kind: str  # prose: a paragraph or an item of a list; code; table; heading; comment.
    line: int  # The first line's number.
    lines: list  # Code without its fences and its indentation.
    info: str = ""  # The language that a fence names.


def pages(root):
    """The paths of a tree's pages, from its root on."""
    for where, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in MADE and not name.startswith("."))
        yield from (str((pathlib.Path(where) / name).relative_to(root)) for name in sorted(files) if name.endswith(".md"))


def parts(text):
    """The parts of a page in order."""
    found, lines = [], text.split("\n")
    at, inside = 0, 0  # inside: the column at which the text of the list's item begins.
    while at < len(lines):
        first, line = at, lines[at]
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            at += 1
            continue
        if line.lstrip().startswith("<!--"):
            while "-->" not in lines[at] and at + 1 < len(lines):
                at += 1
            at += 1
            found.append(Part("comment", first + 1, lines[first:at]))
            continue
        if fence := FENCE.match(line):
            at += 1
            while at < len(lines) and not lines[at].strip().startswith(fence[1]):
                at += 1
            found.append(Part("code", first + 2, [row[indent:] for row in lines[first + 1 : at]], fence[2]))
            at += 1
            continue
        if indent == 0 and not ITEM.match(line):
            inside = 0
        if indent >= inside + 4:
            while at < len(lines) and (not lines[at].strip() or lines[at].startswith(" " * (inside + 4))):
                at += 1
            rows = "\n".join(row[inside + 4 :] for row in lines[first:at]).rstrip().split("\n")
            found.append(Part("code", first + 1, rows))
        elif line.startswith("#"):
            at += 1
            found.append(Part("heading", first + 1, [line]))
        elif line.lstrip().startswith("|"):
            while at < len(lines) and lines[at].lstrip().startswith("|"):
                at += 1
            found.append(Part("table", first + 1, lines[first:at]))
        else:
            if item := ITEM.match(line):
                inside = len(item[0])
            at += 1
            while at < len(lines) and lines[at].strip() and not re.match(r"#|\s*(\||<!--)", lines[at]):
                if ITEM.match(lines[at]) or FENCE.match(lines[at]):
                    break
                at += 1
            found.append(Part("prose", first + 1, lines[first:at]))
    return found


def report(findings, fine):
    """Ends the program with what a lint finds below the root that its command line names, or with `fine`."""
    found = list(findings(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
    print("\n".join(found) if found else fine)
    sys.exit(1 if found else 0)
