"""The metrics port, the series of models that come and go, and a stderr that takes nothing."""

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import shutil
import socket
import tempfile
import threading
import time

from harness import CLOSED, MIB, Normd, require, scenario, wait_until
from h2_client import STREAM, Connection, bytes_field, framed, stream_chunk, stream_header

LOAD = "/normd.v1.NormService/LoadModel"
UNLOAD = "/normd.v1.NormService/UnloadModel"
OTHER = "127.0.0.2"


def connect(server, source="127.0.0.1"):
    host, port = server.metrics_address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=10, source_address=(source, 0))


def hold(server, sent, source, count=200):
    """Connections that sent `sent` and do nothing more. The server may have dropped some already."""
    held = []
    for _ in range(count):
        peer = connect(server, source)
        with contextlib.suppress(ConnectionError):
            peer.sendall(sent)
        held.append(peer)
    return held


def drip(peers, done):
    """A byte of a header on each connection, twenty times a second."""
    while not done.wait(0.05):
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.sendall(b"a")


@scenario("10", "connections to the metrics port that are held open stop no scrape")
def metrics_port_held(context):
    begun = b"GET /metrics HTTP/1.1\r\n"
    attacks = {"silence": b"", "half a request": b"GET /metr", "half a head": begun + b"A: b",
               "a drip": begun + b"A: ", "a response unread": begun + b"\r\n",
               "the page unread": b"GET / HTTP/1.1\r\n\r\n",
               "its data unread": b"GET /status.json HTTP/1.1\r\nAccept-Encoding: gzip\r\n\r\n",
               "a pipeline": (begun + b"\r\n") * 50, "10 MB of head": begun + b"A: " + b"a" * (10 * MIB)}
    with context.normd() as server, server.unharmed():
        slowest = 0.0
        for name, sent in attacks.items():
            for source in (OTHER, "127.0.0.1"):
                peers = hold(server, sent, source, 20 if len(sent) > MIB else 200)
                done = threading.Event()
                dripper = threading.Thread(target=drip, args=(peers, done))
                if name == "a drip":
                    dripper.start()
                for _ in range(3):
                    begin = time.monotonic()
                    require("normd_ready 1" in server.metrics(), f"a scrape beside {name} from {source}")
                    slowest = max(slowest, time.monotonic() - begin)
                done.set()
                if name == "a drip":
                    dripper.join()
                for peer in peers:
                    peer.close()
        require(slowest < 5, f"the slowest scrape took {slowest:.1f} s")
        context.note(f"the slowest of {len(attacks) * 6} scrapes: {slowest * 1000:.0f} ms")


def answer_of(server, sent):
    """What the metrics port answers with to `sent`: (its status or 0, its head, its body)."""
    with connect(server) as peer, contextlib.suppress(ConnectionError):
        peer.sendall(sent)
        head, _, body = b"".join(iter(lambda: peer.recv(1 << 16), b"")).partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]) if head else 0, head, body
    return 0, b"", b""


@scenario("10", "the live page is the same for whoever asks, and repeats nothing of the request")
def live_page_requests(context):
    evil = b"<script>alert(1)</script>"
    with context.normd() as server, server.unharmed():
        def ask(line, *fields, body=b""):
            """The answer to a request whose first line lacks only its version."""
            return answer_of(server, b"\r\n".join((line + b" HTTP/1.1", *fields, b"", body)))

        _, _, page = ask(b"GET /")
        require(page.startswith(b"<!doctype html>"), f"the page begins with {page[:40]}")
        for query in (evil, b"a=%0d%0aSet-Cookie:b", b"a" * 4000):
            status, head, body = ask(b"GET /?" + query, b"Host: evil", b"Referer: " + evil)
            require(status == 200 and body == page, f"GET /?{query[:40]}: {status}, {len(body)} bytes")
            require(b"Content-Security-Policy: default-src 'none'" in head, f"the head: {head}")
        for method in (b"POST", b"PUT", b"DELETE", b"TRACE", b"OPTIONS", b"CONNECT", b"BREW"):
            for path in (b"/", b"/status.json"):
                status, _, body = ask(method + b" " + path, b"Content-Length: 5", body=b"hello")
                require(status in (400, 405), f"{method} {path}: {status}")
        for path in (b"/" + evil, b"/status.json/../metrics", b"/status.json%00", b"//evil/", b"/page.js",
                     b"/%2e%2e/etc/passwd", b"http://evil/", b"*", b"/\xff\xfe", b"/" + b"a" * 9000):
            status, _, body = ask(b"GET " + path)
            require(status in (400, 404, 431) and evil not in body, f"GET {path[:40]}: {status}")
        for _ in range(20 if context.short else 200):
            status, head, body = ask(b"GET /status.json")
            require(status == 200 and b"Cache-Control: no-store" in head, f"its data: {status}, {head}")
            require(json.loads(body)["ready"], "a server that serves is ready")


