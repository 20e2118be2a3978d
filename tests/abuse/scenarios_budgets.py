"""What slow and hostile clients hold of the budgets: a share, and for a time."""

from harness import MIB, require, scenario, wait_until
from h2_client import (STREAM, Connection, bytes_field, framed, normalize_request, stream_chunk,
                       stream_header)

ATTACKER = "127.0.0.2"
MODEL = "instance_norm_64"
SMALL = [1, 64, 2, 2]       # 1 KiB
LARGE = [1, 64, 64, 64]     # 1 MiB
# A budget of 64 MiB: what is said here of 1 MiB holds of 16 MiB with the default.
FLAGS = (f"--max_inflight_bytes={64 * MIB}", f"--max_request_bytes={16 * MIB}",
         f"--stream_window_bytes={8 * MIB}", "--max_connection_calls=64", "--response_timeout=1s",
         "--stream_idle_timeout=1s")
# The time-outs, a second for each MiB, and what a busy machine adds.
GIVEN_UP = 20


def request(shape):
    elements = 1
    for dim in shape:
        elements *= dim
    return normalize_request(MODEL, shape, b"\x00\x00\x80\x3f" * elements)


def start_stream(client, data=b"\x00\x00\x80\x3f" * 256, end=True, **options):
    """A stream of SMALL that sends `data`; its number."""
    stream = client.start(STREAM, **options)
    client.send(stream, framed(stream_header(MODEL, SMALL)))
    client.send(stream, framed(stream_chunk(data)), end=end)
    return stream


def ended(server, method):
    return server.metric("normd_requests_total", method=method)


def require_others_served(server, when):
    """Nobody else is refused: neither another address nor another connection of the attacker's."""
    server.require_serving(when)
    for source in (None, ATTACKER):
        with Connection(server.address, source=source) as client:
            for shape in (SMALL, LARGE):
                code, message = client.call(request(shape))
                require(code == 0, f"a fresh connection from {source} {when}: {code} {message}")


@scenario("7", "responses that nobody takes hold a share of the budgets, for a time")
def responses_unread(context):
    with context.normd(*FLAGS) as server, server.unharmed():
        # A stream's flow-control window that is closed, and the connection's.
        for window in (1000, 4 * MIB):
            before = ended(server, "Normalize")
            with Connection(server.address, source=ATTACKER, window=window) as attacker:
                for _ in range(32):
                    attacker.send(attacker.start(), framed(request(LARGE)), end=True)
                wait_until(lambda: server.metric("normd_inflight_bytes") >= 16 * MIB, 10,
                           "the attacker holds something")
                held = server.metric("normd_inflight_bytes") / MIB
                require(held <= 32, f"one connection holds {held} of 64 MiB")
                require_others_served(server, f"beside {held:.0f} MiB that nobody takes")
                wait_until(lambda: server.metric("normd_inflight_bytes") == 0, GIVEN_UP,
                           "the responses are given up while the connection lives")
                wait_until(lambda: ended(server, "Normalize") >= before + 32, GIVEN_UP,
                           "each of the attacker's calls has ended")
                context.note(f"window {window}: {held:.0f} of 64 MiB held")


@scenario("7", "streams without data hold nothing, and end")
def streams_without_data(context):
    with context.normd(*FLAGS) as server, server.unharmed():
        with Connection(server.address, source=ATTACKER) as attacker:
            streams = [attacker.start(STREAM) for _ in range(32)]
            header = framed(stream_header(MODEL, [1000, 64, 64, 64]))
            for i, stream in enumerate(streams):
                # A header; half of one; nothing.
                attacker.send(stream, (header, header[:10], b"")[i % 3])
            attacker.status(streams[1], timeout=0.3)
            held = server.metric("normd_inflight_bytes")
            require(held == 0, f"32 streams without data hold {held} bytes")
            require_others_served(server, "beside 32 streams without data")
            with Connection(server.address) as other:
                code, message = other.status(start_stream(other))
                require(code == 0, f"a stream beside them: {code} {message}")
            for i, stream in enumerate(streams):
                code, message = attacker.status(stream, timeout=GIVEN_UP)
                require(code in (4, 8), f"stream {i} ends with {code} {message}")


