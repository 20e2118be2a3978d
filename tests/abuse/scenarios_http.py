"""Inference over HTTP: half, slow, smuggled and endless requests, and responses that nobody reads."""

import contextlib
import gzip
import pathlib
import resource
import socket
import ssl
import struct
import time
import zlib

from harness import MIB, Broken, Certificates, Skip, require, scenario, wait_until
from http_client import INFER, Raw, binary, chunk, head, request

ATTACKER = "127.0.0.2"
SMALL = [1, 64, 2, 2]      # 1 KiB
MEDIUM = [1, 64, 16, 16]  # 64 KiB
LARGE = [1, 64, 64, 64]    # 1 MiB
FLAGS = (f"--max_inflight_bytes={64 * MIB}", f"--max_request_bytes={16 * MIB}",
         f"--stream_window_bytes={8 * MIB}")


def connections(stack, server, count, sent=b"", **options):
    """Connections that sent `sent`; the server may have closed some already."""
    opened = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            opened.append(stack.enter_context(Raw(server.http_address, **options)))
            opened[-1].send(sent)
    return opened


def require_answer(server, when, shape=None, source=None):
    with Raw(server.http_address, source=source) as client:
        client.send(request(shape or SMALL))
        answer = client.read()
        require(answer is not None and answer[0] == 200, f"a fresh connection {when}: {answer}")


@scenario("13", "half-sent and dripping heads end after the handshake's time-out")
def http_half_heads(context):
    count = 50 if context.short else 500
    with context.normd("--handshake_timeout=1s") as server, server.unharmed(protocol="http"):
        for sent in (b"", b"P", b"POST /v2", head()[:-2], head()[:-4] + b"\r\nA: "):
            with contextlib.ExitStack() as stack:
                opened = connections(stack, server, count, sent, source=ATTACKER)
                server.require_serving(f"beside {count} times {sent}", protocol="http")
                for client in opened:
                    require(client.closed(5), f"ended after {sent}")
        with Raw(server.http_address) as client:
            client.send(b"POST /v2 HTTP/1.1\r\nA: ")
            begin = time.monotonic()
            while client.send(b"a") and time.monotonic() - begin < 5:
                time.sleep(0.05)
            require(time.monotonic() - begin < 4, "a drip is ended in time")


@scenario("13", "a head has a largest size, however it is sent")
def http_large_heads(context):
    with context.normd() as server, server.unharmed(protocol="http"):
        for name, sent in (("one field", b"A: " + b"a" * (10 * MIB)),
                           ("many fields", b"A: b\r\n" * 100000),
                           ("a path", None)):
            with Raw(server.http_address) as client:
                before = server.rss_mib()
                client.send(b"GET /" + b"a" * (10 * MIB) if sent is None else
                            b"GET /v2 HTTP/1.1\r\nHost: x\r\n" + sent)
                answer = client.read()
                require(answer is None or answer[0] in (400, 414, 431), f"{name}: {answer}")
                require(client.closed(5), f"{name}: the connection is ended")
                require(server.rss_mib() - before < 8, f"{name}: memory")


@scenario("13", "half-sent bodies are given up after --message_timeout, and hold a share until then")
def http_half_bodies(context):
    flags = [*FLAGS, "--message_timeout=1s"]
    text, tensor = binary([16, 64, 63, 63])  # 15.5 MiB
    size = len(text) + len(tensor)
    whole = head(Inference_Header_Content_Length=len(text), Content_Length=size) + text + tensor
    with context.normd(*flags) as server, server.unharmed(protocol="http"):
        before = server.rss_mib()
        with contextlib.ExitStack() as stack:
            opened = []
            for at in range(8):
                client = stack.enter_context(Raw(server.http_address, source=ATTACKER))
                opened.append(client)
                # All but a byte; in chunks without an end.
                client.send(whole[:-1] if at % 2 == 0 else head(
                    Inference_Header_Content_Length=len(text), Transfer_Encoding="chunked") +
                    chunk(text + tensor)[:-1])
            held = server.rss_mib() - before
            require(held < 96, f"8 bodies of 15.5 MiB hold {held:.0f} MiB")
            server.require_serving("beside half-sent bodies", protocol="http")
            for client in opened:
                require(client.closed(20), "each is given up")
            context.note(f"{held:.0f} MiB held by 124 MiB that were sent")