@scenario("10", "a request and a response have their time as a whole")
def metrics_port_deadlines(context):
    with context.normd("--metrics_timeout=500ms") as server, server.unharmed():
        peers = hold(server, b"GET /metrics HTTP/1.1\r\nA: ", OTHER, 8) + hold(server, b"", OTHER, 4)
        done = threading.Event()
        dripper = threading.Thread(target=drip, args=(peers[:8], done))
        dripper.start()
        try:
            wait_until(lambda: server.metric("normd_http_dropped_total", reason="timeout") >= 12, 20,
                       "twelve slow requests are dropped")
        finally:
            done.set()
            dripper.join()
        for peer in peers:
            peer.close()


@scenario("10", "the metrics port listens again after descriptors ran out", long_only=True)
def metrics_port_descriptors(context):
    with context.normd(limits={"NOFILE": 128}) as server:
        held = []
        with contextlib.suppress(OSError):
            for _ in range(400):
                held.append(socket.create_connection(server.address, timeout=1))
        for peer in held:
            peer.close()
        wait_until(lambda: "normd_ready" in scrape_or_nothing(server), 20, "a scrape is answered again")


def scrape_or_nothing(server):
    try:
        return server.metrics()
    except OSError:
        return ""


@scenario("6", "models with ever new names leave no series and no memory behind")
def series_of_models_that_are_gone(context):
    names = [f"model_{i:04}" for i in range(150 if context.short else 1000)]
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "models"
        shutil.copytree(context.models, root)
        small = next(path for path in sorted(root.iterdir()) if path.name.startswith("instance_norm"))
        for name in names:
            shutil.copytree(small, root / name)
        keep = {path.name for path in root.iterdir()} - set(names)
        with context.normd(models=root) as server:
            with Connection(server.address) as client:
                def ask(path, name):
                    code, message = client.call(bytes_field(1, name.encode()), path=path)
                    require(code == 0, f"{path} {name}: {code} {message}")
                for name in names:
                    ask(UNLOAD, name)
                for _ in range(3):
                    server.metrics()
                before, memory = len(server.metrics()), server.rss_mib()
                for name in names:
                    ask(LOAD, name)
                    ask(UNLOAD, name)
                unscraped = len(server.metrics())
                server.metrics()
                wait_until(lambda: len(server.metrics()) < before + 4096, 10, "the series vanish")
            require(unscraped < before + (1 << 20), f"/metrics with nobody scraping: {unscraped} bytes")
            grown = server.rss_mib() - memory
            require(grown < 16, f"memory grew by {grown:.1f} MiB")
            context.note(f"{len(names)} names: /metrics {before} -> {len(server.metrics())} bytes "
                         f"(at most {unscraped}), memory +{grown:.1f} MiB, {len(keep)} models stay")


def full(write_end):
    """Fills what stands behind a descriptor."""
    flags = fcntl.fcntl(write_end, fcntl.F_GETFL)
    fcntl.fcntl(write_end, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write_end, b"#" * 1024)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write_end, b"#")
    fcntl.fcntl(write_end, fcntl.F_SETFL, flags)


def deaf_descriptors():
    """What a supervisor may give as stderr, by name: (the end to write to, the end to read from)."""
    def pipe():
        read, write = os.pipe()
        full(write)
        return write, read

    def stream():
        ours, theirs = socket.socketpair()
        write = theirs.detach()
        full(write)
        return write, ours.detach()

    def terminal():
        master, slave = pty.openpty()
        full(slave)
        return slave, master

    def broken():
        read, write = os.pipe()
        os.close(read)
        return write, None

    return {"a full pipe": pipe, "a full socket": stream, "a terminal that is stopped": terminal,
            "a broken pipe": broken, "a full disk": lambda: (os.open("/dev/full", os.O_WRONLY), None),
            "nothing": lambda: (None, None)}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class DeafServer(Normd):
    """A normd at fixed ports whose stderr takes nothing; it has none if that is None."""

    def __init__(self, context, stderr, *flags):
        grpc, metrics = (f"127.0.0.1:{free_port()}" for _ in range(2))
        super().__init__(context, [f"--listen={grpc}", f"--metrics_listen={metrics}", "--http_listen=", *flags],
                         stderr=CLOSED if stderr is None else stderr)
        self.grpc, self.metrics_address = grpc, metrics

    def serves(self):
        require(self.process.poll() is None, f"normd ended with {self.process.poll()}")
        try:
            with Connection(self.address) as client:
                return client.call(b"", path="/normd.v1.NormService/GetServerInfo")[0] == 0
        except OSError:
            return False


