#!/usr/bin/env python3
"""normd beside Triton with its Python backend and PyTorch: float32 InstanceNorm of 64 channels, measured
by perf_analyzer over gRPC or HTTP, in turns. Throughput, p50 and p99 are perf_analyzer's medians over the
rounds; processor time is of all processes of the server, for one request that it answered.

    pip install nvidia-pytriton torch perf-analyzer      # the folders and the program below are theirs
    python3 tests/bench/triton.py --normd=build/release/bin/normd \\
        --tritonserver=SITE/pytriton/tritonserver --site=SITE --perf_analyzer=perf_analyzer

SITE is the site-packages of a Python whose version the Python backend has a stub for. Triton batches up to
16 requests, and its model computes a batch in one call of torch.nn.InstanceNorm2d. Beside a metrics port,
both servers get the ports that --port begins. --perf_analyzer may be a command with arguments, such as
"chroot ROOT perf_analyzer", where the wheel needs another glibc."""

import argparse
import os
import pathlib
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

MODEL = "instance_norm_64"
CONFIG = """
name: "%s" backend: "python" max_batch_size: 16 dynamic_batching { }
input [ { name: "x" data_type: TYPE_FP32 dims: [ 64, -1, -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 64, -1, -1 ] } ]
instance_group [ { count: %d kind: KIND_CPU } ]
"""
MODEL_PY = """
import sys
sys.path.append(%r)
import torch
import triton_python_backend_utils as backend
from torch.utils.dlpack import from_dlpack, to_dlpack


class TritonPythonModel:
    def initialize(self, args):
        torch.set_grad_enabled(False)
        torch.set_num_threads(%d)
        self.norm = torch.nn.InstanceNorm2d(64, affine=True).eval()

    def execute(self, requests):
        xs = [from_dlpack(backend.get_input_tensor_by_name(r, "x").to_dlpack()) for r in requests]
        y = self.norm(torch.cat(xs) if len(xs) > 1 else xs[0])
        return [backend.InferenceResponse([backend.Tensor.from_dlpack("y", to_dlpack(part))])
                for part in y.split([len(x) for x in xs])]
"""
# The requests that a server has answered, of its metrics.
ANSWERED = {"normd": r'normd_requests_total\{model="%s",[^}]*method="(?:Model)?Infer",code="OK"\} (\S+)',
            "triton": r'nv_inference_request_success\{model="%s",[^}]*\} (\S+)'}
START_LIMIT_S = 120
STOP_LIMIT_S = 60


