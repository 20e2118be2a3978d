#!/usr/bin/python3
"""Abuses a normd of its own in every way that docs/threat_model.md says it bears, and looks whether it
did: what a hostile, careless or slow peer does must harm nobody else.

    python3 tests/abuse/run.py --bin=build/release/bin           # all, a few minutes
    python3 tests/abuse/run.py --bin=build/dev/bin --short --jobs=4   # what the test suite runs
    python3 tests/abuse/run.py --bin=... --only=descriptors      # by a part of the name

Needs python3-h2 (Debian's package). Exit code 77 when that is missing."""

import argparse
import importlib
import multiprocessing
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).parent


def play(work):
    """Plays a scenario; `work` is its number and the options. Returns "passed", "failed" or "skipped",
    and its lines of the table."""
    import harness
    number, options = work
    point, promise, _, function = harness.SCENARIOS[number]
    context = harness.Context(options.bin, options.models, options.short)
    begin = time.monotonic()
    try:
        function(context)
        outcome, result = "passed", "held"
    except harness.Skip as reason:
        outcome, result = "skipped", f"skipped: {reason}"
    except Exception as error:  # pylint: disable=broad-except
        outcome, result = "failed", f"BROKEN: {type(error).__name__}: {error}"
    took = time.monotonic() - begin
    lines = [f"{point:4} {function.__name__}: {promise}: {result} ({took:.1f} s)"]
    return outcome, lines + [f"       {note}" for note in context.notes]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", required=True, help="the folder of normd and normload")
    parser.add_argument("--models", default=str(HERE.parents[1] / "deploy" / "models"))
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--jobs", type=int, default=1,
                        help="scenarios at once; only with --short, which compares no latencies")
    options = parser.parse_args()
    if options.jobs < 1 or (options.jobs > 1 and not options.short):
        parser.error(f"--jobs={options.jobs}: must be 1, or positive with --short")
    try:
        import h2  # noqa: F401
    except ImportError:
        print("skipped: python3-h2 is not installed")
        sys.exit(77)
    sys.path.insert(0, str(HERE))
    import harness
    for path in sorted(HERE.glob("scenarios_*.py")):
        importlib.import_module(path.stem)

    numbers = [number for number, (_, _, long_only, function) in enumerate(harness.SCENARIOS)
               if options.only in function.__name__ and not (options.short and long_only)]
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    broken = []
    # A process each: a scenario changes its process's limits and counts its descriptors.
    with multiprocessing.get_context("fork").Pool(options.jobs, maxtasksperchild=1) as pool:
        work = [(number, options) for number in numbers]
        for outcome, lines in pool.imap_unordered(play, work):
            counts[outcome] += 1
            print("\n".join(lines), flush=True)
            if outcome == "failed":
                broken.append(lines[0])
    # Once more at the end, which a shortened log still shows.
    print("\n".join(broken + [""]) if broken else "", end="")
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    sys.exit(1 if counts["failed"] or not counts["passed"] + counts["skipped"] else 0)


if __name__ == "__main__":
    main()
