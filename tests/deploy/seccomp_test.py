#!/usr/bin/env python3
"""deploy/seccomp.json: normd, normctl and normload make no call outside it, and it refuses others.

    seccomp_test.py --bin=build/dev/bin [-k NAME]

The programs run under the profile with its default action replaced by one that ends the process, so
a call that is missing from the list shows as an end by SIGSYS. Exits with 77 where seccomp cannot
be used.
"""

import argparse
import ctypes
import json
import os
import pathlib
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
import urllib.request

import confine
import process

SKIPPED = 77
LIMIT_S = 60
SOURCE = pathlib.Path(__file__).resolve().parents[2]
PROFILE = SOURCE / "deploy/seccomp.json"
MODELS = SOURCE / "deploy/models"
GUARD = [sys.executable, "-B", str(pathlib.Path(__file__).with_name("confine.py")),
         f"--profile={PROFILE}", "--default=kill", "--"]

# Not in the profile, with arguments that do no harm where a filter lets them through.
REFUSED = [
    "add_key", "bpf", "capset", "chroot", "chown", "clock_settime", "delete_module", "execveat",
    "fanotify_init", "finit_module", "init_module", "io_uring_setup", "iopl", "kexec_load",
    "keyctl", "linkat", "memfd_create", "mknodat", "mount", "move_mount", "name_to_handle_at",
    "open_by_handle_at", "open_tree", "perf_event_open", "personality", "pidfd_getfd",
    "pidfd_open", "pivot_root", "process_vm_readv", "process_vm_writev", "ptrace", "quotactl",
    "reboot", "request_key", "seccomp", "setgid", "setgroups", "sethostname", "setns", "setuid",
    "shmget", "swapon", "symlinkat", "syslog", "umount2", "unshare", "userfaultfd", "vmsplice",
]
CLONE_NEWUSER = 0x10000000
# Calls that the profile has with other arguments.
REFUSED_ARGUMENTS = {
    "a user namespace": ("clone", CLONE_NEWUSER | signal.SIGCHLD, 0, 0, 0, 0),
    "a packet socket": ("socket", 17, 3, 0),
    "a socket of the kernel's cryptography": ("socket", 38, 5, 0),
    "a socket to the hypervisor": ("socket", 40, 1, 0),
    "a key typed into a terminal (TIOCSTI)": ("ioctl", -1, 0x5412, 0),
    "core dumps anew (PR_SET_DUMPABLE)": ("prctl", 4, 1, 0, 0, 0),
}
# No call returns it: it can only be the filter's.
FILTERS_ERRNO = 4000

options = None


def run(*command):
    """A program of ours under the profile; its output. Fails the test when it does not end well."""
    done = subprocess.run([*GUARD, *map(str, command)], capture_output=True, text=True,
                          errors="replace", timeout=LIMIT_S, check=False)
    if done.returncode == -signal.SIGSYS:
        raise AssertionError(f"{command}: a call outside the profile (strace -f names it)")
    if done.returncode != 0:
        raise AssertionError(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Normd(process.Normd):
    """A normd under the profile. Its end must be that of a stop by SIGTERM."""

    def __init__(self, *flags, models=MODELS):
        super().__init__(options.bin / "normd", models, *flags, before=GUARD)

    def __exit__(self, *details):
        super().__exit__(*details)
        if self.exit_code != 0:
            raise AssertionError(f"normd: exit code {self.exit_code}\n"
                                 + "\n".join(map(str, self.output)))

    def ctl(self, *arguments):
        return run(options.bin / "normctl", *arguments, f"--server={self.address}")

    def load(self, *arguments):
        return run(options.bin / "normload", f"--server={self.address}", "--concurrency=4",
                   "--warmup=100ms", *arguments)


class Folder(unittest.TestCase):
    def setUp(self):
        self.path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))


