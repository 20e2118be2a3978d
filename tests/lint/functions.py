#!/usr/bin/env python3
"""No function of the sources is longer than 80 lines, from its first line to its closing brace.

Reads the sources as clang-format leaves them (format.sh), where a function's body is the only brace outside of
functions that follows a parenthesis and a space. Lambdas and local classes count as lines of their function.

    tests/lint/functions.py [ROOT] [--over=LINES]    # 80

Prints each function that is longer and exits with 1 if there is any.
"""

import argparse
import pathlib
import re
import sys

import includes

# What holds no braces of the language: comments, strings, characters, directives with their continuations.
IGNORED = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:\\\n|[^\n])*",
    re.DOTALL | re.MULTILINE,
)
SCOPE = re.compile(r"(template\s*<.*>\s*)?(inline\s+)?(namespace|class|struct|union|enum|extern)\b", re.DOTALL)


def blank(match):
    """As many lines of nothing."""
    return re.sub(r"[^\n]", " ", match.group())


def is_function(head):
    return "(" in head and head.endswith(" ") and not head.rstrip().endswith("=") and not SCOPE.match(head.strip())


def functions(text):
    """The functions of a source: (first line, lines, what precedes the body)."""
    text = IGNORED.sub(blank, text)
    begin = 0  # The current declaration.
    depth = 0  # Braces that are open within a function or an initialiser, which `body` began.
    body = None
    for match in re.finditer(r"[{};]|\b(?:public|private|protected):", text):
        at, mark = match.start(), match.group()
        if mark == "{":
            head = text[begin:at].replace("\n", " ")
            if depth > 0:
                depth += 1
            elif is_function(head):
                first = begin + len(text[begin:at]) - len(text[begin:at].lstrip())
                body, depth = first, 1
            elif SCOPE.match(head.strip()):
                begin = at + 1
            else:  # An initialiser: the declaration goes on behind it.
                depth = 1
        elif mark == "}" and depth > 0:
            depth -= 1
            if depth == 0 and body is not None:
                line = text.count("\n", 0, body) + 1
                yield line, text.count("\n", body, at) + 1, " ".join(text[body:at].split("{")[0].split())
                body, begin = None, at + 1
        elif depth == 0:
            begin = match.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("root", nargs="?", default=".", type=pathlib.Path)
    parser.add_argument("--over", type=int, default=80)
    options = parser.parse_args()
    found = [
        (source, *function)
        for source in includes.sources(options.root)
        for function in functions((options.root / source).read_text())
    ]
    long = [function for function in found if function[2] > options.over]
    for source, line, lines, head in sorted(long, key=lambda function: -function[2]):
        print(f"{source}:{line}: {lines} lines: {head[-100:]}")
    print(f"{len(found)} functions, {len(long)} of more than {options.over} lines")
    return 1 if long or not found else 0


if __name__ == "__main__":
    sys.exit(main())
