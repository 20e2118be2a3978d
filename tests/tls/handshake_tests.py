"""Protocols, ciphers, chains, compression, and who is let in by which certificate."""

import socket
import ssl
import unittest

from probe import LIMIT_S, Files, Normd, fetch, metric, options, run, s_client

# The only ciphers of TLS 1.2 that are taken; those of 1.3 are all good.
GOOD_CIPHERS = {
    "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384"}
OLD_VERSIONS = ["tls1", "tls1_1"]
ANY_CIPHER = "ALL:COMPLEMENTOFALL:@SECLEVEL=0"


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
            series = 'normd_connections_ended_total{port="grpc",reason="tls_version"}'
            self.assertEqual(metric(normd.metrics_port, files, series), 1)

    def test_what_begins_wrongly_at_the_http_port_is_counted(self):
        files = Files()
        with Normd(*files.flags(), "--http_listen=127.0.0.1:0", "--tls_min_version=1.3") as normd:
            port = normd.http_port
            with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as plain:
                plain.sendall(b"GET /v2 HTTP/1.1\r\n\r\n")
                plain.recv(4096)
            self.assertFalse(s_client(port, "-tls1_2")[0])
            self.assertTrue(s_client(port, "-tls1_3")[0])
            for reason in ("no_tls", "tls_version"):
                series = f'normd_connections_ended_total{{port="http",reason="{reason}"}}'
                self.assertEqual(metric(normd.metrics_port, files, series), 1, reason)

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

    def test_whoever_may_show_none_shows_a_good_one_or_is_not_let_in(self):
        files = Files()
        with Normd(*files.mutual(), "--tls_client_auth=allow") as normd:
            self.assertEqual(self.calls(normd, files, certificate=None).returncode, 0)
            for usage, names, begin, end, good in (
                    ("clientAuth", "URI:spiffe://normd.test/c", "20250101", "20490101", True),
                    ("clientAuth", "URI:spiffe://normd.test/c", "20200101", "20200201", False),
                    ("clientAuth", "URI:spiffe://normd.test/c", "20490101", "20490201", False),
                    ("serverAuth", "DNS:c.normd.test", "20250101", "20490101", False)):
                files.sign("client", usage, names, begin, end)
                said = self.calls(normd, files, certificate=files)
                self.assertEqual(said.returncode, 0 if good else 1, said.stdout)
                if good:
                    self.assertIn("200 OK", fetch(normd.metrics_port, files))
                    continue
                with self.assertRaises((ssl.SSLError, ConnectionError)):
                    fetch(normd.metrics_port, files)

    def test_metrics_without_tls(self):
        files = Files()
        with Normd(*files.flags(), "--metrics_tls=false") as normd:
            with socket.create_connection(("127.0.0.1", normd.metrics_port), LIMIT_S) as plain:
                plain.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                self.assertIn(b"200 OK", plain.recv(4096))
