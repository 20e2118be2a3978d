"""What the log makes of hostile text: each line stays one line of JSON."""

import json
import pathlib
import random
import shutil
import signal
import socket
import tempfile

from harness import require, scenario, wait_until
from h2_client import Connection, bytes_field, tensor

LOAD = "/normd.v1.NormService/LoadModel"
UNLOAD = "/normd.v1.NormService/UnloadModel"
# What could end a line, its JSON or a terminal's mind.
TEXTS = [b'"}\n{"level":"info","message":"forged"}\n', b"\\", b'\\"', b"\x00\x01\x1b[2J\x7f",
         b"\xff\xfe\xc3", b"\r\n\t\v\f",
         "\u2028\u2029\u202e\u009b31m\ufeff".encode(), b"%s%n{}{0}", b"a" * 100_000, b"</script><!--", b""]
MOST_LINE_BYTES = 8192
REQUEST_LINE = {"time", "reason", "request_id", "method", "model", "version", "code", "duration_ns",
                "stages_ns", "batch", "lane", "peer", "bytes"}


def texts(seed, count):
    """Those, and mixtures of their bytes."""
    chance = random.Random(seed)
    bytes_of_all = b"".join(text[:20] for text in TEXTS)
    return TEXTS + [bytes(chance.choice(bytes_of_all) for _ in range(chance.randrange(1, 60))) for _ in range(count)]


def hostile_models(folder):
    """Models that fail to load, with such texts where the log tells of them: names, configs, parameters."""
    for number, text in enumerate(TEXTS):
        if b"\0" not in text and b"/" not in text and 0 < len(text) < 200:
            (pathlib.Path(folder) / text.decode("utf-8", "surrogateescape")).mkdir()
        model = pathlib.Path(folder) / f"broken_{number}"
        (model / "1").mkdir(parents=True)
        (model / "config.textproto").write_bytes(b'instance_norm { channels: "' + text + b'" ' + text)
        model = pathlib.Path(folder) / f"header_{number}"
        (model / "1").mkdir(parents=True)
        (model / "config.textproto").write_bytes(b"instance_norm { channels: 64 affine: true }")
        header = b'{"' + text + b'":{}}'
        (model / "1" / "params.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def check_line(line):
    require(len(line) <= MOST_LINE_BYTES, f"a line of {len(line)} bytes: {line[:200]}")
    require(line.isascii() and line.isprintable(), f"not printable: {line[:200]!r}")
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    require(isinstance(found, dict) and "time" in found, f"no JSON object with a time: {line[:200]!r}")
    require("level" in found or "audit" in found or REQUEST_LINE <= set(found), f"of no kind: {line[:200]!r}")
    require(found.get("message") != "forged", "a forged line")
    return found


@scenario("11", "each line of the log is one JSON object of printable ASCII, whatever clients and files hold")
def json_log_lines(context):
    seed = random.randrange(1 << 32)
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "models"
        shutil.copytree(context.models, root)
        hostile_models(root)
        with context.normd("--log_format=json", "--log_level=debug", "--log_sample_every=1", models=root) as server:
            with server.unharmed():
                with Connection(server.address) as client:
                    for text in texts(seed, 20 if context.short else 500):
                        client.call(bytes_field(1, text) + bytes_field(3, tensor([1, 64, 2])))
                        client.call(bytes_field(1, text), path=LOAD)
                        client.call(bytes_field(1, text), path=UNLOAD)
                        client.call(text)
                for text in TEXTS:
                    for host in (server.address, server.metrics_address.rsplit(":", 1)):
                        with socket.create_connection((host[0], int(host[1])), timeout=10) as peer:
                            try:
                                peer.sendall(b"GET /" + text[:4000] + b" HTTP/1.1\r\nA: " + text[:4000] + b"\r\n\r\n")
                            except ConnectionError:
                                pass
            server.process.send_signal(signal.SIGHUP)
            wait_until(lambda: "SIGHUP" in server.log(), 20, "SIGHUP is told")
            lines = server.log_path.read_bytes().decode("latin-1").split("\n")
            require(lines.pop() == "", "the last line is whole")
            found = [check_line(line) for line in lines]
            errors = sum("error" in line for line in found)
            failed = sum("load failed" in line.get("message", "") for line in found)
            require(errors > 50 and failed > 10, f"{errors} refusals and {failed} failed loads in {len(found)} lines")
            context.note(f"{len(found)} lines, {errors} with an error, {failed} of failed loads; seed {seed}")