@scenario("13", "a body below --min_message_rate is given up, one above it goes through")
def http_slow_bodies(context):
    whole = request([1, 64, 32, 16])  # 128 KiB
    with context.normd("--message_timeout=1s", "--min_message_rate=65536") as server:
        with server.unharmed(protocol="http"):
            with Raw(server.http_address) as client:
                sent, begin = 0, time.monotonic()
                while sent < len(whole) and client.send(whole[sent:sent + 500]):
                    sent += 500
                    time.sleep(0.05)
                    require(time.monotonic() - begin < 10, "a drip of 10 KB/s is ended")
                require(sent < len(whole), "ended before all is sent")
                context.note(f"ended after {time.monotonic() - begin:.1f} s")
            with Raw(server.http_address) as client:
                for at in range(0, len(whole), 25000):
                    require(client.send(whole[at:at + 25000]), "the connection is open")
                    time.sleep(0.2)
                answer = client.read()
                require(answer is not None and answer[0] == 200, f"100 KB/s: {answer}")


@scenario("13", "responses that nobody reads hold a share of the budgets, for a time")
def http_unread(context):
    with context.normd(*FLAGS, "--response_timeout=1s") as server, server.unharmed(protocol="http"):
        with contextlib.ExitStack() as stack:
            opened = connections(stack, server, 64, request([4, 64, 64, 64]), source=ATTACKER,
                                 window=4096)
            wait_until(lambda: server.metric("normd_inflight_bytes") >= 8 * MIB, 10,
                       "the attacker holds something")
            held = server.metric("normd_inflight_bytes") / MIB
            require(held <= 49, f"one peer holds {held} of 64 MiB")
            for source in (None, ATTACKER):
                require_answer(server, f"from {source} beside {held:.0f} MiB unread", source=source)
            wait_until(lambda: server.metric("normd_inflight_bytes") == 0, 30,
                       "the responses are given up while their connections live")
            for client in opened:
                answer = client.read()
                # Beyond its share the attacker was refused at once.
                require(answer is None or answer[0] == 429, f"and their connections end: {answer}")
            context.note(f"{held:.0f} of 64 MiB held")


def undelivered(server):
    """MiB that the kernel keeps for the attacker, also of connections that the server has closed."""
    total = 0
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues = line.split()[:5]
        if local.endswith(f":{server.http_address[1]:04X}") and remote.startswith("0200007F:"):
            total += int(queues.split(":")[0], 16)
    return total / MIB


@scenario("13", "connections that trickle their last response count, and are reset when its time is over")
def http_trickled(context):
    count = 16 if context.short else 200
    flags = (f"--max_connections={2 * count}", f"--max_peer_connections={count}")
    with context.normd("--response_timeout=2s", *flags) as server, server.unharmed(protocol="http"):
        def sent():
            return server.metric("normd_requests_total", method="Infer", code="OK")

        before = sent()
        with contextlib.ExitStack() as stack:
            opened = connections(stack, server, count, request(LARGE, Connection="close"),
                                 source=ATTACKER, window=4096)
            wait_until(lambda: sent() - before >= count, 20, "the kernel has the responses")
            begin, left = time.monotonic(), list(opened)
            for client in opened:
                client.socket.shutdown(socket.SHUT_WR)
            held = undelivered(server)
            require(held > count / 2, f"the kernel keeps {held:.1f} MiB")
            with Raw(server.http_address, source=ATTACKER) as another:
                require(another.closed(1), "the connections count")
            while left:
                require(time.monotonic() - begin < 15, f"{len(left)} of {count} still trickle")
                left = [client for client in left if client.trickle()]
                time.sleep(0.1)
            context.note(f"{held:.0f} MiB held, ended after {time.monotonic() - begin:.1f} s")
            wait_until(lambda: undelivered(server) == 0, 5, "the kernel keeps nothing")
            require_answer(server, "afterwards", source=ATTACKER)


