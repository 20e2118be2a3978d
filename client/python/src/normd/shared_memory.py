"""Memory that a client shares with a server on the same machine.

Tensors in it are not sent: a request names the region, and the server reads and writes there
(docs/shared_memory.md of the project, which also describes the packets).
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import socket
import struct
import threading
import weakref
from collections.abc import Iterable
from operator import index
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from normd import _dtypes
from normd._closing import Closing
from normd.errors import (
    InvalidArgumentError,
    ProtocolError,
    UnavailableError,
    UnimplementedError,
    from_code,
)

PAGE_BYTES = 4096

_MAGIC = b"NRM1"
_HEAD = struct.Struct("<4sIQ")
_REGISTER = 1
_MAX_PACKET_BYTES = 5000
# The server replies within two seconds (docs/shared_memory.md), unless it hangs.
_REPLY_TIMEOUT_S = 5.0


class Places:
    """The places of a region's tensors, each from the next whole page on. Thread-safe."""

    def __init__(self, nbytes: int) -> None:
        """In a region of so many bytes."""
        self._nbytes = nbytes
        self._lock = threading.Lock()
        self._end = 0  # The end of the tensors so far; guarded by the lock.

    def take(
        self, shape: int | tuple[int, ...], itemsize: int, offset: int | None
    ) -> tuple[tuple[int, ...], int]:
        """The sizes of a tensor and its begin, which may be given. InvalidArgumentError names what
        does not fit."""
        try:
            sizes = tuple(map(index, shape if isinstance(shape, Iterable) else (shape,)))
            begin = None if offset is None else index(offset)
        except TypeError:
            raise InvalidArgumentError(
                f"shape, offset: {shape!r}, {offset!r}, wanted an int or several, and an int"
            ) from None
        if any(size < 0 for size in sizes):
            raise InvalidArgumentError(f"shape: {list(sizes)}, wanted no negative size")
        nbytes = math.prod(sizes) * itemsize
        with self._lock:
            begin = whole_pages(self._end) if begin is None else begin
            if begin < 0 or begin % itemsize:
                raise InvalidArgumentError(
                    f"offset: {begin}, wanted a multiple of {itemsize} from 0 on"
                )
            if begin + nbytes > self._nbytes:
                raise InvalidArgumentError(
                    f"shape: {nbytes} bytes from {begin} on, wanted a part of the region's "
                    f"{self._nbytes}"
                )
            self._end = max(self._end, begin + nbytes)
        return sizes, begin


