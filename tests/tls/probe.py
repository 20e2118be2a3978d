"""What the tests of this folder have in common: certificates, servers, clients."""

import os
import pathlib
import re
import socket
import ssl
import subprocess
import tempfile
import types

LIMIT_S = 60
# The command line's, once tls_probe.py has read it.
options = types.SimpleNamespace()


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
             "--http_listen=",
             "--lame_duck=0s", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, user=user)
        self.lines = []
        self.port = self.admin_port = self.http_port = self.metrics_port = None
        for line in self.process.stdout:
            self.lines.append(line)
            if match := re.search(
                    r"serving: grpc=[^:]+:([^\s,]+)\S*(?: admin=\S+:(\d+))?"
                    r" metrics=\S+:(\d+)(?: http=\S+:(\d+))?", line):
                # A unix socket's path, where that is the first that it serves at.
                self.port = int(match.group(1)) if match.group(1).isdecimal() else match.group(1)
                self.admin_port = int(match.group(2)) if match.group(2) else None
                self.metrics_port = int(match.group(3))
                self.http_port = int(match.group(4)) if match.group(4) else None
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

    def wait_for_all(self, *texts):
        """The next lines with each of `texts`, in any order."""
        found = {}
        while len(found) < len(texts):
            line = self.wait_for("")
            found.update({text: line for text in texts if text in line})
        return list(found.values())

    def rss_mib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024

    def stop(self):
        """Everything that it has said, from its start to its end."""
        self.process.terminate()
        self.lines += self.process.communicate(timeout=LIMIT_S)[0].splitlines(keepends=True)
        return "".join(self.lines)

    def __enter__(self):
        assert self.port is not None, self.lines
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop()


def s_client(port, *arguments):
    """Whether a handshake comes about, and what openssl says of it."""
    said = run("openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-alpn", "h2", *arguments,
               stdin=subprocess.DEVNULL)
    # A cipher is named also where no handshake came about: (NONE).
    cipher = re.search(r"Cipher is (\S+)", said.stdout)
    done = cipher is not None and cipher.group(1) != "(NONE)"
    return done, said.stdout


def fetch(port, files, *fields, client=True, path="/metrics", ca="ca.crt"):
    """What a path of the metrics port answers over TLS."""
    context = ssl.create_default_context(cafile=files[ca])
    if client:
        context.load_cert_chain(files["client.crt"], files["client.key"])
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as plain, \
            context.wrap_socket(plain, server_hostname="localhost") as stream:
        stream.sendall("\r\n".join((f"GET {path} HTTP/1.1", "Host: x", *fields, "", "")).encode())
        text = b""
        while part := stream.recv(65536):
            text += part
        return text.decode()


def metric(port, files, series):
    found = re.search(rf"^{re.escape(series)} (\S+)$", fetch(port, files), re.MULTILINE)
    return float(found.group(1)) if found else 0.0


def served_certificate(port):
    return s_client(port)[1].split("-----BEGIN CERTIFICATE-----")[1].split("-----END")[0]


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


def http_status(normd, files, token, **how):
    """That of /metrics for a bearer of `token`, who shows a certificate too."""
    return int(fetch(normd.metrics_port, files, f"Authorization: Bearer {token}", **how).split()[1])
