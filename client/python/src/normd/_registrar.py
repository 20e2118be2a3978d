"""Registers device memory with a server, by the calls of the Open Inference Protocol."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from normd import _channel, _protocol, _wire
from normd._cuda import DeviceMemory
from normd.errors import ClosedError, Error, NotFoundError, from_rpc

_SERVICE = "inference.GRPCInferenceService"
# The server replies at once, unless it hangs.
_TIMEOUT_S = 2.0
# While a request uses the region: it stays registered, or the call ends with the request.
_Metadata = tuple[tuple[str, str], ...]
_REFUSE: _Metadata = (("normd-in-use", "refuse"),)
_WAIT: _Metadata = (("normd-in-use", "wait"),)


# After these the server may or may not have taken the memory.
_UNKNOWN = (
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNKNOWN,
)


class Registrar:
    """Registers memory, and holds it until the server has released it. Thread-safe; calls block.

    It has its own connection, so that any thread can unregister memory after that of the client's
    calls has been closed.
    """

    def __init__(self, config: _channel.ChannelConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._channel: Any = None  # Made at first use.
        self._held: dict[str, DeviceMemory] = {}  # By the region's name.
        self._given_up: set[str] = set()  # Those of them that are to be unregistered.
        self._closed = False
        self._process = os.getpid()

    def register(self, memory: DeviceMemory, device: int) -> str:
        """The name of the region that the memory becomes. `device`: in the server's numbering.

        Raises the server's errors.
        """
        name = f"cuda-{secrets.token_hex(16)}"
        request = (
            _wire.bytes_field(1, name.encode())
            + _wire.bytes_field(2, memory.handle)
            + _wire.int_field(3, device)
            + _wire.int_field(4, memory.nbytes)
        )
        with self._lock:
            self._held[name] = memory  # Held before the server may have it.
        try:
            self._call("CudaSharedMemoryRegister", request, _TIMEOUT_S)
        except Error as error:
            if isinstance(error, ClosedError) or error.code not in _UNKNOWN:
                self._forget(name)
            else:
                self._keep(name, memory)
            raise
        except BaseException:
            self._keep(name, memory)
            raise
        return name

    def give_up(self, name: str) -> None:
        """Makes `sweep` unregister the region. Does not block."""
        self._given_up.add(name)  # One step, because finalizers call this at any time.

    def given_up_bytes(self) -> int:
        """Whether anything is still to be unregistered."""
        with self._lock:
            return sum(self._held[each].nbytes for each in self._given_up if each in self._held)

    def sweep(self) -> None:
        """Unregisters given-up regions that no request uses; the others the next time."""
        for name in list(self._given_up):
            code = self._unregister(name, _TIMEOUT_S, _REFUSE)
            if code not in (grpc.StatusCode.OK, grpc.StatusCode.FAILED_PRECONDITION):
                return  # Nobody replies; the next call would fail too.

    def end(self) -> None:
        """Unregisters everything. Regions that a server does not release are kept until the process
        ends."""
        deadline = time.monotonic() + _TIMEOUT_S
        for name in list(self._held):
            self._unregister(name, max(0.1, deadline - time.monotonic()), _WAIT)
        with self._lock:
            self._closed = True
            _KEPT.extend(self._held.values())
            self._held.clear()
            if self._channel is not None:
                self._channel.close()

    def _unregister(self, name: str, timeout: float, in_use: _Metadata) -> grpc.StatusCode:
        if os.getpid() != self._process:  # A forked child's copy: the memory is the parent's.
            return grpc.StatusCode.OK
        request = _wire.bytes_field(1, name.encode())
        try:
            self._call("CudaSharedMemoryUnregister", request, timeout, in_use)
        except NotFoundError:  # The server was restarted.
            pass
        except Error as error:
            return error.code
        self._forget(name)
        return grpc.StatusCode.OK

    def _keep(self, name: str, memory: DeviceMemory) -> None:
        """Keeps memory that the server may have: until that is known, or, after `end`, for good."""
        self.give_up(name)
        with self._lock:
            if self._closed:
                _KEPT.append(memory)

    def _forget(self, name: str) -> None:
        self._given_up.discard(name)
        with self._lock:
            memory = self._held.pop(name, None)
        del memory  # Freeing it may block, so not under the lock.

    def _call(self, method: str, request: bytes, timeout: float, metadata: _Metadata = ()) -> None:
        try:
            self._stub(method)(request, timeout, metadata=metadata)
        except grpc.RpcError as error:
            raise from_rpc(error, self._config.target) from None
        except ValueError:  # gRPC's way to say that the channel was closed meanwhile.
            raise ClosedError("client: closed") from None

    def _stub(self, method: str) -> Callable[..., object]:
        with self._lock:
            if self._closed:
                raise ClosedError("client: closed")
            if self._channel is None:
                self._channel = _channel.make(self._config)
            stub: Callable[..., object] = self._channel.unary_unary(
                _protocol.method(method, _SERVICE)
            )
        return stub


# Memory to which an unresponsive server may still write.
_KEPT: list[DeviceMemory] = []
