#!/usr/bin/env python3
"""A server takes what deploy/models/make_fused_linear.py writes, and its results are the
reference's.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "deploy/models/make_fused_linear.py"
LIMIT_S = 20


def run(*command):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            timeout=LIMIT_S, check=False)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {result.returncode}\n{result.stdout}")
    return result.stdout


def start(normd, repository):
    """A server on a free port, and its address."""
    server = subprocess.Popen([normd, f"--model_repository={repository}", "--device=cpu",
                               "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0",
                               "--http_listen=",
                               "--lame_duck=0s"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = []
    for line in server.stdout:
        lines.append(line)
        if match := re.search(r"serving: grpc=(\S+)", line):
            return server, match[1]
    sys.exit("normd does not serve:\n" + "".join(lines))


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
        server, address = start(options.normd, models)
        try:
            for model, x in (("fused_linear_24", "x40"), ("square", "x24")):
                run(options.normctl, "normalize", f"--server={address}", "--model", model,
                    work / f"{x}.npy", f"--y={work / 'y.npy'}", "-o", work / "out.npy",
                    "--verify", f"--model_repository={models}")
        finally:
            server.terminate()
            server.communicate(timeout=LIMIT_S)
    if server.returncode != 0:
        sys.exit(f"normd: exit code {server.returncode}")


if __name__ == "__main__":
    main()
