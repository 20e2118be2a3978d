"""Memory of a CUDA device that a client shares with a server on the same machine.

The server's kernels read and write it in place (docs/shared_memory.md of the project).
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from normd import _cuda, _torch
from normd._closing import Closing
from normd._cuda import DeviceMemory
from normd._registrar import Registrar
from normd.shared_memory import Places


class DeviceRegion(Closing):
    """Zeroed memory of a CUDA device that a server has opened too. Made by `Client.share`.

    PyTorch tensors in it can be inputs, and `out`, of that client's calls, without any copy.
    Others, and those with other strides, are copied into the client's own memory on the device.

    A call reads its inputs after the work that PyTorch's current stream of the device had before
    the call; the caller has to wait for work on other streams. The client waits for that work
    before it sends the request. When a call returns, its result is complete. The server has the
    memory until `close`; its tensors stay valid, as memory of this process alone. Thread-safe
    except for its bytes, which must not change while a call uses them.
    """

    def __init__(self, registrar: Registrar, memory: DeviceMemory, name: str, flat: Any) -> None:
        self._registrar = registrar
        self._memory = memory
        self._name = name
        self._places = Places(memory.nbytes)
        self._flat = flat
        # The registrar holds the memory until the server has released it.
        self._given_up = weakref.finalize(self, registrar.give_up, name)
        self._given_up.atexit = False

    def __repr__(self) -> str:
        closed = ", closed" if self.closed else ""
        return f"<normd.DeviceRegion of {self.nbytes} bytes on cuda:{self.device}{closed}>"

    @property
    def name(self) -> str:
        """The registered name."""
        return self._name

    @property
    def nbytes(self) -> int:
        """The requested size, rounded up to blocks of 2 MiB."""
        return self._memory.nbytes

    @property
    def device(self) -> int:
        """The device's number in PyTorch."""
        return self._memory.device

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return not self._given_up.alive

    @property
    def bytes(self) -> Any:
        """The whole region: a tensor of uint8."""
        return self._flat

    def tensor(
        self, shape: int | tuple[int, ...], dtype: Any = None, *, offset: int | None = None
    ) -> Any:
        """A contiguous PyTorch tensor in the region; unused memory is zero.

        Args:
          shape, dtype: as in torch.empty; one of the types that calls take or return, float32 by
            default.
          offset: its begin in bytes, a multiple of the element's size; None: the next whole page
            after all tensors made so far.

        Raises:
          InvalidArgumentError: it does not fit, or has another type.
        """
        torch: Any = sys.modules["torch"]
        of_tensor = _torch.data_type(torch.float32 if dtype is None else dtype, "")
        sizes, begin = self._places.take(shape, of_tensor.itemsize, offset)
        with torch.inference_mode(False):  # For calls in inference mode and others.
            return _cuda.view(self._flat, begin, sizes, of_tensor)

    def find(self, tensor: Any) -> int | None:
        """A tensor's begin in the region; None: it is elsewhere, or the region is closed."""
        if self.closed or not tensor.is_contiguous() or not tensor.numel():
            return None
        at = int(tensor.data_ptr()) - self._memory.address
        nbytes = int(tensor.numel() * tensor.element_size())
        return at if 0 <= at <= self.nbytes - nbytes else None

    def give_up(self) -> None:
        """Like `close`, but without waiting: the client unregisters the region later."""
        self._given_up()

    def close(self) -> None:
        """Makes the server release the region, when the calls that use it have ended. Waits for its
        reply.

        May be called again. If a server does not release it now, because it hangs for example, the
        client asks again when it is closed.
        """
        if self._given_up.alive:
            self.give_up()
            self._registrar.sweep()
