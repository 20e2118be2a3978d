"""Messages: slow ones, half ones, large ones and wrong ones (docs/threat_model.md, Connections)."""

import contextlib
import os
import random
import threading
import time

import h2.events
import h2.exceptions

from h2_client import Connection, bytes_field, framed, normalize_request
from harness import MIB, require, scenario, wait_until

MODEL = "instance_norm_64"
ONES = b"\x00\x00\x80\x3f" * 64


@scenario("8", "a message that drips in below every rate is noticed, and ends its connection")
def drip(context):
    with context.normd("--message_timeout=1s", "--min_message_rate=1048576") as server:
        with server.unharmed(), Connection(server.address) as client:
            call = client.start()
            client.send(call, framed(b"", length=64 * MIB))
            sent = 0
            while server.metric("normd_connections_ended_total", reason="message_timeout") == 0:
                require(sent < 6 * MIB, f"ended: {sent >> 20} MiB are held")
                try:
                    client.send(call, bytes(32768))
                except Exception:  # pylint: disable=broad-except
                    break
                sent += 32768
                time.sleep(0.05)
            wait_until(lambda: server.metric("normd_connections_ended_total",
                                             reason="message_timeout") == 1, 5, "ended")
            context.note(f"{sent >> 10} KiB were held")


@scenario("8", "half-sent requests are given up after --message_timeout")
def half_sent(context):
    size = (16 if context.short else 256) * MIB
    flags = ["--message_timeout=1s" if context.short else "--message_timeout=4s"]
    with context.normd(*flags) as server, server.unharmed():
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                client = stack.enter_context(Connection(server.address))
                call = client.start()
                message = framed(b"", length=size)
                client.send(call, message + bytes(size - 1))
            peak = server.rss_mib()

            def ended(reason):
                return server.metric("normd_connections_ended_total", reason=reason)

            # Four times 256 MiB are more than --max_transport_bytes, which one of them answers for.
            wait_until(lambda: ended("message_timeout") + ended("transport_bytes") == 4, 20,
                       "all four ended")
            context.note(f"held {peak:.0f} MiB; {ended('message_timeout'):.0f} were too slow, "
                         f"{ended('transport_bytes'):.0f} too much")
            require(ended("message_timeout") >= 3, "the time-out ends what is within the memory")


@scenario("8", "half-sent requests of one address cost the calls of another nothing")
def half_sent_crowd(context):
    flags = [f"--max_transport_bytes={128 * MIB}", f"--max_inflight_bytes={128 * MIB}",
             f"--max_request_bytes={32 * MIB}"]
    size = 31 * MIB
    with context.normd(*flags) as server, server.unharmed():
        def attack():
            with contextlib.ExitStack() as stack:
                while not over.is_set():
                    try:
                        client = stack.enter_context(Connection(server.address, source="127.0.0.9"))
                        client.send(client.start(), framed(b"", length=size) + bytes(size - 1))
                    except OSError:
                        pass  # Ended meanwhile.

        def ended():
            return server.metric("normd_connections_ended_total", reason="transport_bytes")

        over = threading.Event()
        attackers = [threading.Thread(target=attack) for _ in range(4)]
        for attacker in attackers:
            attacker.start()
        try:
            calls, tries = 0, 0
            while ended() < (8 if context.short else 64):
                result = server.probe(seconds=0.5, shape="1x64x16x16")
                require(result["errors"] == 0, f"another's calls: {result}")
                calls, tries = calls + result["ok"], tries + 1
                require(tries < 60, f"{ended():.0f} of the attackers' connections have ended")
        finally:
            over.set()
            for attacker in attackers:
                attacker.join()
        context.note(f"{calls} calls beside {ended():.0f} connections that were ended")


