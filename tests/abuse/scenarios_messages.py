"""Messages: slow ones, half ones, large ones and wrong ones (docs/threat_model.md, Connections)."""

import contextlib
import time

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
