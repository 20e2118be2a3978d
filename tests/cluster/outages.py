"""Replicas that end, hang, or are cut off."""

import signal
import time

from cases import LONG, require, require_nothing_lost, require_recovery, require_right, scenario


def restart_each(fleet, load):
    """A rolling update, again and again while the load lasts; how many replicas were replaced."""
    replaced = 0
    while load.running():
        for replica in fleet.replicas:
            if not load.running():
                break
            require(replica.stop() == 0, "a replica that was asked to stop ended otherwise")
            replica.start()
            replaced += 1
    return replaced


@scenario("rolling update at full load: nothing is lost")
def rolling(setup):
    with setup.fleet() as fleet:
        load = fleet.load(*setup.full(8))
        replaced = restart_each(fleet, load)
        result = load.result()
    require(replaced >= 2, "only", replaced, "replicas were replaced")
    require_nothing_lost(result)
    result.note = f"{replaced} replaced"
    return [result]


def kill_some(setup, fleet, load):
    """kill -9 of one replica after the other, each of which comes back; how many."""
    pause = setup.seconds(2, 5)
    killed = 0
    while True:
        time.sleep(pause)
        if not load.running():
            return killed
        replica = fleet.replicas[killed % len(fleet.replicas)]
        replica.kill()
        killed += 1
        replica.start()


@scenario("kill -9 of a replica every 5 s: nothing is lost with retries")
def killed(setup):
    with setup.fleet() as fleet:
        load = fleet.load(*setup.full(8, requests=4 * LONG))
        count = kill_some(setup, fleet, load)
        result = load.result()
    require(count >= 1, "no replica was killed")
    require_nothing_lost(result)
    result.note = f"{count} kills"
    return [result]


@scenario("kill -9 without retries: at most what was in flight is lost")
def killed_without_retries(setup):
    callers = 16
    with setup.fleet() as fleet:
        load = fleet.load(*setup.full(6, callers, requests=4 * LONG), "--max_attempts=1")
        count = kill_some(setup, fleet, load)
        result = load.result()
    require(count >= 1, "no replica was killed")
    require_right(result)
    # A caller has one call in flight.
    require(result.lost <= count * callers, "lost", result.lost, "with", count, "kills")
    result.note = f"{count} kills"
    return [result]


def outage(setup, begin, end):
    fault_at, lasts = setup.seconds(3, 8), setup.seconds(6, 10)
    with setup.fleet() as fleet:
        load = fleet.load(*setup.steady(14))
        time.sleep(1.5 + fault_at)  # The warm-up, and the start of the program.
        begin(fleet)
        time.sleep(lasts)
        end(fleet)
        result = load.result()
    require_right(result)
    require(result.fleet["abandoned"] > 0, "no call was taken from the silent replica")
    require_recovery(setup, result, fault_at - 1)
    return [result]


@scenario("SIGSTOP for 10 s: its calls go elsewhere, p99 recovers")
def stopped(setup):
    return outage(setup, lambda fleet: fleet.replicas[0].signal(signal.SIGSTOP),
                  lambda fleet: fleet.replicas[0].signal(signal.SIGCONT))


@scenario("a partition: its calls go elsewhere, p99 recovers")
def partition(setup):
    return outage(setup, lambda fleet: fleet.replicas[0].machine.cut(),
                  lambda fleet: fleet.replicas[0].machine.join())


@scenario("no replica is left: calls say so, with few retries, and go on when one comes back")
def nobody(setup):
    with setup.fleet(count=2) as fleet:
        load = fleet.load(*setup.steady(7), "--timeout=2s")
        time.sleep(3)
        for replica in fleet.replicas:
            replica.kill()
        time.sleep(1)
        for replica in fleet.replicas:
            replica.start()
        result = load.result()
    require_right(result)
    require(set(result.codes) <= {"UNAVAILABLE"}, "codes:", result.codes)
    require(0 < result.lost < result.sent / 2, "lost", result.lost, "of", result.sent)
    require("servers can take the call" in result.messages["UNAVAILABLE"]
            or "attempt" in result.messages["UNAVAILABLE"], result.messages)
    # The budget: 1000 and a tenth of those that succeeded, for each of the four clients.
    require(result.retried <= 4 * 1000 + result.answered / 10, "a storm of", result.retried)
    return [result]
