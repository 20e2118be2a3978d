#!/usr/bin/env python3
"""The version is the one in CMakeLists.txt. What cannot read it there says the same, and nobody else says it.

    tests/lint/version.py [ROOT]
    tests/lint/version.py [ROOT] --set=0.2.0     writes it everywhere, but not into CHANGELOG.md

Prints each place that says another version, and each file that names the version and is none of the places;
exits with 1 if there is any. CHANGELOG.md has a heading for the version.
"""

import argparse
import pathlib
import re
import sys

NUMBER = r"\d+\.\d+\.\d+"
FIRST = ("CMakeLists.txt", rf"^project\(normd VERSION ({NUMBER}) ")
# Each a file, and where in it the version stands.
PLACES = (
    FIRST,
    ("Dockerfile", rf"^ARG VERSION=({NUMBER})$"),
    ("client/python/pyproject.toml", rf'^version = "({NUMBER})"$'),
    ("client/python/src/normd/__init__.py", rf'^__version__ = "({NUMBER})"$'),
    ("deploy/kubernetes/base/kustomization.yaml", rf"^ *newTag: ({NUMBER})$"),
    ("deploy/kubernetes/overlays/gpu/kustomization.yaml", rf"^ *newTag: ({NUMBER})-cuda$"),
    ("deploy/kserve/kustomization.yaml", rf"^ *newTag: ({NUMBER})$"),
    ("deploy/kserve/runtime.yaml", rf"^ *image: normd:({NUMBER})$"),
    ("docs/kubernetes.md", rf"-t normd:({NUMBER}) "),
    ("docs/kubernetes.md", rf"-t normd:({NUMBER})-cuda "),
)
CHANGES = "CHANGELOG.md"
# What it was measured with, and headers of former releases, which stay as they are.
LEFT_OUT = ("tests/lint/")
TEXT = {".cc", ".cmake", ".cu", ".cuh", ".h", ".in", ".json", ".md", ".proto", ".py", ".sh", ".toml", ".txt",
        ".yaml", ".yml", ".cfg", ".conf", ".service", ""}
SKIPPED_FOLDERS = {".git", "build", "dist", "__pycache__", ".cache"}


def versions(root, place):
    path, pattern = place
    file = root / path
    return re.findall(pattern, file.read_text(encoding="utf-8"), re.MULTILINE) if file.is_file() else []


def texts(root):
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if (path.suffix in TEXT and path.is_file() and not SKIPPED_FOLDERS & set(name.parts)
                and not str(name).startswith(LEFT_OUT)):
            yield str(name), path.read_text(encoding="utf-8", errors="replace")


def findings(root):
    first = versions(root, FIRST)
    if len(first) != 1:
        return [f"{FIRST[0]}: wanted one project(normd VERSION ...)"]
    version = first[0]
    found = []
    for place in PLACES[1:]:
        said = versions(root, place)
        if not said or set(said) != {version}:
            found.append(f"{place[0]}: says {', '.join(said) or 'no version'}, wanted {version}")
    known = {path for path, _ in PLACES} | {CHANGES}
    # A name with its own version, such as libnorm.so.0.1.0 or ">=0.1.0", is not a copy.
    copy = re.compile(rf"(?<![\w.=<>~^-]){re.escape(version)}(?![\w.]*\d)|normd[:/ @=]+v?{re.escape(version)}")
    for name, text in texts(root):
        if name in known:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if copy.search(line):
                found.append(f"{name}:{number}: names the version {version}")
    changes = root / CHANGES
    if not changes.is_file() or f"## [{version}]" not in changes.read_text(encoding="utf-8"):
        found.append(f"{CHANGES}: has no heading [{version}]")
    return found


def set_version(root, version):
    for path, pattern in PLACES:
        file = root / path
        text = file.read_text(encoding="utf-8")
        file.write_text(re.sub(pattern, lambda match: match.group(0).replace(match.group(1), version),
                               text, flags=re.MULTILINE), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--set", metavar="VERSION")
    options = parser.parse_args()
    if options.set:
        if not re.fullmatch(NUMBER, options.set):
            parser.error(f"--set: {options.set!r}, wanted three numbers, such as 0.2.0")
        set_version(options.root, options.set)
    found = findings(options.root)
    print("\n".join(found) or f"version {versions(options.root, FIRST)[0]}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
