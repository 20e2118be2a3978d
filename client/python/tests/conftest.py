"""A normd of the tests' own, and both clients under one face.

NORMD_BIN, or --normd_bin, is the folder of the built normd and normctl.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

import normd
from normd import _cuda

REPOSITORY = Path(__file__).resolve().parents[3] / "deploy" / "models"
LIMIT_S = 60


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--normd_bin", default=os.environ.get("NORMD_BIN"))


def pytest_collection_finish() -> None:
    """Leaves what the imports made, PyTorch's above all, out of later collections."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def binaries(request: pytest.FixtureRequest) -> Path:
    folder = request.config.getoption("--normd_bin")
    if not folder:
        pytest.fail("NORMD_BIN or --normd_bin: wanted the folder of normd and normctl")
    return Path(folder)


class Server:
    """A normd on a free port."""

    def __init__(self, binaries: Path, *flags: str) -> None:
        self.process = subprocess.Popen(
            [
                binaries / "normd",
                f"--model_repository={REPOSITORY}",
                "--device=cpu",
                "--listen=127.0.0.1:0",
                "--metrics_listen=127.0.0.1:0",
                "--http_listen=",
                "--lame_duck=0s",
                *flags,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            lines.append(line)
            if match := re.search(r"serving: grpc=(\S+) metrics=(\S+)", line):
                self.address = match[1].rpartition(",")[2]  # The last is TCP's.
                self.metrics = match[2]
                break
        else:
            pytest.fail("normd does not serve:\n" + "".join(lines))
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Lives, and does nothing."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            while not self._is_stopped():
                os.sched_yield()
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def _is_stopped(self) -> bool:
        """Every thread of it: the signal is taken some time after it was sent."""
        threads = Path(f"/proc/{self.process.pid}/task").iterdir()
        return all(
            (each / "stat").read_text().rpartition(")")[2].split()[0] == "T" for each in threads
        )

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()


@pytest.fixture(scope="session")
def server(binaries: Path) -> Iterator[Server]:
    with contextlib.closing(Server(binaries)) as running:
        yield running


@pytest.fixture
def own_server(binaries: Path) -> Iterator[Server]:
    """One that the test may stop or kill."""
    with contextlib.closing(Server(binaries)) as running:
        yield running


@pytest.fixture(scope="session")
def run_normctl(binaries: Path) -> Any:
    """Runs a command of normctl's against a server."""

    def run(*arguments: object, server: Server) -> str:
        command = [binaries / "normctl", *map(str, arguments), f"--server={server.address}"]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=LIMIT_S
        ).stdout

    return run


@pytest.fixture
def normctl(run_normctl: Any, server: Server) -> Any:
    """Runs a command of normctl's against `server`."""
    return functools.partial(run_normctl, server=server)


class Blocking:
    """An aio.Client whose calls block, on a loop of its own."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self.client = self._run(self._make(arguments, options))
        except BaseException:
            self.end()
            raise

    async def _make(self, arguments: Any, options: Any) -> normd.aio.Client:
        return normd.aio.Client(*arguments, **options)

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(LIMIT_S)

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.client, name)
        if not inspect.iscoroutinefunction(member):
            return member
        return lambda *arguments, **options: self._run(member(*arguments, **options))

    def end(self) -> None:
        if self._thread.is_alive():
            if "client" in self.__dict__:
                self._run(self.client.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(LIMIT_S)
            self._loop.close()


@pytest.fixture(params=["sync", "aio"])
def make_client(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Makes clients of either kind, and closes them."""
    made: list[Any] = []

    def make(*arguments: Any, **options: Any) -> Any:
        kind = normd.Client if request.param == "sync" else Blocking
        made.append(kind(*arguments, **options))
        return made[-1]

    yield make
    for client in made:
        client.end() if isinstance(client, Blocking) else client.close()


@pytest.fixture
def client(make_client: Any, server: Server) -> Any:
    return make_client(server.address)


# Normalize's, with one element, 1.
ANSWER = b"\x0a\x01m\x10\x01\x2a\x0b\x10\x01\x1a\x01\x01\x22\x04\x00\x00\x80\x3f"


class Refuses:
    """A handler that refuses so many calls, then answers."""

    def __init__(
        self,
        times: int,
        code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE,
        pushback: int | None = None,
        then: bytes = ANSWER,
    ) -> None:
        self.times, self.code, self.pushback, self.then = times, code, pushback, then
        self.calls = 0

    def __call__(self, request: bytes, context: Any) -> Any:
        self.calls += 1
        if self.calls > self.times:
            return self.then
        if self.pushback is not None:
            context.set_trailing_metadata((("grpc-retry-pushback-ms", str(self.pushback)),))
        return context.abort(self.code, "queue: full, wanted room")


class FakeServer:
    """A gRPC server whose handlers a test gives: (method's name, handler of bytes)."""

    def __init__(self, **handlers: Any) -> None:
        self._executor = futures.ThreadPoolExecutor(8)
        self._server = grpc.server(self._executor)
        kinds = {
            "Normalize": grpc.unary_unary_rpc_method_handler,
            "NormalizeStream": grpc.stream_stream_rpc_method_handler,
            "LoadModel": grpc.unary_unary_rpc_method_handler,
            "ListModels": grpc.unary_unary_rpc_method_handler,
            "GetModel": grpc.unary_unary_rpc_method_handler,
        }
        table = {name: kinds[name](handler) for name, handler in handlers.items()}
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("normd.v1.NormService", table),)
        )
        port = self._server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        self._server.start()

    def close(self) -> None:
        self._server.stop(None).wait(LIMIT_S)
        self._executor.shutdown(wait=False)


@pytest.fixture
def fake_server() -> Iterator[Any]:
    made: list[FakeServer] = []

    def make(**handlers: Any) -> FakeServer:
        made.append(FakeServer(**handlers))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """CUDA in the host's memory, in the place of PyTorch's."""
    fake_cuda = pytest.importorskip("fake_cuda", exc_type=ImportError)
    fake = fake_cuda.FakeCuda()
    monkeypatch.setattr(_cuda, "CUDA", fake)
    return fake


@pytest.fixture
def make_device_server(server: Server, cuda: Any) -> Iterator[Any]:
    """Makes servers before `server` that take memory of `cuda`, and looks for breaches."""
    from fake_cuda import DeviceServer

    made: list[Any] = []

    def make(**options: Any) -> Any:
        made.append(DeviceServer(server.address, cuda, **options))
        return made[-1]

    yield make
    gc.collect()
    for each in made:
        each.close()
        assert each.breaches == []
    assert cuda.fake_driver.breaches == []
    assert cuda.breaches == []


@pytest.fixture
def device_server(make_device_server: Any) -> Any:
    return make_device_server()
