"""What the tests of this folder share: their command line, and a normd."""

import argparse
import pathlib
import sys
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "deploy"))
from process import Normd  # noqa: E402

SKIPPED = 77  # ctest shows it as such.
LIMIT_S = 60


def command_line(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--normd", required=True)
    parser.add_argument("--models", required=True, help="a model repository")
    return parser


class Server(Normd):
    """A normd with further flags. It must end well, unless the test has failed."""

    def __init__(self, options, *flags):
        super().__init__(options.normd, options.models, *flags)

    def get(self, path):
        """The HTTP status of a path of the operators' port."""
        try:
            with urllib.request.urlopen(f"http://{self.metrics}{path}", timeout=LIMIT_S) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def __exit__(self, failure, *_):
        super().__exit__()
        assert failure or self.exit_code == 0, f"normd: exit code {self.exit_code}"
