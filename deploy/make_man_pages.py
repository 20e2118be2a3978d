#!/usr/bin/env python3
"""Writes the manual pages of normd, normctl and normload, from what their --help prints.

    deploy/make_man_pages.py BIN_DIR MAN_DIR      MAN_DIR/man8/normd.8, man1/normctl.1, man1/normload.1

So a flag is described in one place, where it is declared.
"""

import pathlib
import re
import subprocess
import sys

SECTIONS = {"normd": 8, "normctl": 1, "normload": 1}
COLUMN = 30  # Where the help of a flag begins: flags/flag_set.cc.
FLAG = re.compile(r"  --?\w")


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=30).stdout


def escaped(text):
    """`text` as roff prints it: no escape, no request, and dashes that can be copied."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text[:1] in (".", "'") else text


def flag_lines(lines):
    """A flag and its help, which may begin on its line, of whose lines `lines` has the rest."""
    first = lines.pop(0)
    name, text = (first[:COLUMN], first[COLUMN:]) if first[COLUMN - 1:COLUMN] == " " else (first, "")
    words = [text]
    while lines and lines[0].startswith(" " * COLUMN):
        words.append(lines.pop(0))
    return [".TP", f"\\fB{escaped(name.strip())}\\fR", escaped(" ".join(" ".join(words).split()))]


def body(text):
    """roff of a help: titles, flags, examples, which stay as they are, and paragraphs."""
    lines, roff = text.splitlines(), []
    while lines:
        if FLAG.match(lines[0]):
            roff += flag_lines(lines)
        elif lines[0].startswith("  "):
            roff += [".PP", ".nf", ".RS"]
            while lines and lines[0].startswith("  ") and not FLAG.match(lines[0]):
                roff.append(escaped(lines.pop(0)[2:]))
            roff += [".RE", ".fi"]
        elif not lines[0].strip():
            lines.pop(0)
        elif lines[0].endswith(":") and len(lines) > 1 and lines[1].startswith("  "):
            roff += [".SS " + escaped(lines.pop(0)[:-1])]
        else:
            roff += [".PP"]
            while lines and lines[0].strip() and not lines[0].startswith("  "):
                roff.append(escaped(lines.pop(0)))
    return roff


def page(program, name):
    text = run(program, "--help")
    version = run(program, "--version").split()[1]
    # normd's help begins with its name and version.
    says = re.search(rf"^{name} (?:[\d.]+: )?(.+?)\.?$", text, re.MULTILINE)
    usage = re.search(r"^Usage: (.*(?:\n +\S.*)*)\n\n", text, re.MULTILINE)
    rest = text[:says.start()] + text[says.end():]
    rest = rest.replace(usage.group(0), "")
    roff = [f'.TH {name.upper()} {SECTIONS[name]} "" "normd {version}" ""', ".SH NAME",
            f"{name} \\- {escaped(says.group(1))}", ".SH SYNOPSIS", ".nf",
            *(escaped(line.strip()) for line in usage.group(1).splitlines()), ".fi", ".SH DESCRIPTION", *body(rest)]
    if commands := re.search(r"^Commands:\n((?:  .*\n)+)", text, re.MULTILINE):
        roff.append(".SH COMMANDS")
        for command in re.findall(r"^  (\w+)", commands.group(1), re.MULTILINE):
            help_of_command = run(program, command, "--help").removeprefix("Usage: ")
            roff += [f".SS {escaped(f'{name} {command}')}", *body(help_of_command)]
    return "\n".join(roff) + "\n"


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: make_man_pages.py BIN_DIR MAN_DIR")
    programs, pages = map(pathlib.Path, sys.argv[1:])
    for name, section in SECTIONS.items():
        folder = pages / f"man{section}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.{section}").write_text(page((programs / name).resolve(), name), encoding="utf-8")


if __name__ == "__main__":
    main()
