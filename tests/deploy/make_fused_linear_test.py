#!/usr/bin/env python3
"""A server takes what deploy/models/make_fused_linear.py writes, and its results are the
reference's.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

from process import Normd

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "deploy/models/make_fused_linear.py"
LIMIT_S = 20


def run(*command):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            timeout=LIMIT_S, check=False)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {result.returncode}\n{result.stdout}")
    return result.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--normd", required=True)
    parser.add_argument("--normctl", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        models = work / "models"
        run(sys.executable, SCRIPT, models, "--features=24", "--in_features=40",
            "--precision=tf32")
        run(sys.executable, SCRIPT, models, "--features=24", "--name=square", "--seed=2")
        for file, shape in (("x40", "5x40"), ("x24", "5x24"), ("y", "5x24")):
            run(options.normctl, "random", work / f"{file}.npy", f"--shape={shape}",
                "--dtype=float32")
        with Normd(options.normd, models) as server:
            for model, x in (("fused_linear_24", "x40"), ("square", "x24")):
                run(options.normctl, "normalize", f"--server={server.address}", "--model", model,
                    work / f"{x}.npy", f"--y={work / 'y.npy'}", "-o", work / "out.npy",
                    "--verify", f"--model_repository={models}")
    if server.exit_code != 0:
        sys.exit(f"normd: exit code {server.exit_code}")


if __name__ == "__main__":
    main()
