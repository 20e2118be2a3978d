"""What may befall a fleet, and what has to hold then. `CASES` are (name, function); a function takes a
Setup and returns the results that it was judged by, or why it cannot be tried here."""

import collections
import contextlib
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time

import fleet as fleets
import network

CASES = []
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

    def full(self, short_s, callers=32):
        """As much as the fleet takes: for some seconds, in the long form 100,000 requests."""
        return (f"--concurrency={callers}",
                f"--duration={short_s}s" if self.short else "--requests=100000")

    def steady(self, short_s):
        """The rate: for some seconds, in the long form 100,000 requests."""
        seconds = short_s if self.short else -(-100_000 // self.rate)
        return f"--rate={self.rate}", f"--duration={seconds}s"

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
    require(result.wrong == 0, "wrong answers:", result.wrong)
    require(result.verified > 0, "no answer was verified")


def require_nothing_lost(result):
    require_right(result)
    require(result.lost == 0, "lost", result.lost, result.codes, result.messages)


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
        load = fleet.load(*setup.full(12))
        replaced = restart_each(fleet, load)
        result = load.result()
    require(replaced >= 2, "only", replaced, "replicas were replaced")
    require_nothing_lost(result)
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
        load = fleet.load(*setup.full(8))
        count = kill_some(setup, fleet, load)
        result = load.result()
    require(count >= 1, "no replica was killed")
    require_nothing_lost(result)
    return [result]


@scenario("kill -9 without retries: at most what was in flight is lost")
def killed_without_retries(setup):
    callers = 16
    with setup.fleet() as fleet:
        load = fleet.load(*setup.full(6, callers), "--max_attempts=1")
        count = kill_some(setup, fleet, load)
        result = load.result()
    require(count >= 1, "no replica was killed")
    require_right(result)
    # A caller has one call in flight.
    require(result.lost <= count * callers, "lost", result.lost, "with", count, "kills")
    return [result]


def require_recovery(setup, result, fault_at_s):
    """After the detection and five seconds a second's p99 is what it was before the fault, and none is
    as long as the detection: nothing hangs on. So are 19 of 20 seconds; in the short form, which runs
    beside other tests, the median."""
    before = [one["p99_us"] / 1000 for one in result.intervals if one["end_s"] <= fault_at_s]
    after = sorted(result.p99s_ms_after(fault_at_s + DETECTION_S + RECOVERY_S))
    require(before and after, "nothing was measured before the fault, or after it")
    usual = statistics.median(before)
    most = after[int((0.5 if setup.short else 0.95) * (len(after) - 1))]
    result.recovery = (f"a second's p99 was {usual:.0f} ms before, and {statistics.median(after):.0f} ms "
                       f"after; 19 of 20 were at most {after[int(0.95 * (len(after) - 1))]:.0f} ms, "
                       f"all {after[-1]:.0f} ms")
    require(most <= max(5 * usual, usual + 50), result.recovery)
    require(after[-1] < 1000 * DETECTION_S, result.recovery)


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
            # One client: what it has not had answered is all that it can compare.
            load = fleet.load(*setup.full(8, callers=8), "--connections=1", f"--balance={policy}")
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
            counted = answered(one)
            require(counted > 0, one.target, "is new and got no calls")
            require(one.stop() == 0, one.target, "did not stop as asked")
        result = load.result()
    require(added, "no replica was added")
    require_nothing_lost(result)
    return [result]


def answered_by_version(replica):
    """What the replica's metrics say that each version has answered."""
    text = subprocess.run(
        replica.machine.command("curl", "-s", f"http://{replica.machine.address}:8002/metrics"),
        capture_output=True, text=True, check=True).stdout
    counts = collections.Counter()
    for line in text.splitlines():
        found = re.match(r'normd_requests_total\{.*version="(\d*)".*\} (\S+)$', line)
        if found and 'method="Normalize"' in line and 'code="OK"' in line:
            counts[found.group(1)] += float(found.group(2))
    return counts


def answered(replica):
    return sum(answered_by_version(replica).values())


@scenario("a poisoned model version: it is refused and changes nothing")
def poisoned(setup):
    with tempfile.TemporaryDirectory() as folder:
        repository = pathlib.Path(folder, "models")
        shutil.copytree(setup.repository, repository)
        with setup.fleet(repository=repository) as fleet:
            load = fleet.load(*setup.full(5))
            version = repository / "instance_norm_64/2"
            good = (repository / "instance_norm_64/1/params.safetensors").read_bytes()
            refused = 0
            for bad in (b"", b"\xff" * 64, good[:-100], good + b"x", good.replace(b"F32", b"F64")):
                version.mkdir(exist_ok=True)
                (version / "params.safetensors").write_bytes(bad)
                for replica in fleet.replicas:
                    told = replica.normctl("load", "instance_norm_64", "--version=2")
                    require(told.returncode != 0, "a broken version was loaded:", bad[:16])
                    refused += 1
            result = load.result()
    require(refused == 15, "only", refused, "loads were refused")
    require_nothing_lost(result)
    return [result]


def poisons(good):
    """What a version may hold that must not be served, by the version."""
    header = 8 + int.from_bytes(good[:8], "little")
    nan = good[:header] + b"\x00\x00\xc0\x7f" * ((len(good) - header) // 4)
    return dict(enumerate((b"", good[:-100], nan, good.replace(b"[64]", b"[63]")), start=2))


def await_version(replica, version, limit_s=60):
    """Until the replica serves the version, and no other."""
    end = time.monotonic() + limit_s
    while True:
        told = replica.normctl("model", "instance_norm_64", f"--version={version}")
        gone = replica.normctl("model", "instance_norm_64", "--version=1")
        if told.returncode == 0 and "FAILED" not in told.stdout and gone.returncode != 0:
            return
        require(time.monotonic() < end, replica.target, "does not serve version", version,
                replica.log())
        time.sleep(0.1)


@scenario("a poisoned version in the repository that replicas follow: the old one serves, then a good one")
def poisoned_model(setup):
    with tempfile.TemporaryDirectory() as folder:
        repository = pathlib.Path(folder, "models")
        shutil.copytree(setup.repository, repository)
        model = repository / "instance_norm_64"
        good = (model / "1/params.safetensors").read_bytes()
        with setup.fleet(repository=repository, flags=("--model_poll_interval=250ms",)) as fleet:
            load = fleet.load(*setup.full(14))
            time.sleep(2)  # The warm-up.
            for version, bad in poisons(good).items():
                (model / f"{version}.tmp").mkdir()
                (model / f"{version}.tmp/params.safetensors").write_bytes(bad)
                (model / f"{version}.tmp").rename(model / str(version))
                for replica in fleet.replicas:
                    replica.await_log(f"instance_norm_64, version {version}: load failed")
            config = (model / "config.textproto").read_text()
            (model / "config.textproto").write_text("instance_norm { channels: 64")
            for replica in fleet.replicas:
                replica.await_log("instance_norm_64, version 1: load failed, the state before")
            require(load.running(), "the load ended before the good version came")
            (model / "config.textproto").write_text(config)
            last = max(poisons(good)) + 1
            (model / f"{last}.tmp").mkdir()
            (model / f"{last}.tmp/params.safetensors").write_bytes(good)
            (model / f"{last}.tmp").rename(model / str(last))
            for replica in fleet.replicas:
                await_version(replica, last)
            result = load.result()
            for replica in fleet.replicas:
                counts = answered_by_version(replica)
                require(set(counts) <= {"1", str(last)} and counts[str(last)] > 0,
                        "versions that answered:", counts)
                # Each version once, and with each change of the config once more.
                require(replica.log().count("load failed") <= 3 * (len(poisons(good)) + 1),
                        "a failure was told again and again:", replica.log())
    require_nothing_lost(result)
    return [result]


@scenario("delay and loss on the way to a replica: nothing is lost or wrong")
def disturbed(setup):
    if not network.can_disturb():
        return "this kernel has no netem"
    with setup.fleet() as fleet:
        fleet.replicas[0].machine.disturb("delay", "5ms", "2ms", "loss", "1%")
        result = fleet.load(*setup.full(4), "--balance=least_outstanding").result()
    require_nothing_lost(result)
    return [result]


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


@scenario("rolling update behind HAProxy: nothing is lost")
def rolling_behind_proxy(setup):
    if not setup.haproxy:
        return "no HAProxy"
    flags = ("--max_connection_share=1", "--max_peer_share=1", "--max_connection_calls=1000")
    with setup.fleet(flags=flags) as fleet, proxy(setup, fleet) as address:
        load = fleet.load(*setup.full(10), servers=address)
        replaced = restart_each(fleet, load)
        result = load.result()
    require(replaced >= 2, "only", replaced, "replicas were replaced")
    require_nothing_lost(result)
    return [result]
