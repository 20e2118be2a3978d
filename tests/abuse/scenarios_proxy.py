"""Behind proxies: that of deploy/proxy, and one whose clients share a connection (docs/threat_model.md,
Connections)."""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

import h2.events

from h2_client import STREAM, Connection, framed, normalize_request, stream_chunk, stream_header
from harness import Skip, require, scenario, wait_until

MODEL = "instance_norm_64"
ONES = b"\x00\x00\x80\x3f" * 64
ROOT = pathlib.Path(__file__).parents[2]
NGINX = ROOT / "deploy" / "proxy" / "nginx.conf"


def find(package, program):
    """The path of a proxy, installed or unpacked, and the environment that it starts in."""
    unpacked = ROOT / "build" / "tools" / package / "usr"
    path = shutil.which(program, path=os.pathsep.join(
        [os.environ.get("PATH", ""), "/usr/sbin", f"{unpacked}/sbin", f"{unpacked}/bin"]))
    if path is None:
        raise Skip(f"{program} is not installed (deploy/setup.sh --test unpacks it)")
    libraries = ":".join(str(folder) for folder in (unpacked / "lib").glob("*-linux-gnu"))
    return path, {**os.environ, **({"LD_LIBRARY_PATH": libraries} if libraries else {})}


@contextlib.contextmanager
def started(command, environment, address):
    """A proxy that runs until the block ends; it listens at `address`."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env=environment)

    def connects():
        with contextlib.suppress(OSError), socket.create_connection(address, timeout=1):
            return True
        return False
    try:
        wait_until(connects, 10, f"{command[0]} starts")
        yield
    finally:
        process.terminate()
        process.wait()


def free_address():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()


@contextlib.contextmanager
def nginx(server):
    """nginx with the configuration of deploy/proxy before `server`; gives its address."""
    program, environment = find("nginx", "nginx")
    address = free_address()
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
        with started([program, "-p", folder, "-c", str(config), "-g",
                      "daemon off; master_process off;"], environment, address):
            yield address


@contextlib.contextmanager
def nghttpx(server):
    """nghttpx before `server`, whose calls of all clients go over one connection; gives its address."""
    program, environment = find("nghttp2-proxy", "nghttpx")
    address = free_address()
    with started([program, "--conf=/dev/null", "--workers=1", "--errorlog-file=/dev/null",
                  f"--frontend={address[0]},{address[1]};no-tls",
                  f"--backend={server.address[0]},{server.address[1]};;proto=h2"],
                 environment, address):
        yield address


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


@scenario("8", "behind a proxy that shares connections a client's large token ends nobody else's call")
def shared_connection(context):
    with context.normd("--max_connection_calls=64") as server, nghttpx(server) as address:
        with contextlib.ExitStack() as stack:
            streams = []
            for _ in range(20):
                client = stack.enter_context(Connection(address))
                streams.append((client, client.start(path=STREAM)))
                client.send(streams[-1][1], framed(stream_header(MODEL, [1, 64, 1, 1])))
            for client, _ in streams:
                while not any(isinstance(event, h2.events.DataReceived) for event in client.events):
                    require(client.pump(), "the stream's header is answered")
            require(server.metric("normd_connections", port="grpc") == 1, "they share a connection")
            said = {}
            for kib in (4, 9, 15, 17, 32, 48, 60):
                with Connection(address) as other:
                    said[kib] = other.call(normalize_request(MODEL, [1, 64, 1, 1], ONES),
                                           metadata=[("authorization", "t" * (kib << 10))])
            lost = 0
            for client, stream in streams:
                try:
                    client.send(stream, framed(stream_chunk(ONES)), end=True)
                    lost += client.status(stream, timeout=5)[0] != 0
                except Exception:  # pylint: disable=broad-except
                    lost += 1
        require(lost == 0, f"{lost} of 20 streams lost; the tokens: {said}")
        for kib, (code, text) in said.items():
            if kib < 16:
                require(code == 0, f"a token of {kib} KiB: {code} {text}")
            else:
                require(code == 3 and text.startswith("metadata: ") and "authorization" in text,
                        f"a token of {kib} KiB: {code} {text}")
