"""What scenarios of a fleet share: how long and how much, and what is required of a load's results.

`CASES` are (name, function); a function takes a Setup and returns the results that it was judged by, or why
it cannot be tried here."""

import contextlib
import math
import statistics

import fleet as fleets
import network

CASES = []
LONG = 100_000  # Requests of each load, at least.
# The client's checks, every 0.5 s: two unanswered ones of 1.2 s each, looked at every 0.5 s.
DETECTION_S = 4
RECOVERY_S = 5


class Setup:
    """How long and how much, and where the programs are."""

    def __init__(self, programs, source, short):
        self.programs, self.source, self.short = programs, source, short
        self.repository = source / "deploy/models"
        self.rate = 150 if short else 800
        self.haproxy = None

    def seconds(self, short, long):
        return short if self.short else long

    def full(self, short_s, callers=32, requests=LONG):
        """As much as the fleet takes: for some seconds, in the long form so many requests."""
        return (f"--concurrency={callers}",
                f"--duration={short_s}s" if self.short else f"--requests={requests}")

    def steady(self, short_s):
        """The rate: for some seconds, in the long form for LONG requests and a few more, since they come at
        random."""
        seconds = short_s if self.short else math.ceil(1.02 * LONG / self.rate)
        return f"--rate={self.rate}", f"--duration={seconds}s"

    def beside(self, short_s):
        """For what does not depend on the load: in the short form little, which leaves the machine to
        other tests."""
        return self.steady(short_s) if self.short else self.full(short_s)

    @contextlib.contextmanager
    def fleet(self, count=3, flags=(), repository=None):
        with network.Network() as net:
            with fleets.Fleet(net, self.programs, repository or self.repository, count,
                              flags) as fleet:
                fleet.network = net
                yield fleet


def scenario(name):
    def add(function):
        CASES.append((name, function))
        return function
    return add


def require(truth, *what):
    if not truth:
        raise AssertionError(" ".join(map(str, what)))


def require_right(result):
    require(result.wrong == 0, "wrong responses:", result.wrong)
    require(result.verified > 0, "no response was verified")


def require_nothing_lost(result):
    require_right(result)
    require(result.lost == 0, "lost", result.lost, result.codes, result.messages)


def require_recovery(setup, result, fault_at_s):
    """After the detection and five seconds a second's p99 is what it was before the fault, and none is
    as long as the detection: nothing hangs on. So are 19 of 20 seconds; in the short form, which runs
    beside other tests, the median."""
    before = [one["p99_us"] / 1000 for one in result.intervals if one["end_s"] <= fault_at_s]
    after = sorted(result.p99s_ms_after(fault_at_s + DETECTION_S + RECOVERY_S))
    require(before and after, "nothing was measured before the fault, or after it")
    usual = statistics.median(before)
    most = after[int((0.5 if setup.short else 0.95) * (len(after) - 1))]
    result.note = (f"a second's p99 was {usual:.0f} ms before, and {statistics.median(after):.0f} ms "
                       f"after; 19 of 20 were at most {after[int(0.95 * (len(after) - 1))]:.0f} ms, "
                       f"all {after[-1]:.0f} ms")
    require(most <= max(5 * usual, usual + 50), result.note)
    require(after[-1] < 1000 * DETECTION_S, result.note)
