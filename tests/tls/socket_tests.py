"""Rights to connect to a unix socket."""

import os
import pathlib
import socket
import tempfile
import unittest

from probe import LIMIT_S, Normd, options, run


class UnixSockets(unittest.TestCase):
    def test_serves_its_own_user_and_root_alone(self):
        with tempfile.TemporaryDirectory(prefix="normd_unix_") as folder:
            path = pathlib.Path(folder) / "normd.sock"
            with Normd(f"--listen=unix://{path}") as normd:
                models = run(options.bin / "normctl", "models", f"--server=unix://{path}")
                self.assertEqual(models.returncode, 0, models.stdout)
                self.assertEqual(path.stat().st_mode & 0o777, 0o600)
                if os.getuid() == 0:
                    self.refuses_a_stranger(normd, path)
            self.assertFalse(path.exists())

    def refuses_a_stranger(self, normd, path):
        """Also once the file lets everybody in."""
        os.chmod(path.parent, 0o755)
        os.chmod(path, 0o666)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(str(path))
                stranger.settimeout(LIMIT_S)
                try:
                    os.write(writer, b"closed" if stranger.recv(1) == b"" else b"taken")
                except OSError:
                    os.write(writer, b"closed")
            os._exit(0)
        os.waitpid(child, 0)
        self.assertEqual(os.read(reader, 16), b"closed")
        os.close(reader)
        os.close(writer)
        normd.wait_for("its process is another user's")