@scenario("19", "behind TLS: a client that has ended its side gets the end of TLS over HTTP too")
def http_end_of_tls(context):
    context.tls = Certificates()
    with context.normd() as server:
        trust = ssl.create_default_context(cafile=context.tls.ca)
        trust.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
        for fields in ({}, {"Connection": "close"}):
            with Raw(server.http_address) as client:
                client.socket = trust.wrap_socket(client.socket, server_hostname="localhost",
                                                  suppress_ragged_eofs=False)
                client.send(request(SMALL, **fields))
                require(client.read()[0] == 200, "served")
                socket.socket.shutdown(client.socket, socket.SHUT_WR)  # Below TLS.
                try:
                    require(client.socket.recv(1) == b"", "nothing more comes")
                except ssl.SSLError as error:
                    raise Broken("the response looks cut off") from error


@scenario("13", "a pipeline is answered in order, and read no faster than its answers are")
def http_pipeline(context):
    count = 2000 if context.short else 20000
    with context.normd("--response_timeout=2s") as server, server.unharmed(protocol="http"):
        with Raw(server.http_address) as client:
            shapes = [[1, 64, 1 + i % 7] for i in range(50)]
            require(client.send(b"".join(request(shape) for shape in shapes)), "they are taken")
            for shape in shapes:
                status, _, body = client.read()
                require(status == 200 and str(shape[2]).encode() in body[:300], "in their order")
        before = server.rss_mib()
        with Raw(server.http_address, source=ATTACKER, window=4096) as client:
            client.socket.settimeout(0.5)
            sent = 0
            with contextlib.suppress(OSError):
                for _ in range(count):
                    sent += client.socket.send(request([1, 64, 4, 4]))
            held = server.rss_mib() - before
            require(held < 16, f"{sent >> 10} KiB of pipeline hold {held:.0f} MiB")
            server.require_serving("beside a pipeline that nobody reads", protocol="http")
            require(client.reset(30), "it is given up")
            context.note(f"{sent >> 10} KiB were taken of {count} requests, {held:.0f} MiB held")


# Behind each comes what a proxy would take for its body, or for the next request.
SECOND = head("/v2/health/live", "GET")
SMUGGLED = {
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6",
    "the same length twice": b"Content-Length: 5, 6",
    "a length and chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked",
    "chunks and a length": b"Transfer-Encoding: chunked\r\nContent-Length: 5",
    "a signed length": b"Content-Length: +5",
    "a negative length": b"Content-Length: -5",
    "a length in hexadecimal": b"Content-Length: 0x5",
    "a length that overflows": b"Content-Length: 18446744073709551621",
    "a length with a text behind": b"Content-Length: 5 x",
    "an empty length": b"Content-Length: ",
    "a space before the colon": b"Content-Length : 5",
    "a folded line": b"Content-Length:\r\n 5",
    "an encoding that looks like chunked": b"Transfer-Encoding: xchunked",
    "chunked that is not the last": b"Transfer-Encoding: chunked, identity",
    "chunked twice": b"Transfer-Encoding: chunked, chunked",
    "gzip as a transfer": b"Transfer-Encoding: gzip, chunked",
    "chunked in quotes": b"Transfer-Encoding: \"chunked\"",
    "a bare carriage return": b"A: b\rContent-Length: 5",
    "a NUL": b"A: b\0c",
    "a name with a space": b"A B: c",
    "no colon": b"Content-Length 5",
    "an empty name": b": 5",
}
BAD_CHUNKS = {
    "no size": b"\r\nhello\r\n0\r\n\r\n", "a sign": b"+5\r\nhello\r\n0\r\n\r\n",
    "a prefix": b"0x5\r\nhello\r\n0\r\n\r\n", "a blank before": b" 5\r\nhello\r\n0\r\n\r\n",
    "an overflow": b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    "too short": b"4\r\nhello\r\n0\r\n\r\n", "too long": b"6\r\nhello\r\n0\r\n\r\n",
    "no digits": b"g\r\nhello\r\n0\r\n\r\n", "bare line feeds": b"5\nhello\n0\n\n",
    "a negative": b"-5\r\nhello\r\n0\r\n\r\n"}


