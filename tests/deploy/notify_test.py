#!/usr/bin/env python3
"""What normd tells systemd (Type=notify): READY=1 once it serves, STOPPING=1 when it begins to stop.

    notify_test.py --bin=build/dev/bin
"""

import argparse
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest

from process import Process

MODELS = pathlib.Path(__file__).resolve().parents[2] / "deploy/models"
LIMIT_S = 60

options = None


def normd(address, *flags):
    os.environ["NOTIFY_SOCKET"] = address
    return Process(options.bin / "normd", f"--model_repository={MODELS}", "--device=cpu",
                   "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0",
                   "--http_listen=", "--lame_duck=0s", *flags)


def port_of(process):
    return process.wait_for(r"serving: grpc=\S+:(\d+)", LIMIT_S).group(1)


class Manager:
    """A service manager's socket."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(LIMIT_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def hears(self):
        return self.socket.recv(4096).decode()

    def has_heard(self):
        self.socket.setblocking(False)
        try:
            return self.hears()
        except BlockingIOError:
            return None
        finally:
            self.socket.settimeout(LIMIT_S)


class NotifyTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.addCleanup(os.environ.pop, "NOTIFY_SOCKET", None)

    def check(self, manager, address):
        with normd(address) as process:
            self.assertEqual(manager.hears(), "READY=1")
            # By then it serves, at the first try.
            health = subprocess.run([options.bin / "normctl", "health",
                                     f"--server=127.0.0.1:{port_of(process)}"],
                                    capture_output=True, text=True, timeout=LIMIT_S, check=False)
            self.assertEqual(health.returncode, 0, health.stdout + health.stderr)
            self.assertIsNone(manager.has_heard())
        self.assertEqual(process.exit_code, 0)
        self.assertEqual(manager.hears(), "STOPPING=1")
        self.assertIsNone(manager.has_heard())

    def test_a_path(self):
        path = str(self.folder / "notify")
        with Manager(path) as manager:
            self.check(manager, path)

    def test_an_abstract_name(self):
        name = f"normd-notify-{os.getpid()}"
        with Manager(f"\0{name}") as manager:
            self.check(manager, f"@{name}")

    def test_a_start_that_fails_is_not_ready(self):
        path = str(self.folder / "notify")
        with Manager(path) as manager:
            with normd(path, "--model_repository=/nowhere") as process:
                process.wait_for("cannot start", LIMIT_S)
            self.assertEqual(process.exit_code, 1)
            self.assertIsNone(manager.has_heard())

    def test_it_serves_where_nobody_listens(self):
        for address, said in ((str(self.folder / "gone"), "No such file"), ("x" * 200, "200 bytes long")):
            with normd(address) as process:
                process.wait_for(f"NOTIFY_SOCKET: .*{said}", LIMIT_S)
                port_of(process)
            self.assertEqual(process.exit_code, 0)


def main():
    global options
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    options, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()
