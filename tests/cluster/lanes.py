"""A replica whose lanes fail. It is failing_normd: normd over devices in host memory that fail on demand."""

import time

from cases import LONG, require, require_nothing_lost, scenario

# Two more compute on the threads that receive.
LANES = 3


def missing(setup):
    """Why a replica cannot be made to fail; None where it can."""
    return None if (setup.programs / "failing_normd").is_file() else "no failing_normd beside normd"


def retired(replica):
    return sum(value for _, value in replica.series("normd_lanes", 'state="retired"'))


def await_until(truth, what, limit_s=30):
    end = time.monotonic() + limit_s
    while not truth():
        require(time.monotonic() < end, what)
        time.sleep(0.05)


class Failing:
    """The last of three replicas, and what its failures came to."""

    def __init__(self, fleet):
        self.others = list(fleet.replicas)
        self.replica = fleet.add("--device=cuda", f"--device_lanes={LANES}", program="failing_normd")
        self.times = self.lanes = self.internal = 0

    def require_others_take_over(self):
        """When no lane is left: the replica takes no calls, and all go to the others."""
        await_until(lambda: not self.replica.serves(), "it says SERVING without a lane")
        require("the last lane has failed" in self.replica.log(), self.replica.log())
        had = self.replica.answered()
        before = [one.answered() for one in self.others]
        await_until(lambda: all(one.answered() > count
                                for one, count in zip(self.others, before)),
                    "the other replicas have not answered")
        require(self.replica.answered() == had, "it answers without a lane")

    def replace(self):
        self.lanes += retired(self.replica)
        self.internal += sum(value for _, value in self.replica.series(
            "normd_requests_total", 'method="Normalize"', 'code="INTERNAL"'))
        self.times += 1
        require(self.replica.stop() == 0, "it did not stop as asked")
        self.replica.start()

    def judge(self, result):
        require_nothing_lost(result)
        require(self.times >= 1, "no replica has failed")
        # Batches were under way when their lanes failed, and were computed elsewhere.
        require(self.internal > 0, "no request met a lane that failed")
        require(result.retried >= self.internal, "retried", result.retried, "of", self.internal)
        result.note = (f"{self.times} times, {self.lanes:.0f} lanes retired, "
                       f"{self.internal:.0f} requests met INTERNAL there")
        return [result]


@scenario("a replica whose lanes fail at once: what they had is computed elsewhere, the others take over")
def at_once(setup):
    if missing(setup):
        return missing(setup)
    with setup.fleet(count=2) as fleet:
        failing = Failing(fleet)
        load = fleet.load(*setup.full(7, requests=4 * LONG))
        while True:
            time.sleep(setup.seconds(2, 3))
            if not load.running():
                break
            failing.replica.tell("device")
            await_until(lambda: not load.running() or not failing.replica.serves(),
                        "it serves on with a device that has failed")
            if not load.running():
                break
            failing.require_others_take_over()
            failing.replace()
        return failing.judge(load.result())


@scenario("a replica whose lanes fail one after the other: it serves with those that are left")
def one_by_one(setup):
    if missing(setup):
        return missing(setup)
    with setup.fleet(count=2) as fleet:
        failing = Failing(fleet)
        replica = failing.replica
        load = fleet.load(*setup.full(10, requests=4 * LONG))
        time.sleep(2)  # The warm-up.
        partly = 0
        while load.running():
            gone = retired(replica)
            replica.tell("lane")
            await_until(lambda: not load.running() or retired(replica) > gone, "no lane has failed")
            time.sleep(0.2)  # Until it is known that it was the last.
            if not load.running():
                break
            require(retired(replica) == gone + 1, "more than one lane has failed")
            if replica.serves():
                partly += 1
                had = replica.answered()
                await_until(lambda: not load.running() or replica.answered() > had,
                            "it serves and answers nothing")
                continue
            failing.require_others_take_over()
            failing.replace()
        result = load.result()
    require(partly >= LANES - 1, "it has served with fewer lanes only", partly, "times")
    return failing.judge(result)
