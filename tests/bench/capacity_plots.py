#!/usr/bin/env python3
"""The pictures of docs/capacity.md.

    python3 tests/bench/capacity_plots.py --bin=build/release/bin --measured=capacity.json --report=one.json --out=docs

--measured is what capacity.py --out wrote, --report what its --keep_report kept. Makes a virtual environment
with matplotlib in build/capacity_venv, and runs itself there.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
VENV = SOURCE / "build/capacity_venv"
RATES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
MOST_IN_BURSTS = 10_000
OBJECTIVE = "p99=200ms"
COLOURS = {"round_robin": "#c05a2b", "least_outstanding": "#2b6cb0"}


def run_in_venv():
    python = VENV / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    subprocess.run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install",
                    "matplotlib==3.11.*"], check=True)
    os.execv(python, [python, "-B", *sys.argv])


def plan(options, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "plan.json")
        begun = time.monotonic()
        done = subprocess.run([options.bin / "normload", "plan", options.report, f"--json={path}",
                               "--max_batch_requests=8", "--lanes=1", *arguments],
                              capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise SystemExit(done.stderr)
        return json.loads(path.read_text()) | {"took_s": time.monotonic() - begun}


def compared(figure, rows):
    """Each fleet's percentiles, measured against simulated."""
    axes = figure.subplots()
    low, high = 40, 600
    axes.plot([low, high], [low, high], color="#888", lw=1)
    axes.fill_between([low, high], [low * 0.85, high * 0.85], [low * 1.15, high * 1.15], color="#ddd",
                      label="within 15 %")
    for percentile, marker in (("p50", "o"), ("p99", "^")):
        for policy, colour in COLOURS.items():
            points = [row[percentile][:2] for row in rows if row["what"].endswith(policy)]
            axes.scatter([p[1] for p in points], [p[0] for p in points], marker=marker, color=colour,
                         label=f"{percentile}, {policy.replace('_', ' ')}", zorder=3, s=28)
    axes.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="simulated, ms",
             title="1, 3 and 8 replicas at 50, 80 and 95 %")
    axes.legend(fontsize=8)


def against_load(figure, options):
    """The p99 of fleets by their load."""
    axes = figure.subplots()
    one = plan(options, "--rate=1", "--replicas=1", "--duration=1s")["replica_max_rate_per_s"]
    for policy, colour in COLOURS.items():
        for replicas, style in ((1, ":"), (8, "--"), (100, "-")):
            loads = [0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97]
            p99 = [plan(options, f"--rate={one * replicas * load}", f"--replicas={replicas}",
                        f"--balance={policy}", "--duration=120s" if replicas < 50 else "--duration=30s"
                        )["points"][0]["p99_us"] / 1000 for load in loads]
            axes.plot([100 * load for load in loads], p99, style, color=colour,
                      label=f"{replicas} replicas, {policy.replace('_', ' ')}")
    axes.set(xlabel="load, % of full batches", ylabel="p99, ms", title="Simulated p99 by load", ylim=(0, 500))
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def against_rate(figure, options):
    """Replicas by rate, up to a million requests a second."""
    axes = figure.subplots()
    answers = []
    for rate in RATES:
        # Fifty bursts last 100 s, whatever the rate: of a million requests a second that is hours of work.
        for arrival in ("poisson", "bursts") if rate <= MOST_IN_BURSTS else ("poisson",):
            made = plan(options, f"--rate={rate}", f"--slo={OBJECTIVE}", f"--arrival={arrival}",
                        "--balance=least_outstanding")
            answer = made["points"][made["chosen"]]
            answers.append({"rate": rate, "arrival": arrival, "replicas": answer["replicas"],
                            "load": answer["load"], "p50_ms": answer["p50_us"] / 1000,
                            "p99_ms": answer["p99_us"] / 1000, "batch": answer["batch_requests"],
                            "simulations": len(made["points"]), "requests": answer["requests"],
                            "took_s": made["took_s"]})
            print(answers[-1], flush=True)
    for arrival, style in (("poisson", "o-"), ("bursts", "s--")):
        chosen = [one for one in answers if one["arrival"] == arrival]
        axes.plot([one["rate"] for one in chosen], [one["replicas"] for one in chosen], style, label=arrival)
    axes.set(xscale="log", yscale="log", xlabel="requests per second", ylabel="replicas",
             title=f"Replicas for {OBJECTIVE}, least outstanding")
    axes.legend()
    axes.grid(alpha=0.3, which="both")
    return answers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("bin", "measured", "report", "out"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="", help="pictures whose name has this")
    options = parser.parse_args()
    if pathlib.Path(sys.prefix).resolve() != VENV.resolve():
        run_in_venv()
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib.figure import Figure
    rows = json.loads(options.measured.read_text())
    for name, draw in (("compared", lambda figure: compared(figure, rows)),
                       ("load", lambda figure: against_load(figure, options)),
                       ("rate", lambda figure: against_rate(figure, options))):
        if options.only in name:
            figure = Figure(figsize=(6, 4), dpi=100, layout="constrained")
            draw(figure)
            figure.savefig(options.out / f"capacity_{name}.png")


if __name__ == "__main__":
    main()