def serve_and_stop(context, name, make):
    write, read = make()
    try:
        with DeafServer(context, write, "--log_sample_every=1", "--log_level=debug") as server:
            wait_until(server.serves, 60, f"normd starts with {name} as stderr")
            with Connection(server.address) as client:
                for _ in range(300):  # Each leaves a line in the request log.
                    code, message = client.call(bytes_field(1, b"no_such_model"))
                    require(code == 3, f"with {name} as stderr: {code} {message}")
            code, seconds = server.stop(20)
            require(code == 0, f"with {name} as stderr: exit code {code}, wanted 0")
            return seconds
    finally:
        for end in (write, read):
            if end is not None:
                os.close(end)


@scenario("11", "a stderr that takes nothing holds up no start, no call and no stop")
def deaf_stderr(context):
    kinds = deaf_descriptors()
    if context.short:
        kinds = {name: kinds[name] for name in ("a full pipe", "nothing")}
    for name, make in kinds.items():
        context.note(f"{name}: stopped after {serve_and_stop(context, name, make):.1f} s")


@scenario("11", "every exit code comes through a full pipe at stderr")
def deaf_exits(context):
    read, write = os.pipe()
    full(write)
    try:
        for flags, wanted in ((["--no_such_flag=1"], 2), (["--model_repository=/nonexistent"], 1)):
            with DeafServer(context, write, *flags) as server:
                code, _ = server.end(30)
                require(code == wanted, f"{flags}: exit code {code}, wanted {wanted}")
        # A stream in the middle of its tensor keeps the server until it gives up.
        with DeafServer(context, write, "--drain_timeout=0s") as server:
            wait_until(server.serves, 60, "normd starts")
            with Connection(server.address) as client:
                stream = client.start(STREAM)
                client.send(stream, framed(stream_header("instance_norm_64", [4, 64, 64, 64])))
                client.send(stream, framed(stream_chunk(b"\0" * (64 * 64 * 64 * 4))))
                wait_until(lambda: client.pump(1) and any(
                    getattr(event, "stream_id", None) == stream and hasattr(event, "data")
                    for event in client.events), 20, "a first part of the result")
                code, _ = server.stop(20)
                require(code == 3, f"aborted: exit code {code}, wanted 3")
    finally:
        os.close(read)
        os.close(write)


@scenario("11", "a stderr that is read again tells how many lines were lost")
def lost_lines_are_told(context):
    read, write = os.pipe()
    full(write)
    with DeafServer(context, write, "--log_sample_every=1", "--log_level=info") as server:
        os.close(write)
        wait_until(server.serves, 60, "normd starts")
        with Connection(server.address) as client:
            for _ in range(2000 if context.short else 5000):  # Over 512 KiB of lines.
                client.call(bytes_field(1, b"no_such_model"))
        text = bytearray()
        while b"log lines were lost" not in text:
            part = os.read(read, 1 << 16)
            require(part, "the pipe ended before the log told of lost lines")
            text += part
        told = int(text.split(b" log lines were lost")[0].split()[-1])
        counted = server.metric("normd_log_lines_lost_total")
        require(0 < told <= counted, f"the log tells of {told} lost lines, the metric of {counted}")
        drain = threading.Thread(target=read_all, args=(read, text))
        drain.start()
        code, _ = server.stop(20)
        drain.join()
        require(code == 0, f"exit code {code}")
        require(b"] stopped\n" in text, "the last line is there when stderr is read")
        context.note(f"{told} lines lost and told")
    os.close(read)


def read_all(descriptor, text):
    while True:
        part = os.read(descriptor, 1 << 16)
        if not part:
            return
        text += part