class CancelledUploads:
    """Calls of one connection, each with a part of a message: its client or its deadline ends it
    anywhere. One in eight is whole."""

    def __init__(self, client, rng):
        self.client, self.rng = client, rng
        self.whole = framed(normalize_request(MODEL, [64, 64, 16, 16], ONES * 256 * 64))  # 4 MiB
        self.calls = {}  # How each ends, and what it has left to send.
        self.sent = 0

    def start(self):
        ends = self.rng.choice(["reset"] * 4 + ["deadline"] * 3 + ["whole"])
        call = self.client.start(timeout="20m" if ends == "deadline" else None)
        size = len(self.whole) if ends == "whole" else self.rng.randrange(len(self.whole))
        self.calls[call] = [ends, self.whole[:size]]

    def step(self):
        """Some bytes of any call, or its end."""
        call = self.rng.choice(list(self.calls))
        ends, rest = self.calls[call]
        room = self.client.h2.local_flow_control_window(call)
        part = rest[:min(room, self.rng.choice([9, 16384, MIB // 4, MIB]))]
        self.calls[call][1] = rest = rest[len(part):]
        self.client.send(call, part, end=ends == "whole" and not rest)
        self.sent += len(part)
        if not part and rest or ends == "deadline":
            self.client.pump(0.01)  # Until there is room, or the deadline has passed.
        elif not rest:
            del self.calls[call]
            if ends == "reset":
                self.client.h2.reset_stream(call, 8)
                self.client.flush()
        for event in self.client.events:
            require(not isinstance(event, h2.events.ConnectionTerminated), f"{event}")
            if isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset)):
                self.calls.pop(event.stream_id, None)
        self.client.events.clear()
        require(not self.client.closed, "the connection stays open")


@scenario("8", "uploads that are cancelled at any point leave nothing that is held against anybody")
def cancelled_uploads(context):
    rng = random.Random(20261126)
    flags = [f"--max_transport_bytes={64 * MIB}", f"--max_inflight_bytes={64 * MIB}",
             f"--max_request_bytes={16 * MIB}", "--max_connection_calls=16", "--message_timeout=5s"]
    with context.normd(*flags) as server, server.unharmed():
        for at_once in (1, 4, 8):
            with Connection(server.address) as client:
                watch = client.start("/grpc.health.v1.Health/Watch")
                client.send(watch, framed(b""), end=True)
                uploads = CancelledUploads(client, rng)
                wanted = (100 if context.short else 2000) * MIB
                while uploads.sent < wanted or uploads.calls:
                    while uploads.sent < wanted and len(uploads.calls) < at_once:
                        uploads.start()
                    uploads.step()
                # On a busy machine the estimate was seen to stay for over 5 s; why is not known.
                if not context.short:
                    wait_until(lambda: server.metric("normd_transport_undelivered_bytes") <= 65536,
                               10, f"what {at_once} calls at once have left is known to be gone")
                ended = server.metric("normd_connections_ended_total")
                require(ended == 0 and not client.closed, f"{ended:.0f} connections were ended")


@scenario("8", "a slow upload above the least rate goes through")
def slow_upload(context):
    with context.normd("--message_timeout=1s", "--min_message_rate=4096") as server:
        with Connection(server.address) as client:
            shape = [1, 64, 32, 16]
            message = framed(normalize_request(MODEL, shape, ONES * 512))
            call = client.start()
            step = 12000  # 40 KB/s; the message has 128 KiB.
            for at in range(0, len(message), step):
                client.send(call, message[at:at + step], end=at + step >= len(message))
                time.sleep(0.3)
            code, text = client.status(call)
            require(code == 0, f"{code} {text}")


@scenario("8", "a message far above --max_request_bytes ends its connection")
def oversize(context):
    with context.normd("--max_request_bytes=1048576") as server, server.unharmed():
        before = server.rss_mib()
        client = Connection(server.address)
        call = client.start()
        peak, sent, block = 0, 0, bytes(MIB)
        try:
            client.send(call, framed(b"", length=900 * MIB))
            while sent < 900:
                client.send(call, block)
                sent += 1
                if sent % 32 == 0:
                    peak = max(peak, server.rss_mib())
                require(not client.closed, "closed")
        except Exception:  # pylint: disable=broad-except
            pass
        client.close()
        context.note(f"{sent} of 900 MiB sent, memory {before:.0f} -> {peak:.0f} MiB")
        require(sent < 900, "the connection is ended before all is sent")
        require(server.metric("normd_connections_ended_total", reason="oversize") == 1, "counted")


@scenario("8", "messages little above --max_request_bytes get a status")
def little_oversize(context):
    with context.normd("--max_request_bytes=1048576") as server:
        with Connection(server.address) as client:
            code, text = client.call(bytes(20 * MIB))
            require(code == 8, f"{code} {text}, wanted RESOURCE_EXHAUSTED")


@scenario("8", "under a memory limit large requests are refused and the process lives")
def memory_limit(context):
    clients, size = (2, 60 * MIB) if context.short else (8, 200 * MIB)
    with context.normd(limits={"AS": 2 << 30}) as server:
        require("--max_transport_bytes 1073741824 -> " in server.log(), "the log tells the budgets")
        with server.unharmed():
            with contextlib.ExitStack() as stack:
                for _ in range(clients):
                    client = stack.enter_context(Connection(server.address))
                    try:
                        call = client.start()
                        client.send(call, framed(b"", length=size) + bytes(size - 1))
                    except Exception:  # pylint: disable=broad-except
                        pass
                require(server.process.poll() is None, f"normd ended: {server.log()[-1000:]}")


def upload_large(server, clients, size):
    """Messages of `size` from processes that know no limit and come again."""
    children = []
    message = framed(b"", length=size - 5) + bytes(size - 5)  # They share it: it takes time to make.
    for _ in range(clients):
        children.append(os.fork())
        if children[-1] != 0:
            continue
        for _ in range(3):
            with contextlib.suppress(OSError, h2.exceptions.ProtocolError):
                client = Connection(server.address)
                call = client.start()
                client.send(call, message, end=True)
                client.status(call)
        os._exit(0)
    for child in children:
        os.waitpid(child, 0)


@scenario("8", "under any memory limit the server lives, or says at its start what it needs")
def any_memory_limit(context):
    limits = [130, 200, 280, 500]
    if not context.short:
        limits = list(range(130, 340, 10)) + list(range(340, 1000, 40)) + [1200, 1600, 2048]
    least = {}
    for kind in ("AS", "DATA"):
        for limit in limits:
            with context.normd(limits={kind: limit * MIB}, wait=False) as server:
                wait_until(lambda: server.process.poll() is not None or "serving:" in server.log(),
                           30, f"{kind}={limit}: it serves, or has ended")
                if server.process.poll() is not None:
                    require("cannot start: memory: " in server.log() and kind not in least,
                            f"{kind}={limit}, where it started with {least}: {server.log()}")
                    continue
                server.find_addresses()
                least.setdefault(kind, limit)
                for size in (128 * MIB, 12 * MIB):
                    upload_large(server, 6, size)
                    require(server.process.poll() is None,
                            f"{kind}={limit}, {size >> 20} MiB: exit {server.process.poll()}")
                server.require_serving(f"with {kind}={limit}")
    context.note(f"it starts with {least} MiB")
    require(len(least) == 2, f"it starts with {limits[-1]} MiB")


@scenario("12", "a compressed flag, an unknown encoding and a long model name get clear errors")
def clear_errors(context):
    with context.normd() as server:
        request = normalize_request(MODEL, [1, 64, 1, 1], ONES)
        for metadata, compressed, wanted in [((), 1, 12), ([("grpc-encoding", "snappy")], 1, 12),
                                             ([("grpc-encoding", "snappy")], 0, 0),
                                             ([("grpc-encoding", "gzip")], 1, 3),
                                             ([("grpc-encoding", "gzip")], 0, 0)]:
            with Connection(server.address) as client:
                call = client.start(metadata=metadata)
                client.send(call, framed(request, compressed=compressed), end=True)
                code, text = client.status(call)
                require(code == wanted, f"{metadata} {compressed}: {code} {text}")
        with Connection(server.address) as client:
            code, text = client.call(bytes_field(1, b"m" * (10 * MIB)))
            require(code == 3 and text.startswith("model: ") and str(10 * MIB) in text,
                    f"a model name of 10 MiB: {code} {text}")