class Server:
    """A server and the processes that it starts. `port`: that of gRPC, and before those of the metrics
    and of HTTP. `shape`: what perf_analyzer says for one sample."""

    def __init__(self, name, command, port, folder, shape, environment=None):
        self.name, self.metrics, self.shape = name, port + 1, shape
        self.ports = {"grpc": port, "http": port + 2}
        self.log = open(folder / f"{name}.log", "w", encoding="utf-8")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT,
                                        env={**os.environ, **(environment or {})})
        end = time.monotonic() + START_LIMIT_S
        while True:
            try:
                self.answered()
                break
            except OSError as error:
                if self.process.poll() is not None or time.monotonic() > end:
                    self.stop()
                    raise SystemExit(f"{name}: {(folder / f'{name}.log').read_text()}") from error
                time.sleep(0.2)

    def answered(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics") as answer:
            text = answer.read().decode()
        return sum(float(value) for value in re.findall(ANSWERED[self.name] % MODEL, text))

    def cpu_seconds(self):
        """The memory of the process and its descendants."""
        stats = {}
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            stats[int(path.parent.name)] = (int(fields[1]), int(fields[11]) + int(fields[12]))
        family = {self.process.pid}
        while more := {pid for pid, (parent, _) in stats.items() if parent in family} - family:
            family |= more
        return sum(stats[pid][1] for pid in family if pid in stats) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def start_normd(options, folder):
    port = options.port
    return Server("normd", [options.normd, f"--model_repository={options.models}", "--device=cpu",
                            f"--listen=127.0.0.1:{port}", f"--metrics_listen=127.0.0.1:{port + 1}",
                            f"--http_listen=127.0.0.1:{port + 2}"],
                  port, folder, lambda size: f"x:1,64,{size},{size}")


def start_triton(options, folder):
    port = options.port + 3
    stub = f"python_backend_stubs/{options.python}/triton_python_backend_stub"
    shutil.copytree(options.tritonserver / "backends/python", folder / "backends/python")
    shutil.copy(options.tritonserver / stub, folder / "backends/python")
    model = folder / "models" / MODEL
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(CONFIG % (MODEL, options.instances))
    (model / "1/model.py").write_text(MODEL_PY % (str(options.site), options.threads))
    for program in (options.tritonserver / "bin/tritonserver",
                    folder / "backends/python/triton_python_backend_stub"):
        program.chmod(0o755)
    libraries = options.tritonserver.parent.parent / "nvidia_pytriton.libs"
    return Server("triton", [options.tritonserver / "bin/tritonserver",
                             f"--model-repository={folder / 'models'}",
                             f"--backend-directory={folder / 'backends'}",
                             f"--grpc-port={port}", f"--metrics-port={port + 1}",
                             f"--http-port={port + 2}", "--http-address=127.0.0.1",
                             "--allow-gpu-metrics=false", "--grpc-address=127.0.0.1",
                             "--metrics-address=127.0.0.1"],
                  port, folder, lambda size: f"x:64,{size},{size}",
                  {"LD_LIBRARY_PATH": str(libraries)})


def measure(options, server, size, requests):
    """perf_analyzer's throughput, p50 and p99 in microseconds, and the server's per request."""
    before, cpu = server.answered(), server.cpu_seconds()
    done = subprocess.run(
        [*shlex.split(options.perf_analyzer), "-u", f"127.0.0.1:{server.ports[options.protocol]}",
         "-i", options.protocol, "-m", MODEL, "--shape", server.shape(size),
         "--concurrency-range", str(options.concurrency), "--request-count", str(requests)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stdout)

    def number(pattern):
        return float(re.search(pattern, done.stdout).group(1))

    # Triton publishes its counts only now and then.
    time.sleep(2.5)
    answered = server.answered() - before
    return (number(r"Throughput: (\S+) infer/sec"), number(r"p50 latency: (\d+)"),
            number(r"p99 latency: (\d+)"), 1e6 * (server.cpu_seconds() - cpu) / answered)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--normd", required=True, help="the program, a release build")
    parser.add_argument("--models", default="deploy/models", help="normd's model repository")
    parser.add_argument("--tritonserver", type=pathlib.Path, required=True, help="pytriton's folder")
    parser.add_argument("--site", type=pathlib.Path, required=True, help="site-packages with torch")
    parser.add_argument("--python", default=f"{sys.version_info.major}.{sys.version_info.minor}",
                        help="version of the stub and of SITE's Python")
    parser.add_argument("--perf_analyzer", default="perf_analyzer", help="the command")
    parser.add_argument("--port", type=int, default=18201, help="the first of six")
    parser.add_argument("--instances", type=int, default=1, help="processes of Triton's model")
    parser.add_argument("--threads", type=int, default=1, help="PyTorch's, of each process")
    parser.add_argument("--protocol", choices=["grpc", "http"], default="grpc")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--sizes", default="2,16,64", help="of [1, 64, SIZE, SIZE]")
    # No time windows: perf_analyzer keeps every response that came in one, a mebibyte each.
    parser.add_argument("--requests", default="20000,10000,1000", help="of each size, a turn")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    servers = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        try:
            servers.append(start_triton(options, folder))
            servers.append(start_normd(options, folder))
            print("| tensor | server | requests/s | p50, us | p99, us | processor, us |")
            print("|---|---|---|---|---|---|")
            for size, requests in zip(map(int, options.sizes.split(",")),
                                      map(int, options.requests.split(",")), strict=True):
                turns = {server.name: [] for server in servers}
                for _ in range(options.rounds):
                    for server in servers:
                        turns[server.name].append(measure(options, server, size, requests))
                medians = {name: [statistics.median(column) for column in zip(*lines)]
                           for name, lines in turns.items()}
                for name, (rate, p50, p99, cpu) in medians.items():
                    print(f"| [1, 64, {size}, {size}] | {name} | {rate:.0f} | {p50:.0f} | {p99:.0f} "
                          f"| {cpu:.1f} |", flush=True)
                ratio = medians["normd"][3] / medians["triton"][3]
                print(f"| | normd's processor time of Triton's | | | | {ratio:.3f} |", flush=True)
        finally:
            for server in servers:
                server.stop()


if __name__ == "__main__":
    main()
