"""The client for asyncio: normd.Client's calls as coroutines, with its arguments and errors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

import grpc
import grpc.aio

from normd import _channel, _cuda
from normd._calls import Calls
from normd._channel import ChannelConfig
from normd._in_flight import Gate
from normd._response import Response
from normd._stream_run import StreamRequest
from normd._transport import Stub, Stubs, Transport
from normd.client import BlockingTransport
from normd.errors import ClosedError, InvalidArgumentError
from normd.retry import Retry

_T = TypeVar("_T")

# The most streams of a client at once; others wait for their turn.
_MAX_STREAMS = 64


# The process that uses gRPC's asyncio, if there is one: this stands still, or crashes, in those
# that are forked from it.
_processes: list[int] = []


def _check_process() -> None:
    if not _processes:
        _processes.append(os.getpid())
    if _processes != [os.getpid()]:
        raise InvalidArgumentError(
            "client: in a process forked from one that has used an aio.Client, wanted one that "
            "is started anew (spawn)"
        )


class _AsyncioTransport(Transport):
    """Belongs to the event loop of its first call; when that is closed, to that of the next."""

    def __init__(self, config: ChannelConfig, retry: Retry | None, timeout: float | None) -> None:
        super().__init__(config, retry, timeout)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stubs: Stubs | None = None  # Made in the loop.
        self._gate = Gate()
        self._streams: BlockingTransport | None = None  # Made at first use.
        self._threads = ThreadPoolExecutor(_MAX_STREAMS, "normd-stream")

    @property
    def stubs(self) -> Stubs:
        _check_process()
        loop = asyncio.get_running_loop()
        if self._stubs is None or self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                raise InvalidArgumentError(
                    "client: of another event loop, which is not closed, wanted an aio.Client for "
                    "each loop"
                )
            self._loop, self._stubs, self._gate = (
                loop,
                Stubs(_channel.make(self.config, grpc.aio)),
                Gate(),
            )
        return self._stubs

    async def close(self) -> None:
        """Ends the calls in flight."""
        self.closed = True
        if self._streams is not None:
            self._streams.close()
        self._threads.shutdown(wait=False)
        if self._stubs is not None and self._loop is asyncio.get_running_loop():
            await self._stubs.channel.close()

    async def invoke(self, stub: Stub, request: object, timeout: float | None) -> bytes:
        begin = time.monotonic()
        nbytes = sum(map(len, request)) if isinstance(request, list) else 0
        async with self._gate.passed(nbytes, timeout):
            if timeout is not None:
                timeout = max(0.0, timeout - (time.monotonic() - begin))
            with self._errors():
                response: bytes = await stub(request, timeout=timeout)
                return response

    async def watch(self, request: bytes, timeout: float | None) -> AsyncGenerator[bytes, None]:
        with self._errors():
            call = self.stubs.watch(request, timeout=timeout)
            try:
                async for message in call:
                    yield message
            finally:
                call.cancel()

    async def stream(self, request: StreamRequest) -> Response:
        """Runs on a thread, because files may block, and through gRPC's synchronous interface: in
        its asyncio one a write to a call that the server has ended hides the reason."""
        if self.closed:
            raise ClosedError("client: closed")
        _check_process()
        if self._streams is None:
            self._streams = BlockingTransport(self.config, self.retry, self.timeout)
        run = self._streams.stream_run(request)
        # Work on this thread's streams; the other thread's streams would not wait for it.
        events = _cuda.record_all(request.inputs, request.out)

        def run_on_thread() -> Response:
            for event in events:
                event.synchronize()
            return run.run()

        future = asyncio.get_running_loop().run_in_executor(self._threads, run_on_thread)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            run.cancel()
            await asyncio.wait([future])
            raise

    async def run(self, work: Callable[[], _T]) -> _T:
        _check_process()
        with self._errors():
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Converts gRPC's errors into this package's."""
        if self.closed:
            raise ClosedError("client: closed")
        try:
            yield
        except grpc.RpcError as error:
            raise self.error(error) from None
        except grpc.aio.UsageError:  # gRPC's way to say that the channel was closed meanwhile.
            if self.closed:
                raise ClosedError("client: closed") from None
            raise
        except asyncio.CancelledError:  # Calls in flight are cancelled when the channel is closed.
            task = asyncio.current_task()
            if self.closed and not (task is not None and _is_cancelling(task)):
                raise ClosedError("client: closed") from None
            raise


class Client(Calls):
    """Like normd.Client; an async context manager. It may be made outside an event loop. It belongs
    to that of its first call and, when that is closed, to that of the next.

    Messages of at most 256 MiB in all are in flight; further calls wait for their turn.
    Cancelling a task cancels its call. Arrays must not change until their call is done. Streams run
    on threads, which also call `progress`.
    """

    _NAME = "normd.aio.Client"
    _transport: _AsyncioTransport

    def _open(
        self, config: ChannelConfig, retry: Retry | None, timeout: float | None
    ) -> _AsyncioTransport:
        return _AsyncioTransport(config, retry, timeout)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection; calls in flight end with ClosedError. May be called again."""
        await self._transport.close()
        self._sharing.close()
        # On a thread, because it waits for the server.
        await asyncio.get_running_loop().run_in_executor(None, self._devices.close)


def _is_cancelling(task: asyncio.Task[Any]) -> bool:
    """Whether the task has been asked to end; before Python 3.11 unknown, and so assumed."""
    cancelling: Callable[[], int] | None = getattr(task, "cancelling", None)
    return cancelling is None or cancelling() > 0
