"""Replicas that are slow, that come and go, and that stand behind a proxy."""

import contextlib
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import time

import fleet as fleets
from cases import require, require_nothing_lost, scenario
from outages import restart_each


@contextlib.contextmanager
def slowed(replica):
    """Runs the replica for a quarter of each second, as a quota of processor time does."""
    end = threading.Event()

    def run():
        while not end.is_set():
            replica.signal(signal.SIGSTOP)
            time.sleep(0.75)
            replica.signal(signal.SIGCONT)
            time.sleep(0.25)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


@scenario("a slow replica: least outstanding has a lower p99 than round robin")
def slow(setup):
    results = {}
    with setup.fleet() as fleet:
        for policy in ("round_robin", "least_outstanding"):
            # One client: what it has not had answered is all that it can compare. At a rate, since callers
            # that wait for the slow one would ask nobody else meanwhile.
            load = fleet.load(*setup.steady(8), "--connections=1", f"--balance={policy}")
            with slowed(fleet.replicas[0]):
                results[policy] = load.result()
    for result in results.values():
        require_nothing_lost(result)
    robin, least = results["round_robin"], results["least_outstanding"]
    require(least.p99_ms < robin.p99_ms, "p99 of least outstanding is", least.p99_ms,
            "ms, of round robin", robin.p99_ms)
    return [robin, least]


@scenario("scale 3 -> 6 -> 3 behind one name: new replicas get calls, leaving ones lose none")
def scale(setup):
    with setup.fleet() as fleet, tempfile.TemporaryDirectory() as folder:
        hosts = pathlib.Path(folder, "hosts")

        def tell(replicas):
            # In place: the file is mounted.
            with open(hosts, "w", encoding="ascii") as file:
                file.writelines(f"{one.machine.address} fleet.normd.example\n" for one in replicas)

        tell(fleet.replicas)
        load = fleet.load(*setup.steady(14), "--resolve_interval=1s", hosts=hosts,
                          servers=f"dns:///fleet.normd.example:{fleets.PORT}")
        for _ in range(setup.seconds(1, 3)):
            fleet.add()
            tell(fleet.replicas)
        time.sleep(setup.seconds(3, 15))
        added = fleet.replicas[3:]
        # As a Deployment does: out of the name first, then SIGTERM.
        tell(fleet.replicas[:3])
        for one in added:
            require(one.answered() > 0, one.target, "is new and got no calls")
            require(one.stop() == 0, one.target, "did not stop as asked")
        result = load.result()
    require(added, "no replica was added")
    require_nothing_lost(result)
    return [result]


@contextlib.contextmanager
def proxy(setup, fleet):
    """HAProxy with the tree's configuration on a machine of its own; its address."""
    machine = fleet.network.attach(3)
    environment = {"LISTEN": f"{machine.address}:{fleets.PORT}"}
    for i, replica in enumerate(fleet.replicas, start=1):
        environment[f"NORMD_{i}"] = replica.machine.address
    log = tempfile.TemporaryFile(mode="w+")
    process = subprocess.Popen(
        machine.command(setup.haproxy, "-db", "-f", setup.source / "deploy/proxy/haproxy.cfg"),
        env={**os.environ, **environment, "LD_LIBRARY_PATH": setup.haproxy_libraries},
        stdout=log, stderr=log)
    try:
        time.sleep(1.5)  # Its first checks.
        log.seek(0)
        require(process.poll() is None, "HAProxy ended at once:", log.read())
        yield environment["LISTEN"]
    finally:
        process.kill()
        process.wait()


# All calls come from one address.
BEHIND_PROXY = ("--max_connection_share=1", "--max_peer_share=1", "--max_connection_calls=1000")


@scenario("no replica is left behind HAProxy: calls say so, and go on when one comes back")
def nobody_behind_proxy(setup):
    if not setup.haproxy:
        return "no HAProxy"
    with setup.fleet(count=2, flags=BEHIND_PROXY) as fleet, proxy(setup, fleet) as address:
        load = fleet.load(*setup.steady(9), "--timeout=2s", servers=address)
        time.sleep(3)
        for replica in fleet.replicas:
            replica.kill()
        time.sleep(3)  # HAProxy's checks see it after one.
        for replica in fleet.replicas:
            replica.start()
        result = load.result()
    require(result.wrong == 0 and result.verified > 0, result.wrong, "wrong of", result.verified)
    require(set(result.codes) <= {"UNAVAILABLE"}, "codes:", result.codes)
    require(0 < result.lost < result.sent / 2, "lost", result.lost, "of", result.sent)
    require("no healthy replica" in result.messages["UNAVAILABLE"], result.messages)
    # It is asked as often as there are calls.
    return [result]


@scenario("rolling update behind HAProxy: nothing is lost")
def rolling_behind_proxy(setup):
    if not setup.haproxy:
        return "no HAProxy"
    with setup.fleet(flags=BEHIND_PROXY) as fleet, proxy(setup, fleet) as address:
        load = fleet.load(*setup.full(10), servers=address)
        replaced = restart_each(fleet, load)
        result = load.result()
    require(replaced >= 2, "only", replaced, "replicas were replaced")
    require_nothing_lost(result)
    result.note = f"{replaced} replaced"
    return [result]