@scenario("13", "no request hides in another: a length that can be read in two ways ends the connection")
def http_smuggling(context):
    with context.normd() as server, server.unharmed(protocol="http"):
        tried = {name: b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: x\r\n" + field +
                 b"\r\n\r\nhello" for name, field in SMUGGLED.items()}
        tried |= {f"a chunk's size: {name}": head(Transfer_Encoding="chunked") + body
                  for name, body in BAD_CHUNKS.items()}
        tried |= {"bare line feeds": b"GET /v2 HTTP/1.1\nHost: x\n\n",
                  "no version": b"GET /v2\r\n\r\n", "another version": b"GET /v2 HTTP/9.9\r\n\r\n",
                  "two hosts": b"GET /v2 HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
                  "no host": b"GET /v2 HTTP/1.1\r\n\r\n"}
        wrong = []
        for name, sent in tried.items():
            with Raw(server.http_address) as client:
                client.send(sent + SECOND)
                first = client.read(timeout=5)
                second = client.read(timeout=5) if first is not None else None
                if first is not None and not 400 <= first[0] < 600 or second is not None:
                    wrong.append(f"{name}: {first and first[0]}, then {second and second[0]}")
                elif not client.closed(5):
                    wrong.append(f"{name}: the connection stays open")
        require(not wrong, "; ".join(wrong))
        context.note(f"{len(tried)} requests refused, and their connections ended")


@scenario("13", "chunks, their extensions and trailers are bounded")
def http_endless_chunks(context):
    begin = head(Transfer_Encoding="chunked")
    attacks = {"extensions": (begin, chunk(b"x", b";" + b"e" * 60000)),
               "one extension": (begin + b"1;", b"e" * 65536),
               "small chunks": (begin, chunk(b"x") * 10000),
               "trailers": (begin + b"0\r\n", b"T: t\r\n" * 10000),
               "a size of zeros": (begin, b"0" * 65536)}
    with context.normd(*FLAGS, "--message_timeout=2s") as server:
        with server.unharmed(protocol="http"):
            for name, (first, more) in attacks.items():
                before, sent, end = server.rss_mib(), 0, time.monotonic() + 20
                with Raw(server.http_address, source=ATTACKER) as client:
                    client.send(first)
                    while client.send(more):
                        sent += len(more)
                        require(time.monotonic() < end, f"{name}: ended ({sent >> 20} MiB sent)")
                held = server.rss_mib() - before
                require(held < 48, f"{name}: {held:.0f} MiB held")
                context.note(f"{name}: ended after {sent >> 10} KiB")


@scenario("13", "a body that inflates beyond --max_request_bytes is refused before it is there")
def http_gzip_bombs(context):
    size = 256 if context.short else 1024
    with context.normd(*FLAGS) as server, server.unharmed(protocol="http"):
        before = server.rss_mib()
        for name, packer in (("gzip", zlib.compressobj(9, zlib.DEFLATED, 31)),
                             ("deflate", zlib.compressobj(9))):
            bomb = b"".join(packer.compress(b" " * MIB) for _ in range(size)) + packer.flush()
            for shape in ("length", "chunks"):
                with Raw(server.http_address, source=ATTACKER) as client:
                    client.send(head(Content_Encoding=name, Content_Length=len(bomb)) + bomb
                                if shape == "length" else
                                head(Content_Encoding=name, Transfer_Encoding="chunked") +
                                chunk(bomb) + chunk(b""))
                    answer = client.read(20)
                    require(answer is None or answer[0] in (400, 413, 429), f"{name}: {answer}")
            twice = gzip.compress(bomb)
            with Raw(server.http_address, source=ATTACKER) as client:
                client.send(head(Content_Encoding=f"gzip, {name}", Content_Length=len(twice)) + twice)
                answer = client.read(20)
                require(answer is None or answer[0] in (400, 501), f"twice: {answer}")
        held = server.rss_mib() - before
        require(held < 48, f"{held:.0f} MiB held")