class SharedRegion(Closing):
    """Zeroed memory of this process that a server has mapped too. Made by `Client.share`.

    Arrays in it can be inputs, and `out`, of that client's calls, and are then neither sent nor
    received, nor copied. So can PyTorch tensors over them (torch.from_numpy). Views with other
    strides are copied like other arrays.

    The server has it until `close`, or until the process ends in any way. Its arrays stay valid, as
    memory of this process alone. In a forked child it is closed, and its arrays are the parent's
    memory too. Thread-safe except for its bytes, which must not change while a call uses them.
    """

    def __init__(self, address: str, nbytes: int, token: str | None = None) -> None:
        """Makes the memory and passes it to the server at `address`, its --shared_memory_listen.

        Raises:
          InvalidArgumentError: an invalid address, or 0 bytes.
          UnavailableError: nobody listens there.
          UnimplementedError: this system has no memory that can be sealed.
          Error: the server's, such as ResourceExhaustedError.
        """
        if not isinstance(nbytes, int) or nbytes <= 0:
            raise InvalidArgumentError(f"nbytes: {nbytes!r}, wanted an int of at least 1")
        self._places = Places(nbytes)
        self._socket, self._name, memory = _make(address, nbytes, token)
        self._memory: npt.NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
        self._begin = int(self._memory.__array_interface__["data"][0])
        _REGIONS.add(self)

    def __repr__(self) -> str:
        return f"<normd.SharedRegion of {self.nbytes} bytes{', closed' if self.closed else ''}>"

    def __del__(self) -> None:
        held = getattr(self, "_socket", None)  # Missing if the constructor raised.
        if held is not None:
            held.close()

    @property
    def name(self) -> str:
        """The name that the server chose."""
        return self._name

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self._memory.nbytes

    @property
    def closed(self) -> bool:
        """Whether the server has released it."""
        return self._socket.fileno() < 0

    @property
    def memory(self) -> npt.NDArray[np.uint8]:
        """The whole region."""
        return self._memory

    def array(
        self,
        shape: int | tuple[int, ...],
        dtype: npt.DTypeLike = np.float32,
        *,
        offset: int | None = None,
    ) -> npt.NDArray[Any]:
        """A C-contiguous array in the region; unused memory is zero.

        Args:
          shape, dtype: as in numpy.empty; one of the types that calls take or return.
          offset: its begin in bytes, a multiple of the element's size; None: the next whole page
            after all arrays made so far.

        Raises:
          InvalidArgumentError: it does not fit, or has another type.
        """
        try:
            of_array = np.dtype(dtype)
        except (TypeError, ValueError, SyntaxError):  # SyntaxError: of a text such as "f4,(".
            raise InvalidArgumentError(f"dtype: {dtype!r}, wanted {_dtypes.WANTED}") from None
        _dtypes.of_numpy(of_array, "")
        sizes, begin = self._places.take(shape, of_array.itemsize, offset)
        array: npt.NDArray[Any] = np.ndarray(sizes, of_array, self._memory, begin)
        return array

    def find(self, data: memoryview) -> int | None:
        """The bytes' begin in the region; None: they are elsewhere, or it is closed."""
        if self.closed or not data.nbytes:
            return None
        at = int(np.frombuffer(data, np.uint8).__array_interface__["data"][0]) - self._begin
        return at if 0 <= at <= self.nbytes - data.nbytes else None

    def close(self) -> None:
        """Makes the server release it once no call uses it. May be called again."""
        self._socket.close()


_REGIONS: weakref.WeakSet[SharedRegion] = weakref.WeakSet()


def _close_all() -> None:
    for region in list(_REGIONS):
        region.close()


# A copy of the socket would keep the parent's regions with the server, and share their bytes.
os.register_at_fork(after_in_child=_close_all)


def whole_pages(nbytes: int) -> int:
    """`size` bytes in whole pages."""
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES


def _make(address: str, nbytes: int, token: str | None) -> tuple[socket.socket, str, mmap.mmap]:
    if not hasattr(os, "memfd_create"):
        raise UnimplementedError("shared memory: no memfd_create here, wanted Linux")
    connection = _connect(address)
    try:
        fd = os.memfd_create("normd_client", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            name = _register(connection, fd, token)
            return connection, name, mmap.mmap(fd, nbytes)
        finally:
            os.close(fd)
    except OSError as error:
        connection.close()
        raise UnavailableError(f"shared memory: {address}: {error}") from error
    except BaseException:
        connection.close()
        raise


def _connect(address: str) -> socket.socket:
    path = address.removeprefix("unix:").removeprefix("//")
    if not address.startswith("unix:") or not path.startswith("/"):
        raise InvalidArgumentError(f'address: "{address}", wanted unix:///path')
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(_REPLY_TIMEOUT_S)
    try:
        connection.connect(path)
    except OSError as error:
        connection.close()
        raise UnavailableError(f"shared memory: {address}: {error}") from error
    return connection


def _register(connection: socket.socket, fd: int, token: str | None) -> str:
    """The server's name for the region."""
    text = b"" if token is None else f"Bearer {token}".encode()
    socket.send_fds(connection, [_HEAD.pack(_MAGIC, _REGISTER, 0) + text], [fd])
    reply = connection.recv(_MAX_PACKET_BYTES)
    if not reply:
        raise UnavailableError("shared memory: the server has ended the connection")
    if len(reply) < _HEAD.size:
        raise ProtocolError(f"shared memory: a reply of {len(reply)} bytes, wanted {_HEAD.size}")
    magic, code, _ = _HEAD.unpack_from(reply)
    if magic != _MAGIC:
        raise ProtocolError("shared memory: the reply of another program")
    told = reply[_HEAD.size :].decode(errors="replace")
    if code != grpc.StatusCode.OK.value[0]:
        raise from_code(code, f"shared memory: {told}")
    return told
