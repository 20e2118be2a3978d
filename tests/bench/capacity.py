#!/usr/bin/env python3
"""The simulated fleet beside the measured one (docs/capacity.md).

    python3 tests/bench/capacity.py --bin=build/release/bin --out=capacity.json

Starts replicas (timed_server: normd whose lanes take a time that is set, and no processor), measures one of
them in a closed loop, and has `normload plan` predict from that report alone what 1, 3 and 8 of them do at
50, 80 and 95 percent of what they can. Each fleet is then loaded with the same arrival times that the
simulation had, in turns with other fleets, and the percentiles are compared: simulated over measured. Exits
with 1 where p50 or p99 is further off than --within.

--faults also kills a replica of three again and again, and compares that.
"""

import argparse
import json
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

LANES = ["--lanes=1", "--max_batch_requests=8", "--batch_time=20ms", "--request_time=5ms",
         "--jitter=0.1"]
POLICIES = ("round_robin", "least_outstanding")
SEEDS = range(1, 8)


class Replica:
    def __init__(self, programs, seed, flags):
        self._command = [programs / "timed_server", f"--seed={seed}", *flags]
        self.start("127.0.0.1:0")

    def start(self, listen):
        self._process = subprocess.Popen([*self._command, f"--listen={listen}"],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = self._process.stdout.readline().strip()
        if not self.address:
            raise SystemExit("timed_server did not start")

    def kill(self):
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def restart(self):
        self.start(self.address)


def normload(options, *arguments, accepted=(0,)):
    done = subprocess.run([options.bin / "normload", *arguments], capture_output=True, text=True,
                          check=False)
    if done.returncode not in accepted:
        raise SystemExit(f"normload {' '.join(map(str, arguments))}:\n{done.stdout}{done.stderr}")
    return done.stdout


def calibrate(options, folder):
    """The report of one replica by itself, from idle to full batches."""
    replica = Replica(options.bin, 1, LANES)
    report = folder / "one.json"
    normload(options, f"--server={replica.address}", "--model=norm", "--shape=1x64", "--quiet",
             f"--sweep=concurrency={options.sweep}", f"--duration={options.calibrate}",
             f"--connections={options.connections}", f"--json={report}")
    replica.kill()
    return report


def poisson(path, rate, seconds, seed):
    generator = random.Random(seed)
    at = generator.expovariate(rate)
    with path.open("w") as file:
        while at < seconds:
            file.write(f"{at:.9f}\n")
            at += generator.expovariate(rate)


def plan(options, folder, report, *arguments):
    path = folder / "plan.json"
    normload(options, "plan", report, f"--json={path}", "--lanes=1", f"--clients={options.connections}",
             "--max_batch_requests=8", *arguments)
    return json.loads(path.read_text())


def simulate(options, folder, report, *arguments):
    """The medians over seeds: a run's lanes are as random as the measured fleet's."""
    points = [plan(options, folder, report, f"--seed={seed}", *arguments)["points"][0]
              for seed in SEEDS]
    medians = {key: statistics.median(point[key] for point in points)
               for key, value in points[0].items() if isinstance(value, (int, float))}
    return medians | {"p99_range_ms": [pick(point["p99_us"] for point in points) / 1000
                                       for pick in (min, max)]}


def measure(options, folder, replicas, trace, policy):
    """Again, up to three times, where the machine's other work kept the client itself from sending in time."""
    reports = []
    for _ in range(3):
        reports.append(measure_once(options, folder, replicas, trace, policy))
        lag = reports[-1]["result"]["send_lag"]["p99_us"] / 1000
        if lag <= options.max_lag_ms:
            break
        print(f"    again: the client was late, by {lag:.0f} ms at its p99", flush=True)
    return min(reports, key=lambda one: one["result"]["send_lag"]["p99_us"])


def measure_once(options, folder, replicas, trace, policy):
    path = folder / "measured.json"
    normload(options, f"--server={','.join(one.address for one in replicas)}", "--model=norm",
             "--shape=1x64", "--quiet", f"--arrivals_file={trace}", f"--balance={policy}",
             f"--connections={options.connections}", "--max_error_share=1", "--give_up_after=0",
             "--timeout=60s", "--max_sending=0", f"--json={path}")
    return json.loads(path.read_text())


def compare(name, simulated, report, rows):
    result = report["result"]
    times = result["response_time"]
    row = {"what": name, "requests": result["requests"], "failed": result["errors"],
           "simulated_lost": simulated["lost"] + simulated["refused"],
           "batch": [simulated["batch_requests"], result["batch_requests"]["mean"]],
           "p99_range": simulated["p99_range_ms"],
           "lag_p99_ms": result["send_lag"]["p99_us"] / 1000}
    for percentile in ("p50", "p90", "p99"):
        one, other = simulated[f"{percentile}_us"] / 1000, times[f"{percentile}_us"] / 1000
        row[percentile] = [one, other, one / other]
    row["mean"] = [simulated["mean_us"] / 1000, times["mean_us"] / 1000]
    rows.append(row)
    print(f"{name:34} {result['requests']:7}  " + "  ".join(
        "{} {:7.1f} {:7.1f} {:5.2f}".format(p, *row[p]) for p in ("p50", "p99")) +
        "  (p99 of seeds {:.0f} to {:.0f})".format(*row["p99_range"]) +
        f"  batch {row['batch'][0]:.2f} {row['batch'][1]:.2f}  lag {row['lag_p99_ms']:.1f}", flush=True)
    return row


def compare_loads(options, folder, report, rows):
    for count in options.replicas:
        replicas = [Replica(options.bin, 100 * count + i, LANES) for i in range(count)]
        for load in options.loads:
            rate = plan(options, folder, report, "--rate=1",
                        "--replicas=1", "--duration=1s")["replica_max_rate_per_s"] * count * load / 100
            for policy in POLICIES if count > 1 else POLICIES[:1]:
                trace = folder / "trace.txt"
                poisson(trace, rate, options.seconds, f"{count} {load} {policy}")
                simulated = simulate(options, folder, report, f"--arrivals_file={trace}",
                                     f"--replicas={count}", f"--balance={policy}")
                compare(f"{count} x {load} % {policy}", simulated,
                        measure(options, folder, replicas, trace, policy), rows)
        for replica in replicas:
            replica.kill()


def compare_faults(options, folder, report, rows):
    """kill -9 of each of three replicas in turn, at known times; back after a second."""
    replicas = [Replica(options.bin, 900 + i, LANES) for i in range(3)]
    one = plan(options, folder, report, "--rate=1", "--replicas=1", "--duration=1s")
    trace = folder / "trace.txt"
    poisson(trace, one["replica_max_rate_per_s"] * 3 * 0.5, options.seconds, "faults")
    kills = [(3 * i, i % 3) for i in range(1, int(options.seconds / 3))]
    ended = threading.Event()
    outages = []

    def kill_in_turn():
        begun = time.monotonic()
        for at, index in kills:
            if ended.wait(max(0, begun + at - time.monotonic())):
                return
            killed = time.monotonic()
            replicas[index].kill()
            ended.wait(1)
            replicas[index].restart()
            outages.append(f"crash {index} {killed - begun:.3f} {time.monotonic() - killed:.3f}\n")

    killer = threading.Thread(target=kill_in_turn)
    killer.start()
    measured = measure_once(options, folder, replicas, trace, "least_outstanding")
    ended.set()
    killer.join()
    # The same outages, as long as they were.
    (folder / "outages.txt").write_text("".join(outages))
    simulated = simulate(options, folder, report, f"--arrivals_file={trace}", "--replicas=3",
                         "--balance=least_outstanding", f"--outages_file={folder / 'outages.txt'}")
    row = compare("3 x 50 % kill -9 every 3 s", simulated, measured, rows)
    row["retries"] = [simulated["retries"], measured["result"]["fleet"]["retries"]]
    print(f"    retries {row['retries'][0]} {row['retries'][1]}, lost {row['simulated_lost']} {row['failed']}")
    for replica in replicas:
        replica.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--replicas", type=int, nargs="*", default=[1, 3, 8])
    parser.add_argument("--loads", type=int, nargs="*", default=[50, 80, 95])
    parser.add_argument("--seconds", type=float, default=30, help="of each load")
    parser.add_argument("--connections", type=int, default=8, help="clients that balance by themselves")
    parser.add_argument("--calibrate", default="6s", help="of each step of the calibration")
    parser.add_argument("--sweep", default="1,2,4,6,8,12,16,24", help="callers of the calibration")
    parser.add_argument("--max_lag_ms", type=float, default=15, help="p99 of the client's lateness")
    parser.add_argument("--within", type=float, default=0.15)
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--report", type=pathlib.Path, help="of one replica, instead of measuring it")
    parser.add_argument("--keep_report", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        report = options.report or calibrate(options, folder)
        if options.keep_report:
            shutil.copy2(report, options.keep_report)
        print("simulated, measured in ms, and their ratio")
        compare_loads(options, folder, report, rows)
        judged = len(rows)
        if options.faults:
            compare_faults(options, folder, report, rows)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    worst = max((abs(row[p][2] - 1) for row in rows[:judged] for p in ("p50", "p99")), default=0)
    print(f"furthest off: {100 * worst:.1f} %, wanted up to {100 * options.within:.0f} %")
    return 0 if worst <= options.within else 1


if __name__ == "__main__":
    sys.exit(main())
