#!/usr/bin/env python3
"""deploy/systemd: what systemd itself says of the unit, alone and with its drop-ins, and whether it
allows the calls of deploy/seccomp.json.

Needs systemd-analyze of systemd 252 or newer, but no systemd that runs. Exits with 77 without it.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SKIPPED = 77
SOURCE = pathlib.Path(__file__).resolve().parents[2]
SYSTEMD = SOURCE / "deploy/systemd"
UNIT = SYSTEMD / "normd.service"
OLDEST = 252
MOST_EXPOSURE = 2.0
PROGRAMS = ["normd"]


def analyze(*arguments):
    return subprocess.run(["systemd-analyze", "--no-pager", *map(str, arguments)],
                          capture_output=True, text=True, timeout=60, check=False)


def installed(folder, *drop_ins):
    """The unit as it is installed in `folder`, with programs of those names where it looks."""
    programs = folder / "bin"
    programs.mkdir()
    text = UNIT.read_text(encoding="utf-8")
    for name in PROGRAMS:
        (programs / name).symlink_to(shutil.which("true"))
        assert f"/usr/local/bin/{name} " in text, name
        text = text.replace(f"/usr/local/bin/{name} ", f"{programs / name} ")
    unit = folder / UNIT.name
    unit.write_text(text, encoding="utf-8")
    for name in drop_ins:
        (folder / f"{UNIT.name}.d").mkdir(exist_ok=True)
        shutil.copy(SYSTEMD / name, folder / f"{UNIT.name}.d")
    return unit


def settings(path):
    """Each setting's values in their order."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := re.fullmatch(r"(\w+)=(.*)", line):
            found.setdefault(match.group(1), []).append(match.group(2))
    return found


class UnitTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_systemd_takes_it_without_a_warning(self):
        for drop_ins in ([], ["credentials.conf"], ["gpu.conf"]):
            with self.subTest(drop_ins), tempfile.TemporaryDirectory() as folder:
                said = analyze("verify", "--man=no",
                               installed(pathlib.Path(folder), *drop_ins))
                self.assertEqual((said.returncode, said.stdout + said.stderr), (0, ""))

    def test_a_fault_would_be_noticed(self):
        unit = installed(self.folder)
        unit.write_text(unit.read_text(encoding="utf-8") + "[Service]\nProtectHomes=yes\n",
                        encoding="utf-8")
        self.assertIn("ProtectHomes", analyze("verify", "--man=no", unit).stderr)

    def exposure(self, *drop_ins):
        with tempfile.TemporaryDirectory() as folder:
            unit = installed(pathlib.Path(folder), *drop_ins)
            said = analyze("security", "--offline=true", unit)
        found = re.search(r"Overall exposure level for \S+: ([\d.]+)", said.stdout)
        self.assertIsNotNone(found, said.stdout + said.stderr)
        print(f"exposure with {drop_ins or 'no drop-in'}: {found.group(1)}", file=sys.stderr)
        return float(found.group(1))

    def test_exposure(self):
        self.assertLessEqual(self.exposure(), MOST_EXPOSURE)
        self.assertLessEqual(self.exposure("credentials.conf"), MOST_EXPOSURE)
        self.assertLessEqual(self.exposure("gpu.conf"), MOST_EXPOSURE)

    def test_its_calls_are_those_of_the_seccomp_profile(self):
        profile = json.loads((SOURCE / "deploy/seccomp.json").read_text(encoding="utf-8"))
        wanted = {name for rule in profile["syscalls"] for name in rule["names"]}
        listed = " ".join(settings(UNIT)["SystemCallFilter"]).split()
        self.assertEqual(sorted(listed), sorted(wanted))
        self.assertEqual(settings(UNIT)["SystemCallErrorNumber"], ["EPERM"])

    def test_its_families_are_those_of_the_seccomp_profile(self):
        profile = json.loads((SOURCE / "deploy/seccomp.json").read_text(encoding="utf-8"))
        families = {1: "AF_UNIX", 2: "AF_INET", 10: "AF_INET6", 16: "AF_NETLINK"}
        wanted = {families[rule["args"][0]["value"]] for rule in profile["syscalls"]
                  if rule["names"] == ["socket"]}
        self.assertEqual(set(settings(UNIT)["RestrictAddressFamilies"][0].split()), wanted)

    def test_the_server_itself_says_that_it_is_ready(self):
        self.assertEqual((settings(UNIT)["Type"], settings(UNIT)["NotifyAccess"]),
                         (["notify"], ["main"]))

    def test_a_stop_has_time_to_finish(self):
        flags = (SOURCE / "server/config/flags.cc").read_text(encoding="utf-8")
        seconds = sum(int(re.search(rf'&c\.{name}, absl::Seconds\((\d+)\)', flags).group(1))
                      for name in ("lame_duck", "drain_timeout"))
        self.assertGreater(int(settings(UNIT)["TimeoutStopSec"][0]), seconds)


def main():
    if shutil.which("systemd-analyze") is None:
        print("skipped: no systemd-analyze (Debian's package systemd)")
        return SKIPPED
    version = int(re.match(r"systemd (\d+)", analyze("--version").stdout).group(1))
    if version < OLDEST:
        print(f"skipped: systemd {version}, wanted {OLDEST} or newer")
        return SKIPPED
    unittest.main(verbosity=2)


if __name__ == "__main__":
    sys.exit(main())
