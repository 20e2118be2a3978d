"""Certificates, tokens and policies that are exchanged under load."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from probe import (
    LIMIT_S, Access, Files, Normd, http_status, metric, options, served_certificate)


class Rotation(unittest.TestCase):
    def test_under_load(self):
        """Certificate, tokens and policy are exchanged again and again under an open loop, beside
        which others connect, call and leave without a pause: no call fails, whoever comes new gets
        the new certificate, and a withdrawn token is refused."""
        files = Files("--client=spiffe://normd.test/viewer")
        access = Access(files.path)
        access.rotate(0)
        # A pair of their own: that of the folder is exchanged file by file.
        for name in ("client.crt", "client.key"):
            shutil.copy(files[name], files[f"load.{name}"])
        client = [f"--tls_ca={files['ca.crt']}", f"--tls_cert={files['load.client.crt']}",
                  f"--tls_key={files['load.client.key']}", f"--token_file={access.path('load')}"]
        with Normd(*files.mutual(), *access.flags()) as normd:
            given = normload(normd, client, "--concurrency=64", seconds=2)["ok_per_s"]
            rate = min(options.rate, options.share * given)
            report = files.path / "report.json"
            load = start_normload(normd, client, f"--rate={rate:.0f}", "--timeout=30s",
                                  f"--metrics=https://localhost:{normd.metrics_port}/metrics",
                                  seconds=options.seconds, report=report)
            end = time.monotonic() + options.seconds - 2
            comers = Comers(normd, client)
            rounds, slowest = 0, 0.0
            served = served_certificate(normd.port)
            while time.monotonic() < end or rounds < 2:
                rounds += 1
                files.make("--client=spiffe://normd.test/viewer")
                withdrawn, since = access.rotate(rounds), time.monotonic()
                while http_status(normd, files, withdrawn) != 401:
                    self.assertLess(time.monotonic() - since, options.slack, "a withdrawn token")
                slowest = max(slowest, time.monotonic() - since)
                # The two files are exchanged one after the other, so one look may see but the first.
                while http_status(normd, files, access.spare(rounds)) != 200:
                    self.assertLess(time.monotonic() - since, options.slack, "a new token")
                normd.wait_for("is in use")
                for port in (normd.port, normd.metrics_port):
                    self.assertNotEqual(served_certificate(port), served)
                served = served_certificate(normd.port)
            newcomers = comers.finish()
            said = load.communicate(timeout=LIMIT_S + options.seconds)[0]
            self.assertEqual(load.returncode, 0, said)
            result = json.loads(report.read_text())["result"]
            self.assertEqual((result["errors"], result["unsent"]), (0, 0), said)
            self.assertGreater(result["ok"], 0.9 * rate * options.seconds)
            self.assertIn("server_metrics", result, said)
            self.assertGreater(newcomers, 16 * rounds)
            connections = metric(normd.metrics_port, files,
                                 'normd_connections_accepted_total{port="grpc"}')
            print(f"{rounds} rotations of certificate, tokens and policy under {result['ok_per_s']:.0f} "
                  f"calls/s (wanted {options.rate:.0f}): {result['ok']} calls, {result['errors']} "
                  f"failures; {newcomers} calls of newcomers, without failure, {connections:.0f} "
                  f"connections; a withdrawn token was refused after {slowest:.1f} s at most",
                  file=sys.stderr)


class Comers:
    """Clients that connect, call and leave, sixteen at a time, again and again."""

    def __init__(self, normd, client):
        self.ended = threading.Event()
        self.calls = 0
        self.fault = None
        self.thread = threading.Thread(target=self.run, args=(normd, client))
        self.thread.start()

    def run(self, normd, client):
        try:
            while not self.ended.is_set():
                self.calls += normload(normd, client, "--requests=64", seconds=60)["ok"]
        except BaseException as fault:  # pylint: disable=broad-except
            self.fault = fault

    def finish(self):
        """How many calls there were, all of them answered."""
        self.ended.set()
        self.thread.join()
        if self.fault is not None:
            raise self.fault
        return self.calls


def start_normload(normd, client, *flags, seconds, report):
    return subprocess.Popen(
        [options.bin / "normload", f"--server=localhost:{normd.port}", "--model=layer_norm_1024",
         "--shape=1x1024", "--connections=16", f"--duration={seconds}s", "--warmup=0s",
         f"--json={report}", *flags, *client],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def normload(normd, client, *flags, seconds):
    """The result of a run."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        load = start_normload(normd, client, *flags, seconds=seconds, report=report)
        said = load.communicate(timeout=LIMIT_S + seconds)[0]
        assert load.returncode == 0, said
        return json.loads(report.read_text())["result"]
