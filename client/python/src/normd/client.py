"""The synchronous client."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

import grpc
import numpy as np
import numpy.typing as npt

from normd import _call, _channel, _control, _request, _response, _sharing, _steps
from normd._closing import Closing
from normd._control import ControlCall, Result
from normd._device import DevicePlane
from normd._request import Options, Precision, Priority
from normd._response import Response, only
from normd._sizes import OutputSizes
from normd._steps import Step, Steps
from normd._stream import DEFAULT_CHUNK_BYTES, Progress
from normd._stream_run import StreamRequest, StreamRun
from normd._tensors import Input
from normd.device_memory import DeviceRegion
from normd.errors import ClosedError, Error, from_rpc
from normd.models import HealthStatus, ModelInfo, ServerInfo, SharedMemoryInfo
from normd.retry import Attempts, Retry
from normd.shared_memory import SharedRegion

Scalar = TypeVar("Scalar", bound=np.generic)

_Stub = Callable[..., Any]


class Client(Closing):
    """A connection to one server, or to several that are alike. Thread-safe; a context manager.

    It connects at the first call and reconnects by itself. Calls do not wait for a server to
    appear: one that cannot be reached is UnavailableError, after the retries.

    All calls raise `normd.Error`: its subclass for the server's status, `ClosedError` after
    `close`, `ProtocolError` for a response that is none. Times are in seconds.
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
        """Does not connect.

        Args:
          target: "127.0.0.1:8001", or any of gRPC's names ("dns:///host:port", "unix:/path"), or
            a list of HOST:PORT. Calls go to all of a list's, and to all addresses of a dns name,
            in turn, as far as they can be reached; names in a list are looked up once, now.
          credentials: for TLS, such as grpc.ssl_channel_credentials(); in the clear without.
          token: sent as "authorization: Bearer TOKEN"; needs credentials.
          server_name: the name in the server's certificate, if it is not the target's.
          timeout: of each call but streams, retries included; None: no limit.
          retry: which failed calls are made again; None: none.
          stream_above: inputs of more bytes go as streams, which the server takes at any size.
          shared_memory: "auto": tensors of 64 KiB and more are not sent but handed over in memory
            that the server has mapped too, where `target` is one address of this machine and the
            server tells its --shared_memory_listen; up to 1 GiB, results that are still referred to
            counted in. Where anything about that fails, they are sent. unix:///path: the same, with
            this for the address. "off": never.
          device_memory: "auto": PyTorch's tensors on a CUDA device, of 64 KiB and more together,
            stay on it, where `target` is one address of this machine and the server computes on
            that device and takes its memory (--shared_memory_cuda); up to 1 GiB. Where anything
            about that fails, they go through the host's memory. "require": the call fails then,
            with the reason. "off": never.
          options: further channel options of gRPC's.

        Raises:
          InvalidArgumentError: names the argument.
        """
        config = _channel.configure(target, credentials, token, server_name, options)
        self._target = config.target
        self._timeout = _call.checked_timeout(timeout)
        self._retry = retry
        self._stream_above = stream_above
        sizes = OutputSizes()
        self._sharing = _sharing.Sharing(config.target, shared_memory, token, sizes)
        self._devices = DevicePlane(config, device_memory, sizes)
        self._closed = False
        self._channel = _channel.make(config)
        # Messages are bytes here: what encodes and decodes them may raise, which gRPC would hide.
        self._normalize: _Stub = self._channel.unary_unary(_call.NORMALIZE, b"".join)
        self._stream: _Stub = self._channel.stream_stream(_call.NORMALIZE_STREAM, b"".join)
        self._watch: _Stub = self._channel.unary_stream(_call.HEALTH_WATCH)
        self._control: dict[str, _Stub] = {
            method: self._channel.unary_unary(method) for method in _control.METHODS
        }

    def __repr__(self) -> str:
        return f"<normd.Client of {self._target}{', closed' if self._closed else ''}>"

    @property
    def target(self) -> str:
        """The server's address, or gRPC's name for several."""
        return self._target

    def close(self) -> None:
        """Closes the connection; calls in flight end with ClosedError. May be called again.

        The server lets shared regions go; arrays in them stay valid.
        """
        self._closed = True
        self._channel.close()
        self._sharing.close()
        self._devices.close()

    @overload
    def normalize(
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
    def normalize(
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

    def normalize(
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
        """Normalizes with a model that has one output, and returns that.

        Args:
          model: its name.
          inputs: an array, or several by the model's names ({"x": x, "y": y}), of float32,
            float64, float16 or bfloat16 (ml_dtypes, or two raw bytes) and of the model's shape,
            such as [N, C, *]. PyTorch tensors of any device are taken too, and what has
            __array__ or __dlpack__. Indexes are int64. C-contiguous ones in the host's memory are
            not copied before they are put into the message.
          out: an array or a PyTorch tensor of the output's type and shape that takes the result.
            With `inputs` and `out` in a region of `share`, nothing is copied.
          version: 0: the highest that is loaded.
          priority: among requests for this model; NORMAL by default.
          queue_timeout: how long it may wait on the server until it is computed.
          precision: of a matrix product, instead of the model's own.
          timeout: of this call; None: the client's, math.inf: none.

        Returns:
          `out`, or a tensor of the first input's kind: for NumPy a read-only view of the received
          message or of shared memory, which is not copied and may be unaligned; for PyTorch a
          tensor of its own memory on the input's device. Inputs of more than `stream_above` bytes
          go as a stream, with the same bits, into memory of its own, and with no time limit but a
          `timeout` that is given.

        Raises:
          InvalidArgumentError: a type, shape or option is wrong; the message names it.
          NotFoundError: no such model or version is loaded.
          ResourceExhaustedError: the server has no room now.
          DeadlineExceededError: `timeout` or `queue_timeout` passed.
          UnavailableError: the server cannot be reached, has gone or drains.
        """
        options = _call.options_of(version, priority, queue_timeout, precision)
        prepared = _request.inputs_of(inputs)
        received = self._send(model, prepared, out, options, timeout)
        if received is None:
            request = StreamRequest(model, inputs, out, options, timeout)
            return only(self._stream_run(request).run().outputs)
        return only(received.outputs(prepared, out))

    def call(
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
        """As `normalize`, for all outputs by name, with the stages' times and the batch.

        Args:
          out: as `normalize`'s for an only output, or a mapping of the outputs' names, which alone
            are then returned, to these, or to None for a result of its own memory. Outputs on
            request, such as "mean", come if it names them.
        """
        options = _call.options_of(version, priority, queue_timeout, precision, out)
        prepared = _request.inputs_of(inputs)
        received = self._send(model, prepared, out, options, timeout)
        if received is None:
            request = StreamRequest(model, inputs, out, options, timeout)
            return self._stream_run(request).run()
        return received.response(prepared, out)

    def normalize_stream(
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
        """Normalizes tensors of any size, of which client and server hold a few MiB at a time.

        Args:
          inputs: as for `normalize`; also memory maps, and paths (str or PathLike) of .npy files.
          out: where the result goes: an array or memory map of its type and shape, or a path for a
            .npy file, which appears when the whole result is there. Of several outputs a mapping of
            names to these, or to None for a fresh array; outputs that it does not name do not come.
            None: fresh arrays. It may be the input itself, memory or file, where there is one of
            each.
          progress: True shows a bar (needs tqdm); a callable gets (bytes done, bytes in all).
          chunk_bytes: of a message; less if the server takes less.
          timeout: of the whole stream; None: no limit.

        Returns:
          The response, whose outputs are arrays, or the paths given.

        Raises:
          As `normalize`; OSError for files that cannot be opened or written, DataLossError for one
          that shrinks meanwhile. After an error `out` holds no result; files are removed.
        """
        options = _call.options_of(version, priority, queue_timeout, precision, out)
        return self._stream_run(
            StreamRequest(model, inputs, out, options, timeout, progress, chunk_bytes)
        ).run()

    @overload
    def share(self, nbytes: int, *, timeout: float | None = ...) -> SharedRegion: ...

    @overload
    def share(
        self, nbytes: int, *, device: object, timeout: float | None = ...
    ) -> DeviceRegion: ...

    def share(
        self, nbytes: int, *, device: object = None, timeout: float | None = None
    ) -> SharedRegion | DeviceRegion:
        """Memory for tensors that are not to be sent, of a server on this machine.

            region = client.share(2 * x.nbytes)
            x_there, y_there = region.array(x.shape), region.array(x.shape)
            client.normalize("instance_norm_64", x_there, out=y_there)

        Without an `out` in a region, the result of inputs in one comes as that of others does.

        Args:
          device: a CUDA device, as torch.device takes it: the memory is the device's, for PyTorch's
            tensors (DeviceRegion.tensor).

        Raises:
          UnimplementedError: the server takes none (--shared_memory=fd, --shared_memory_listen; of
            a device --shared_memory_cuda), is elsewhere as far as `target` says, or several; or the
            client's `shared_memory` or `device_memory` is "off".
          UnavailableError: nobody takes it at the server's address: it is another user's, say. The
            device has no memory left, or has none that can be shared.
          InvalidArgumentError: no such device; or the server computes on others.
          PermissionDeniedError: of a device: the token's identity may not make admin calls.
          ResourceExhaustedError: the server has enough regions.
        """
        attempts = Attempts(self._retry, _call.checked_timeout(timeout, self._timeout))
        if device is not None:
            return self._follow(self._devices.share(nbytes, device), attempts)
        return self._follow(self._sharing.share(nbytes), attempts)

    def list_models(self, *, timeout: float | None = None) -> list[ModelInfo]:
        """Every version that is loaded or has failed to load, by name and version."""
        return self._ask(_control.list_models(), timeout)

    def get_model(self, model: str, *, version: int = 0, timeout: float | None = None) -> ModelInfo:
        """A model's configuration and state. version 0: the highest."""
        return self._ask(_control.get_model(model, version), timeout)

    def load_model(
        self, model: str, *, version: int = 0, timeout: float | None = None
    ) -> ModelInfo:
        """Loads a version from the repository, or loads it anew. 0: the highest there. Not retried.

        Raises:
          NotFoundError: the repository has none such. InvalidArgumentError: a file is wrong.
          FailedPreconditionError: a file is too large. AbortedError: it is being written.
        """
        return self._ask(_control.load_model(model, version), timeout)

    def unload_model(
        self, model: str, *, version: int = 0, timeout: float | None = None
    ) -> list[int]:
        """Unloads a version, or with 0 all; returns which. Not retried.

        Requests in flight finish.
        """
        return self._ask(_control.unload_model(model, version), timeout)

    def server_info(self, *, timeout: float | None = None) -> ServerInfo:
        """The server's build, lanes and limits."""
        return self._ask(_control.get_server_info(), timeout)

    def list_shared_memory(self, *, timeout: float | None = None) -> list[SharedMemoryInfo]:
        """The regions that clients share with the server, all of them, the oldest first."""
        return self._ask(_control.list_shared_memory(), timeout)

    def health(self, model: str | None = None, *, timeout: float | None = None) -> HealthStatus:
        """Whether the server takes requests, or serves a model; NotFoundError for one unknown."""
        return self._ask(_control.check_health(model), timeout)

    def watch_health(
        self, model: str | None = None, *, timeout: float | None = None
    ) -> Iterator[HealthStatus]:
        """The status now and after each change, until the iterator is closed.

        `timeout` is of the whole watch; None: no limit.
        """
        request = _control.health_request(model)
        call = self._start(self._watch, request, _call.checked_timeout(timeout))
        try:
            for message in call:
                yield _control.health_status(message)
        except grpc.RpcError as error:
            raise self._error(error) from None
        finally:
            call.cancel()

    def wait_ready(self, model: str | None = None, *, timeout: float | None = None) -> None:
        """Waits until the server, or the model, is SERVING, however often it cannot be reached.

        Raises:
          DeadlineExceededError: it was not, within `timeout` (by default the client's).
        """
        request = _control.health_request(model)
        attempts = Attempts(None, _call.checked_timeout(timeout, self._timeout))
        while True:
            call = self._start(self._watch, request, attempts.timeout(), wait_for_ready=True)
            try:
                for message in call:
                    if _control.is_serving(message):
                        return
            except grpc.RpcError as rpc_error:
                error = self._error(rpc_error)
                if error.code is not grpc.StatusCode.UNAVAILABLE:
                    raise error from None
            finally:
                call.cancel()
            time.sleep(0.05)

    def _error(self, error: grpc.RpcError) -> Error:
        return ClosedError("client: closed") if self._closed else from_rpc(error, self._target)

    def _start(
        self,
        stub: _Stub,
        request: object,
        timeout: float | None,
        wait_for_ready: bool | None = None,
    ) -> Any:
        """Makes a call of gRPC's, and its errors ours."""
        if self._closed:
            raise ClosedError("client: closed")
        try:
            return stub(request, timeout, wait_for_ready=wait_for_ready)
        except grpc.RpcError as error:
            raise self._error(error) from None
        except ValueError:  # How gRPC says that the channel was closed meanwhile.
            if self._closed:
                raise ClosedError("client: closed") from None
            raise

    def _unary(self, stub: _Stub, request: object, attempts: Attempts) -> bytes:
        while True:
            try:
                response: bytes = self._start(stub, request, attempts.timeout())
            except Error as error:
                time.sleep(attempts.wait_after(error))
            else:
                return response

    def _send(
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
            received = self._follow(on_device, attempts)
            if received is not None:
                return received
        if _request.total_bytes(prepared) > self._stream_above:
            return None
        prepared = [each.on_host() for each in prepared]
        if self._sharing.may_share(prepared):
            steps = self._sharing.normalize(model, options, prepared, out, attempts)
            return self._follow(steps, attempts)
        parts = _request.encode(model, options, prepared)
        return _response.decode(self._unary(self._normalize, parts, attempts))

    def _follow(self, steps: Steps[Result], attempts: Attempts) -> Result:
        return _steps.follow(steps, functools.partial(self._do, attempts))

    def _do(self, attempts: Attempts, step: Step) -> Any:
        if isinstance(step, ControlCall):
            return self._ask(step, attempts.timeout())
        if isinstance(step, _steps.Send):
            if step.repeatable:
                return self._unary(self._normalize, step.request, attempts)
            return self._start(self._normalize, step.request, attempts.timeout())
        if isinstance(step, _steps.Pause):
            return time.sleep(step.seconds)
        return step()

    def _ask(self, call: ControlCall[Result], timeout: float | None) -> Result:
        policy = self._retry if call.repeatable else None
        attempts = Attempts(policy, _call.checked_timeout(timeout, self._timeout))
        return call.result(self._unary(self._control[call.method], call.request, attempts))

    def _stream_run(self, request: StreamRequest) -> StreamRun:
        start = functools.partial(self._start, self._stream)
        attempts = Attempts(self._retry, _call.checked_timeout(request.timeout))
        return StreamRun(start, self._input_names, self._error, attempts, request)

    def _input_names(self, model: str, version: int, timeout: float | None) -> list[str]:
        """A model's inputs, in its order."""
        info = self.get_model(model, version=version, timeout=timeout)
        return [each.name for each in info.inputs]
