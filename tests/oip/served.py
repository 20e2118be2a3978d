"""What the tests of this folder share: packages from PyPI, and a normd."""

import re
import subprocess
import sys
import urllib.error
import urllib.request
import venv

SKIPPED = 77  # ctest shows it as such.
LIMIT_S = 60
INSTALL_LIMIT_S = 900


def environment(folder, packages):
    """The Python of a virtual environment that has the packages; None where there is no PyPI."""
    python = folder / "bin/python"
    stamp = folder / "packages.txt"
    if stamp.exists() and stamp.read_text() == "\n".join(packages):
        return python
    try:
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                        *packages], check=True, timeout=INSTALL_LIMIT_S)
    except (subprocess.SubprocessError, OSError) as error:
        print(f"skipped: no {', '.join(packages)}: {error}")
        return None
    stamp.write_text("\n".join(packages))
    return python


class Server:
    """A normd on free ports, with further flags."""

    def __init__(self, normd, models, *flags):
        self.process = subprocess.Popen(
            [normd, f"--model_repository={models}", "--device=cpu", "--listen=127.0.0.1:0",
             "--http_listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0", "--lame_duck=0s", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.process.stdout:
            if match := re.search(r"serving: grpc=(\S+) metrics=(\S+) http=(\S+)", line):
                self.address, self.metrics, self.http = match.groups()
                return
        sys.exit("normd does not serve")

    def get(self, path):
        """The HTTP status of a path of the operators' port."""
        try:
            with urllib.request.urlopen(f"http://{self.metrics}{path}", timeout=LIMIT_S) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def stop(self):
        self.process.terminate()
        self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode
