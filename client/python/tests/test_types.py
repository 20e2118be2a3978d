"""The package's types, as pyright sees them in a user's program; mypy checks typed_calls.py as it
checks the package (pyproject.toml)."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

pytest.importorskip("torch", minversion="2.10")
pytest.importorskip("normd.torch", exc_type=ImportError)

CALLS = Path(__file__).parent / "typed" / "typed_calls.py"


def test_the_package_says_that_it_has_types():
    assert (resources.files("normd") / "py.typed").is_file()


def test_pyright_accepts_right_calls_and_refuses_wrong_ones(tmp_path):
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("no pyright")
    command = [sys.executable, "-m", "pyright", f"--pythonpath={sys.executable}", CALLS]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
