"""What a client sends with, and one call of a client's within its time."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import grpc

from normd import _channel, _control, _protocol
from normd._channel import ChannelConfig
from normd._control import ControlCall, Result
from normd._request import checked_seconds
from normd._response import Response
from normd._stream_run import StreamRequest
from normd.errors import ClosedError, Error, from_rpc
from normd.retry import Attempts, Retry

_NORMALIZE = _protocol.method("Normalize")
_ATTEMPTS = 4  # At what a call asks beside its message.
_HEALTH_WATCH = _protocol.method("Watch", _protocol.HEALTH_SERVICE)

Message = list[bytes | memoryview]  # In parts to be joined.
Stub = Callable[..., Any]
_T = TypeVar("_T")


def checked_timeout(timeout: float | None, default: float | None = None) -> float | None:
    """Seconds for gRPC; None, meaning no limit, for an infinite time."""
    seconds = default if timeout is None else timeout
    if seconds is None or seconds == math.inf:
        return None
    return checked_seconds("timeout", seconds, "more than 0")


class Stubs:
    """The calls of one channel, whose messages are bytes here: encoders and decoders may raise,
    which gRPC would hide."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.normalize: Stub = channel.unary_unary(_NORMALIZE, b"".join)
        self.control: dict[str, Stub] = {
            method: channel.unary_unary(method) for method in _control.METHODS
        }
        self.watch: Stub = channel.unary_stream(_HEALTH_WATCH)


class Transport(abc.ABC):
    """A channel to the server, and the ways to wait for it. All raise `normd.Error`.

    The two clients wait in different ways: the coroutines of normd.Client's transport block, and
    never suspend.
    """

    def __init__(self, config: ChannelConfig, retry: Retry | None, timeout: float | None) -> None:
        """`timeout`: that of calls that give none."""
        self.config = config
        self.retry = retry
        self.timeout = timeout
        self.closed = False
        self._explained = False
        self._explanation: Error | None = None

    @property
    @abc.abstractmethod
    def stubs(self) -> Stubs:
        """Those of the channel."""

    @abc.abstractmethod
    async def invoke(self, stub: Stub, request: object, timeout: float | None) -> bytes:
        """The response to one message."""

    @abc.abstractmethod
    def watch(self, request: bytes, timeout: float | None) -> AsyncGenerator[bytes, None]:
        """The messages of a health watch, which ends when the generator is closed."""

    @abc.abstractmethod
    async def stream(self, request: StreamRequest) -> Response:
        """A NormalizeStream call, with its retries."""

    @abc.abstractmethod
    async def run(self, work: Callable[[], _T]) -> _T:
        """The result of work that may block."""

    @abc.abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Waits."""

    async def repeat(self, stub: Stub, request: object, attempts: Attempts) -> bytes:
        """The response to one message, which is sent again if the policy says so."""
        while True:
            try:
                return await self.invoke(stub, request, attempts.timeout())
            except Error as error:
                error = await self.explain(error)
                await self.sleep(attempts.wait_after(error))

    async def explain(self, error: Error) -> Error:
        """The same, or one that says that the two sides disagree about TLS, which is found out
        once."""
        if not _channel.may_explain(error):
            return error
        if not self._explained:
            self._explained = True
            found = await self.run(functools.partial(_channel.explain, self.config, error))
            self._explanation = None if found is error else found
        return self._explanation or error

    async def ask(
        self, control: ControlCall[Result], timeout: float | None, retry: Retry | None
    ) -> Result:
        """Makes a call of small messages. `timeout` in seconds; None: no limit."""
        attempts = Attempts(retry if control.repeatable else None, timeout)
        stub = self.stubs.control[control.method]
        return control.result(await self.repeat(stub, control.request, attempts))

    def error(self, error: grpc.RpcError) -> Error:
        """Converts gRPC's error into this package's."""
        return ClosedError("client: closed") if self.closed else from_rpc(error, self.config.target)


class Call(Attempts):
    """One call of a client's, which may take several messages: its attempts and its time."""

    def __init__(self, transport: Transport, timeout: float | None) -> None:
        """`timeout` as the client's methods take it."""
        super().__init__(transport.retry, checked_timeout(timeout, transport.timeout))
        self._transport = transport

    def ask(self, control: ControlCall[Result]) -> Awaitable[Result]:
        """Makes a call of small messages, with few attempts of its own: there is another way."""
        retry = self._transport.retry
        if retry is not None:
            retry = replace(retry, attempts=min(retry.attempts or _ATTEMPTS, _ATTEMPTS))
        return self._transport.ask(control, self.timeout(), retry)

    def send(self, request: Message) -> Awaitable[bytes]:
        """Makes a Normalize call, again if the policy says so."""
        return self._transport.repeat(self._transport.stubs.normalize, request, self)

    def send_once(self, request: Message) -> Awaitable[bytes]:
        """Makes a Normalize call."""
        return self._transport.invoke(self._transport.stubs.normalize, request, self.timeout())

    def run(self, work: Callable[[], _T]) -> Awaitable[_T]:
        """The result of work that may block."""
        return self._transport.run(work)

    async def pause_after(self, error: Error) -> None:
        """Waits until the next attempt. Raises `error` if there is to be none."""
        await self._transport.sleep(self.wait_after(error))
