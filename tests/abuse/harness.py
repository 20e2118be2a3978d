"""A normd to be abused, and what it must still be afterwards.

A scenario is a function that takes a Context and raises when the server breaks a promise:

    @scenario("9", "descriptors run out")
    def descriptors_run_out(context):
        with context.normd("--max_connections=64") as server, server.unharmed():
            ...   # the abuse; what it holds is let go before the block ends

`unharmed` compares the server before and after: a fresh client is answered, budgets are free,
descriptors and memory are back where they were. tests/abuse/run.py runs the scenarios.
"""

import contextlib
import json
import os
import pathlib
import re
import resource
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.request

MIB = 1 << 20
# What promises are judged by: memory and tail latency of the neighbours after an abuse.
MEMORY_SLACK_MIB = 64
SETTLE_SECONDS = 60
P99_FACTOR = 2.0
# A closed loop that looks whether anyone is served; what measures latencies takes longer.
BRIEF_SECONDS = 0.1
CLOSED = "closed"

SCENARIOS = []


class Skip(Exception):
    """What the scenario needs is missing here; the text says what."""


class Broken(AssertionError):
    """A promise that did not hold; the text says which, what came and what was wanted."""


def require(condition, text):
    """Raises Broken with `text` unless `condition`."""
    if not condition:
        raise Broken(text)


def wait_until(condition, seconds, text):
    """Asks `condition` until it holds. Broken after `seconds`. Returns how long it took."""
    begin = time.monotonic()
    while not condition():
        require(time.monotonic() - begin < seconds, f"{text}: not within {seconds:g} s")
        time.sleep(0.05)
    return time.monotonic() - begin


def scenario(point, promise, long_only=False):
    """Registers a scenario. `point` groups scenarios in the table; `promise` is a short sentence. With
    `long_only` the short form, which the test suite runs, leaves it out."""
    def register(function):
        SCENARIOS.append((point, promise, long_only, function))
        return function
    return register


class Certificates:
    """An authority and a server's certificate in a folder of their own."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        made = pathlib.Path(__file__).parents[2] / "deploy" / "make_certificates.sh"
        subprocess.run([str(made), f"--dir={self.folder.name}"], check=True,
                       stdout=subprocess.DEVNULL, timeout=60)
        self.ca = f"{self.folder.name}/ca.crt"
        # The metrics stay as they are: the harness reads them.
        self.server_flags = [f"--tls_cert={self.folder.name}/server.crt",
                             f"--tls_key={self.folder.name}/server.key", "--metrics_tls=false"]
        self.client_flags = [f"--tls_ca={self.ca}"]
        self.context = ssl.create_default_context(cafile=self.ca)
        self.context.set_alpn_protocols(["h2"])


class TlsAddress(tuple):
    """(host, port) of a server that is spoken to over TLS."""

    def __new__(cls, address, context):
        made = super().__new__(cls, address)
        made.context = context
        return made


class Context:
    """The arguments of a scenario. With `tls` its servers, and the clients that connect to them,
    use TLS."""

    def __init__(self, binaries, models, short):
        self.binaries = pathlib.Path(binaries)
        self.models = models
        self.short = short
        self.tls = None
        self.notes = []

    def note(self, text):
        """A measurement for the table."""
        self.notes.append(text)

    def normd(self, *flags, **options):
        """A server on free ports of loopback; `options` as Normd's."""
        return Normd(self, flags, **options)


