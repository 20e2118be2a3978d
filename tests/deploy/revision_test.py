#!/usr/bin/env python3
"""The build finds the source's commit with git, without git where HEAD and the references are, and nowhere else.

    tests/deploy/revision_test.py CMAKE
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CMAKE = None


def revision_of(root, path=None):
    with tempfile.NamedTemporaryFile("w", suffix=".cmake") as script:
        script.write(f'include("{SOURCE}/cmake/NormdRevision.cmake")\nnormd_revision(found "{root}")\n'
                     'message(STATUS "found [${found}]")\n')
        script.flush()
        environment = {**os.environ, **({"PATH": path} if path is not None else {})}
        said = subprocess.run([CMAKE, "-P", script.name], check=True, capture_output=True, text=True, env=environment,
                              timeout=60)
    assert not said.stderr, said.stderr
    return said.stdout.split("found [")[1].split("]")[0]


class Revision(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, name, text):
        path = self.root / ".git" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def test_reads_a_branch_without_git(self):
        self.write("HEAD", "ref: refs/heads/a/branch\n")
        self.write("refs/heads/a/branch", f"{COMMIT}\n")
        self.assertEqual(revision_of(self.root), COMMIT[:12])

    def test_reads_a_packed_branch(self):
        self.write("HEAD", "ref: refs/heads/main\n")
        self.write("packed-refs", f"# pack-refs with: peeled\n{'f' * 40} refs/heads/mainly\n"
                                  f"{'e' * 40} refs/remotes/main\n{COMMIT} refs/heads/main\n")
        self.assertEqual(revision_of(self.root), COMMIT[:12])

    def test_reads_a_commit_that_is_on_no_branch(self):
        self.write("HEAD", f"{COMMIT}\n")
        self.assertEqual(revision_of(self.root), COMMIT[:12])

    def test_knows_nothing_of_other_folders(self):
        self.assertEqual(revision_of(self.root), "")
        self.write("HEAD", "ref: refs/heads/main\n")
        self.assertEqual(revision_of(self.root), "")
        inner = self.root / "inner"
        inner.mkdir()
        self.assertEqual(revision_of(inner), "")

    def test_asks_git(self):
        try:
            subprocess.run(["git", "init", "-q", self.root], check=True)
        except FileNotFoundError:
            self.skipTest("no git")
        git = ["git", "-C", self.root, "-c", "user.name=a", "-c", "user.email=a@b"]
        (self.root / "file").write_text("1")
        subprocess.run([*git, "add", "file"], check=True)
        subprocess.run([*git, "commit", "-qm", "first"], check=True)
        commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
        self.assertEqual(revision_of(self.root), commit[:12])
        (self.root / "file").write_text("2")
        self.assertEqual(revision_of(self.root), f"{commit[:12]}-dirty")


if __name__ == "__main__":
    CMAKE = sys.argv.pop(1)
    unittest.main()
