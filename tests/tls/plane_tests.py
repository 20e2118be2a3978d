"""Who may do what, asked of every plane: both protocols of gRPC over TCP and unix sockets, the admin
address, the metrics port, the socket at which memory is handed over."""

import array
import fcntl
import hashlib
import os
import pathlib
import re
import secrets
import shutil
import socket
import struct
import sys
import tempfile
import unittest

from probe import LIMIT_S, Normd, options

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "abuse"))
from h2_client import (  # noqa: E402  # pylint: disable=wrong-import-position
    NORMALIZE, STREAM, Connection, bytes_field, framed, normalize_request, stream_header)

INFER = "/inference.GRPCInferenceService/ModelInfer"
HEALTH = "/grpc.health.v1.Health/Check"
OK, PERMISSION_DENIED, RESOURCE_EXHAUSTED, UNAUTHENTICATED = 0, 7, 8, 16
ADMIN_METHODS = {
    "LoadModel", "UnloadModel", "RepositoryModelLoad", "RepositoryModelUnload",
    "SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister"}
# One row of rms_norm_4096, and the same of the Open Inference Protocol.
ROW = normalize_request("rms_norm_4096", [1, 4096], bytes(4 * 4096))
OIP_ROW = (bytes_field(1, b"rms_norm_4096")
           + bytes_field(5, bytes_field(1, b"x") + bytes_field(2, b"FP32")
                         + bytes_field(3, b"\x01\x80\x20"))
           + bytes_field(7, bytes(4 * 4096)))


def bearer(token):
    return [("authorization", f"Bearer {token}")]


def methods():
    """The paths of all methods that the protocols' sources have."""
    paths = []
    for source in (options.source / "proto").rglob("*.proto"):
        text = re.sub(r"//[^\n]*", "", source.read_text())
        package = re.search(r"^package ([\w.]+);", text, re.MULTILINE).group(1)
        for service in re.finditer(r"^service (\w+) \{(.*?)^\}", text, re.MULTILINE | re.DOTALL):
            paths += [f"/{package}.{service.group(1)}/{name}"
                      for name in re.findall(r"\brpc (\w+)\s*\(", service.group(2))]
    return sorted(paths)


def ask(connection, path, metadata, message=b""):
    """(code, message) of a call's end, or OK with its first response: a watch has no end."""
    stream = connection.start(path, metadata=metadata)
    connection.send(stream, framed(message), end=True)
    while True:
        code, said = connection.status(stream, timeout=0.01)
        if code is not None or said != "nothing came":
            return code, said
        if any(getattr(event, "stream_id", 0) == stream and hasattr(event, "data")
               for event in connection.events):
            return OK, ""


class Folder:
    """A policy, and a token for each of `names`, for as long as `test` runs."""

    def __init__(self, test, policy, names):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="normd_planes_"))
        test.addCleanup(shutil.rmtree, self.path)
        self.tokens = {name: secrets.token_urlsafe(32) for name in names}
        lines = [f"{name} sha256:{hashlib.sha256(token.encode()).hexdigest()}\n"
                 for name, token in self.tokens.items()]
        for name, text in (("policy", policy), ("tokens", "".join(lines))):
            (self.path / name).write_text(text)
            (self.path / name).chmod(0o600)

    def flags(self):
        return [f"--policy_file={self.path}/policy", f"--tokens_file={self.path}/tokens"]

    def bearer(self, name):
        return bearer(self.tokens[name])


