"""Connections: how many, how they begin, and floods of frames (docs/threat_model.md, Connections)."""

import contextlib
import socket
import struct
import time

from frames import (CALL, CONTINUATION, END_HEADERS, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, Raw,
                    frame, hpack_rest, literal)
from harness import require, scenario, wait_until


def flood(address, count, source=None):
    """Opens `count` bare connections; returns the sockets that the system gave."""
    opened = []
    for _ in range(count):
        try:
            opened.append(socket.create_connection(
                address, timeout=2, source_address=(source, 0) if source else None))
        except OSError:
            pass
    return opened


def require_recovery(server):
    wait_until(lambda: server.metric("normd_ready") == 1, 15, "ready again")
    server.require_serving("after the flood")


def descriptors_run_out(context, nofile, count):
    # All of them come from one peer, which may take all that there is.
    with context.normd("--handshake_timeout=2s", "--max_peer_connections=100000",
                       limits={"NOFILE": nofile}) as server:
        with server.unharmed():
            sockets = flood(server.address, count)
            wait_until(lambda: server.metric("normd_ready") == 0, 5, "not ready while full")
            require(server.metric("normd_connections_refused_total") > 0, "refusals are counted")
            for opened in sockets:
                opened.close()
            require_recovery(server)


@scenario("9", "200 connections with 64 descriptors: refused, not ready, and back afterwards")
def descriptors_64(context):
    descriptors_run_out(context, 64, 200)


@scenario("9", "1,100 connections with 1,024 descriptors", long_only=True)
def descriptors_1024(context):
    descriptors_run_out(context, 1024, 1100)


@scenario("9", "who has had its share of connections leaves room for another peer")
def peer_share(context):
    with context.normd("--max_connections=20", "--max_peer_connections=10") as server:
        with server.unharmed():
            sockets = flood(server.address, 40, source="127.0.0.2")
            wait_until(lambda: server.metric("normd_connections_refused_total",
                                             reason="peer_connections") >= 30, 5, "refusals")
            server.require_serving("while another has its share")
            require(server.metric("normd_ready") == 1, "ready")
            for opened in sockets:
                opened.close()


