#!/usr/bin/env python3
"""Looks at a normd with TLS from outside: protocols, ciphers, certificates, bad files, rotation.

    tests/tls/tls_probe.py --bin=build/dev/bin --source=. [-k NAME]
    tests/tls/tls_probe.py --bin=build/release/bin --source=. -k under_load --rate=10000 --seconds=60 --slack=2

Certificates come from deploy/make_certificates.sh; openssl s_client is the client that offers what no
other does. Each test is a promise of docs/security.md.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
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

    def sign(self, name, usage, names, begin, end):
        """A certificate and its key, good from `begin` to `end` (YYYYMMDD), by this authority."""
        (self.path / "ca.cnf").write_text(f"""
            [ca]
            default_ca = d
            [d]
            new_certs_dir = {self.path}
            database = {self.path}/index
            serial = {self.path}/serial
            default_md = sha256
            policy = p
            x509_extensions = e
            unique_subject = no
            [p]
            commonName = supplied
            [e]
            basicConstraints = critical,CA:FALSE
            extendedKeyUsage = {usage}
            subjectAltName = {names}""")
        (self.path / "index").touch()
        request, key = self[f"{name}.csr"], self[f"{name}.key"]
        for command in (["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                         "-nodes", "-keyout", key, "-subj", f"/CN={name}", "-out", request],
                        ["ca", "-batch", "-notext", "-config", self["ca.cnf"], "-rand_serial",
                         "-cert", self["ca.crt"], "-keyfile", self["ca.key"], "-in", request,
                         "-out", self[f"{name}.crt"], "-startdate", f"{begin}000000Z",
                         "-enddate", f"{end}000000Z"]):
            made = run("openssl", *command)
            assert made.returncode == 0, made.stdout
        os.chmod(key, 0o600)

    def flags(self):
        return [f"--tls_cert={self['server.crt']}", f"--tls_key={self['server.key']}"]

    def mutual(self):
        return [*self.flags(), f"--tls_client_ca={self['ca.crt']}"]


class Normd:
    """A normd on free ports, or what it said when it did not start. `user`: another one's number."""

    def __init__(self, *flags, user=None):
        self.process = subprocess.Popen(
            [options.bin / "normd", f"--model_repository={options.source}/deploy/models",
             "--device=cpu", "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0",
             "--lame_duck=0s", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, user=user)
        self.lines = []
        self.port = self.metrics_port = None
        for line in self.process.stdout:
            self.lines.append(line)
            if match := re.search(r"serving: grpc=\S+:(\S+)(?: admin=\S+)? metrics=\S+:(\d+)", line):
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
        far = {flag: f"--{flag}=0.0.0.0:0" for flag in ("listen", "metrics_listen", "admin_listen")}
        for flags, open_ports in (
                ([far["listen"]], ["listen"]),
                ([far["admin_listen"]], ["admin_listen"]),
                (list(far.values()), ["listen", "admin_listen", "metrics_listen"]),
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
                self.assertEqual(http_status(normd, files, access.spare(rounds)), 200)
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
            connections = metric(normd.metrics_port, files, "normd_connections_accepted_total")
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


class Access:
    """A policy and tokens that are exchanged by renames. The token `load` stays; in each round there
    is another `spare`."""

    def __init__(self, folder):
        self.folder = folder
        self.lines = {}
        for name in ("load",):
            self.make(name)

    def path(self, name):
        return str(self.folder / f"{name}.token")

    def flags(self):
        return [f"--policy_file={self.folder}/policy", f"--tokens_file={self.folder}/tokens"]

    def make(self, name):
        made = run(options.bin / "normctl", "token", name, f"--out={self.path(name)}")
        assert made.returncode == 0, made.stdout
        self.lines[name] = next(line for line in made.stdout.splitlines() if " sha256:" in line)

    def spare(self, number):
        return pathlib.Path(self.path(f"spare{number}")).read_text().strip()

    def rotate(self, number):
        """Puts the next files in place; returns the token that is withdrawn thereby, if any."""
        self.make(f"spare{number}")
        tokens = [self.lines["load"], self.lines[f"spare{number}"]]
        policy = f"""# {number}
            role {{ name: "user" infer: "layer_norm_*" observe: true }}
            role {{ name: "viewer" observe: true }}
            identity {{ name: "load" role: "user" token: "load" }}
            identity {{ name: "viewer" role: "viewer" spiffe: "spiffe://normd.test/viewer" }}
            identity {{ name: "spare" role: "viewer" token: "spare{number}" }}"""
        for name, text in (("tokens", "\n".join(tokens) + "\n"), ("policy", policy)):
            new = self.folder / f"{name}.new"
            new.write_text(text)
            new.chmod(0o600)
            new.rename(self.folder / name)
        return self.spare(number - 1) if number > 0 else None


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


def http_status(normd, files, token, path="/metrics"):
    """That of a path of the metrics port for a bearer of `token`, who shows a certificate too."""
    context = ssl.create_default_context(cafile=files["ca.crt"])
    context.load_cert_chain(files["client.crt"], files["client.key"])
    with socket.create_connection(("127.0.0.1", normd.metrics_port), timeout=LIMIT_S) as plain, \
            context.wrap_socket(plain, server_hostname="localhost") as stream:
        stream.sendall(f"GET {path} HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        return int(stream.recv(65536).split()[1])


def main():
    global options
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--rate", type=float, default=1000, help="calls/s of Rotation.test_under_load")
    parser.add_argument("--share", type=float, default=0.5,
                        help="no more than this share of what the machine gives in a closed loop")
    parser.add_argument("--seconds", type=int, default=6, help="how long it goes on")
    parser.add_argument("--slack", type=float, default=20, help="seconds until a withdrawn token must be "
                        "refused; 2 is promised, on a machine that has time for it")
    options, rest = parser.parse_known_args()
    os.environ.pop("OPENSSL_CONF", None)
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
