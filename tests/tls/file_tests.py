"""Files that are not good, at the start and later: the start fails, or the old state stays."""

import functools
import os
import pathlib
import re
import socket
import ssl
import time
import unittest

from probe import LIMIT_S, Access, Files, Normd, http_status, served_certificate


class Starts(unittest.TestCase):
    def refused(self, *flags, user=None):
        """The one line with which a start fails."""
        normd = Normd(*flags, user=user)
        self.assertIsNone(normd.port, flags)
        self.assertIn(normd.process.returncode, (1, 2))
        said = [line for line in normd.lines if "cannot start" in line or line.startswith("normd: ")]
        self.assertEqual(len(said), 1, normd.lines)
        return said[0]

    def test_one_line_names_every_open_port(self):
        files = Files()
        far = {flag: f"--{flag}=0.0.0.0:0"
               for flag in ("listen", "http_listen", "metrics_listen", "admin_listen")}
        for flags, open_ports in (
                ([far["listen"]], ["listen"]),
                ([far["admin_listen"]], ["admin_listen"]),
                (list(far.values()), ["listen", "http_listen", "admin_listen", "metrics_listen"]),
                ([*far.values(), *files.flags()], []),
                ([*far.values(), *files.flags(), "--metrics_tls=false"], ["metrics_listen"])):
            with Normd("--insecure", *flags) as normd:
                said = [line for line in normd.lines if "--insecure" in line]
                named = re.findall(r"--(\w+)=", " ".join(said))
                self.assertEqual(named, open_ports, flags)
                self.assertLessEqual(len(said), 1)

    @unittest.skipIf(os.getuid() != 0, "only root can be somebody else")
    def test_a_file_that_may_not_be_read(self):
        files = Files()
        os.chmod(files.path, 0o755)
        self.assertIn("cannot be opened: Permission denied", self.refused(*files.flags(), user=65534))


class Exchanged(unittest.TestCase):
    """A file goes, or something else is put in its place, while the server runs."""

    LARGE_BYTES = 10 << 30

    def serve(self):
        files = Files("--client=spiffe://normd.test/viewer")
        access = Access(files.path)
        access.rotate(0)
        return files, access, Normd(*files.mutual(), *access.flags())

    @classmethod
    def put(cls, kind, path):
        if kind == "folder":
            path.mkdir()
        elif kind == "fifo":
            os.mkfifo(path, 0o600)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(path))
        elif kind == "device":
            path.symlink_to("/dev/zero")
        elif kind == "large":
            with open(path, "wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.truncate(cls.LARGE_BYTES)
        elif kind == "empty":
            path.touch(0o600)
        elif kind == "dangling":
            path.symlink_to("nowhere")
        elif kind == "circle":
            path.symlink_to(path)

    def test_by_anything_the_old_state_stays_and_nothing_waits(self):
        files, access, normd = self.serve()
        names = ("server.crt", "server.key", "ca.crt", "policy", "tokens")
        kinds = ("folder", "fifo", "socket", "device", "large", "empty", "dangling", "circle",
                 "nothing")
        with normd:
            before = normd.rss_mib()
            for number, kind in enumerate(kinds):
                served = served_certificate(normd.port)
                kept = (files.path / "ca.crt").read_bytes()
                for name in names:
                    (files.path / name).unlink()
                    self.put(kind, files.path / name)
                for line in normd.wait_for_all("the certificate in use stays",
                                               "the one before goes on to hold"):
                    self.assertIn(str(files.path), line, kind)
                    self.assertLess(len(line), 500, line)
                self.assertEqual(served_certificate(normd.port), served, kind)
                (files.path / "trusted").write_bytes(kept)
                # Without the folder's own certificates.
                status = functools.partial(http_status, normd, files, ca="trusted")
                self.assertEqual(status(access.spare(number)), 200, kind)
                self.assertEqual(status("x" * 43), 401, kind)
                # The code that follows the files has waited for none of them.
                for name in names:
                    if kind == "folder":
                        (files.path / name).rmdir()
                    else:
                        (files.path / name).unlink(missing_ok=True)
                self.replace(files, "ca.crt", kept)
                files.make("--client=spiffe://normd.test/viewer")
                access.rotate(number + 1)
                normd.wait_for("is in use")
                while status(access.spare(number + 1)) != 200:
                    time.sleep(0.05)
                self.assertNotEqual(served_certificate(normd.port), served, kind)
            self.assertLess(normd.rss_mib(), before + 64, "a file of 10 GiB is not read")

    @staticmethod
    def replace(files, name, content):
        new = files.path / "new"
        new.write_bytes(content)
        new.chmod(0o600)
        new.rename(files.path / name)

    def test_an_authority_that_is_rotated_away_lets_nobody_in(self):
        files, access, normd = self.serve()
        other = Files("--client=spiffe://normd.test/viewer")
        # Servers' certificates are trusted as before.
        both = files.path / "trusted.crt"
        both.write_text(pathlib.Path(files["ca.crt"]).read_text())
        with normd:
            self.assertEqual(http_status(normd, files, access.spare(0)), 200)
            self.replace(files, "ca.crt", pathlib.Path(other["ca.crt"]).read_bytes())
            normd.wait_for("is in use")
            for port in (normd.port, normd.metrics_port):
                for pair, let_in in ((files, False), (other, True)):
                    with self.subTest(port=port, let_in=let_in):
                        self.assertEqual(self.is_let_in(port, both, pair), let_in)

    @staticmethod
    def is_let_in(port, trusted, pair):
        """TLS 1.3's client is told after its handshake."""
        context = ssl.create_default_context(cafile=trusted)
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(pair["client.crt"], pair["client.key"])
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as plain, \
                    context.wrap_socket(plain, server_hostname="localhost") as stream:
                stream.sendall(b"GET / HTTP/1.1\r\n\r\n")
                return stream.recv(1) != b""
        except (ssl.SSLError, ConnectionError):
            return False
