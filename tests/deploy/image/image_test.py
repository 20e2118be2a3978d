#!/usr/bin/env python3
"""What make_root.py makes of the programs: a root that is whole, small and told of in its SBOM.

    image_test.py --bin=DIR     the folder of normd, normctl and normload

Needs spdx_tools, which validates SPDX. Exits with 77, which ctest shows as skipped, on neither Debian
nor Ubuntu.
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

SOURCE = pathlib.Path(__file__).resolve().parents[3]
PROGRAMS = ("normd", "normctl", "normload")
LIMIT_MIB = 150
REVISION = "0123456789abcdef"
BIN = None


def make(root, *flags):
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run([sys.executable, "-B", SOURCE / "deploy/image/make_root.py", root, "--version=1.2.3",
                    f"--revision={REVISION}", *flags], check=True, env=environment)


def with_programs(folder):
    """The folder with the programs, stripped, as deploy/build_programs.sh leaves it."""
    programs = folder / "usr/local/bin"
    programs.mkdir(parents=True)
    for name in PROGRAMS:
        subprocess.run(["strip", "-o", programs / name, BIN / name], check=True)
    return folder


def dynamic(path):
    """What a program or library needs, by name, and its interpreter."""
    text = subprocess.run(["readelf", "-dl", path], capture_output=True, text=True, check=True).stdout
    return (set(re.findall(r"\(NEEDED\).*\[(.*)\]", text)),
            set(re.findall(r"program interpreter: (.*)\]", text)))


class Image(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = with_programs(pathlib.Path(cls.folder.name, "root"))
        make(cls.root)
        cls.sbom_file = cls.root / "usr/share/normd/sbom.spdx.json"
        cls.sbom = json.loads(cls.sbom_file.read_text(encoding="utf-8"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def binaries(self):
        """Every ELF file of the image, as a path within it."""
        found = []
        for path in self.root.rglob("*"):
            if path.is_file() and not path.is_symlink() and not path.parent.is_symlink():
                with path.open("rb") as file:
                    if file.read(4) == b"\x7fELF":
                        found.append(path)
        return found

    def test_every_name_that_a_binary_loads_is_in_the_image(self):
        libraries = {path.name for path in (self.root / "usr/lib").rglob("*.so*")}
        for path in self.binaries():
            needed, interpreters = dynamic(path)
            self.assertLessEqual(needed, libraries, path)
            for interpreter in interpreters:
                # Links lead within the image, from its root on.
                name = self.root / "usr" / interpreter.lstrip("/")
                self.assertTrue(os.path.lexists(name), interpreter)

    def test_links_lead_to_what_the_image_has(self):
        for path in self.root.rglob("*"):
            if path.is_symlink():
                target = pathlib.Path(os.readlink(path))
                inside = (self.root / target.relative_to("/") if target.is_absolute() else
                          path.parent / target)
                self.assertTrue(os.path.lexists(inside), f"{path}: {target}")

    def test_programs_run_with_nothing_but_the_image(self):
        if os.geteuid() != 0:
            self.skipTest("chroot needs root")
        for name in PROGRAMS:
            done = subprocess.run([shutil.which("chroot"), self.root, name, "--help"], check=False,
                                  capture_output=True, text=True, env={"PATH": "/usr/local/bin"})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(name, done.stdout)

    def test_is_smaller_than_promised(self):
        sizes = {path: path.lstat().st_size for path in self.root.rglob("*")}
        shutil.copytree(SOURCE / "deploy/models", self.root / "models", dirs_exist_ok=True)
        models = sum(path.lstat().st_size for path in (self.root / "models").rglob("*"))
        mebibytes = (sum(sizes.values()) + models) / 2**20
        print(f"{mebibytes:.1f} MiB, of which libraries "
              f"{sum(s for p, s in sizes.items() if '.so' in p.name) / 2**20:.1f}, programs "
              f"{sum(s for p, s in sizes.items() if 'bin' in p.parts) / 2**20:.1f}, models "
              f"{models / 2**20:.1f}")
        self.assertLess(mebibytes, LIMIT_MIB)

    def test_sbom_is_valid_spdx(self):
        document = parse_file(str(self.sbom_file))
        self.assertEqual([one.validation_message for one in validate_full_spdx_document(document)], [])
        self.assertEqual(self.sbom["spdxVersion"], "SPDX-2.3")

    def test_every_binary_is_in_the_sbom_with_its_package_and_its_sum(self):
        names = {one["SPDXID"]: one for one in self.sbom["packages"]}
        files = {one["SPDXID"]: one for one in self.sbom["files"]}
        holders = {}
        for one in self.sbom["relationships"]:
            if one["relationshipType"] == "CONTAINS":
                holders.setdefault(one["relatedSpdxElement"], []).append(names[one["spdxElementId"]])
        told = {}
        for identifier, file in files.items():
            self.assertEqual(len(holders.get(identifier, [])), 1, identifier)
            told["/" + file["fileName"].removeprefix("./")] = (file, holders[identifier][0])
        there = {"/" + str(path.relative_to(self.root)) for path in self.binaries()}
        self.assertEqual(there, set(told))
        for name, (file, package) in told.items():
            content = (self.root / name.lstrip("/")).read_bytes()
            sums = {one["algorithm"]: one["checksumValue"] for one in file["checksums"]}
            self.assertEqual(sums["SHA256"], hashlib.sha256(content).hexdigest())
            if ".so" in name:
                self.assertNotEqual(package["name"], "normd", name)
                self.assertIn("pkg:deb/", package["externalRefs"][0]["referenceLocator"])

    def test_every_package_has_its_licence_and_its_record_in_the_image(self):
        for package in self.sbom["packages"]:
            if package["name"] == "normd":
                self.assertEqual(package["versionInfo"], "1.2.3")
                self.assertIn(REVISION, package["sourceInfo"])
                continue
            text = self.root / "usr/share/doc" / package["name"] / "copyright"
            self.assertGreater(text.stat().st_size, 100, text)
            record = (self.root / "var/lib/dpkg/status.d" / package["name"]).read_text(encoding="utf-8")
            self.assertIn(f"\nVersion: {package['versionInfo']}\n", record)
        # What the texts point to, and nothing dangles.
        for name in ("Apache-2.0", "GPL-3", "LGPL-2.1"):
            self.assertTrue((self.root / "usr/share/common-licenses" / name).is_file(), name)

    def test_has_the_user_and_no_shell(self):
        self.assertIn("normd:x:10001:10001:", (self.root / "etc/passwd").read_text())
        for name in ("bin/sh", "usr/bin/env", "usr/bin/dpkg"):
            self.assertFalse((self.root / name).exists(), name)
        self.assertEqual((self.root / "tmp").stat().st_mode & 0o7777, 0o1777)

    def test_the_same_programs_give_the_same_sbom(self):
        with tempfile.TemporaryDirectory() as folder:
            root = with_programs(pathlib.Path(folder, "root"))
            make(root)
            self.assertEqual((root / "usr/share/normd/sbom.spdx.json").read_bytes(),
                             self.sbom_file.read_bytes())

    def test_list_only_names_the_packages_for_a_distribution(self):
        with tempfile.TemporaryDirectory() as folder:
            root = with_programs(pathlib.Path(folder, "root"))
            make(root, "--list-only")
            listed = set((root / "usr/share/normd/packages").read_text().split())
            linked = {one["relatedSpdxElement"] for one in self.sbom["relationships"]
                      if one["relationshipType"] == "DYNAMIC_LINK"}
            self.assertEqual(listed, {one["name"] for one in self.sbom["packages"]
                                      if one["SPDXID"] in linked})
            self.assertTrue((root / "usr/share/normd/prepare_image.sh").is_file())
            self.assertFalse((root / "usr/lib").exists())

    def test_a_library_of_no_package_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            root = with_programs(pathlib.Path(folder, "root"))
            own = pathlib.Path(folder, "libz.so.1")
            found = subprocess.run(["ldd", BIN / "normd"], capture_output=True, text=True, check=True).stdout
            shutil.copy2(re.search(r"libz\.so\.1 => (\S+)", found).group(1), own)
            done = subprocess.run(
                [sys.executable, "-B", SOURCE / "deploy/image/make_root.py", root, "--version=1.2.3"],
                capture_output=True, text=True, check=False,
                env={**os.environ, "LD_LIBRARY_PATH": folder})
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(f"{own}: no package owns it", done.stderr)


if __name__ == "__main__":
    if shutil.which("dpkg-query") is None:
        print("skipped: no dpkg-query: the image is made of packages of Debian or Ubuntu")
        sys.exit(77)
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    options, rest = parser.parse_known_args()
    BIN = options.bin.resolve()
    unittest.main(argv=[sys.argv[0], *rest])
