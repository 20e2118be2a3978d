#!/usr/bin/python3
"""Abuses a normd of its own in every way that docs/threat_model.md says it bears, and looks whether it
did: what a hostile, careless or slow peer does must harm nobody else.

    python3 tests/abuse/run.py --bin=build/release/bin           # all, a few minutes
    python3 tests/abuse/run.py --bin=build/dev/bin --short       # what the test suite runs
    python3 tests/abuse/run.py --bin=... --only=descriptors      # by a part of the name

Needs python3-h2 (Debian's package). Exit code 77 when that is missing."""

import argparse
import importlib
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).parent


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", required=True, help="the folder of normd and normload")
    parser.add_argument("--models", default=str(HERE.parents[1] / "deploy" / "models"))
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    options = parser.parse_args()
    try:
        import h2  # noqa: F401
    except ImportError:
        print("skipped: python3-h2 is not installed")
        sys.exit(77)
    sys.path.insert(0, str(HERE))
    import harness
    for path in sorted(HERE.glob("scenarios_*.py")):
        importlib.import_module(path.stem)

    passed = failed = skipped = 0
    for point, promise, long_only, function in harness.SCENARIOS:
        if options.only not in function.__name__ or (options.short and long_only):
            continue
        context = harness.Context(options.bin, options.models, options.short)
        begin = time.monotonic()
        try:
            function(context)
            result, passed = "held", passed + 1
        except harness.Skip as reason:
            result, skipped = f"skipped: {reason}", skipped + 1
        except Exception as error:  # pylint: disable=broad-except
            result, failed = f"BROKEN: {type(error).__name__}: {error}", failed + 1
        took = time.monotonic() - begin
        print(f"{point:4} {function.__name__}: {promise}: {result} ({took:.1f} s)", flush=True)
        for note in context.notes:
            print(f"       {note}", flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed or not passed + skipped else 0)


if __name__ == "__main__":
    main()
