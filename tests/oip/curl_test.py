#!/usr/bin/env python3
"""curl against a real normd: JSON, binary and compressed bodies, chunks, and what a browser asks.

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

ORIGIN = "https://example.org"
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

    def json(self):
        return json.loads(self.body)

    def outputs(self):
        """(the JSON, the bytes behind it)"""
        size = int(self.fields.get("inference-header-content-length", len(self.body)))
        return json.loads(self.body[:size]), self.body[size:]


class Curl:
    def __init__(self, server, folder):
        self.server, self.folder = server, pathlib.Path(folder)

    def __call__(self, path, *arguments, body=None, address=None):
        head, got, sent = self.folder / "head", self.folder / "got", self.folder / "sent"
        got.write_bytes(b"")
        given = []
        if body is not None:
            sent.write_bytes(body if isinstance(body, bytes) else json.dumps(body).encode())
            given = ["--data-binary", f"@{sent}"]
        subprocess.run(["curl", "-s", "-S", "--path-as-is", "-D", head, "-o", got, *given, *arguments,
                        f"http://{address or self.server.http}{path}"], check=True, timeout=LIMIT_S)
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


def refusals(curl):
    good, head = binary()
    one = VALUES[:-1]
    for name, status, text, answer in (
            ("no JSON", 400, "JSON", curl(INFER, body=b"hello")),
            ("nothing", 400, "", curl(INFER, body=b"")),
            ("a list", 400, "", curl(INFER, body=[])),
            ("no inputs", 400, "inputs", curl(INFER, body={})),
            ("an element too few", 400, "inputs[0]", curl(INFER, body=request(one))),
            ("an element too many", 400, "inputs[0]", curl(INFER, body=request(VALUES + [1]))),
            ("a text among numbers", 400, "inputs[0]", curl(INFER, body=request(one + ["1"]))),
            ("nested otherwise", 400, "inputs[0]", curl(INFER, body=request([VALUES]))),
            ("a number that is too large", 400, "inputs[0]", curl(INFER, body=request(one + [1e39]))),
            ("NaN", 400, "", curl(INFER, body=json.dumps(request(one + [float("nan")])).encode())),
            ("a length beyond the body", 400, "", curl(
                INFER, "-H", "Inference-Header-Content-Length: 9999", body=good)),
            ("half of the tensor", 400, "", curl(INFER, *head, body=good[:-512])),
            ("more than the tensor", 400, "", curl(INFER, *head, body=good + b"12")),
            ("an unknown model", 404, "nothing", curl("/v2/models/nothing/infer", body=request(VALUES))),
            ("a model's name that leads out", 400, "", curl("/v2/models/..%2fx/infer",
                                                             body=request(VALUES))),
            ("a path that is none", 404, "", curl("/v2/nothing")),
            ("another method", 405, "", curl(INFER)),
            ("an unknown encoding", 501, "br", curl(INFER, "-H", "Content-Encoding: br", body=good)),
            ("gzip that is none", 400, "", curl(INFER, "-H", "Content-Encoding: gzip", body=good))):
        expect(answer.status == status, f"{name}: {answer.status} {answer.body[:300]}, wanted {status}")
        message = answer.json()
        expect(list(message) == ["error"] and message["error"] and text in message["error"],
               f"{name}: {message}")
    expect(curl(INFER).fields.get("allow", "").startswith("POST"), "405 has Allow")


def describing(curl):
    expect(curl("/v2").json()["name"] == "normd", "/v2")
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/instance_norm_64/ready",
                 "/v2/models/instance_norm_64/versions/1/ready"):
        answer = curl(path)
        expect(answer.status == 200, f"{path}: {answer.status}")
    head = curl("/v2", "--head")
    # curl writes the head there.
    expect(head.status == 200 and head.body.endswith(b"\r\n\r\n"), "HEAD has no body")
    expect(int(head.fields["content-length"]) == len(curl("/v2").body), "HEAD has GET's length")
    index = curl("/v2/repository/index", body={}).json()
    expect({"instance_norm_64"} <= {model["name"] for model in index}, str(index))
    stats = curl("/v2/models/instance_norm_64/stats").json()["model_stats"]
    expect(stats[0]["inference_stats"]["success"]["count"] > 0, str(stats))
    with_id = curl(INFER, "-H", "x-request-id: mine", body=request(VALUES, id="7"))
    expect(with_id.json()["id"] == "7", "the body's id comes back")
    expect(with_id.fields.get("x-request-id") == "mine", f"x-request-id: {with_id.fields}")


def connections(curl, folder):
    """One connection has several calls; two requests of one write have two answers, in order."""
    (folder / "config").write_text("\n".join(
        f'url = "http://{curl.server.http}/v2/models/instance_norm_64/ready"\noutput = "/dev/null"'
        for _ in range(20)))
    done = subprocess.run(["curl", "-s", "-S", "-w", "%{num_connects}\n", "-K", folder / "config"],
                          check=True, capture_output=True, text=True, timeout=LIMIT_S)
    expect(sum(map(int, done.stdout.split())) == 1, f"connections of 20 calls: {done.stdout.split()}")


def browsers(options, folder):
    """CORS: nothing by default, and what --http_allow_origin names with it."""
    preflight = ["-X", "OPTIONS", "-H", f"Origin: {ORIGIN}", "-H", "Access-Control-Request-Method: POST",
                 "-H", "Access-Control-Request-Headers: content-type"]
    for allowed in (False, True):
        with Server(options, *([f"--http_allow_origin={ORIGIN}"] if allowed else [])) as server:
            curl = Curl(server, folder)
            other = [one.replace(ORIGIN, "https://example.com") for one in preflight]
            for name, given, tells in (("preflight", preflight, allowed), ("another's", other, False)):
                answer = curl(INFER, *given)
                told = answer.fields.get("access-control-allow-origin")
                expect(told == (ORIGIN if tells else None), f"{name}: {told}")
                expect(answer.status in (200, 204, 403, 405), f"{name}: {answer.status}")
            answer = curl(INFER, "-H", f"Origin: {ORIGIN}", body=request(VALUES))
            told = answer.fields.get("access-control-allow-origin")
            # A page elsewhere can have nothing computed, whether it may read the answer or not.
            expect(answer.status == (200 if allowed else 403), f"POST: {answer.status}")
            expect(told == (ORIGIN if allowed else None), f"POST: {told}")


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
            for test in (bodies, refusals, describing):
                test(curl)
                print(f"passed: {test.__name__}", flush=True)
            connections(curl, folder)
            print("passed: connections", flush=True)
        browsers(options, folder)
        print("passed: browsers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