@scenario("8", "slow, silent and foreign beginnings end after the handshake's time-out")
def beginnings(context):
    with context.normd("--handshake_timeout=1s") as server, server.unharmed():
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(s) for s in flood(server.address, 20)]
            partial = [stack.enter_context(s) for s in flood(server.address, 20)]
            for at, opened in enumerate(partial):
                opened.sendall((PREFACE + frame(SETTINGS, 0, 0))[:at + 1])
            unacknowledged = [stack.enter_context(Raw(server.address, acknowledge=0))
                              for _ in range(20)]
            for opened in silent + partial + [raw.socket for raw in unacknowledged]:
                opened.settimeout(5)
                begin = time.monotonic()
                with contextlib.suppress(ConnectionError):
                    while opened.recv(4096):
                        pass
                require(time.monotonic() - begin < 4, "ended in time")
        for hello, wanted in [(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 400"),
                              (bytes.fromhex("16030100c8010000c40303") + bytes(200), b"\x15\x03"),
                              (b"\x00" * 100, b"\x00\x00\x08\x07"),
                              (PREFACE + frame(PING, 0, 0, bytes(8)), b"")]:
            with socket.create_connection(server.address, timeout=3) as opened:
                opened.sendall(hello)
                answer = b""
                with contextlib.suppress(ConnectionError):
                    while data := opened.recv(4096):
                        answer += data
                require(answer.startswith(wanted), f"{hello[:20]}: {answer[:40]}, wanted {wanted}")


def stream_flood(context, acknowledge, metadata=b""):
    """Opens far more calls than the limit. Returns how many the server took before it closed."""
    with context.normd("--max_connection_calls=8", "--handshake_timeout=1s") as server:
        with server.unharmed():
            with Raw(server.address, acknowledge=acknowledge) as raw:
                sent = 0
                for call in range(20000):
                    if not raw.send(frame(HEADERS, END_HEADERS, 2 * call + 1, CALL + metadata)):
                        break
                    sent += 1
                require(raw.closed(5), f"the connection is ended ({sent} calls sent)")


@scenario("8", "calls without an acknowledgement of SETTINGS: the connection ends")
def settings_never_acknowledged(context):
    stream_flood(context, 0)


@scenario("8", "the first SETTINGS acknowledged, the second not: the limit of streams holds")
def settings_acknowledged_once(context):
    stream_flood(context, 1)


@scenario("8", "the limit of metadata holds for who acknowledges once only")
def metadata_flood(context):
    with context.normd() as server, server.unharmed():
        for _ in range(5 if context.short else 50):
            with Raw(server.address, acknowledge=1) as raw:
                large = b"".join(literal(b"x-%d" % i, b"v" * 4000) for i in range(100))
                parts = [large[at:at + 16384] for at in range(0, len(large), 16384)]
                raw.send(frame(HEADERS, 0, 1, CALL))
                for part in parts[:-1]:
                    raw.send(frame(CONTINUATION, 0, 1, part))
                raw.send(frame(CONTINUATION, END_HEADERS, 1, parts[-1]))
                wait_until(lambda: not raw.pump() or any(
                    kind == HEADERS and b"size exceeds limit" in payload
                    for kind, _, payload in raw.frames), 10, "refused")


def await_hand_over(raw):
    """Until gRPC reads the connection. What comes before that is bounded: hand_over_flood."""
    require(raw.send(frame(PING, 0, 0, bytes(8))), "a ping is taken")
    while not any(kind == PING for kind, _, _ in raw.frames):
        require(raw.pump(2), "gRPC acknowledges a ping")


@scenario("8", "calls without a message hold little, however much their metadata inflates")
def metadata_of_idle_calls(context):
    """Calls without a message, each with thousands of entries that take a byte each."""
    with context.normd() as server, server.unharmed():
        memory, peak = server.rss_mib(), 0
        for _ in range(4):
            with Raw(server.address) as raw:
                await_hand_over(raw)
                for at in range(400):
                    # The first one adds an entry to HPACK's table, as its number 62.
                    block = CALL + (b"\x40\x01x\x01y" if at == 0 else b"") + b"\xbe" * 2500
                    require(raw.send(frame(HEADERS, END_HEADERS, 2 * at + 1, block)), "it is read")
                while raw.pump(0.5):
                    pass
                peak = max(peak, server.rss_mib())
        context.note(f"memory {memory:.0f} -> {peak:.0f} MiB")
        require(peak - memory < 64, f"memory grew by {peak - memory:.0f} MiB")


@scenario("8", "CONTINUATION without an end: the connection ends before it holds much")
def continuation_flood(context):
    # gRPC parses it in a time that grows with the square, so its bytes come ever more slowly.
    with context.normd("--message_timeout=1s", "--min_message_rate=4194304") as server:
        with server.unharmed():
            with Raw(server.address) as raw:
                await_hand_over(raw)
                # One header that claims 1 GiB, so that the parser waits for all of it.
                begin = CALL + b"\x00\x01x\x7f" + hpack_rest((1 << 30) - 127)
                raw.send(frame(HEADERS, 0, 1, begin))
                block = frame(CONTINUATION, 0, 1, b"v" * 16384)
                ended, sent, deadline = 0, 0, time.monotonic() + 30
                while ended == 0 and raw.send(block):
                    sent += len(block)
                    if sent % (64 * len(block)) == 0 or time.monotonic() > deadline:
                        ended = server.metric("normd_connections_ended_total",
                                              reason="message_timeout")
                        require(ended or time.monotonic() < deadline, "the connection is ended")
                wait_until(lambda: server.metric("normd_connections_ended_total",
                                                 reason="message_timeout") == 1, 15, "ended")
                context.note(f"{sent >> 20} MiB sent")


@scenario("8", "a flood of pings ends its connection")
def ping_flood(context):
    with context.normd() as server, server.unharmed():
        with Raw(server.address) as raw:
            for _ in range(1000):
                if not raw.send(frame(PING, 0, 0, bytes(8)) * 10):
                    break
            require(raw.closed(5), "the connection is ended")


@scenario("8", "calls that are opened and reset at once harm nobody else")
def rapid_reset(context):
    with context.normd() as server, server.unharmed():
        with Raw(server.address) as raw:
            end = time.monotonic() + (1 if context.short else 5)
            call = 1
            while time.monotonic() < end:
                block = b"".join(
                    frame(HEADERS, END_HEADERS, call + 2 * i, CALL) +
                    frame(RST_STREAM, 0, call + 2 * i, struct.pack(">I", 8)) for i in range(100))
                call += 200
                if not raw.send(block):
                    break
            context.note(f"{call // 2} calls opened and reset")


@scenario("8", "honest traffic leaves nothing behind that could be held against it")
def honest_traffic(context):
    for listen in ["127.0.0.1:0", "[::1]:0"]:
        try:
            with socket.create_server(("::1", 0), family=socket.AF_INET6):
                pass
        except OSError:
            if "::1" in listen:
                context.note("no IPv6 here")
                continue
        with context.normd(f"--listen={listen}", "--message_timeout=1s",
                           "--max_transport_bytes=536870912") as server:
            for shape in ["1x64x2x2", "4x64x32x32", "1x64x256x256"]:
                result = server.probe(seconds=0.5 if context.short else 2.5, shape=shape)
                require(result["ok"] > 0 and result["errors"] == 0, f"{shape}: {result}")
            ended = server.metric("normd_connections_ended_total")
            require(ended == 0, f"{ended} connections ended")
            wait_until(lambda: server.metric("normd_transport_undelivered_bytes") <= 65536, 5,
                       "all is delivered")
