#!/usr/bin/env python3
"""Looks at a normd with TLS from outside: protocols, ciphers, certificates, bad files, rotation.

    tests/tls/tls_probe.py --bin=build/dev/bin --source=. [-k NAME]

Certificates come from deploy/make_certificates.sh; openssl s_client is the client that offers what no
other does. Each test is a promise of docs/security.md.
"""

import argparse
import json
import os
import pathlib
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import unittest

LIMIT_S = 60
# The only ciphers of TLS 1.2 that are taken; those of 1.3 are all good.
GOOD_CIPHERS = {
    "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384"}
OLD_VERSIONS = ["tls1", "tls1_1"]
ANY_CIPHER = "ALL:COMPLEMENTOFALL:@SECLEVEL=0"

options = None


def run(*command, **more):
    return subprocess.run([str(part) for part in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace",
                          timeout=LIMIT_S, check=False, **more)


class Files:
    """A folder of certificates."""

    def __init__(self, *arguments):
        self.folder = tempfile.TemporaryDirectory(prefix="normd_tls_")
        self.path = pathlib.Path(self.folder.name)
        self.make(*arguments)

    def make(self, *arguments):
        made = run(options.source / "deploy/make_certificates.sh", f"--dir={self.path}", *arguments)
        assert made.returncode == 0, made.stdout

    def __getitem__(self, name):
        return str(self.path / name)

    def flags(self):
        return [f"--tls_cert={self['server.crt']}", f"--tls_key={self['server.key']}"]

    def mutual(self):
        return [*self.flags(), f"--tls_client_ca={self['ca.crt']}"]


class Normd:
    """A normd on free ports, or what it said when it did not start."""

    def __init__(self, *flags):
        self.process = subprocess.Popen(
            [options.bin / "normd", f"--model_repository={options.source}/deploy/models",
             "--device=cpu", "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0",
             "--lame_duck=0s", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines = []
        self.port = self.metrics_port = None
        for line in self.process.stdout:
            self.lines.append(line)
            if match := re.search(r"serving: grpc=\S+:(\S+) metrics=\S+:(\d+)", line):
                # A unix socket's path, where that is what it serves at.
                self.port = int(match.group(1)) if match.group(1).isdecimal() else match.group(1)
                self.metrics_port = int(match.group(2))
                break
        else:
            self.process.wait(timeout=LIMIT_S)

    def wait_for(self, text):
        """The next line with `text`."""
        for line in self.process.stdout:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"no line with '{text}': {self.lines}")

    def __enter__(self):
        assert self.port is not None, self.lines
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate(timeout=LIMIT_S)


def s_client(port, *arguments):
    """Whether a handshake comes about, and what openssl says of it."""
    said = run("openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-alpn", "h2", *arguments,
               stdin=subprocess.DEVNULL)
    # A cipher is named also where no handshake came about: (NONE).
    cipher = re.search(r"Cipher is (\S+)", said.stdout)
    done = cipher is not None and cipher.group(1) != "(NONE)"
    return done, said.stdout


def fetch(port, files, client=True, path="/metrics"):
    """A path of the metrics port over TLS."""
    context = ssl.create_default_context(cafile=files["ca.crt"])
    if client:
        context.load_cert_chain(files["client.crt"], files["client.key"])
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as plain, \
            context.wrap_socket(plain, server_hostname="localhost") as stream:
        stream.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        text = b""
        while part := stream.recv(65536):
            text += part
        return text.decode()


def metric(port, files, series):
    found = re.search(rf"^{re.escape(series)} (\S+)$", fetch(port, files), re.MULTILINE)
    return float(found.group(1)) if found else 0.0


def served_certificate(port):
    return s_client(port)[1].split("-----BEGIN CERTIFICATE-----")[1].split("-----END")[0]


class Handshakes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files = Files()
        cls.normd = cls.enterClassContext(Normd(*cls.files.flags()))
        cls.ports = (cls.normd.port, cls.normd.metrics_port)

    def test_versions(self):
        for port in self.ports:
            for version in ("tls1_2", "tls1_3"):
                self.assertTrue(s_client(port, f"-{version}")[0], version)
            for version in OLD_VERSIONS:
                done, said = s_client(port, f"-{version}", "-cipher", ANY_CIPHER)
                self.assertFalse(done, said)
                self.assertIn("alert protocol version", said)

    def test_ciphers_of_1_2(self):
        every = run("openssl", "ciphers", "-tls1_2", ANY_CIPHER).stdout.strip().split(":")
        every = [name for name in every if not name.startswith("TLS_")]
        self.assertGreater(len(every), 60)
        for port in self.ports:
            weak = [name for name in every if name not in GOOD_CIPHERS]
            done, said = s_client(port, "-tls1_2", "-cipher", ":".join(weak) + ":@SECLEVEL=0")
            self.assertFalse(done, said)
            # All of them were offered at once. A server whose key is another kind would take
            # others, and this one takes these.
            for name in sorted(GOOD_CIPHERS):
                self.assertEqual(s_client(port, "-tls1_2", "-cipher", name)[0], "ECDSA" in name)

    def test_chain_and_name(self):
        for port in self.ports:
            for name in ("localhost", "other.test"):
                done, said = s_client(port, "-verify_return_error", "-CAfile", self.files["ca.crt"],
                                      "-verify_hostname", name)
                self.assertEqual(done and "Verify return code: 0 (ok)" in said, name == "localhost")
            other = Files()
            said = s_client(port, "-verify_return_error", "-CAfile", other["ca.crt"])[1]
            self.assertNotIn("Verify return code: 0 (ok)", said)

    def test_neither_compression_nor_renegotiation(self):
        for port in self.ports:
            said = s_client(port, "-tls1_2", "-comp")[1]
            self.assertIn("Compression: NONE", said)
            asked = run("openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-tls1_2", "-alpn",
                        "h2", input="R\n").stdout
            self.assertNotIn("verify return", asked.split("RENEGOTIATING")[-1])

    def test_what_is_not_tls_is_counted(self):
        series = 'normd_connections_ended_total{reason="no_tls"}'
        before = metric(self.ports[1], self.files, series)
        for text in (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\0"):
            with socket.create_connection(("127.0.0.1", self.ports[0]), timeout=LIMIT_S) as plain:
                plain.sendall(text)
                while plain.recv(4096):
                    pass
        self.assertEqual(metric(self.ports[1], self.files, series), before + 3)

    def test_plaintext_to_the_metrics_port(self):
        with socket.create_connection(("127.0.0.1", self.ports[1]), timeout=LIMIT_S) as plain:
            plain.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            said = b""
            try:
                while part := plain.recv(4096):
                    said += part
            except ConnectionResetError:
                pass
        self.assertNotIn(b"normd_", said)

    def test_metrics_tell_of_the_certificate(self):
        text = fetch(self.ports[1], self.files)
        self.assertTrue(text.startswith("HTTP/1.1 200 OK"), text[:100])
        end = run("openssl", "x509", "-in", self.files["server.crt"], "-noout", "-enddate").stdout
        self.assertEqual(metric(self.ports[1], self.files, "normd_certificate_not_after_seconds"),
                         ssl.cert_time_to_seconds(end.strip().split("=")[1]))


class Policies(unittest.TestCase):
    def test_min_version(self):
        files = Files()
        with Normd(*files.flags(), "--tls_min_version=1.3") as normd:
            for port in (normd.port, normd.metrics_port):
                self.assertTrue(s_client(port, "-tls1_3")[0])
                done, said = s_client(port, "-tls1_2")
                self.assertFalse(done, said)
                self.assertIn("alert protocol version", said)
            series = 'normd_connections_ended_total{reason="tls_version"}'
            self.assertEqual(metric(normd.metrics_port, files, series), 1)

    def calls(self, normd, files, *, certificate):
        """How the clients fare, with a certificate of `files` or without one."""
        trust = [f"--tls_ca={files['ca.crt']}", "--timeout=20s", f"--server=localhost:{normd.port}"]
        if certificate is not None:
            trust += [f"--tls_cert={certificate['client.crt']}",
                      f"--tls_key={certificate['client.key']}"]
        return run(options.bin / "normctl", "models", *trust)

    def test_client_certificates(self):
        files, other = Files(), Files()
        for auth in ("none", "allow", "require", "auto"):
            with Normd(*files.mutual(), f"--tls_client_auth={auth}") as normd:
                own = self.calls(normd, files, certificate=files)
                self.assertEqual(own.returncode, 0, own.stdout)
                self.assertIn("rms_norm_4096", own.stdout)
                required = auth in ("require", "auto")
                none = self.calls(normd, files, certificate=None)
                self.assertEqual(none.returncode, 1 if required else 0, auth + none.stdout)
                foreign = self.calls(normd, files, certificate=other)
                self.assertEqual(foreign.returncode, 0 if auth == "none" else 1, foreign.stdout)
                self.assertIn("200 OK", fetch(normd.metrics_port, files))
                if required:
                    with self.assertRaises((ssl.SSLError, ConnectionError)):
                        fetch(normd.metrics_port, files, client=False)
                else:
                    self.assertIn("200 OK", fetch(normd.metrics_port, files, client=False))

    def test_metrics_without_tls(self):
        files = Files()
        with Normd(*files.flags(), "--metrics_tls=false") as normd:
            with socket.create_connection(("127.0.0.1", normd.metrics_port), LIMIT_S) as plain:
                plain.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                self.assertIn(b"200 OK", plain.recv(4096))


class Starts(unittest.TestCase):
    def refused(self, *flags):
        """The one line with which a start fails."""
        normd = Normd(*flags)
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
        with Normd("--listen=0.0.0.0:0", "--insecure") as normd:
            self.assertTrue(any("--insecure: without TLS" in line for line in normd.lines))
        files = Files()
        with Normd("--listen=0.0.0.0:0", "--metrics_listen=0.0.0.0:0", *files.flags()):
            pass

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


class Rotation(unittest.TestCase):
    def test_files_are_followed(self):
        files = Files()
        with Normd(*files.mutual()) as normd:
            first = served_certificate(normd.port)
            key = pathlib.Path(files["server.key"])
            key.chmod(0o644)
            self.assertIn("has mode 0644", normd.wait_for("stays"))
            self.assertEqual(served_certificate(normd.port), first)
            files.make()
            normd.wait_for("is in use")
            for port in (normd.port, normd.metrics_port):
                self.assertNotEqual(served_certificate(port), first)
            self.assertEqual(
                metric(normd.metrics_port, files, 'normd_certificate_reloads_total{result="taken"}'), 1)
            self.assertEqual(
                metric(normd.metrics_port, files, 'normd_certificate_reloads_total{result="refused"}'),
                1)

    def test_under_load(self):
        files = Files()
        with Normd(*files.mutual()) as normd:
            client = [f"--tls_ca={files['ca.crt']}", f"--tls_cert={files['client.crt']}",
                      f"--tls_key={files['client.key']}"]
            # The load's own files are read once, so that they may change meanwhile.
            load = subprocess.Popen(
                [options.bin / "normload", f"--server=localhost:{normd.port}", "--rate=500",
                 "--model=layer_norm_1024", "--shape=1x1024", "--duration=6s", "--warmup=0s",
                 f"--json={files['report.json']}", *client],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for _ in range(2):
                files.make()
                normd.wait_for("is in use")
                # Whoever comes new gets the new one.
                self.assertEqual(run(options.bin / "normctl", "models", "--server",
                                     f"localhost:{normd.port}", *client).returncode, 0)
            said = load.communicate(timeout=LIMIT_S)[0]
            self.assertEqual(load.returncode, 0, said)
            result = json.loads((files.path / "report.json").read_text())["result"]
            self.assertEqual((result["errors"], result["unsent"]), (0, 0), said)
            self.assertGreater(result["ok"], 2000)


def main():
    global options
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    options, rest = parser.parse_known_args()
    os.environ.pop("OPENSSL_CONF", None)
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
