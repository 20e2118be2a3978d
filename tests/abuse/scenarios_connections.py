"""Connections: how many, how they begin, and what they hold (docs/threat_model.md, Connections)."""

import contextlib
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import tempfile
import time

from harness import MIB, Skip, require, scenario, wait_until
from h2_client import (NORMALIZE, STREAM, Connection, bytes_field, framed, normalize_request,
                       stream_chunk, stream_header)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MODEL = "instance_norm_64"
ONES = b"\x00\x00\x80\x3f" * 64


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4


def literal(name, value):
    """A header for HPACK, not indexed, not compressed."""
    def text(string):
        return (bytes([len(string)]) if len(string) < 127 else
                b"\x7f" + hpack_rest(len(string) - 127)) + string
    return b"\x00" + text(name) + text(value)


def hpack_rest(value):
    out = bytearray()
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes(out + bytes([value]))


CALL = b"".join(literal(name, value) for name, value in [
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", NORMALIZE.encode()),
    (b":authority", b"localhost"), (b"content-type", b"application/grpc"), (b"te", b"trailers")])


class Raw:
    """Frames by hand. It acknowledges the first `acknowledge` SETTINGS of the server."""

    def __init__(self, address, acknowledge=1, source=None):
        self.socket = socket.create_connection(
            address, timeout=5, source_address=(source, 0) if source else None)
        self.left = acknowledge
        self.buffer = b""
        self.frames = []
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0))
        while self.left > 0 and self.pump(2):
            pass

    def send(self, data):
        """False when the server has closed."""
        try:
            self.socket.sendall(data)
            return True
        except OSError:
            return False

    def pump(self, timeout=0.2):
        """Reads once. False at the end or when nothing came."""
        self.socket.settimeout(timeout)
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            return False
        self.socket.settimeout(5)
        if not data:
            return False
        self.buffer += data
        while len(self.buffer) >= 9:
            size = int.from_bytes(self.buffer[:3], "big")
            if len(self.buffer) < 9 + size:
                break
            kind, flags = self.buffer[3], self.buffer[4]
            self.frames.append((kind, flags, self.buffer[9:9 + size]))
            self.buffer = self.buffer[9 + size:]
            if kind == SETTINGS and not flags & ACK and self.left > 0:
                self.left -= 1
                self.send(frame(SETTINGS, ACK, 0))
        return True

    def closed(self, within):
        """Whether the server ends the connection."""
        end = time.monotonic() + within
        self.socket.settimeout(0.2)
        while time.monotonic() < end:
            try:
                if not self.socket.recv(1 << 16):
                    return True
            except socket.timeout:
                pass
            except OSError:
                return True
        return False

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


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


@scenario("8", "CONTINUATION without an end: the connection ends before it holds much")
def continuation_flood(context):
    # gRPC parses it in a time that grows with the square, so its bytes come ever more slowly.
    with context.normd("--message_timeout=1s", "--min_message_rate=4194304") as server:
        with server.unharmed():
            with Raw(server.address) as raw:
                # gRPC has taken the connection over. A flood that begins before that is read within
                # the hand-over: docs/threat_model.md.
                require(raw.send(frame(PING, 0, 0, bytes(8))), "a ping is taken")
                while not any(kind == PING for kind, _, _ in raw.frames):
                    require(raw.pump(2), "gRPC acknowledges a ping")
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
        for metadata, compressed in [((), 1), ([("grpc-encoding", "snappy")], 1),
                                     ([("grpc-encoding", "snappy")], 0),
                                     ([("grpc-encoding", "gzip")], 1)]:
            with Connection(server.address) as client:
                call = client.start(metadata=metadata)
                client.send(call, framed(request, compressed=compressed), end=True)
                code, text = client.status(call)
                require(code == (12 if compressed else 0), f"{metadata} {compressed}: {code} {text}")
        with Connection(server.address) as client:
            code, text = client.call(bytes_field(1, b"m" * (10 * MIB)))
            require(code == 3 and text.startswith("model: ") and str(10 * MIB) in text,
                    f"a model name of 10 MiB: {code} {text}")


NGINX = pathlib.Path(__file__).parents[2] / "deploy" / "proxy" / "nginx.conf"


@contextlib.contextmanager
def nginx(server):
    """nginx with the configuration of deploy/proxy before `server`; gives its address."""
    unpacked = NGINX.parents[2] / "build" / "tools" / "nginx" / "usr" / "sbin" / "nginx"
    program = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin") or (
        str(unpacked) if unpacked.exists() else None)
    if program is None:
        raise Skip("nginx is not installed (deploy/setup.sh --test unpacks it)")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "logs").mkdir()
        text = NGINX.read_text().replace("127.0.0.1:8001", server.grpc)
        text = text.replace("127.0.0.1:8080", f"127.0.0.1:{address[1]}")
        # What the packaged program takes from /var/lib is only there where it is installed.
        temporary = "".join(f"{kind}_temp_path logs/{kind}; "
                            for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"])
        text = text.replace("access_log off;", f"access_log off; {temporary}")
        config = pathlib.Path(folder) / "nginx.conf"
        config.write_text(text)
        process = subprocess.Popen([program, "-p", folder, "-c", str(config), "-g",
                                    "daemon off; master_process off;"], stdin=subprocess.DEVNULL)
        try:
            def connects():
                with contextlib.suppress(OSError), socket.create_connection(address, timeout=1):
                    return True
                return False
            wait_until(connects, 10, "nginx starts")
            yield address
        finally:
            process.terminate()
            process.wait()


def survives_a_bad_neighbour(address):
    """Whether a stream outlives a call with a malformed binary header on the same connection."""
    with Connection(address) as client:
        stream = client.start(path=STREAM)
        client.send(stream, framed(stream_header(MODEL, [1, 64, 1, 1])))
        client.start(metadata=[("x-bin", "!!! this is no base64 !!!")])
        time.sleep(0.5)
        try:
            client.send(stream, framed(stream_chunk(ONES)), end=True)
            code, _ = client.status(stream, timeout=5)
        except Exception:  # pylint: disable=broad-except
            code = None
        return code == 0


@scenario("8", "behind the proxy a malformed call does not end its connection's other calls")
def proxy(context):
    with context.normd() as server:
        context.note(f"without the proxy the neighbour survives: "
                     f"{survives_a_bad_neighbour(server.address)}")
        with nginx(server) as address:
            with Connection(address) as client:
                code, text = client.call(normalize_request(MODEL, [1, 64, 1, 1], ONES))
                require(code == 0, f"a call through the proxy: {code} {text}")
            require(survives_a_bad_neighbour(address), "the neighbour survives")


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
                result = server.probe(seconds=1 if context.short else 2.5, shape=shape)
                require(result["ok"] > 0 and result["errors"] == 0, f"{shape}: {result}")
            ended = server.metric("normd_connections_ended_total")
            require(ended == 0, f"{ended} connections ended")
            wait_until(lambda: server.metric("normd_transport_undelivered_bytes") <= 65536, 5,
                       "all is delivered")
