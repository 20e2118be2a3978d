#!/usr/bin/env python3
"""version.py finds every copy of the version that is another, or that nobody knows of."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import version

SOURCE = pathlib.Path(__file__).resolve().parents[2]


class VersionTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for path in {path for path, _ in version.PLACES} | {version.CHANGES}:
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(SOURCE / path, self.root / path)
        self.version = version.versions(self.root, version.FIRST)[0]

    def change(self, path, old, new):
        file = self.root / path
        text = file.read_text(encoding="utf-8")
        self.assertIn(old, text)
        file.write_text(text.replace(old, new), encoding="utf-8")

    def test_the_tree_s_places_agree(self):
        self.assertEqual(version.findings(self.root), [])

    def test_a_place_with_another_version_is_found(self):
        for path, pattern in version.PLACES[1:]:
            with self.subTest(path=path, pattern=pattern):
                self.setUp()
                file = self.root / path
                text = file.read_text(encoding="utf-8")
                whole = re.search(pattern, text, re.MULTILINE)
                file.write_text(text[:whole.start(1)] + "9.9.9" + text[whole.end(1):], encoding="utf-8")
                self.assertEqual(version.findings(self.root),
                                 [f"{path}: says 9.9.9, wanted {self.version}"])

    def test_a_place_that_is_gone_is_found(self):
        self.change("Dockerfile", f"ARG VERSION={self.version}", "ARG VERSION")
        self.assertEqual(version.findings(self.root),
                         [f"Dockerfile: says no version, wanted {self.version}"])

    def test_a_copy_that_nobody_knows_of_is_found(self):
        for text in (f'kVersion = "{self.version}"', f"normd:{self.version}", f"version {self.version}."):
            (self.root / "some.cc").write_text(f"\n{text}\n", encoding="utf-8")
            self.assertEqual(version.findings(self.root),
                             [f"some.cc:2: names the version {self.version}"], text)

    def test_versions_of_other_things_are_no_copies(self):
        (self.root / "some.txt").write_text(f"lib.so.{self.version} x>={self.version} 1.{self.version} "
                                            f"{self.version}.7 y=={self.version}\n", encoding="utf-8")
        self.assertEqual(version.findings(self.root), [])

    def test_a_version_without_changes_is_found(self):
        self.change(version.CHANGES, f"## [{self.version}]", "## [0.0.1]")
        self.assertEqual(version.findings(self.root), [f"CHANGELOG.md: has no heading [{self.version}]"])

    def test_set_writes_every_place(self):
        done = subprocess.run([sys.executable, "-B", SOURCE / "tests/lint/version.py", self.root, "--set=7.8.9"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.stdout, "CHANGELOG.md: has no heading [7.8.9]\n")
        for place in version.PLACES:
            self.assertEqual(set(version.versions(self.root, place)), {"7.8.9"}, place)

    def test_set_refuses_what_is_no_version(self):
        done = subprocess.run([sys.executable, "-B", SOURCE / "tests/lint/version.py", self.root, "--set=7.8"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("'7.8', wanted three numbers", done.stderr)


if __name__ == "__main__":
    unittest.main()
