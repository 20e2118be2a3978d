"""What the tests of this folder share: a normd."""

import re
import subprocess
import sys
import urllib.error
import urllib.request

SKIPPED = 77  # ctest shows it as such.
LIMIT_S = 60


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
