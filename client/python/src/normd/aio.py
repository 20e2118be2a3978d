"""The client for asyncio: normd.Client's calls as coroutines, with its arguments and errors."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar, overload

import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt

from normd import _call, _channel, _control, _cuda, _request, _response, _sharing, _steps, client
from normd._control import ControlCall, Result
from normd._device import DevicePlane
from normd._request import Options, Precision, Priority
from normd._response import Response, only
from normd._sizes import OutputSizes
from normd._steps import Step, Steps
from normd._stream import DEFAULT_CHUNK_BYTES, Progress
from normd._stream_run import StreamRequest
from normd._tensors import Input
from normd.device_memory import DeviceRegion
from normd.errors import ClosedError, Error, from_rpc
from normd.models import HealthStatus, ModelInfo, ServerInfo, SharedMemoryInfo
from normd.retry import Attempts, Retry
from normd.shared_memory import SharedRegion

Scalar = TypeVar("Scalar", bound=np.generic)

# The most streams of a client at once; others wait for their turn.
_MAX_STREAMS = 64

_Stub = Callable[..., Any]


class Client:
    """As normd.Client. It belongs to the event loop in which it is made; an async context manager.

    Cancelling a task cancels its call. Arrays must not change until their call is done.
    """

    def __init__(
        self,
        target: str | Sequence[str] = _channel.DEFAULT_TARGET,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | None = None,
        server_name: str | None = None,
        timeout: float | None = _call.DEFAULT_TIMEOUT,
        retry: Retry | None = Retry(),  # noqa: B008 Immutable.
        stream_above: int = _call.DEFAULT_STREAM_ABOVE,
        shared_memory: str = _sharing.AUTO,
        device_memory: str = _sharing.AUTO,
        options: _channel.Options = (),
    ) -> None:
        """Does not connect. As normd.Client; to be called in a running event loop."""
        config = _channel.configure(target, credentials, token, server_name, options)
        self._target = config.target
        self._timeout = _call.checked_timeout(timeout)
        self._retry = retry
        self._stream_above = stream_above
        sizes = OutputSizes()
        self._sharing = _sharing.Sharing(config.target, shared_memory, token, sizes)
        self._devices = DevicePlane(config, device_memory, sizes)
        self._closed = False
        self._make_streams = functools.partial(
            client.Client,
            target,
            credentials=credentials,
            token=token,
            server_name=server_name,
            retry=retry,
            options=options,
        )
        self._streams: client.Client | None = None  # Made when it is first needed.
        self._threads = ThreadPoolExecutor(_MAX_STREAMS, "normd-stream")
        self._channel = (
            grpc.aio.insecure_channel(config.target, config.options)
            if config.credentials is None
            else grpc.aio.secure_channel(config.target, config.credentials, config.options)
        )
        self._normalize: _Stub = self._channel.unary_unary(_call.NORMALIZE, b"".join)
        self._watch: _Stub = self._channel.unary_stream(_call.HEALTH_WATCH)
        self._control: dict[str, _Stub] = {
            method: self._channel.unary_unary(method) for method in _control.METHODS
        }

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<normd.aio.Client of {self._target}{', closed' if self._closed else ''}>"

    @property
    def target(self) -> str:
        """The server's address, or gRPC's name for several."""
        return self._target

    async def close(self) -> None:
        """Closes the connection; calls in flight end with ClosedError. May be called again."""
        self._closed = True
        if self._streams is not None:
            self._streams.close()
        self._threads.shutdown(wait=False)
        await self._channel.close()
        self._sharing.close()
        # On a thread: it waits for the server.
        await asyncio.get_running_loop().run_in_executor(None, self._devices.close)

    @overload
    async def normalize(
        self,
        model: str,
        inputs: npt.NDArray[Scalar] | Mapping[str, npt.NDArray[Scalar]],
        *,
        out: npt.NDArray[Any] | None = ...,
        version: int = ...,
        priority: Priority | None = ...,
        queue_timeout: float | None = ...,
        precision: Precision | None = ...,
        timeout: float | None = ...,
    ) -> npt.NDArray[Scalar]: ...

    @overload
    async def normalize(
        self,
        model: str,
        inputs: Any,
        *,
        out: Any = ...,
        version: int = ...,
        priority: Priority | None = ...,
        queue_timeout: float | None = ...,
        precision: Precision | None = ...,
        timeout: float | None = ...,
    ) -> Any: ...

    async def normalize(
        self,
        model: str,
        inputs: object,
        *,
        out: Any = None,
        version: int = 0,
        priority: Priority | None = None,
        queue_timeout: float | None = None,
        precision: Precision | None = None,
        timeout: float | None = None,
    ) -> Any:
        """As normd.Client.normalize."""
        options = _call.options_of(version, priority, queue_timeout, precision)
        prepared = _request.inputs_of(inputs)
        received = await self._send(model, prepared, out, options, timeout)
        if received is None:
            request = StreamRequest(model, inputs, out, options, timeout)
            return only((await self._stream_of(request)).outputs)
        return only(received.outputs(prepared, out))

    async def call(
        self,
        model: str,
        inputs: object,
        *,
        out: Any = None,
        version: int = 0,
        priority: Priority | None = None,
        queue_timeout: float | None = None,
        precision: Precision | None = None,
        timeout: float | None = None,
    ) -> Response:
        """As normd.Client.call."""
        options = _call.options_of(version, priority, queue_timeout, precision, out)
        prepared = _request.inputs_of(inputs)
        received = await self._send(model, prepared, out, options, timeout)
        if received is None:
            return await self._stream_of(StreamRequest(model, inputs, out, options, timeout))
        return received.response(prepared, out)

    async def normalize_stream(
        self,
        model: str,
        inputs: object,
        *,
        out: object = None,
        progress: Progress = False,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        version: int = 0,
        priority: Priority | None = None,
        queue_timeout: float | None = None,
        precision: Precision | None = None,
        timeout: float | None = None,
    ) -> Response:
        """As normd.Client.normalize_stream. It runs on a thread, which also calls `progress`."""
        options = _call.options_of(version, priority, queue_timeout, precision, out)
        return await self._stream_of(
            StreamRequest(model, inputs, out, options, timeout, progress, chunk_bytes)
        )

    @overload
    async def share(self, nbytes: int, *, timeout: float | None = ...) -> SharedRegion: ...

    @overload
    async def share(
        self, nbytes: int, *, device: object, timeout: float | None = ...
    ) -> DeviceRegion: ...

    async def share(
        self, nbytes: int, *, device: object = None, timeout: float | None = None
    ) -> SharedRegion | DeviceRegion:
        """As normd.Client.share."""
        attempts = Attempts(self._retry, _call.checked_timeout(timeout, self._timeout))
        if device is not None:
            return await self._follow(self._devices.share(nbytes, device), attempts)
        return await self._follow(self._sharing.share(nbytes), attempts)

    async def list_models(self, *, timeout: float | None = None) -> list[ModelInfo]:
        """As normd.Client.list_models."""
        return await self._ask(_control.list_models(), timeout)

    async def get_model(
        self, model: str, *, version: int = 0, timeout: float | None = None
    ) -> ModelInfo:
        """As normd.Client.get_model."""
        return await self._ask(_control.get_model(model, version), timeout)

    async def load_model(
        self, model: str, *, version: int = 0, timeout: float | None = None
    ) -> ModelInfo:
        """As normd.Client.load_model."""
        return await self._ask(_control.load_model(model, version), timeout)

    async def unload_model(
        self, model: str, *, version: int = 0, timeout: float | None = None
    ) -> list[int]:
        """As normd.Client.unload_model."""
        return await self._ask(_control.unload_model(model, version), timeout)

    async def server_info(self, *, timeout: float | None = None) -> ServerInfo:
        """As normd.Client.server_info."""
        return await self._ask(_control.get_server_info(), timeout)

    async def list_shared_memory(self, *, timeout: float | None = None) -> list[SharedMemoryInfo]:
        """As normd.Client.list_shared_memory."""
        return await self._ask(_control.list_shared_memory(), timeout)

    async def health(
        self, model: str | None = None, *, timeout: float | None = None
    ) -> HealthStatus:
        """As normd.Client.health."""
        return await self._ask(_control.check_health(model), timeout)

    async def watch_health(
        self, model: str | None = None, *, timeout: float | None = None
    ) -> AsyncIterator[HealthStatus]:
        """As normd.Client.watch_health."""
        request = _control.health_request(model)
        with self._errors():
            call = self._watch(request, timeout=_call.checked_timeout(timeout))
            try:
                async for message in call:
                    yield _control.health_status(message)
            finally:
                call.cancel()

    async def wait_ready(self, model: str | None = None, *, timeout: float | None = None) -> None:
        """As normd.Client.wait_ready."""
        request = _control.health_request(model)
        attempts = Attempts(None, _call.checked_timeout(timeout, self._timeout))
        while True:
            try:
                with self._errors():
                    if await self._watch_until_serving(request, attempts.timeout()):
                        return
            except Error as error:
                if error.code is not grpc.StatusCode.UNAVAILABLE:
                    raise
            await asyncio.sleep(0.05)

    async def _watch_until_serving(self, request: bytes, timeout: float | None) -> bool:
        call = self._watch(request, timeout=timeout, wait_for_ready=True)
        try:
            async for message in call:
                if _control.is_serving(message):
                    return True
        finally:
            call.cancel()
        return False

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Makes gRPC's errors ours."""
        if self._closed:
            raise ClosedError("client: closed")
        try:
            yield
        except grpc.RpcError as error:
            raise self._error(error) from None
        except grpc.aio.UsageError:  # How gRPC says that the channel was closed meanwhile.
            if self._closed:
                raise ClosedError("client: closed") from None
            raise
        except asyncio.CancelledError:  # Calls in flight are cancelled when the channel is closed.
            task = asyncio.current_task()
            if self._closed and not (task is not None and _is_cancelling(task)):
                raise ClosedError("client: closed") from None
            raise

    def _error(self, error: grpc.RpcError) -> Error:
        return ClosedError("client: closed") if self._closed else from_rpc(error, self._target)

    async def _unary(self, stub: _Stub, request: object, attempts: Attempts) -> bytes:
        while True:
            try:
                with self._errors():
                    response: bytes = await stub(request, timeout=attempts.timeout())
                    return response
            except Error as error:
                await asyncio.sleep(attempts.wait_after(error))

    async def _send(
        self,
        model: str,
        prepared: Sequence[Input],
        out: object,
        options: Options,
        timeout: float | None,
    ) -> _response.Received | None:
        """None: the inputs are to go as a stream."""
        attempts = Attempts(self._retry, _call.checked_timeout(timeout, self._timeout))
        if self._devices.may_take(prepared):
            on_device = self._devices.normalize(model, options, prepared, out, attempts)
            received = await self._follow(on_device, attempts)
            if received is not None:
                return received
        if _request.total_bytes(prepared) > self._stream_above:
            return None
        prepared = [each.on_host() for each in prepared]
        if self._sharing.may_share(prepared):
            steps = self._sharing.normalize(model, options, prepared, out, attempts)
            return await self._follow(steps, attempts)
        parts = _request.encode(model, options, prepared)
        return _response.decode(await self._unary(self._normalize, parts, attempts))

    async def _follow(self, steps: Steps[Result], attempts: Attempts) -> Result:
        return await _steps.follow_async(steps, functools.partial(self._do, attempts))

    async def _do(self, attempts: Attempts, step: Step) -> Any:
        if isinstance(step, ControlCall):
            return await self._ask(step, attempts.timeout())
        if isinstance(step, _steps.Pause):
            return await asyncio.sleep(step.seconds)
        if isinstance(step, _steps.Send) and step.repeatable:
            return await self._unary(self._normalize, step.request, attempts)
        with self._errors():
            if isinstance(step, _steps.Send):
                return await self._normalize(step.request, timeout=attempts.timeout())
            # What may block goes to a thread.
            return await asyncio.get_running_loop().run_in_executor(self._threads, step)

    async def _ask(self, call: ControlCall[Result], timeout: float | None) -> Result:
        policy = self._retry if call.repeatable else None
        attempts = Attempts(policy, _call.checked_timeout(timeout, self._timeout))
        return call.result(await self._unary(self._control[call.method], call.request, attempts))

    async def _stream_of(self, request: StreamRequest) -> Response:
        """On a thread, where files may block, and through gRPC's synchronous interface: in its
        asyncio one a write to a call that the server has ended hides why that was."""
        if self._closed:
            raise ClosedError("client: closed")
        if self._streams is None:
            self._streams = self._make_streams()
        run = self._streams._stream_run(request)
        # What this thread's streams do with the tensors, the other's would not wait for.
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


def _is_cancelling(task: asyncio.Task[Any]) -> bool:
    """Whether the task has been asked to end; before Python 3.11 unknown, and so assumed."""
    cancelling: Callable[[], int] | None = getattr(task, "cancelling", None)
    return cancelling is None or cancelling() > 0
