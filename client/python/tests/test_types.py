"""The package's types, as type checkers see them in a user's program."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", minversion="2.10")
pytest.importorskip("normd.torch", exc_type=ImportError)

CALLS = Path(__file__).with_name("typed_calls.py")
CHECKERS = {
    "mypy": ["--strict", "--config-file="],
    "pyright": [f"--pythonpath={sys.executable}"],
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_checkers_accept_right_calls_and_refuse_wrong_ones(checker, tmp_path):
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"no {checker}")
    command = [sys.executable, "-m", checker, *CHECKERS[checker], CALLS]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
