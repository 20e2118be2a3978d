#!/usr/bin/env python3
"""A model repository on the volumes that clusters mount, which normd follows with --model_poll_interval.

    volumes_test.py --bin=build/dev/bin

Mounts are made in namespaces of their own, which takes root: without it those tests are skipped.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

from process import Normd

MODELS = pathlib.Path(__file__).resolve().parents[2] / "deploy/models"
MODEL = "instance_norm_64"
LIMIT_S = 60
CAN_MOUNT = os.geteuid() == 0 and shutil.which("unshare") and shutil.which("nsenter")

options = None


def tree(folder):
    """Every path below with its size and times."""
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns)
            for path in sorted(folder.rglob("*"))}


def add_version(repository, version, content=None):
    """As a deployment does: written beside, and renamed in whole."""
    model = repository / MODEL
    if content is None:
        content = (MODELS / MODEL / "1/params.safetensors").read_bytes()
    beside = model / f"{version}.tmp"
    beside.mkdir()
    (beside / "params.safetensors").write_bytes(content)
    beside.rename(model / str(version))


class Server(Normd):
    def __init__(self, repository, *flags, before=()):
        super().__init__(options.bin / "normd", repository, "--model_poll_interval=100ms", *flags,
                         before=before)

    def metric(self, series):
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=LIMIT_S) as reply:
            for line in reply.read().decode().splitlines():
                if line.startswith(series + " "):
                    return float(line.rsplit(" ", 1)[1])
        return None

    def polls(self):
        return sum(self.metric(f'normd_model_repository_polls_total{{result="{result}"}}')
                   for result in ("complete", "incomplete"))

    def await_polls(self, count):
        """So many whole looks more."""
        end, wanted = time.monotonic() + LIMIT_S, self.polls() + count + 1
        while self.polls() < wanted:
            if time.monotonic() > end:
                raise AssertionError("\n".join(map(str, self.output)))
            time.sleep(0.02)

    def normctl(self, *arguments):
        return subprocess.run([options.bin / "normctl", *arguments, f"--server={self.address}"],
                              capture_output=True, text=True, check=False, timeout=LIMIT_S)

    def ready(self, version):
        """Whether the version, a number or an alias, is served."""
        try:
            urllib.request.urlopen(
                f"http://{self.metrics}/v2/models/{MODEL}/versions/{version}/ready", timeout=LIMIT_S)
            return True
        except urllib.error.HTTPError:
            return False


class VolumesTest(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.path = pathlib.Path(self._folder.name)
        self.repository = self.path / "models"
        (self.repository / MODEL).mkdir(parents=True)
        shutil.copy(MODELS / MODEL / "config.textproto", self.repository / MODEL)
        add_version(self.repository, 1)

    def serve(self, *arguments, **keywords):
        return self.enterContext(Server(*arguments, **keywords))

    def enterContext(self, context):  # unittest has it from Python 3.11 on.
        value = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        return value

    @unittest.skipUnless(CAN_MOUNT, "no root, or no unshare or nsenter")
    def test_a_read_only_volume_is_followed_and_not_written_to(self):
        mounted = self.path / "mounted"
        mounted.mkdir()
        server = self.serve(mounted, before=(
            "unshare", "--mount", "--propagation=private", "sh", "-c",
            f'mount --bind "{self.repository}" "{mounted}" && '
            f'mount -o remount,ro,bind "{mounted}" && exec "$@"', "sh"))
        mounts = pathlib.Path(f"/proc/{server.pid}/mountinfo").read_text().splitlines()
        self.assertTrue(any(f" {mounted} ro" in line for line in mounts), mounts[-1])
        add_version(self.repository, 2)
        before = tree(self.repository)
        server.wait_for("version 2: loaded", LIMIT_S)
        server.await_polls(2)
        self.assertTrue(server.ready(2))
        self.assertFalse(server.ready(1))
        self.assertEqual(tree(self.repository), before)

    @unittest.skipUnless(CAN_MOUNT, "no root, or no unshare or nsenter")
    def test_a_volume_that_is_unmounted_takes_nothing_away(self):
        mounted = self.path / "mounted"
        mounted.mkdir()
        server = self.serve(mounted, before=(
            "unshare", "--mount", "--propagation=private", "sh", "-c",
            f'mount -t tmpfs models "{mounted}" && cp -r "{self.repository}"/. "{mounted}" && '
            'exec "$@"', "sh"))
        server.await_polls(2)
        inside = ["nsenter", f"--target={server.pid}", "--mount"]
        subprocess.run([*inside, "umount", "-l", str(mounted)], check=True)
        server.wait_for("is empty and on another file system than before; its models serve on",
                        LIMIT_S)
        server.await_polls(5)
        self.assertTrue(server.ready(1))
        # Another volume takes its place, with another version.
        add_version(self.repository, 2)
        subprocess.run([*inside, "mount", "--bind", str(self.repository), str(mounted)], check=True)
        server.wait_for("version 2: loaded", LIMIT_S)

    # The folder is a link into a link that is exchanged, as of a ConfigMap or a git-sync sidecar.
    def test_a_link_that_is_exchanged_is_followed(self):
        volume = self.path / "volume"
        for name, version in (("..first", 1), ("..second", 2)):
            shutil.copytree(self.repository, volume / name)
            if version == 2:
                shutil.rmtree(volume / name / MODEL / "1")
                add_version(volume / name, 2)
        (volume / "..data").symlink_to("..first")
        (volume / MODEL).symlink_to(f"..data/{MODEL}")
        server = self.serve(volume)
        server.await_polls(2)
        self.assertTrue(server.ready(1))
        (volume / "..data_tmp").symlink_to("..second")
        os.replace(volume / "..data_tmp", volume / "..data")
        shutil.rmtree(volume / "..first")
        server.wait_for("version 1: unloaded", LIMIT_S)
        self.assertTrue(server.ready(2))

    def test_versions_that_vanish_and_break_cost_no_request(self):
        server = self.serve(self.repository)
        report = self.path / "report.json"
        load = subprocess.Popen(
            [options.bin / "normload", f"--server={server.address}", f"--model={MODEL}",
             "--shape=1x64x4x4", "--concurrency=8", "--duration=6s", "--quiet", f"--json={report}",
             "--give_up_after=0", "--max_error_share=1"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        rounds = 0
        version = 2
        while load.poll() is None:
            add_version(self.repository, version, b"broken" if version % 3 == 0 else None)
            server.await_polls(3)
            if version % 3 == 0:
                shutil.rmtree(self.repository / MODEL / str(version - 1))
                server.await_polls(3)
                rounds += 1
            version += 1
        output, _ = load.communicate()
        self.assertEqual(load.returncode, 0, output)
        result = json.loads(report.read_text())["result"]
        self.assertGreaterEqual(rounds, 2)
        self.assertGreater(result["requests"], 100)
        self.assertEqual(result["errors"], 0, result)

    def test_an_alias_names_its_version(self):
        config = self.repository / MODEL / "config.textproto"
        config.write_text(config.read_text() + '\nversion_alias { name: "stable" version: 1 }\n')
        add_version(self.repository, 2)
        server = self.serve(self.repository)
        for version, wanted in (("stable", True), (1, True), (2, True), (3, False), ("old", False)):
            self.assertEqual(server.ready(version), wanted, version)

    def test_two_folders_are_one_repository(self):
        other = self.path / "other"
        shutil.copytree(MODELS / "layer_norm_1024", other / "layer_norm_1024")
        server = self.serve(f"{self.repository},{other}")
        listed = server.normctl("models").stdout
        self.assertIn(MODEL, listed)
        self.assertIn("layer_norm_1024", listed)
        # A name that both have: the server goes on, and would not start.
        shutil.copytree(MODELS / MODEL, other / MODEL)
        told = f'model {MODEL}: it lies in "{self.repository}" and in "{other}", wanted one folder'
        server.wait_for(told, LIMIT_S)
        self.assertTrue(server.ready(1))
        started = subprocess.run(
            [options.bin / "normd", f"--model_repository={self.repository},{other}",
             "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0",
             "--http_listen=", "--device=cpu"],
            capture_output=True, text=True, check=False, timeout=LIMIT_S)
        self.assertEqual(started.returncode, 1, started.stderr)
        self.assertIn(f"cannot start: {told}", started.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    options, rest = parser.parse_known_args()
    options.bin = options.bin.resolve()
    unittest.main(argv=sys.argv[:1] + rest)