class Normd:
    """A normd process; a context manager that ends it. `limits` are of resource.setrlimit, by name:
    {"NOFILE": 64, "AS": 2 << 30}. `stderr`: a file descriptor instead of a log file, or CLOSED."""

    def __init__(self, context, flags, limits=None, models=None, stderr=None, wait=True):
        self.context = context
        self.folder = tempfile.TemporaryDirectory()
        self.log_path = pathlib.Path(self.folder.name) / "normd.log"
        command = [str(context.binaries / "normd"), f"--model_repository={models or context.models}",
                   "--device=cpu", "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0",
                   "--http_listen=127.0.0.1:0", "--lame_duck=0s", *(context.tls.server_flags if context.tls else []), *flags]

        def prepare():
            for name, value in (limits or {}).items():
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
            if stderr is CLOSED:
                os.close(2)

        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL,
                                            stderr=log if stderr in (None, CLOSED) else stderr,
                                            preexec_fn=prepare if limits or stderr is CLOSED else None)
        self.grpc = self.metrics_address = self.http = None
        if stderr is None and wait:
            wait_until(self.find_addresses, 60, "the server starts")

    def find_addresses(self):
        """False before it serves."""
        require(self.process.poll() is None, f"normd ended: {self.log()}")
        match = re.search(r"serving: grpc=(\S+) metrics=(\S+) http=(\S+)", self.log())
        if match:
            self.grpc, self.metrics_address, self.http = match.groups()
        return match is not None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.folder.cleanup()

    @property
    def address(self):
        """(host, port) of gRPC."""
        host, port = self.grpc.rsplit(":", 1)
        address = (host, int(port))
        return TlsAddress(address, self.context.tls.context) if self.context.tls else address

    @property
    def http_address(self):
        """(host, port) of HTTP."""
        host, port = self.http.rsplit(":", 1)
        return host, int(port)

    def log(self):
        return self.log_path.read_text(errors="replace")

    def stop(self, seconds):
        """(The exit code, the seconds until then) after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.end(seconds)

    def end(self, seconds):
        """The same without the signal."""
        begin = time.monotonic()
        try:
            return self.process.wait(seconds), time.monotonic() - begin
        except subprocess.TimeoutExpired:
            raise Broken(f"no exit within {seconds} s") from None

    def require_clean_stop(self, seconds, beside):
        """Returns how long the stop took."""
        code, took = self.stop(30)
        require(code == 0 and took < seconds,
                f"SIGTERM beside {beside}: exit {code} after {took:.1f} s, wanted 0 within {seconds}")
        return took

    def rss_mib(self):
        """Resident memory now."""
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text).group(1)) / 1024

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def metrics(self):
        """The text of a scrape."""
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=10) as page:
            return page.read().decode()

    def metric(self, name, **labels):
        """The sum of the samples of `name` that carry `labels`; 0 when there is none."""
        total = 0.0
        for line in self.metrics().splitlines():
            match = re.match(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", line)
            if not match or match.group(1) != name:
                continue
            found = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match.group(2) or ""))
            if all(found.get(key) == value for key, value in labels.items()):
                total += float(match.group(3))
        return total

    def probe(self, seconds=1.0, model="instance_norm_64", shape="1x64x2x2", protocol="normd"):
        """A fresh client on a connection of its own: 1 KiB requests, one at a time, in normload's
        `protocol`. Returns {"ok": calls, "errors": calls, "p99_ms": latency}."""
        report = pathlib.Path(self.folder.name) / "probe.json"
        done = subprocess.run(
            [str(self.context.binaries / "normload"), f"--server={self.grpc}", f"--model={model}",
             f"--shape={shape}", "--concurrency=1", "--connections=1", f"--duration={seconds}s",
             f"--warmup={seconds / 10}s", "--max_error_share=1", f"--json={report}",
             f"--protocol={protocol}", f"--http={self.http}",
             *(self.context.tls.client_flags if self.context.tls else [])],
            check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60)
        require(done.returncode == 0, f"a fresh client: {done.stderr}")
        result = json.loads(report.read_text())["result"]
        return {"ok": result["requests"] - result["errors"], "errors": result["errors"],
                "p99_ms": result["service_time"]["p99_us"] / 1e3}

    def require_serving(self, when="afterwards", protocol="normd"):
        """A fresh client is answered, and not refused once. On a busy machine its first call may
        take longer than a short probe."""
        result = self.probe(BRIEF_SECONDS, protocol=protocol)
        if result["ok"] == 0 and result["errors"] == 0:
            result = self.probe(seconds=5, protocol=protocol)
        require(result["ok"] > 0 and result["errors"] == 0, f"a fresh client {when}: {result}")

    def _serves_a_fresh_client(self, protocol):
        result = self.probe(BRIEF_SECONDS, protocol=protocol)
        require(result["errors"] == 0, f"a fresh client afterwards: {result}")
        return result["ok"] > 0

    @contextlib.contextmanager
    def unharmed(self, settle=SETTLE_SECONDS, memory_slack_mib=MEMORY_SLACK_MIB, protocol="normd"):
        """The server is afterwards what it was before: see the module's text. Only the long form
        measures the latency: other programs share the machine that runs the short one."""
        # So that pools and caches are filled before the first reading.
        self.probe(BRIEF_SECONDS, protocol=protocol)
        before = None if self.context.short else self.probe(1.2, protocol=protocol)
        memory, descriptors = self.rss_mib(), self.descriptors()
        peak = PeakMemory(self)
        yield
        require(self.process.poll() is None, f"normd ended: {self.log()[-2000:]}")
        # What an abuse has left in sockets may take a moment.
        wait_until(lambda: self._serves_a_fresh_client(protocol), 15,
                   "a fresh client is served afterwards")
        wait_until(lambda: self.metric("normd_inflight_bytes") == 0, settle, "budgets are free")
        wait_until(lambda: self.descriptors() <= descriptors + 2, settle,
                   f"descriptors are back at {descriptors}")
        took = wait_until(lambda: self.rss_mib() <= memory + memory_slack_mib, settle,
                          f"memory is back at {memory:.0f} MiB + {memory_slack_mib}")
        self.context.note(f"memory {memory:.0f} -> {self.rss_mib():.0f} MiB after {took:.0f} s, "
                          f"peak {peak.mib():.0f}")
        if before:
            after = self.probe(1.2, protocol=protocol)
            latencies = f"p99 {before['p99_ms']:.2f} -> {after['p99_ms']:.2f} ms"
            self.context.note(latencies)
            require(after["p99_ms"] <= P99_FACTOR * before["p99_ms"],
                    f"{latencies} of a fresh client, wanted at most {P99_FACTOR:g} times")


class PeakMemory:
    """The most memory that a server has had since this was made."""

    def __init__(self, server):
        self.pid = server.process.pid
        try:
            pathlib.Path(f"/proc/{self.pid}/clear_refs").write_text("5")  # Resets VmHWM.
        except OSError:
            pass  # Then it is the peak since the server's start.

    def mib(self):
        text = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", text).group(1)) / 1024
