#!/usr/bin/env python3
"""Searches prose for what the house style rules out, as far as a machine can see it.

In documents (*.md), tables and code left out: lines over 100 columns, the targets of links not counted, sentences
of more than 40 words, sentences that begin with "Of", and code that a list before it makes prose. In C++, CUDA,
Python and proto sources: comments that begin with "Of".

    tests/lint/prose.py [ROOT]

Prints each finding and exits with 1 if there is any.
"""

import os
import pathlib
import re

import pages

COLUMNS = 100
WORDS = 40
# The sentences that this check's own test makes up.
LEFT_OUT = {"tests/lint/prose_test.py"}
SLASHES = {".c", ".cc", ".cu", ".cuh", ".h", ".proto"}

TARGET = re.compile(r"\]\([^()\s]*\)")
CODE = re.compile(r"`[^`]+`")
# Abbreviations, whose full stop ends no sentence.
SHORT = re.compile(r"\b(e\.g|i\.e|vs|cf|approx)\.")
OPENED = re.compile(r"""(/[*]+|\"{3})\s*Of\b""")
END = re.compile(r"[.!?][)\"'*_]*(?=\s|$)")


def sentences(part):
    """Each sentence of a paragraph: (line, words)."""
    text = CODE.sub(lambda code: "x" + "\n" * code[0].count("\n"), "\n".join(part.lines))
    text = TARGET.sub("]", text)
    if item := pages.ITEM.match(text):
        text = " " * len(item[0]) + text[len(item[0]) :]
    text = SHORT.sub(lambda short: short[0].replace(".", "_"), text)
    begin = 0
    for end in [match.end() for match in END.finditer(text)] + [len(text)]:
        sentence = text[begin:end]
        words = [word for word in sentence.split() if re.search(r"\w", word)]
        if words:
            space = len(sentence) - len(sentence.lstrip())
            yield part.line + text.count("\n", 0, begin + space), words
        begin = end


def page_findings(text):
    for part in pages.parts(text):
        if part.kind not in ("prose", "heading"):
            continue
        if part.lines[0].startswith("    ") and not pages.ITEM.match(part.lines[0]):
            yield part.line, "four spaces behind an item of a list make no code: wanted a sentence between"
        for line, row in enumerate(part.lines, part.line):
            if (columns := len(TARGET.sub("]", row))) > COLUMNS:
                yield line, f"{columns} columns of prose, wanted {COLUMNS} at most"
        for line, words in sentences(part):
            start = " ".join(words[:6])
            if len(words) > WORDS:
                yield line, f"a sentence of {len(words)} words, wanted {WORDS} at most: {start} ..."
            if words[0].lstrip("*_(\"") == "Of":
                yield line, f'a sentence begins with "Of": {start} ...'


def source_findings(text, mark):
    above = None  # The column of the comment that the line above has, if it says anything.
    for line, row in enumerate(text.split("\n"), 1):
        code, found, comment = row.partition(mark)
        begins = code.strip() or above != len(code)
        if (found and begins and comment.lstrip(mark).startswith(" Of ")) or OPENED.search(row):
            yield line, 'a comment begins with "Of"'
        above = len(code) if found and comment.strip() else None


def findings(root):
    for where, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in pages.MADE and not name.startswith("."))
        for file in sorted(files):
            path = (pathlib.Path(where) / file).relative_to(root)
            if str(path) in LEFT_OUT:
                continue
            if path.suffix == ".md":
                found = page_findings((root / path).read_text())
            elif path.suffix in SLASHES or path.suffix == ".py":
                found = source_findings((root / path).read_text(), "#" if path.suffix == ".py" else "//")
            else:
                continue
            for line, what in sorted(found):
                yield f"{path}:{line}: {what}"


if __name__ == "__main__":
    pages.report(findings, "no long line, no long sentence, and no comment that begins with Of")
