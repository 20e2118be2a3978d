#!/usr/bin/env python3
"""Every script of deploy/ prints its help or refuses a wrong argument, and does nothing else: here
it finds no other program than those that print."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
PRINTERS = ("bash", "sh", "env", "sed", "dirname")


class ScriptHelpTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = folder.name
        for name in PRINTERS:
            pathlib.Path(self.path, name).symlink_to(shutil.which(name))

    def run_script(self, script, folder, argument):
        program = script if folder is None else f"./{script.relative_to(folder)}"
        return subprocess.run([program, argument], cwd=folder or "/", env={"PATH": self.path},
                              capture_output=True, text=True, timeout=60, check=False)

    def test_each_helps_from_any_folder_and_refuses_an_unknown_option(self):
        scripts = sorted(DEPLOY.glob("*.sh"))
        self.assertGreater(len(scripts), 5)
        for script in scripts:
            for folder in (None, DEPLOY, DEPLOY.parent):
                for option in ("--help", "-h"):
                    with self.subTest(script=script.name, folder=folder, option=option):
                        ran = self.run_script(script, folder, option)
                        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
                        first = script.read_text(encoding="utf-8").splitlines()[1]
                        self.assertTrue(ran.stdout.startswith(first.removeprefix("# ")), ran.stdout)
                with self.subTest(script=script.name, folder=folder):
                    ran = self.run_script(script, folder, "--no_such")
                    self.assertEqual(ran.returncode, 2, ran.stderr)
                    self.assertRegex(ran.stderr, rf"^{script.stem}: .*'--no_such'.*\(see --help\)")
                    self.assertEqual((ran.stdout, ran.stderr.count("\n")), ("", 1))


if __name__ == "__main__":
    unittest.main()
