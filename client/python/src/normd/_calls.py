"""The calls of both clients, as coroutines.

normd.aio.Client has them as they are. normd.Client has each as a method that runs the coroutine to
its end, which its transport never lets suspend.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar, overload

import grpc
import numpy as np
import numpy.typing as npt

from normd import _channel, _control, _request, _response, _sharing
from normd._channel import ChannelConfig
from normd._control import ControlCall, Result
from normd._device import DevicePlane
from normd._request import Options, Precision, Priority, options_of
from normd._response import Response, only
from normd._sizes import OutputSizes
from normd._stream import DEFAULT_CHUNK_BYTES, Progress
from normd._stream_run import StreamRequest
from normd._tensors import Input
from normd._transport import Call, Transport, checked_timeout
from normd.device_memory import DeviceRegion
from normd.errors import (
    DeadlineExceededError,
    Error,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from normd.models import HealthStatus, ModelInfo, ServerInfo, SharedMemoryInfo
from normd.retry import Retry
from normd.shared_memory import SharedRegion

DEFAULT_TIMEOUT = 60.0
DEFAULT_STREAM_ABOVE = 64 << 20
_NAME_TIMEOUT_S = 1.0  # For the name of a result that is there.

Scalar = TypeVar("Scalar", bound=np.generic)


class Connection(abc.ABC):
    """A client without its calls: its settings, its transport and the memory that it shares."""

    _NAME: ClassVar[str]

    def __init__(
        self,
        target: str | Sequence[str] = _channel.DEFAULT_TARGET,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | None = None,
        server_name: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        retry: Retry | None = Retry(),  # noqa: B008 Immutable.
        stream_above: int = DEFAULT_STREAM_ABOVE,
        shared_memory: str = _sharing.AUTO,
        device_memory: str = _sharing.AUTO,
        options: _channel.Options = (),
    ) -> None:
        """Does not connect.

        Args:
          target: "127.0.0.1:8001", or any of gRPC's names ("dns:///host:port", "unix:/path"), or
            a list of HOST:PORT. Calls go in turn to all reachable servers of a list, and to all
            reachable addresses of a dns name; names in a list are looked up once, now.
          credentials: for TLS, such as grpc.ssl_channel_credentials(); None: no encryption.
          token: sent as "authorization: Bearer TOKEN"; needs credentials.
          server_name: the name in the server's certificate, if it is not the target's.
          timeout: of each call but streams, retries included; None: no limit.
          retry: which failed calls are retried; None: none.
          stream_above: inputs of more bytes go as streams, which the server takes at any size.
          shared_memory: "auto": tensors of 64 KiB and more are not sent but passed in memory that
            the server has mapped too, if `target` is one address of this machine and the server
            reports its --shared_memory_listen; up to 1 GiB, including results that are still
            referenced. If any of that fails, they are sent. unix:///path: the same, with this
            address. "off": never.
          device_memory: "auto": PyTorch's tensors on a CUDA device, of 64 KiB and more together,
            stay on it, if `target` is one address of this machine and the server computes on that
            device and takes its memory (--shared_memory_cuda); up to 1 GiB. If any of that fails,
            they go through host memory. "require": the call then fails with the reason. "off":
            never.
          options: further channel options of gRPC's.

        Raises:
          InvalidArgumentError: names the argument.
        """
        config = _channel.configure(target, credentials, token, server_name, options)
        limit = checked_timeout(timeout)
        if retry is not None and not isinstance(retry, Retry):
            raise InvalidArgumentError(f"retry: {retry!r}, wanted a normd.Retry, or None")
        if not _request.is_number(stream_above):
            raise InvalidArgumentError(f"stream_above: {stream_above!r}, wanted a number of bytes")
        sizes = OutputSizes()
        self._stream_above = stream_above
        self._only_outputs: dict[tuple[str, int], str] = {}  # By model and version.
        self._sharing = _sharing.Sharing(config.target, shared_memory, token, sizes)
        self._devices = DevicePlane(config, device_memory, sizes)
        self._transport = self._open(config, retry, limit)

    @abc.abstractmethod
    def _open(self, config: ChannelConfig, retry: Retry | None, timeout: float | None) -> Transport:
        """Makes the transport, which does not connect yet."""

    def __repr__(self) -> str:
        closed = ", closed" if self._transport.closed else ""
        return f"<{self._NAME} of {self.target}{closed}>"

    @property
    def target(self) -> str:
        """The server's address, or gRPC's name for several."""
        return self._transport.config.target

    def _ask(self, control: ControlCall[Result], timeout: float | None) -> Awaitable[Result]:
        transport = self._transport
        return transport.ask(control, checked_timeout(timeout, transport.timeout), transport.retry)

    async def _send(
        self,
        model: str,
        prepared: Sequence[Input],
        out: object,
        options: Options,
        timeout: float | None,
    ) -> _response.Received | None:
        """None: the inputs have to go as a stream."""
        _request.checked_model(model)
        call = Call(self._transport, timeout)
        if self._devices.may_take(prepared):
            received = await self._devices.normalize(call, model, options, prepared, out)
            if received is not None:
                return received
        if _request.total_bytes(prepared) > self._stream_above:
            return None
        prepared = [each.on_host() for each in prepared]
        if self._sharing.may_share(prepared):
            return await self._sharing.normalize(call, model, options, prepared, out)
        return _response.decode(await call.send(_request.encode(model, options, prepared)))

    async def _named(self, response: Response) -> Response:
        """The response, whose only output has the model's name for it, if the server tells that: in
        messages it may have none."""
        if "" not in response.outputs:
            return response
        key = (response.model, response.version)
        if key not in self._only_outputs:
            try:
                info = await Call(self._transport, _NAME_TIMEOUT_S).ask(_control.get_model(*key))
            except (PermissionDeniedError, UnauthenticatedError, NotFoundError):
                self._only_outputs[key] = ""  # Nor will it be told the next time.
                return response
            except Error:
                return response
            names = [each.name for each in info.outputs if not each.on_request]
            self._only_outputs[key] = names[0] if len(names) == 1 else ""
        return replace(response, outputs={self._only_outputs[key]: response.output})


class Calls(Connection):
    """The calls. They need no more than a Connection, so that both clients can have them."""

    @overload
    async def normalize(
        self: Connection,
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
        self: Connection,
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
        self: Connection,
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
        """Normalizes with a model that has one output, and returns that.

        Args:
          model: its name.
          inputs: an array, or several by the model's names ({"x": x, "y": y}), of float32,
            float64, float16 or bfloat16 (ml_dtypes, or two raw bytes) and of the model's shape,
            such as [N, C, *]. PyTorch tensors of any device are accepted too, and objects with
            __array__ or __dlpack__. Indexes are int64. C-contiguous arrays in host memory are not
            copied before they are put into the message.
          out: an array or a PyTorch tensor of the output's type and shape that takes the result.
            With `inputs` and `out` in a region of `share`, nothing is copied.
          version: 0: the highest loaded version.
          priority: among requests for this model; NORMAL by default.
          queue_timeout: the limit for waiting on the server until the request is computed.
          precision: of a matrix product, instead of the model's own.
          timeout: of this call; None: the client's, math.inf: none.

        Returns:
          `out`, or a tensor of the first input's kind: for NumPy a read-only view of the received
          message or of shared memory, which is not copied and may be unaligned; for PyTorch a
          tensor with its own memory on the input's device. Inputs of more than `stream_above` bytes
          go as a stream: the result has the same bits and its own memory, and only an explicit
          `timeout` limits the time.

        Raises:
          InvalidArgumentError: a type, shape or option is wrong; the message names it.
          NotFoundError: no such model or version is loaded.
          ResourceExhaustedError: the server has no room now.
          DeadlineExceededError: `timeout` or `queue_timeout` passed.
          UnavailableError: the server cannot be reached, is gone or drains.
        """
        options = options_of(version, priority, queue_timeout, precision, out)
        prepared = _request.inputs_of(inputs)
        received = await self._send(model, prepared, out, options, timeout)
        if received is None:
            request = StreamRequest(model, inputs, out, options, timeout)
            return only((await self._transport.stream(request)).outputs)
        return only(received.outputs(prepared, out))

    async def call(
        self: Connection,
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
        """As `normalize`, for all outputs by name, with the stages' times and the batch.

        Args:
          out: as in `normalize` for an only output, or a mapping of output names to arrays, or to
            None for a result with its own memory. Only the named outputs are returned. Outputs on
            request, such as "mean", are returned if it names them.
        """
        options = options_of(version, priority, queue_timeout, precision, out)
        prepared = _request.inputs_of(inputs)
        received = await self._send(model, prepared, out, options, timeout)
        if received is None:
            request = StreamRequest(model, inputs, out, options, timeout)
            return await self._named(await self._transport.stream(request))
        return await self._named(received.response(prepared, out))

    async def normalize_stream(
        self: Connection,
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
        """Normalizes tensors of any size, of which client and server hold a few MiB at a time.

        Args:
          inputs: as for `normalize`; also memory maps, and paths (str or PathLike) of .npy files.
          out: takes the result: an array or memory map of its type and shape, or a path for a .npy
            file, which appears when the whole result is there. For several outputs a mapping of
            names to these, or to None for a new array; other outputs are not returned. None: new
            arrays. With one input and one output it may be the input itself, memory or file.
          progress: True shows a bar (needs tqdm); a callable gets (bytes done, bytes in all).
          chunk_bytes: of a message; less if the server takes less.
          timeout: of the whole stream; None: no limit.

        Returns:
          The response, whose outputs are arrays, or the paths given.

        Raises:
          As `normalize`; OSError for files that cannot be opened or written, DataLossError for a
          file that shrinks meanwhile. After an error `out` holds no result; files are removed.
        """
        options = options_of(version, priority, queue_timeout, precision, out)
        request = StreamRequest(model, inputs, out, options, timeout, progress, chunk_bytes)
        return await self._named(await self._transport.stream(request))

    @overload
    async def share(
        self: Connection, nbytes: int, *, timeout: float | None = ...
    ) -> SharedRegion: ...

    @overload
    async def share(
        self: Connection, nbytes: int, *, device: object, timeout: float | None = ...
    ) -> DeviceRegion: ...

    async def share(
        self: Connection, nbytes: int, *, device: object = None, timeout: float | None = None
    ) -> SharedRegion | DeviceRegion:
        """Memory for tensors that are shared with a server on this machine instead of sent.

            region = client.share(2 * x.nbytes)
            x_there, y_there = region.array(x.shape), region.array(x.shape)
            client.normalize("instance_norm_64", x_there, out=y_there)

        Inputs in a region do not put the result there: it needs an `out` in a region.

        Args:
          device: a CUDA device, in torch.device's form: the memory is the device's, for PyTorch's
            tensors (DeviceRegion.tensor).

        Raises:
          UnimplementedError: the server does not take such memory (--shared_memory=fd and
            --shared_memory_listen, or --shared_memory_cuda for a device); `target` is not one
            server on this machine; or the client's `shared_memory` or `device_memory` is "off".
          UnavailableError: nobody listens at the server's address, or another user does. For a
            device also: it has no memory left, or none that can be shared.
          InvalidArgumentError: no such device, or the server computes on others.
          PermissionDeniedError: for a device: the token's identity may not make admin calls.
          ResourceExhaustedError: the server has its maximum of regions.
        """
        call = Call(self._transport, timeout)
        if device is not None:
            return await self._devices.share(call, nbytes, device)
        return await self._sharing.share(call, nbytes)

    async def list_models(self: Connection, *, timeout: float | None = None) -> list[ModelInfo]:
        """Every version that is loaded or has failed to load, by name and version."""
        return await self._ask(_control.list_models(), timeout)

    async def get_model(
        self: Connection, model: str, *, version: int = 0, timeout: float | None = None
    ) -> ModelInfo:
        """A model's configuration and state. version 0: the highest that is known."""
        return await self._ask(_control.get_model(model, version), timeout)

    async def load_model(
        self: Connection, model: str, *, version: int = 0, timeout: float | None = None
    ) -> ModelInfo:
        """Loads or reloads a version from the repository. Not retried.

        version 0: those that the model's version_policy wants; the result is the highest's.

        Raises:
          NotFoundError: the repository has no such version. InvalidArgumentError: a file is wrong.
          FailedPreconditionError: a file is too large. AbortedError: it is being written.
        """
        return await self._ask(_control.load_model(model, version), timeout)

    async def unload_model(
        self: Connection, model: str, *, version: int = 0, timeout: float | None = None
    ) -> list[int]:
        """Unloads a version, or with 0 all; returns the unloaded ones. Not retried.

        Requests in flight finish.
        """
        return await self._ask(_control.unload_model(model, version), timeout)

    async def server_info(self: Connection, *, timeout: float | None = None) -> ServerInfo:
        """The server's build, lanes and limits."""
        return await self._ask(_control.get_server_info(), timeout)

    async def list_shared_memory(
        self: Connection, *, timeout: float | None = None
    ) -> list[SharedMemoryInfo]:
        """The regions that all clients share with the server, the oldest first."""
        return await self._ask(_control.list_shared_memory(), timeout)

    async def health(
        self: Connection, model: str | None = None, *, timeout: float | None = None
    ) -> HealthStatus:
        """Whether the server takes requests, or serves a model. NotFoundError: no such model."""
        return await self._ask(_control.check_health(model), timeout)

    async def watch_health(
        self: Connection, model: str | None = None, *, timeout: float | None = None
    ) -> AsyncGenerator[HealthStatus, None]:
        """The current status and each change, until the iterator is closed.

        `timeout` limits the whole watch; None: no limit.
        """
        watch = self._transport.watch(_control.health_request(model), checked_timeout(timeout))
        async with contextlib.aclosing(watch) as messages:
            async for message in messages:
                yield _control.health_status(message)

    async def wait_ready(
        self: Connection, model: str | None = None, *, timeout: float | None = None
    ) -> None:
        """Waits until the server, or the model, is SERVING, however often it cannot be reached.

        Raises:
          DeadlineExceededError: it was not, within `timeout` (by default the client's); the message
            has the last reason.
          UnauthenticatedError, InvalidArgumentError: at once, if client and server do not agree on
            TLS, or do not trust each other.
        """
        request = _control.health_request(model)
        call = Call(self._transport, timeout)
        reason = ""
        while True:
            watch = self._transport.watch(request, call.timeout())
            try:
                async with contextlib.aclosing(watch) as messages:
                    async for message in messages:
                        if _control.is_serving(message):
                            return
                        reason = "it is reached, and not SERVING"
            except Error as failed:
                error = await self._transport.explain(failed)
                if error.code is grpc.StatusCode.DEADLINE_EXCEEDED and reason:
                    raise DeadlineExceededError(
                        f"timeout: passed, wanted SERVING; the last reason: {reason}",
                        target=error.target,
                    ) from None
                if error.code is not grpc.StatusCode.UNAVAILABLE:
                    raise error from None
                reason = error.message
            await self._transport.sleep(0.05)
