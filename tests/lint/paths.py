#!/usr/bin/env python3
"""Searches documents and comments for files and headings that they name and the tree does not hold.

In documents (*.md): what links lead to, with the heading behind a #, and in `code` what is named like a
source, or begins with a folder of the tree. In comments of sources: what is named like a source. A path may
be cut short in front, down to the file's name.

    tests/lint/paths.py [ROOT]

Prints each finding and exits with 1 if there is any.
"""

import os
import pathlib
import re

import pages

# What is made, not written.
MADE = {"build", "dist", "__pycache__"}
# Sources of others: of the bundle (deploy/bundle.sh puts it there) and of Highway.
ELSEWHERE = {"checks/check_gpu.sh", "DIR/checks/check_gpu.sh", "foreach_target.h"}
# The names that this check's own test makes up.
LEFT_OUT = ("tests/lint/paths_test.py",)

LINK = re.compile(r"\]\(([^()\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
WORD = re.compile(r"[\w./*-]+")
URL = re.compile(r"\w+://\S+")
SOURCE = re.compile(r"\w\.(cc|cmake|cu|cuh|h|md|proto|py|sh)$")
SLASHES = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
HASHES = re.compile(r'#[^\n]*|""".*?"""', re.DOTALL)
COMMENTS = {
    **dict.fromkeys((".c", ".cc", ".cu", ".cuh", ".h", ".proto"), SLASHES),
    **dict.fromkeys((".cmake", ".conf", ".py", ".sh", ".textproto", ".toml", ".txt", ".yml"), HASHES),
}


def tree(root):
    """The paths of all files from the root on, and of all folders."""
    files, folders = set(), {"."}
    for where, names, contents in os.walk(root):
        names[:] = [name for name in names if name not in MADE and not name.startswith(".")]
        folder = pathlib.Path(where).relative_to(root)
        folders.update(str(folder / name) for name in names)
        files.update(str(folder / name) for name in contents)
    return files, folders


def headings(text):
    """The anchors of a document's headings."""
    for heading in re.findall(r"^#+ +(.*)$", text, re.MULTILINE):
        yield re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")


def ends(paths):
    """Every path and what is left when folders are cut off its front."""
    for path in paths:
        parts = path.split("/")
        yield from ("/".join(parts[at:]) for at in range(len(parts)))


def broken_links(path, text, root, files, folders):
    """Each link that leads nowhere: (offset, link)."""
    for match in LINK.finditer(text):
        target, _, anchor = match.group(1).partition("#")
        if URL.match(target) or target.startswith("mailto:"):
            continue
        file = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
        if file not in files and file not in folders:
            yield match.start(), match.group(1)
        elif anchor and anchor not in headings((root / file).read_text()):
            yield match.start(), match.group(1)


def named(text, tops):
    """What words of a text name sources: (offset, path). `tops`: folders with which a path may begin."""
    for match in WORD.finditer(URL.sub(lambda url: " " * len(url.group()), text)):
        word = re.sub(r"^(\.\.?/)+", "", match.group()).rstrip("./")
        if "*" not in word and (SOURCE.search(word) or ("/" in word and word.split("/")[0] in tops)):
            yield match.start(), word


def findings(root):
    files, folders = tree(root)
    known = set(ends(files)) | set(ends(folders)) | ELSEWHERE
    tops = {folder for folder in folders if "/" not in folder}
    for path in sorted(files):
        suffix = pathlib.PurePath(path).suffix
        if path.startswith(LEFT_OUT) or (suffix != ".md" and suffix not in COMMENTS):
            continue
        text = (root / path).read_text()
        if suffix == ".md":
            found = list(broken_links(path, text, root, files, folders))
            parts, prefixes = CODE.finditer(text), tops
        else:
            found = []
            parts, prefixes = COMMENTS[suffix].finditer(text), set()
        for part in parts:
            words = named(part.group(), prefixes)
            found += [(part.start() + at, word) for at, word in words if word not in known]
        for at, what in sorted(found):
            yield f"{path}:{text.count(chr(10), 0, at) + 1}: {what}: not in the tree"


if __name__ == "__main__":
    pages.report(findings, "every file and heading that is named is there")