def http(port, *fields, path="/metrics"):
    """(status, everything) of a path of the metrics port."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as stream:
        head = "".join(f"{name}: {value}\r\n" for name, value in fields)
        stream.sendall(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
        said = b""
        while part := stream.recv(1 << 16):
            said += part
        return int(said.split()[1]), said.decode()


class AdminCalls(unittest.TestCase):
    POLICY = """
        role { name: "all" infer: "*" observe: true admin: true }
        role { name: "viewer" infer: "*" observe: true }
        identity { name: "operator" role: "all" token: "operator" }
        identity { name: "viewer" role: "viewer" token: "viewer" }"""

    def setUp(self):
        self.folder = Folder(self, self.POLICY, ["operator", "viewer"])
        self.unix = str(self.folder.path / "normd.sock")
        self.flags = [f"--listen=127.0.0.1:0,unix://{self.unix}", "--shared_memory=named"]

    def codes(self, address, metadata):
        """What each method says to an empty message."""
        with Connection(address, timeout=LIMIT_S) as connection:
            return {path: ask(connection, path, metadata) for path in methods()}

    def test_they_are_those_that_only_admins_may_make(self):
        with Normd(*self.flags, *self.folder.flags()) as normd:
            for address in (("127.0.0.1", normd.port), self.unix):
                viewer = self.codes(address, self.folder.bearer("viewer"))
                operator = self.codes(address, self.folder.bearer("operator"))
                self.assertGreater(len(viewer), 25)
                denied = {path for path, (code, _) in viewer.items() if code == PERMISSION_DENIED}
                self.assertEqual({path.rsplit("/", 1)[1] for path in denied}, ADMIN_METHODS)
                for path, (code, said) in operator.items():
                    self.assertNotIn(code, (None, PERMISSION_DENIED, UNAUTHENTICATED), path + said)
                # The policy has no rule for callers over a unix socket either.
                for nobody in ([], bearer(secrets.token_urlsafe(32))):
                    for path, (code, said) in self.codes(address, nobody).items():
                        self.assertEqual(code, UNAUTHENTICATED, path + said)

    def refused(self, address, metadata, why):
        for path, (code, said) in self.codes(address, metadata).items():
            if path.rsplit("/", 1)[1] in ADMIN_METHODS:
                self.assertEqual(code, PERMISSION_DENIED, path + said)
                self.assertIn(why, said, path)
            else:
                self.assertNotIn(code, (None, PERMISSION_DENIED, UNAUTHENTICATED), path + said)

    def test_off_is_off_on_every_plane(self):
        for policy, metadata in ((self.folder.flags(), self.folder.bearer("operator")), ([], [])):
            with Normd(*self.flags, *policy, "--admin=off") as normd:
                for address in (("127.0.0.1", normd.port), self.unix):
                    self.refused(address, metadata, "(--admin)")

    def test_with_an_address_of_their_own_they_are_taken_there_alone(self):
        with Normd(*self.flags, *self.folder.flags(), "--admin_listen=127.0.0.1:0") as normd:
            admin = ("127.0.0.1", normd.admin_port)
            for address in (("127.0.0.1", normd.port), self.unix):
                self.refused(address, self.folder.bearer("operator"), "(--admin_listen)")
            for path, (code, said) in self.codes(admin, self.folder.bearer("operator")).items():
                self.assertNotIn(code, (None, PERMISSION_DENIED, UNAUTHENTICATED), path + said)
            for path, (code, said) in self.codes(admin, self.folder.bearer("viewer")).items():
                is_admin = path.rsplit("/", 1)[1] in ADMIN_METHODS
                self.assertEqual(code == PERMISSION_DENIED, is_admin, path + said)
            for path, (code, said) in self.codes(admin, []).items():
                self.assertEqual(code, UNAUTHENTICATED, path + said)


class Quotas(unittest.TestCase):
    def serve(self, limits):
        policy = f"""role {{ name: "user" infer: "*" observe: true }}
                     identity {{ name: "u" role: "user" token: "u" limits {{ {limits} }} }}"""
        folder = Folder(self, policy, ["u"])
        normd = self.enterContext(Normd(*folder.flags()))
        return normd, folder.bearer("u")

    def test_a_rate_is_one_for_all_planes_and_connections(self):
        burst = 24
        normd, metadata = self.serve(f"requests_per_second: 0.001 burst: {burst}")
        taken = 0
        for turn in range(2 * burst):
            with Connection(("127.0.0.1", normd.port), timeout=LIMIT_S) as connection:
                self.assertEqual(connection.call(b"", HEALTH, metadata=metadata)[0], OK)
                kind = turn % 4
                if kind == 0:
                    code, said = connection.call(ROW, metadata=metadata)
                elif kind == 1:
                    code, said = connection.call(OIP_ROW, INFER, metadata=metadata)
                elif kind == 2:
                    code, said = connection.call(stream_header("absent", [1]), STREAM,
                                                 metadata=metadata)
                else:
                    status, said = http(normd.metrics_port, *metadata)
                    code = RESOURCE_EXHAUSTED if status == 429 else OK
            self.assertNotIn(code, (None, PERMISSION_DENIED, UNAUTHENTICATED), said)
            if code == RESOURCE_EXHAUSTED:
                self.assertGreaterEqual(turn, burst, said)
            else:
                taken += 1
        self.assertEqual(taken, burst)

    def test_streams_are_calls_inside(self):
        most = 3
        normd, metadata = self.serve(f"concurrent_calls: {most}")
        header = stream_header("rms_norm_4096", [8, 4096])
        with Connection(("127.0.0.1", normd.port), timeout=LIMIT_S) as holder, \
                Connection(("127.0.0.1", normd.port), timeout=LIMIT_S) as other:
            held = []
            for _ in range(most):
                stream = holder.start(STREAM, metadata=metadata)
                holder.send(stream, framed(header))
                # Its own header says that it is inside.
                while not any(getattr(event, "stream_id", 0) == stream and hasattr(event, "data")
                              for event in holder.events):
                    self.assertTrue(holder.pump(LIMIT_S))
                held.append(stream)
            for _ in range(3):
                for message, path in ((ROW, NORMALIZE), (OIP_ROW, INFER), (header, STREAM)):
                    code, said = other.call(message, path, metadata=metadata)
                    self.assertEqual(code, RESOURCE_EXHAUSTED, path + said)
            self.assertEqual(other.call(b"", HEALTH, metadata=metadata)[0], OK)
            holder.h2.reset_stream(held.pop())
            holder.flush()
            codes = {RESOURCE_EXHAUSTED}
            while codes == {RESOURCE_EXHAUSTED}:
                codes = {other.call(ROW, metadata=metadata)[0]}
            self.assertEqual(codes, {OK})


class Secrets(unittest.TestCase):
    POLICY = """
        role { name: "viewer" observe: true }
        identity { name: "viewer" role: "viewer" token: "viewer" }
        identity { name: "anybody" role: "viewer" anonymous: true }"""

    def test_no_token_is_repeated_anywhere(self):
        folder = Folder(self, self.POLICY, ["viewer"])
        good, wrong = folder.tokens["viewer"], secrets.token_urlsafe(32)
        values = [form.format(token) for token in (good, wrong) for form in (
            "Bearer {0}", "bearer  {0}", "Bearer {0} ", "Bearer {0},Bearer {0}", "Bearer {0}=",
            "Basic {0}", "{0}", "Bearer x{0}", "Bearer", "Bearer {0}.{0}")]
        shown = []
        regions = folder.path / "regions.sock"
        with Normd(*folder.flags(), "--shared_memory=fd", "--log_sample_every=1",
                   f"--shared_memory_listen=unix://{regions}") as normd:
            for value in values:
                metadata = [("authorization", value)]
                with Connection(("127.0.0.1", normd.port), timeout=LIMIT_S) as connection:
                    for path in methods():
                        shown.append(ask(connection, path, metadata, ROW)[1])
                for path in ("/metrics", "/v2/models", "/none"):
                    shown.append(http(normd.metrics_port, *metadata, path=path)[1])
                shown.append(hand_over(regions, value)[1])
            log = normd.stop()
        self.assertIn('"audit":"denied"', log)
        for token in (good, wrong):
            digest = hashlib.sha256(token.encode()).hexdigest()
            for text in (log, *shown):
                for part in (token, token[:12], token[-12:], digest[:12]):
                    self.assertNotIn(part, text)


def hand_over(path, authorization):
    """(code, what is said or the region's name) of memory that is handed over at a socket."""
    memory = os.memfd_create("region", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(memory, 1 << 16)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.settimeout(LIMIT_S)
            server.connect(str(path))
            packet = b"NRM1" + struct.pack("<IQ", 1, 0) + authorization.encode()
            server.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                                       array.array("i", [memory]))])
            reply = server.recv(8192)
    finally:
        os.close(memory)
    return struct.unpack_from("<I", reply, 4)[0], reply[16:].decode()


