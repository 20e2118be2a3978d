#!/usr/bin/env python3
"""Reduces CustomResourceDefinitions to what a strict check needs, in one file each.

    reduce.py DEFINITION.yaml...     writes KIND.json.gz beside this script

Each file holds {"group", "kind", "versions": {VERSION: OpenAPI schema without descriptions}}. README.md beside
this has the definitions' sources.
"""

import gzip
import json
import pathlib
import sys

import yaml


def bare(node):
    """The schema without its descriptions, but with the properties of that name."""
    if isinstance(node, dict):
        return {key: bare(value) for key, value in node.items()
                if key != "description" or not isinstance(value, str)}
    if isinstance(node, list):
        return [bare(value) for value in node]
    return node


def main():
    for path in sys.argv[1:]:
        text = pathlib.Path(path).read_text(encoding="utf-8")
        spec = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))["spec"]
        kind = spec["names"]["kind"]
        reduced = {"group": spec["group"], "kind": kind,
                   "versions": {version["name"]: bare(version["schema"]["openAPIV3Schema"])
                                for version in spec["versions"]}}
        data = json.dumps(reduced, separators=(",", ":"), sort_keys=True).encode()
        # Without a time in the file, the same definition gives the same bytes.
        target = pathlib.Path(__file__).parent / f"{kind}.json.gz"
        target.write_bytes(gzip.compress(data, 9, mtime=0))
        print(f"{target.name}: {len(data)} bytes, {target.stat().st_size} compressed")


if __name__ == "__main__":
    main()
