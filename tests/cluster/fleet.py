"""Replicas of normd on machines of their own, and loads on them."""

import collections
import json
import pathlib
import re
import signal
import subprocess
import tempfile
import time

FIRST = 11
CLIENT = 2
PORT = 8001


class Replica:
    """normd on a machine, which keeps its address over restarts."""

    def __init__(self, machine, programs, repository, flags=(), program="normd"):
        self.machine = machine
        self.target = f"{machine.address}:{PORT}"
        self._command = machine.command(
            programs / program, f"--model_repository={repository}", "--insecure",
            f"--listen={self.target}", f"--metrics_listen={machine.address}:8002",
            "--http_listen=", "--device=cpu",
            "--cpu_threads=1", "--lame_duck=2s", "--drain_timeout=10s", "--admin=on", *flags)
        self._programs = programs
        self._process = None

    def start(self):
        self._log = tempfile.TemporaryFile(mode="a+")  # At its end, wherever log() reads.
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=self._log,
                                         stderr=self._log, text=True)
        self._await_serving()

    def _await_serving(self, limit_s=60):
        end = time.monotonic() + limit_s
        while not self.serves():
            if self._process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"{self.target} does not serve:\n{self.log()}")
            time.sleep(0.1)

    def log(self):
        self._log.seek(0)
        return self._log.read()

    def await_log(self, text, limit_s=60):
        end = time.monotonic() + limit_s
        while text not in self.log():
            if time.monotonic() > end:
                raise AssertionError(f"{self.target} does not say {text!r}:\n{self.log()}")
            time.sleep(0.1)

    def normctl(self, *arguments):
        return subprocess.run(
            self.machine.command(self._programs / "normctl", *arguments, f"--server={self.target}"),
            capture_output=True, text=True, check=False, timeout=60)

    def serves(self):
        return self.normctl("health").returncode == 0

    def tell(self, line):
        """Sends a line to failing_normd, whose standard input says what fails."""
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def series(self, name, *labels):
        """The metric's series with all of the labels, each such as 'code="OK"', as (labels, value).
        """
        text = subprocess.run(
            self.machine.command("curl", "-s", f"http://{self.machine.address}:8002/metrics"),
            capture_output=True, text=True, check=True).stdout
        for line in text.splitlines():
            found = re.match(rf"{name}{{(.*)}} (\S+)$", line)
            if found and all(label in found.group(1) for label in labels):
                yield found.group(1), float(found.group(2))

    def responses_by_version(self):
        counts = collections.Counter()
        for labels, value in self.series("normd_requests_total", 'method="Normalize"', 'code="OK"'):
            counts[re.search(r'version="(\d*)"', labels).group(1)] += value
        return counts

    def answered(self):
        return sum(self.responses_by_version().values())

    def signal(self, number):
        self._process.send_signal(number)

    def wait(self):
        return self._process.wait(timeout=60)

    def kill(self):
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
        if self._process is not None:
            self._process.stdin.close()

    def stop(self):
        """As a rolling update does; the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()


class Fleet:
    """Some replicas and a machine for clients. Ends all of them with the block it is used in."""

    def __init__(self, network, programs, repository, count, flags=()):
        self._network = network
        self._programs = programs
        self._flags = flags
        self.repository = repository
        self.client = network.attach(CLIENT)
        self.replicas = []
        self._count = count

    def __enter__(self):
        try:
            for _ in range(self._count):
                self.add()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for replica in self.replicas:
            replica.kill()

    def add(self, *flags, program="normd"):
        machine = self._network.attach(FIRST + len(self.replicas))
        replica = Replica(machine, self._programs, self.repository, (*self._flags, *flags), program)
        self.replicas.append(replica)
        replica.start()
        return replica

    @property
    def servers(self):
        return ",".join(replica.target for replica in self.replicas)

    def load(self, *flags, servers=None, hosts=None):
        return Load(self, servers or self.servers, flags, hosts)


class Load:
    """normload under way in the machine for clients."""

    def __init__(self, fleet, servers, flags, hosts):
        self._folder = tempfile.TemporaryDirectory()
        self._json = pathlib.Path(self._folder.name, "report.json")
        self._process = subprocess.Popen(
            fleet.client.command(
                fleet._programs / "normload", f"--server={servers}", "--model=instance_norm_64",
                "--shape=1x64x4x4", "--connections=4", "--warmup=1s", "--quiet", "--verify",
                f"--model_repository={fleet.repository}", "--give_up_after=0", "--max_error_share=1",
                f"--json={self._json}", *flags, hosts=hosts),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def running(self):
        return self._process.poll() is None

    def result(self):
        """The report. Waits for the end."""
        output, _ = self._process.communicate(timeout=1800)
        text = self._json.read_text() if self._json.is_file() else ""
        report = json.loads(text or "{}")
        self._folder.cleanup()
        if self._process.returncode != 0 or not report.get("result"):
            raise AssertionError(f"normload: exit code {self._process.returncode}\n{output}")
        return Result(report)


class Result:
    def __init__(self, report):
        result = report["result"]
        self.sent = result["requests"]
        self.answered = result["ok"]
        self.lost = result["errors"]
        self.wrong = result["wrong"]
        self.verified = result["verified"]
        self.codes = {code: count for code, count in result["codes"].items() if code != "OK"}
        self.messages = result["first_messages"]
        self.fleet = result.get("fleet", {})
        self.retried = self.fleet.get("retries", 0)
        self.p99_ms = result["response_time"]["p99_us"] / 1000
        self.intervals = report["intervals"]
        self.note = ""

    def p99s_ms_after(self, begin_s):
        """The p99 of each second that begins then or later."""
        return [one["p99_us"] / 1000 for one in self.intervals if one["begin_s"] >= begin_s]

    def line(self):
        return (f"sent {self.sent}, answered {self.answered}, retried {self.retried}, lost {self.lost}, "
                f"verified {self.verified}, wrong {self.wrong}, p99 {self.p99_ms:.1f} ms"
                + (f"; {self.note}" if self.note else ""))