class Programs(Folder):
    def test_every_demo_model(self):
        mix = ",".join([
            "instance_norm_64:2x64x16x16", "instance_norm_64_running:2x64x16x16",
            "group_norm_64_8:2x64x16x16", "group_norm_320_32_silu_last:1x8x8x320:float16",
            "layer_norm_1024:64x1024", "rms_norm_4096:4x4096:bf16", "batch_norm_64:2x64x16x16",
            "add_rms_norm_4096:4x4096:bf16:residual=4x4096",
            "fused_linear_512:32x512:y=32x512", "instance_norm_64:8x64x64x64:float32:stream"])
        with Normd("--lame_duck=0s", "--slow_request_threshold=1us") as normd:
            normd.load(f"--mix={mix}", "--duration=2s", f"--json={self.path}/report.json",
                       f"--html={self.path}/report.html", f"--csv={self.path}/report.csv")
            report = json.loads((self.path / "report.json").read_text(encoding="utf-8"))
            normd.load("--protocol=http", f"--http={normd.http}", "--model=instance_norm_64",
                       "--duration=300ms")
            self.assertIn(b"normd_requests_total", urllib.request.urlopen(
                f"http://{normd.metrics}/metrics", timeout=10).read())
        self.assertEqual(len(report["result"]["by_entry"]), mix.count(",") + 1)
        for entry in report["result"]["by_entry"]:
            with self.subTest(entry["entry"]):
                self.assertGreater(entry["received_bytes"], 0)
                self.assertEqual(entry["errors"], 0)

    def test_files_and_commands(self):
        with Normd("--lame_duck=0s") as normd:
            run(options.bin / "normctl", "random", self.path / "x.npy", "--shape=2x64x56x56")
            normd.ctl("normalize", "--model", "group_norm_64_8", self.path / "x.npy", "-o",
                      self.path / "y.npy", "--verify", f"--model_repository={MODELS}")
            normd.ctl("unload", "layer_norm_1024")
            normd.ctl("load", "layer_norm_1024")
            for command in ("health", "info", "models"):
                normd.ctl(command)
            normd.address = normd.address.replace("127.0.0.1", "localhost")
            self.assertIn("SERVING", normd.ctl("health"))

    def test_a_service_manager_is_told(self):
        manager = self.enterContext(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        manager.bind(str(self.path / "notify"))
        manager.settimeout(LIMIT_S)
        self.addCleanup(os.environ.pop, "NOTIFY_SOCKET", None)
        os.environ["NOTIFY_SOCKET"] = str(self.path / "notify")
        with Normd("--lame_duck=0s"):
            self.assertEqual(manager.recv(4096), b"READY=1")
        self.assertEqual(manager.recv(4096), b"STOPPING=1")

    def test_a_stop_that_waits(self):
        with Normd("--lame_duck=500ms") as normd:
            loader = subprocess.Popen(
                [*GUARD, options.bin / "normload", f"--server={normd.address}", "--concurrency=4",
                 "--model=instance_norm_64", "--shape=1x64x16x16", "--duration=30s"],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.addCleanup(loader.communicate)
            self.addCleanup(loader.kill)
            while "p50" not in loader.stdout.readline():
                self.assertIsNone(loader.poll())
        self.assertTrue(any("finishing" in str(line) for line in normd.output), normd.output)

    def test_a_unix_socket(self):
        path = self.path / "normd.sock"
        with Normd("--lame_duck=0s", f"--listen=unix://{path}") as normd:
            normd.address = f"unix://{path}"
            self.assertIn("SERVING", normd.ctl("health"))
            normd.load("--model=instance_norm_64", "--shape=1x64x16x16", "--duration=300ms")
        self.assertFalse(path.exists())


class TlsAndPolicy(Folder):
    def test_certificates_and_tokens_that_change(self):
        make = [SOURCE / "deploy/make_certificates.sh", f"--dir={self.path}"]
        subprocess.run(make, check=True, capture_output=True)
        line = run(options.bin / "normctl", "token", "operator", f"--out={self.path}/token")
        for name, text in {
                "tokens": line,
                "policy": 'role { name: "all" infer: "*" observe: true admin: true }\n'
                          'identity { name: "operator" role: "all" token: "operator" }\n'}.items():
            (self.path / name).write_text(text, encoding="utf-8")
            (self.path / name).chmod(0o600)
        client = [f"--tls_ca={self.path}/ca.crt", f"--tls_cert={self.path}/client.crt",
                  f"--tls_key={self.path}/client.key", f"--token_file={self.path}/token",
                  "--tls_server_name=localhost"]
        with Normd("--lame_duck=0s", f"--tls_cert={self.path}/server.crt",
                   f"--tls_key={self.path}/server.key", f"--tls_client_ca={self.path}/ca.crt",
                   f"--policy_file={self.path}/policy",
                   f"--tokens_file={self.path}/tokens") as normd:
            normd.ctl("models", *client)
            normd.ctl("load", "layer_norm_1024", *client)
            subprocess.run(make, check=True, capture_output=True)
            normd.wait_for(r"certificate.*(taken|in use|loaded|reloaded)")
            with open(self.path / "policy", "a", encoding="utf-8") as policy:
                policy.write("# Changed.\n")
            normd.wait_for(r"polic.*(taken|in use|loaded|reloaded)")
            normd.load("--model=instance_norm_64", "--shape=1x64x16x16", "--duration=300ms", *client)


class Profile(unittest.TestCase):
    def setUp(self):
        self.profile = confine.read(PROFILE)

    def outcome(self, default, call, *arguments):
        """The error of a call under the profile, made by a process of its own."""
        library = confine.library()
        number = library.seccomp_syscall_resolve_name(call.encode())
        if number < 0:
            return None  # Not of this machine.
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            libc = ctypes.CDLL(None, use_errno=True)
            confine.install(self.profile, default)
            result = libc.syscall(ctypes.c_long(number),
                                  *[ctypes.c_long(argument) for argument in arguments])
            os.write(writing, str(ctypes.get_errno() if result == -1 else 0).encode())
            os._exit(0)
        os.close(writing)
        text = os.read(reading, 16)
        os.close(reading)
        os.waitpid(child, 0)
        return int(text) if text else "ended"

    def test_what_is_outside_is_refused(self):
        default = ("SCMP_ACT_ERRNO", FILTERS_ERRNO)
        for call in REFUSED:
            with self.subTest(call):
                self.assertIn(self.outcome(default, call, -1, 0, 0, 0, 0), (FILTERS_ERRNO, None))
        for name, call in REFUSED_ARGUMENTS.items():
            with self.subTest(name):
                self.assertEqual(self.outcome(default, *call), FILTERS_ERRNO)

    def test_the_profiles_own_error_is_eperm(self):
        self.assertEqual(self.outcome(None, "keyctl", -1, 0), 1)

    def test_clone3_sends_the_c_library_to_clone(self):
        self.assertEqual(self.outcome(None, "clone3", 0, 0), 38)

    def test_what_is_inside_is_let_through(self):
        default = ("SCMP_ACT_ERRNO", FILTERS_ERRNO)
        self.assertEqual(self.outcome(default, "socket", 2, 1, 0), 0)
        self.assertEqual(self.outcome(default, "getppid"), 0)

    def test_the_guard_of_these_tests_ends_who_leaves_the_profile(self):
        done = subprocess.run([*GUARD, sys.executable, "-c",
                               "import ctypes; ctypes.CDLL(None).unshare(0)"], check=False)
        self.assertEqual(done.returncode, -signal.SIGSYS)

    def test_every_name_is_a_call_and_stands_once(self):
        library = confine.library()
        names = []
        for rule in self.profile["syscalls"]:
            names += [(name, json.dumps(rule.get("args"))) for name in rule["names"]]
            self.assertEqual(rule["names"], sorted(rule["names"]))
        self.assertEqual(len(names), len(set(names)))
        unknown = [name for name, _ in names
                   if library.seccomp_syscall_resolve_name(name.encode()) == confine.UNKNOWN_CALL]
        self.assertEqual(unknown, [])


def main():
    global options
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    options, rest = parser.parse_known_args()
    options.bin = options.bin.resolve()
    if platform.machine() != "x86_64":
        print("skipped: the numbers of ioctl in the profile are tried on x86-64 alone")
        return SKIPPED
    probe = subprocess.run([*GUARD, "/bin/true"], capture_output=True, text=True, check=False)
    if probe.returncode == SKIPPED:
        print(probe.stderr)
        return SKIPPED
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    sys.exit(main())
