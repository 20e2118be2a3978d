"""Behind the proxy of deploy/proxy (docs/threat_model.md, Connections)."""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

from h2_client import STREAM, Connection, framed, normalize_request, stream_chunk, stream_header
from harness import Skip, require, scenario, wait_until

MODEL = "instance_norm_64"
ONES = b"\x00\x00\x80\x3f" * 64
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
