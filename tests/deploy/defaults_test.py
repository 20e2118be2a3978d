#!/usr/bin/env python3
"""The defaults in docs/security.md are those of normd.

    defaults_test.py --normd=build/dev/bin/normd
"""

import argparse
import pathlib
import re
import subprocess
import sys

SECURITY = pathlib.Path(__file__).resolve().parents[2] / "docs/security.md"
NONE = "none"


def defaults_of(normd):
    """The text in parentheses at the end of each flag's help; `none` for flags without one."""
    text = subprocess.run([normd, "--help"], check=True, capture_output=True, text=True,
                          timeout=60).stdout
    found = {}
    # A flag's help goes on to the next flag, or to the blank line before the next section.
    for name, value, help_text in re.findall(
            r"^  --(\w+)(=\w+(?::\w+)?)?((?:(?!\n  --|\n\n).)*)", text, re.MULTILINE | re.DOTALL):
        default = re.search(r"\((\S+)\)\s*$", help_text)
        if value:
            found[name] = default.group(1) if default else NONE
        else:  # A flag whose help offers =false is on.
            found[name] = "on" if f"--{name}=false" in help_text else "off"
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--normd", required=True)
    wanted = defaults_of(parser.parse_args().normd)
    rows = re.findall(r"^\| `--(\w+)` \| `?([^`|]+?)`? \|", SECURITY.read_text(encoding="utf-8"),
                      re.MULTILINE)
    faults = [f"--{name}: {told} in docs/security.md, {wanted.get(name, 'no such flag')} in --help"
              for name, told in rows if wanted.get(name) != told]
    if len(rows) < 20:
        faults.append(f"{len(rows)} rows of flags, wanted 20 or more: is the table still one?")
    print("\n".join(faults) or f"{len(rows)} defaults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
