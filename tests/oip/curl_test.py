#!/usr/bin/env python3
"""curl against a real normd: JSON, binary and compressed bodies, chunks, one connection for many calls.
tests/server/rest has what is refused, what describes the server, and browsers.

Needs curl alone; exits with 77, which ctest shows as skipped, without it.
"""

import gzip
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

from served import LIMIT_S, SKIPPED, Server, command_line

INFER = "/v2/models/instance_norm_64/infer"
VALUES = [0.5 * (7 * i % 11) for i in range(64 * 4)]


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


class Answer:
    def __init__(self, head, body):
        lines = head.decode().split("\r\n")
        self.status = int(lines[0].split()[1])
        self.fields = {name.lower(): value.strip() for name, _, value in
                       (line.partition(":") for line in lines[1:] if ":" in line)}
        self.body = body

    def outputs(self):
        """(the JSON, the bytes behind it)"""
        size = int(self.fields.get("inference-header-content-length", len(self.body)))
        return json.loads(self.body[:size]), self.body[size:]


class Curl:
    def __init__(self, server, folder):
        self.server, self.folder = server, pathlib.Path(folder)

    def __call__(self, path, *arguments, body=None):
        head, got, sent = self.folder / "head", self.folder / "got", self.folder / "sent"
        got.write_bytes(b"")
        given = []
        if body is not None:
            sent.write_bytes(body if isinstance(body, bytes) else json.dumps(body).encode())
            given = ["--data-binary", f"@{sent}"]
        subprocess.run(["curl", "-s", "-S", "--path-as-is", "-D", head, "-o", got, *given, *arguments,
                        f"http://{self.server.http}{path}"], check=True, timeout=LIMIT_S)
        # After a 100 Continue comes the head that counts.
        heads = [one for one in head.read_bytes().split(b"\r\n\r\n") if one]
        return Answer(heads[-1], got.read_bytes())


def request(data, **more):
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 64, 4], "data": data}], **more}


def binary(**more):
    """(the body, curl's arguments for its head)"""
    raw = struct.pack("<256f", *VALUES)
    text = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 64, 4],
                                   "parameters": {"binary_data_size": len(raw)}}], **more}).encode()
    return text + raw, ["-H", f"Inference-Header-Content-Length: {len(text)}",
                        "-H", "Content-Type: application/octet-stream"]


def nested(values):
    return [[values[4 * i:4 * i + 4] for i in range(64)]]


def wanted(curl):
    """The bytes of the output, as a binary tensor."""
    body, head = binary(parameters={"binary_data_output": True})
    answer = curl(INFER, *head, body=body)
    expect(answer.status == 200, f"{answer.status}: {answer.body[:200]}")
    told, raw = answer.outputs()
    expect(told["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 64, 4],
                                "parameters": {"binary_data_size": 1024}}], str(told))
    expect(len(raw) == 1024, f"{len(raw)} bytes")
    return raw


def bodies(curl):
    """Each form of the same tensor gives the same bits."""
    raw = wanted(curl)

    def same(name, answer):
        expect(answer.status == 200, f"{name}: {answer.status} {answer.body[:200]}")
        told, behind = answer.outputs()
        got = behind or struct.pack("<256f", *told["outputs"][0]["data"])
        expect(got == raw, f"{name}: other bits")

    same("flat", curl(INFER, body=request(VALUES)))
    same("nested", curl(INFER, body=request(nested(VALUES))))
    same("a version", curl("/v2/models/instance_norm_64/versions/1/infer", body=request(VALUES)))
    same("chunks", curl(INFER, "-H", "Transfer-Encoding: chunked", body=request(VALUES)))
    same("100-continue", curl(INFER, "-H", "Expect: 100-continue", body=request(VALUES)))
    same("no 100-continue", curl(INFER, "-H", "Expect:", body=request(VALUES)))
    same("HTTP/1.0", curl(INFER, "--http1.0", body=request(VALUES)))
    body, head = binary()
    same("binary in, JSON out", curl(INFER, *head, body=body))
    for name, pack in (("gzip", gzip.compress), ("deflate", zlib.compress)):
        encoded = ["-H", f"Content-Encoding: {name}"]
        same(name, curl(INFER, *encoded, body=pack(json.dumps(request(VALUES)).encode())))
        same(f"{name}, binary", curl(INFER, *encoded, *head, body=pack(body)))
        answer = curl(INFER, "-H", f"Accept-Encoding: {name}", "--compressed", body=request(VALUES))
        same(f"{name} of the response", answer)


def connections(curl, folder):
    """One connection has several calls; two requests of one write have two answers, in order."""
    (folder / "config").write_text("\n".join(
        f'url = "http://{curl.server.http}/v2/models/instance_norm_64/ready"\noutput = "/dev/null"'
        for _ in range(20)))
    done = subprocess.run(["curl", "-s", "-S", "-w", "%{num_connects}\n", "-K", folder / "config"],
                          check=True, capture_output=True, text=True, timeout=LIMIT_S)
    expect(sum(map(int, done.stdout.split())) == 1, f"connections of 20 calls: {done.stdout.split()}")


def main():
    options = command_line(__doc__).parse_args()
    if shutil.which("curl") is None:
        print("skipped: curl is not installed")
        return SKIPPED
    os.environ["no_proxy"] = "*"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        with Server(options) as server:
            curl = Curl(server, folder)
            bodies(curl)
            print("passed: bodies", flush=True)
            connections(curl, folder)
            print("passed: connections", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
