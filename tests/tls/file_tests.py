"""Files that are not good, at the start and later: the start fails, or the old state stays."""

import os
import pathlib
import re
import socket
import ssl
import tempfile
import time
import unittest

from probe import LIMIT_S, Access, Files, Normd, fetch, http_status, options, run, served_certificate


class Starts(unittest.TestCase):
    def refused(self, *flags, user=None):
        """The one line with which a start fails."""
        normd = Normd(*flags, user=user)
        self.assertIsNone(normd.port, flags)
        self.assertIn(normd.process.returncode, (1, 2))
        said = [line for line in normd.lines if "cannot start" in line or line.startswith("normd: ")]
        self.assertEqual(len(said), 1, normd.lines)
        return said[0]

    def test_plaintext_beyond_loopback_needs_insecure(self):
        line = self.refused("--listen=0.0.0.0:0")
        self.assertIn('--listen: "0.0.0.0:0" without TLS, wanted', line)
        self.assertIn("--insecure", line)
        self.assertIn("--metrics_listen:", self.refused("--metrics_listen=0.0.0.0:0"))

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

    def test_files_that_are_not_good(self):
        files, other = Files(), Files()
        key = pathlib.Path(files["server.key"])
        text = key.read_text()

        def refused_with(wanted, *flags):
            self.assertIn(wanted, self.refused(*(flags or files.flags())))

        key.chmod(0o644)
        refused_with("has mode 0644")
        key.chmod(0o600)
        key.write_text(text[:len(text) // 2])
        refused_with("is cut off or damaged")
        run("openssl", "ec", "-aes128", "-passout", "pass:secret", "-in", other["server.key"],
            "-out", key)
        refused_with("is encrypted, wanted a key without a passphrase")
        key.write_text(pathlib.Path(other["server.key"]).read_text())
        refused_with("is not the key of certificate 1")
        key.unlink()
        refused_with("cannot be opened: No such file")
        key.write_text(text)
        key.chmod(0o600)
        refused_with("is not for a TLS server", f"--tls_cert={files['client.crt']}",
                     f"--tls_key={files['client.key']}")
        with Normd(*files.flags()):
            pass


    def test_certificates_outside_their_time(self):
        files = Files()
        for begin, end, wanted in (("20200101", "20200201", "expired on 2020-02-01"),
                                   ("20490101", "20490201", "is not valid before 2049-01-01")):
            files.sign("server", "serverAuth", "DNS:localhost", begin, end)
            self.assertIn(wanted, self.refused(*files.flags()))
        # Nor does a client get in with one.
        files.make()
        with Normd(*files.mutual()) as normd:
            for begin, end in (("20200101", "20200201"), ("20490101", "20490201")):
                files.sign("client", "clientAuth", "URI:spiffe://normd.test/late", begin, end)
                said = run(options.bin / "normctl", "models", f"--server=localhost:{normd.port}",
                           f"--tls_ca={files['ca.crt']}", f"--tls_cert={files['client.crt']}",
                           f"--tls_key={files['client.key']}", "--timeout=20s")
                self.assertEqual(said.returncode, 1, said.stdout)
                with self.assertRaises((ssl.SSLError, ConnectionError)):
                    fetch(normd.metrics_port, files)

    @unittest.skipIf(os.getuid() != 0, "only root can be somebody else")
    def test_a_file_that_may_not_be_read(self):
        files = Files()
        os.chmod(files.path, 0o755)
        self.assertIn("cannot be opened: Permission denied", self.refused(*files.flags(), user=65534))

    def test_policies_that_are_not_good(self):
        with tempfile.TemporaryDirectory(prefix="normd_policy_") as folder:
            policy = pathlib.Path(folder) / "policy"
            tokens = pathlib.Path(folder) / "tokens"
            good = 'role { name: "r" observe: true } identity { name: "i" role: "r" token: "t" }'
            flags = [f"--policy_file={policy}", f"--tokens_file={tokens}"]

            def refused_with(wanted, text, lines="", mode=0o600):
                policy.write_text(text)
                tokens.write_text(lines)
                tokens.chmod(mode)
                self.assertIn(wanted, self.refused(*flags))

            refused_with(f"{policy}: line 1, column", good + " admins { }")
            refused_with(f"{policy}: line 1, column", good.replace("observe", "observes"))
            refused_with(f"{policy}: line 1, column", good[:-1])
            refused_with(f"{tokens}: line 1", good, "t sha256:abc\n")
            refused_with(f"{tokens}: mode 0644", good, mode=0o644)
            tokens.unlink()
            self.assertIn(str(tokens), self.refused(*flags))


class Exchanged(unittest.TestCase):
    """Something else is put in a file's place while the server runs."""

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
        kinds = ("folder", "fifo", "socket", "device", "large", "empty", "dangling", "circle")
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
                status = self.status(normd, files)
                self.assertEqual(status(access.spare(number)), 200, kind)
                self.assertEqual(status("x" * 43), 401, kind)
                # The code that follows the files has waited for none of them.
                take_away = pathlib.Path.rmdir if kind == "folder" else pathlib.Path.unlink
                for name in names:
                    take_away(files.path / name)
                self.replace(files, "ca.crt", kept)
                files.make("--client=spiffe://normd.test/viewer")
                access.rotate(number + 1)
                normd.wait_for("is in use")
                while status(access.spare(number + 1)) != 200:
                    time.sleep(0.05)
                self.assertNotEqual(served_certificate(normd.port), served, kind)
            self.assertLess(normd.rss_mib(), before + 64, "a file of 10 GiB is not read")

    @staticmethod
    def status(normd, files):
        """The body of /metrics for a token, without the folder's own certificates."""
        context = ssl.create_default_context(cafile=files["trusted"])
        context.load_cert_chain(files["client.crt"], files["client.key"])

        def ask(token):
            with socket.create_connection(("127.0.0.1", normd.metrics_port), LIMIT_S) as plain, \
                    context.wrap_socket(plain, server_hostname="localhost") as stream:
                stream.sendall(f"GET /metrics HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n"
                               .encode())
                return int(stream.recv(1 << 16).split()[1])
        return ask

    def test_half_of_a_new_pair_is_not_used_however_long_the_other_takes(self):
        for late in ("server.crt", "server.key"):
            files, _, normd = self.serve()
            with normd:
                served = served_certificate(normd.port)
                made = Files()
                early = "server.key" if late == "server.crt" else "server.crt"
                self.replace(files, early, pathlib.Path(made[early]).read_bytes())
                self.assertIn("is not the key of certificate 1", normd.wait_for("stays"))
                for port in (normd.port, normd.metrics_port):
                    self.assertEqual(served_certificate(port), served)
                self.replace(files, late, pathlib.Path(made[late]).read_bytes())
                normd.wait_for("is in use")
                for port in (normd.port, normd.metrics_port):
                    self.assertNotEqual(served_certificate(port), served)

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


class Vanishing(unittest.TestCase):
    def test_the_old_state_stays_and_the_log_says_so(self):
        files = Files("--client=spiffe://normd.test/viewer")
        access = Access(files.path)
        access.rotate(0)
        with Normd(*files.mutual(), *access.flags()) as normd:
            first = served_certificate(normd.port)
            for name, line in (("server.crt", "the certificate in use stays"),
                               ("server.key", "the certificate in use stays"),
                               ("ca.crt", "the certificate in use stays"),
                               ("policy", "the one before goes on to hold"),
                               ("tokens", "the one before goes on to hold")):
                text = (files.path / name).read_text()
                (files.path / name).rename(files.path / "gone")
                self.assertIn(files[name], normd.wait_for(line))
                (files.path / "gone").rename(files.path / name)
                self.assertEqual((files.path / name).read_text(), text)
                self.assertEqual(served_certificate(normd.port), first)
                self.assertEqual(http_status(normd, files, access.spare(0)), 200)
                self.assertEqual(http_status(normd, files, "x" * 43), 401)