@scenario("7", "a stream's client that stops taking at any byte is given up")
def streams_untaken(context):
    with context.normd(*FLAGS) as server, server.unharmed():
        # The response to 1 KiB: header, chunk and trailer have some 1,200 bytes together.
        windows = range(0, 1300, 100 if context.short else 13)
        before = ended(server, "NormalizeStream")
        clients = []
        for window in windows:
            client = Connection(server.address, source=ATTACKER, window=window)
            clients.append(client)
            start_stream(client)
        # A status that nobody takes, behind a header that nobody takes.
        client = Connection(server.address, source=ATTACKER, window=0)
        clients.append(client)
        start_stream(client, b"x" * 1025, end=False)
        require_others_served(server, "beside streams that nobody takes")
        wait_until(lambda: ended(server, "NormalizeStream") >= before + len(clients), GIVEN_UP,
                   f"{len(clients)} streams end while their connections live")
        for client in clients:
            client.close()


@scenario("7", "many connections of one peer leave room for others")
def one_peer_many_connections(context):
    with context.normd(*FLAGS, "--response_timeout=5s") as server, server.unharmed():
        attackers = [Connection(server.address, source=ATTACKER, window=0) for _ in range(8)]
        for attacker in attackers:
            for _ in range(8):
                attacker.send(attacker.start(), framed(request(LARGE)), end=True)
        wait_until(lambda: server.metric("normd_inflight_bytes") >= 32 * MIB, 10,
                   "the attackers hold what they can")
        held = server.metric("normd_inflight_bytes") / MIB
        require(held <= 48, f"one peer holds {held} of 64 MiB")
        server.require_serving(f"beside {held:.0f} MiB of one peer's")
        with Connection(server.address) as client:
            code, message = client.call(request(LARGE))
            require(code == 0, f"1 MiB beside them: {code} {message}")
        for attacker in attackers:
            attacker.close()
        context.note(f"{held:.0f} of 64 MiB held")


@scenario("8", "a stream holds what it counts, whatever comes beside it")
def unknown_fields(context):
    with context.normd() as server, server.unharmed():
        with Connection(server.address) as client:
            stream = client.start(STREAM)
            # One row of 16 MiB, of which the last chunk does not come.
            client.send(stream, framed(stream_header(MODEL, [1, 64, 2048, 2048])))
            before = server.rss_mib()
            chunks = 2000 if context.short else 16000
            message = framed(stream_chunk(b"x" * 1024) + bytes_field(15, b"y" * 15000))
            for _ in range(chunks // 50):
                client.send(stream, message * 50)
            wait_until(lambda: server.metric("normd_inflight_bytes") >= 2 * 1024 * (chunks - 1), 20,
                       "the chunks arrive")
            held = server.rss_mib() - before
            sent = chunks * 1024 / MIB
            require(held < 2 * sent + 10, f"{sent:.0f} MiB of chunks hold {held:.0f} MiB")
            context.note(f"{sent:.0f} MiB of chunks beside {sent * 15:.0f} hold {held:.0f} MiB")


@scenario("11", "a stop does not wait for streams whose clients send nothing")
def stop_beside_idle_streams(context):
    with context.normd("--drain_timeout=20s") as server:
        with Connection(server.address) as client:
            stream, other = client.start(STREAM), client.start(STREAM)
            client.send(stream, framed(stream_header(MODEL, [1000, 64, 64, 64])))
            client.status(other, timeout=0.3)
            took = server.require_clean_stop(15, "a stream with a header and one without")
            for name, number in (("with", stream), ("without", other)):
                code, message = client.status(number)
                require(code == 14, f"the stream {name} a header ends with {code} {message}")
            context.note(f"exit 0 after {took:.1f} s")


@scenario("12", "a far deadline is a far deadline")
def far_deadlines(context):
    with context.normd() as server, server.unharmed():
        # The shorter ones may pass on a busy machine.
        for unit in ("H", "M", "S", "m", "u"):
            values = {99999999, 99999998}
            values |= {2562047, 2562048, 2600000} if unit == "H" else set()
            for value in sorted(values):
                with Connection(server.address) as client:
                    timeout = f"{value}{unit}"
                    code, message = client.call(request(SMALL), timeout=timeout)
                    require(code == 0, f"Normalize with {timeout}: {code} {message}")
                    code, message = client.call(b"", path="/normd.v1.NormService/ListModels",
                                                timeout=timeout)
                    require(code == 0, f"ListModels with {timeout}: {code} {message}")
                    code, message = client.status(start_stream(client, timeout=timeout))
                    require(code == 0, f"NormalizeStream with {timeout}: {code} {message}")
