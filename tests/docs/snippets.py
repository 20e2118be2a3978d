"""The pieces of shell and Python that a page has, and which of them run on any machine.

A block of code is indented or fenced. Its pieces are what empty lines part, as far as they are of different kinds.
A comment before a block leaves it out, and says why: <!-- not run: needs a fleet -->
"""

import ast
import keyword
import pathlib
import re
import shutil
import sys
import textwrap
import typing

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/lint"))
import pages  # noqa: E402

NOT_RUN = re.compile(r"<!--\s*not run: (.+?)\s*-->", re.DOTALL)
FENCED = {"sh": "shell", "bash": "shell", "shell": "shell", "console": "console", "python": "python", "py": "python"}
PROGRAMS = {"normd", "normctl", "normload"}
BUILTINS = {"cd", "export", "source"}
# Pieces that are left out wherever they stand, and why.
MACHINES = [
    (r"cuda\b|\bgpus?\b|kernelbench_run|nvidia", "needs a GPU"),
    (r"\b(10|192\.0\.2)\.\d+\.\d|\bexample\.com|\.(example|internal|svc)\b", "needs other machines"),
]
COMMANDS = [
    (r"\b(docker|podman|buildah|kubectl|helm)\b", "needs a container engine or a cluster"),
    (r"\b(sudo|apt|apt-get|systemctl)\b", "changes the machine"),
    (r"(^|\s|/)(cmake|ctest|pip|pytest|git)\b|deploy/(demo|test|setup|bundle)\.sh", "installs or builds"),
    (r"(^|\s)(\./)?tests/|build/\w+/tests/|_(bench|fuzzer|replay)\b|bench/\S+\.py", "tests or measures for long"),
    (r"\b(valgrind|callgrind_annotate|compute-sanitizer|perf_analyzer)\b", "needs a tool of others"),
    *MACHINES,
]


class Snippet(typing.NamedTuple):
    kind: str  # shell; console: shell behind $, with what it prints; python; doctest: Python behind >>>.
    line: int
    block: int  # The first line of the block that it is a piece of.
    rows: list
    not_run: str = ""  # Why.


def elsewhere(text, patterns):
    text = re.sub(r"(^|\s)#.*", "", text)
    return next((why for pattern, why in patterns if re.search(pattern, text, re.IGNORECASE)), "")


def parses(text, after_python):
    """Whether it is Python that does something; behind other Python, an expression will do."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return False
    if after_python:
        return True
    return any(not isinstance(each, ast.Expr) or isinstance(each.value, (ast.Call, ast.Tuple)) for each in body)


def imports(rows):
    return bool(re.match(r"(#[^\n]*\n)*(import|from) ", "\n".join(rows)))


def is_command(row):
    """Whether a shell's command begins there."""
    word = (row.split() or [""])[0]
    loop = re.match(r"(for|while|if) .*; (do|then)\b", row)
    if loop or word in PROGRAMS | BUILTINS or re.fullmatch(r"\w+=\S+", word):
        return True
    if re.fullmatch(r"[\w./-]+", word) and elsewhere(word, COMMANDS):
        return True  # Perhaps not installed here.
    if "/" in word:
        return bool(re.fullmatch(r"[\w./-]+", word) and re.search(r"/bin/|\.(sh|py)$", word))
    python = keyword.iskeyword(word) or re.match(r"\w+\s*[=.(,]", row)
    return not python and bool(re.fullmatch(r"[a-z][\w-]*", word) and shutil.which(word))


def kind_of(rows, before):
    """The kind of a paragraph of code; None: another language, or no code."""
    if rows[0].startswith(">>> "):
        return "doctest"
    if rows[0].startswith("$ "):
        return "console"
    if is_command(next((row for row in rows if row.strip() and not row.lstrip().startswith("#")), "")):
        return "shell"
    return "python" if parses(textwrap.dedent("\n".join(rows)), before == "python") else None


def commands(rows):
    """A shell's commands: (index of the first row, rows), with their continuations and here documents."""
    at = 0
    while at < len(rows):
        first, end = at, None
        if here := re.search(r"<<-?\s*['\"]?(\w+)", rows[at]):
            end = here[1]
        while (rows[at].endswith("\\") or (end and rows[at].strip() != end)) and at + 1 < len(rows):
            at += 1
        at += 1
        yield first, rows[first:at]


def paragraphs(rows):
    """(index of the first row, rows) of what empty lines part, here documents kept whole."""
    first, found = None, []
    for at, command in commands(rows):
        if not command[0].strip():
            first = None
            continue
        if first is None:
            first = at
            found.append((at, []))
        found[-1][1].extend(command)
    return found


def pieces(part):
    """(kind, line, rows) of a block's pieces: neighbours of a kind are one, until Python imports again."""
    if part.info:
        if kind := FENCED.get(part.info):
            yield kind, part.line, part.lines
        return
    found = []
    for at, rows in paragraphs(part.lines):
        before = found[-1][0] if found else None
        kind = "python" if before == "python" and rows[0].startswith(" ") else kind_of(rows, before)
        if before == kind and (kind == "shell" or kind == "python" and not imports(rows)):
            last = found[-1]
            last[2].extend([""] * (at - (last[1] - part.line) - len(last[2])) + rows)
        else:
            found.append((kind, part.line + at, list(rows)))
    yield from (piece for piece in found if piece[0])


def snippets(text):
    not_run = ""
    for part in pages.parts(text):
        if part.kind == "comment":
            comment = NOT_RUN.search("\n".join(part.lines))
            not_run = " ".join(comment[1].split()) if comment else ""
            continue
        if part.kind == "code":
            for kind, line, rows in pieces(part):
                of_python = kind in ("python", "doctest")
                why = not_run or (of_python and elsewhere("\n".join(rows), MACHINES)) or ""
                yield Snippet(kind, line, part.line, rows, why)
        not_run = ""
