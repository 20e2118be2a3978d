"""CUDA memory that another process may open, and PyTorch's tensors over it.

The memory comes from the driver, not from PyTorch. A handle of PyTorch's allocator would open a
whole segment to the server, with any other tensors in it. The segment might be given back to the
driver while the server has it open, which CUDA leaves undefined; expandable segments have no
handle; and memory that `_share_cuda_` has shared is kept until a PyTorch in the other process
releases it.

The driver's library is present wherever a tensor lies on a device, and its functions keep their
names. The runtime's library has another name in each release of PyTorch.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from normd import _torch
from normd._dtypes import DataType
from normd.errors import UnavailableError

HANDLE_BYTES = 64
# The driver puts smaller allocations together into blocks of this size, which a handle opens whole.
BLOCK_BYTES = 2 << 20


class Allocation(NamedTuple):
    """A block of the driver's memory."""

    address: int
    handle: bytes  # The bytes of a CUipcMemHandle.


class _Handle(ctypes.Structure):
    """A CUipcMemHandle, which is passed by its address."""

    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class Driver:
    """The calls of the driver. Thread-safe; each uses the device's primary context, as PyTorch."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        """UnavailableError if there is no driver."""
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise UnavailableError(f"CUDA: {error}") from None
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._lock = threading.RLock()  # For the contexts; finalizers free memory at any time.
        self._call("cuInit", ctypes.c_uint(0))

    def allocate(self, device: int, nbytes: int) -> Allocation:
        """Zeroed memory. UnavailableError if there is none, or it cannot be shared."""
        address = ctypes.c_uint64()
        with self._in_context(device):
            self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
            try:
                self._call("cuMemsetD8_v2", address, ctypes.c_ubyte(0), ctypes.c_size_t(nbytes))
                self._call("cuCtxSynchronize")
                handle = _Handle()
                self._call("cuIpcGetMemHandle", ctypes.byref(handle), address)
            except UnavailableError:
                self._call("cuMemFree_v2", address)
                raise
        return Allocation(address.value, bytes(handle))

    def free(self, device: int, address: int) -> None:
        """Frees it once nothing on the device uses it."""
        with contextlib.suppress(UnavailableError), self._in_context(device):
            self._call("cuMemFree_v2", ctypes.c_uint64(address))

    @contextlib.contextmanager
    def _in_context(self, device: int) -> Iterator[None]:
        with self._lock:
            if device not in self._contexts:
                ordinal, made = ctypes.c_int(), ctypes.c_void_p()
                self._call("cuDeviceGet", ctypes.byref(ordinal), ctypes.c_int(device))
                self._call("cuDevicePrimaryCtxRetain", ctypes.byref(made), ordinal)
                self._contexts[device] = made
            context = self._contexts[device]
        self._call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _call(self, name: str, *arguments: Any) -> None:
        code = int(getattr(self._library, name)(*arguments))
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
            told = (text.value or str(code).encode()).decode()
            raise UnavailableError(f"CUDA: {name}: {told}")


class DeviceMemory:
    """Device memory that is freed when nothing refers to it any more; tensors over it do.

    It stays referenced while another process has it open.
    """

    def __init__(self, driver: Driver, device: int, nbytes: int) -> None:
        allocation = driver.allocate(device, nbytes)
        self.device = device
        self.nbytes = nbytes
        self.address = allocation.address
        self.handle = allocation.handle
        # PyTorch and others take this object for an array, which then holds it.
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (allocation.address, False),
            "strides": None,
            "version": 3,
        }
        end = weakref.finalize(self, driver.free, device, allocation.address)
        end.atexit = False  # The end of the process frees it.


class Cuda:
    """The operations of PyTorch's CUDA that calls need. Tests without a device replace it."""

    def driver(self) -> Driver:
        """The process's only instance. UnavailableError if there is none."""
        return _driver()

    def device_of(self, tensor: Any) -> int | None:
        """The number of a tensor's device; None if it is not on one."""
        return tensor.device.index if tensor.device.type == "cuda" else None

    def device_number(self, device: object) -> int:
        """The device of any argument of torch.device; without a number PyTorch's current one."""
        torch: Any = sys.modules["torch"]
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if found.type != "cuda":
            raise ValueError(str(found))
        return int(torch.cuda.current_device() if found.index is None else found.index)

    def over(self, memory: DeviceMemory) -> Any:
        """A tensor of the memory's bytes, which holds it."""
        torch: Any = sys.modules["torch"]
        with torch.cuda.device(memory.device):
            return torch.as_tensor(memory, device=torch.device("cuda", memory.device))

    def stream(self, device: int) -> Any:
        """The calling thread's current stream."""
        return sys.modules["torch"].cuda.current_stream(device)

    def on(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """A context in which it is the current stream."""
        context: contextlib.AbstractContextManager[Any] = sys.modules["torch"].cuda.stream(stream)
        return context

    def record(self, stream: Any) -> Any:
        """An event after the work on the stream so far."""
        return stream.record_event()


def bytes_over(memory: DeviceMemory) -> Any:
    """A tensor of the memory's bytes, for calls in inference mode and others."""
    with sys.modules["torch"].inference_mode(False):
        return CUDA.over(memory)


def view(flat: Any, at: int, shape: tuple[int, ...], dtype: DataType) -> Any:
    """A tensor in another's bytes, from `at` on."""
    end = at + math.prod(shape) * dtype.itemsize
    return flat[at:end].view(_torch.type_of(dtype)).view(shape)


def record_all(*groups: object) -> list[Any]:
    """Events after the work on the devices of these tensors. Each value is a tensor, a mapping of
    names to tensors, or something else."""
    values = [each for group in groups for each in _each_of(group)]
    devices = {CUDA.device_of(each) for each in values if _torch.is_tensor(each)}
    return [CUDA.record(CUDA.stream(each)) for each in devices if each is not None]


def _each_of(group: object) -> list[object]:
    return list(group.values()) if isinstance(group, Mapping) else [group]


@functools.lru_cache(maxsize=1)
def _driver() -> Driver:
    return Driver()


CUDA = Cuda()
