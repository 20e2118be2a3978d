"""The synchronous client."""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

import grpc

from normd import _channel, _control, _protocol
from normd._calls import Calls, Connection
from normd._channel import ChannelConfig
from normd._closing import Closing
from normd._response import Response
from normd._stream_run import StreamRequest, StreamRun
from normd._transport import Stub, Stubs, Transport, checked_timeout
from normd.errors import ClosedError, Error
from normd.retry import Attempts, Retry

_NORMALIZE_STREAM = _protocol.method("NormalizeStream")

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _result(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: _T = end.value
        return result
    raise RuntimeError("normd.Client: a call has suspended")  # Its transport has a bug.


def _blocking(
    call: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[Any, _P], _T]:
    """One of Calls as a method of Client."""

    def blocking(self: Connection, /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        return _result(call(self, *arguments, **options))

    functools.update_wrapper(blocking, call)
    return blocking


def _iterating(
    call: Callable[Concatenate[Any, _P], AsyncGenerator[_T, None]],
) -> Callable[Concatenate[Any, _P], Iterator[_T]]:
    """The same for a generator."""

    def iterating(self: Connection, /, *arguments: _P.args, **options: _P.kwargs) -> Iterator[_T]:
        items = call(self, *arguments, **options)
        try:
            while True:
                yield _result(items.__anext__())
        except StopAsyncIteration:
            pass
        finally:
            _result(items.aclose())

    functools.update_wrapper(iterating, call)
    return iterating


class BlockingTransport(Transport):
    """Blocks the calling thread. Thread-safe."""

    def __init__(self, config: ChannelConfig, retry: Retry | None, timeout: float | None) -> None:
        super().__init__(config, retry, timeout)
        self._stubs = Stubs(_channel.make(config))
        self._stream: Stub = self._stubs.channel.stream_stream(_NORMALIZE_STREAM, b"".join)

    @property
    def stubs(self) -> Stubs:
        return self._stubs

    def close(self) -> None:
        """Ends the calls in flight."""
        self.closed = True
        self._stubs.channel.close()

    async def invoke(self, stub: Stub, request: object, timeout: float | None) -> bytes:
        response: bytes = self._start(stub, request, timeout)
        return response

    async def watch(self, request: bytes, timeout: float | None) -> AsyncGenerator[bytes, None]:
        call = self._start(self._stubs.watch, request, timeout)
        try:
            for message in call:
                yield message
        except grpc.RpcError as error:
            raise self.error(error) from None
        finally:
            call.cancel()

    async def stream(self, request: StreamRequest) -> Response:
        return self.stream_run(request).run()

    def stream_run(self, request: StreamRequest) -> StreamRun:
        """A stream that has not begun yet."""
        start = functools.partial(self._start, self._stream)
        attempts = Attempts(self.retry, checked_timeout(request.timeout))
        return StreamRun(start, self._input_names, self._stream_error, attempts, request)

    async def run(self, work: Callable[[], _T]) -> _T:
        return work()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def _start(self, stub: Stub, request: object, timeout: float | None) -> Any:
        """Makes a gRPC call, and converts its errors."""
        if self.closed:
            raise ClosedError("client: closed")
        try:
            return stub(request, timeout)
        except grpc.RpcError as error:
            raise self.error(error) from None
        except ValueError:  # gRPC's way to say that the channel was closed meanwhile.
            if self.closed:
                raise ClosedError("client: closed") from None
            raise

    def _stream_error(self, error: grpc.RpcError) -> Error:
        return _channel.explain(self.config, self.error(error))

    def _input_names(self, model: str, version: int, timeout: float | None) -> list[str]:
        """A model's inputs, in its order."""
        limit = checked_timeout(timeout, self.timeout)
        info = _result(self.ask(_control.get_model(model, version), limit, self.retry))
        return [each.name for each in info.inputs]


class Client(Connection, Closing):
    """A connection to one server, or to several with the same models. Thread-safe; a context
    manager.

    It connects at the first call and reconnects by itself. Calls do not wait for a server to
    appear: one that cannot be reached gives UnavailableError, after the retries.

    All calls raise `normd.Error`: its subclass for the server's status, `ClosedError` after
    `close`, `ProtocolError` for an invalid response. Times are in seconds.
    """

    _NAME = "normd.Client"
    _transport: BlockingTransport

    normalize = _blocking(Calls.normalize)
    call = _blocking(Calls.call)
    normalize_stream = _blocking(Calls.normalize_stream)
    share = _blocking(Calls.share)
    list_models = _blocking(Calls.list_models)
    get_model = _blocking(Calls.get_model)
    load_model = _blocking(Calls.load_model)
    unload_model = _blocking(Calls.unload_model)
    server_info = _blocking(Calls.server_info)
    list_shared_memory = _blocking(Calls.list_shared_memory)
    health = _blocking(Calls.health)
    watch_health = _iterating(Calls.watch_health)
    wait_ready = _blocking(Calls.wait_ready)

    def _open(
        self, config: ChannelConfig, retry: Retry | None, timeout: float | None
    ) -> BlockingTransport:
        return BlockingTransport(config, retry, timeout)

    def close(self) -> None:
        """Closes the connection; calls in flight end with ClosedError. May be called again.

        The server releases shared regions; arrays in them stay valid.
        """
        self._transport.close()
        self._sharing.close()
        self._devices.close()