@scenario("13", "a body far above --max_request_bytes is refused by its length, or where it exceeds it")
def http_oversize(context):
    with context.normd("--max_request_bytes=1048576") as server, server.unharmed(protocol="http"):
        before = server.rss_mib()
        with Raw(server.http_address) as client:
            client.send(head(Content_Length=900 * MIB))
            answer = client.read()
            require(answer is not None and answer[0] == 413, f"by its length: {answer}")
        for first, more in ((head(Content_Length=900 * MIB), bytes(MIB)),
                            (head(Transfer_Encoding="chunked"), chunk(bytes(MIB)))):
            with Raw(server.http_address) as client:
                client.send(first)
                sent = 0
                while sent < 900 and client.send(more):
                    sent += 1
                require(sent < 100, f"{sent} MiB were taken")
        held = server.rss_mib() - before
        require(held < 16, f"{held:.0f} MiB held")


@scenario("13", "idle connections cost at most 10 KiB each")
def http_idle_connections(context):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # normd counts three descriptors for each connection.
    count = min(1000 if context.short else 10000, (hard - 256) // 3 - 100)
    if count < 1000:
        raise Skip(f"{hard} descriptors are too few")
    flags = [f"--max_connections={count + 100}", f"--max_peer_connections={count + 100}",
             "--handshake_timeout=10m"]
    with context.normd(*flags) as server:
        with server.unharmed(protocol="http"):
            for name, sent in (("fresh", b""), ("after a request", request(MEDIUM))):
                # The allocator keeps what one request at a time needs.
                require_answer(server, "before", shape=MEDIUM)
                before = server.rss_mib()
                with contextlib.ExitStack() as stack:
                    for _ in range(count):
                        client = stack.enter_context(Raw(server.http_address))
                        if sent:
                            client.send(sent)
                            answer = client.read()
                            require(answer is not None and answer[0] == 200, f"{name}: {answer}")
                    server.require_serving(f"beside {count} idle connections", protocol="http")
                    each = (server.rss_mib() - before) * 1024 / count
                    context.note(f"{count} connections, {name}: {each:.1f} KiB each")
                    # What a thousand cost is blurred by the allocator's own steps.
                    require(each <= (16 if context.short else 10), f"{name}: {each:.1f} KiB each")


@scenario("13", "who has had its share of HTTP's connections leaves room for another peer")
def http_connection_flood(context):
    with context.normd("--max_connections=40", "--max_peer_connections=20") as server:
        with server.unharmed(protocol="http"), contextlib.ExitStack() as stack:
            opened = connections(stack, server, 100, source=ATTACKER)
            ended = sum(client.closed(0.05) for client in opened)
            require(ended >= 100 - 20, f"{ended} of 100 are closed")
            server.require_serving("while another has its share", protocol="http")


@scenario("13", "descriptors that run out over HTTP are refused, and it serves again afterwards")
def http_descriptors(context):
    with context.normd("--max_peer_connections=100000", limits={"NOFILE": 96}) as server:
        with server.unharmed(protocol="http"):
            with contextlib.ExitStack() as stack:
                connections(stack, server, 300, timeout=1)
            wait_until(lambda: server.metric("normd_ready") == 1, 15, "ready again")
            server.require_serving("after the flood", protocol="http")


@scenario("13", "calls whose clients leave at once leave nothing")
def http_leaving_clients(context):
    count = 300 if context.short else 3000
    with context.normd(*FLAGS) as server, server.unharmed(protocol="http"):
        whole = request(LARGE)
        for at in range(count):
            with Raw(server.http_address, source=ATTACKER) as client:
                client.send(whole[:len(whole) * (at % 8) // 7])
                if at % 3 == 0:  # With a reset.
                    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@scenario("13", "a stop does not wait for HTTP connections that are idle, half-sent or unread")
def http_stop(context):
    with context.normd("--drain_timeout=20s") as server:
        with contextlib.ExitStack() as stack:
            connections(stack, server, 20)
            connections(stack, server, 20, head()[:20])
            connections(stack, server, 20, request(LARGE)[:-1])
            connections(stack, server, 5, request(LARGE), window=4096)
            kept = connections(stack, server, 1, request(SMALL))[0]
            require(kept.read() is not None, "an answer before")
            took = server.require_clean_stop(15, "connections of all kinds")
            context.note(f"exit 0 after {took:.1f} s")