class Handover(unittest.TestCase):
    ROLES = """
        role { name: "user" infer: "rms_*" }
        role { name: "viewer" observe: true admin: true health: true }
        identity { name: "user" role: "user" token: "user" }
        identity { name: "viewer" role: "viewer" token: "viewer" }
        """

    def test_only_who_may_infer_may_hand_memory_over(self):
        own = 'identity { name: "own" role: "%s" unix_socket: true }\n'
        anybody = 'identity { name: "anybody" role: "viewer" anonymous: true }\n'
        for more, without in (("", UNAUTHENTICATED), (own % "viewer", PERMISSION_DENIED),
                              (own % "user", OK), (anybody, UNAUTHENTICATED)):
            folder = Folder(self, self.ROLES + more, ["user", "viewer"])
            path = folder.path / "regions.sock"
            with Normd(*folder.flags(), "--shared_memory=fd",
                       f"--shared_memory_listen=unix://{path}") as normd:
                cases = [("", without), ("Bearer " + secrets.token_urlsafe(32), UNAUTHENTICATED),
                         ("Bearer " + folder.tokens["viewer"], PERMISSION_DENIED),
                         ("Bearer " + folder.tokens["user"], OK),
                         (folder.tokens["user"], UNAUTHENTICATED)]
                for authorization, wanted in cases:
                    code, said = hand_over(path, authorization)
                    self.assertEqual(code, wanted, more + said)
                log = normd.stop()
            self.assertEqual(log.count('"method":"hand over a region"'),
                             sum(wanted != OK for _, wanted in cases), log)
