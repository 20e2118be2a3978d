"""Which calls leave tensors on a CUDA device that the server computes on too, and how.

Tensors in a region of the caller's (Client.share with a device) stay where they are. Others are
copied on the device: inputs into the client's own memory, which the server has opened, and results
out of it. So the server sees only the tensors of calls, and PyTorch's memory stays private. If any
of this fails, the call goes through host memory.

The server does not know streams. Inputs are copied on the caller's current stream, and the request
is sent when that is done. Results are copied on the same stream; an event after them delays the
next call that uses the memory.
"""

from __future__ import annotations

import functools
import logging
import re
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

from normd import _control, _cuda, _request, _response
from normd._channel import ChannelConfig
from normd._cuda import BLOCK_BYTES, DeviceMemory
from normd._device_plan import Plan, Slot
from normd._registrar import Registrar
from normd._request import Options
from normd._response import Received
from normd._sharing import AUTO, OFF, is_local, may_be_the_regions
from normd._sizes import OutputSizes
from normd._tensors import Input
from normd._transport import Call, Message
from normd.device_memory import DeviceRegion
from normd.errors import (
    Error,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnimplementedError,
)

REQUIRE = "require"

# The same as for host memory: _sharing.py.
_FROM_BYTES = 64 << 10
_PAUSE_S = 30.0
_PAUSE_AFTER_CALL_S = 1.0

# Per client, on all devices together.
_MAX_REGIONS = 64
_MAX_BYTES = 1 << 30

_LOG = logging.getLogger("normd")


class _Elsewhere(Exception):  # noqa: N818 The call goes another way.
    """Why a call cannot leave its tensors on their device."""

    def __init__(self, error: Error, pause: float = 0.0, quiet: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.pause = pause
        self.quiet = quiet  # The reason is normal, or has been logged.


class DevicePlane:
    """Device memory that one client shares with its server. Thread-safe."""

    def __init__(self, config: ChannelConfig, mode: str, sizes: OutputSizes) -> None:
        """`mode`: "auto", "off" or "require"."""
        if mode not in (AUTO, OFF, REQUIRE):
            raise InvalidArgumentError(
                f'device_memory: "{mode}", wanted "auto", "off" or "require"'
            )
        self._mode = mode
        self._target = config.target
        self._is_local = is_local(config.target)
        self._sizes = sizes
        self._registrar = Registrar(config)
        self._regions: weakref.WeakSet[DeviceRegion] = weakref.WeakSet()  # The caller's.
        self._lock = threading.Lock()
        self._free: list[Slot] = []  # Guarded by the lock.
        self._taken = 0  # Bytes of all slots; guarded by the lock.
        self._slots = 0  # Guarded by the lock.
        self._server_devices: tuple[int, ...] = ()  # The server's numbers; empty: not known.
        self._numbers: dict[int, int] = {}  # From this process's numbers to the server's.
        self._from = 0.0  # The time from which slots are tried again.
        # Also runs at the end of the process: a server keeps memory that nobody unregisters.
        self._end = weakref.finalize(self, self._registrar.end)

    def close(self) -> None:
        """Makes the server release all regions."""
        for region in list(self._regions):
            region.give_up()
        with self._lock:
            self._free.clear()
        self._end()

    async def share(self, call: Call, nbytes: int, device: object) -> DeviceRegion:
        """Makes a region of the caller's."""
        number = _device_number(device)
        if not isinstance(nbytes, int) or nbytes <= 0:
            raise InvalidArgumentError(f"nbytes: {nbytes!r}, wanted an int of at least 1")
        try:
            await self._find_server_devices(call)
            region = await call.run(functools.partial(self._new_region, number, nbytes))
        except _Elsewhere as why:
            raise why.error from None
        self._regions.add(region)
        return region

    def may_take(self, inputs: Sequence[Input]) -> bool:
        """Whether such a call may leave its tensors on their device."""
        if self._mode == OFF or not any(each.tensor is not None for each in inputs):
            return False
        if not all(each.nbytes for each in inputs):  # A region has no part without bytes.
            return False
        if self._mode == REQUIRE or self._regions:
            return True
        return self._is_local and self._may_copy(inputs)

    async def normalize(
        self, call: Call, model: str, options: Options, inputs: Sequence[Input], out: object
    ) -> Received | None:
        """The call, with its outputs made. None: it has to go through host memory."""
        try:
            return await self._on_device(call, model, options, inputs, out)
        except _Elsewhere as why:
            if self._mode == REQUIRE:
                raise why.error from None
            if why.pause:
                self._from = time.monotonic() + why.pause
            if not why.quiet:
                # Logged as text: keeping the error would keep its frames, and with them the memory.
                _LOG.info("CUDA tensors go through the host's memory: %s", str(why.error))
            return None

    def _may_copy(self, inputs: Sequence[Input]) -> bool:
        if self._mode == REQUIRE:
            return True
        large = _request.total_bytes(inputs) >= _FROM_BYTES
        return large and time.monotonic() >= self._from

    async def _on_device(
        self, call: Call, model: str, options: Options, inputs: Sequence[Input], out: object
    ) -> Received:
        tensors = (each.tensor for each in inputs if each.tensor is not None)
        device = _cuda.CUDA.device_of(next(tensors))
        assert device is not None  # Otherwise it would have been copied to the host.
        stream = _cuda.CUDA.stream(device)
        regions = [each for each in list(self._regions) if each.device == device]
        plan = Plan(inputs, out, regions)
        slot = None
        outputs: dict[str, int] = {}
        if not plan.in_place:
            if not self._may_copy(inputs):
                error = UnimplementedError("device_memory: too little to copy, or paused")
                raise _Elsewhere(error, quiet=True)
            outputs = await self._outputs(call, plan, model, options)
            slot = await self._slot(call, device, plan.nbytes(outputs))
        try:
            with _cuda.CUDA.on(stream):
                if slot is not None:
                    if slot.busy is not None:
                        stream.wait_event(slot.busy)
                    plan.lay_out(slot, outputs)
                request = plan.request(model, options)
            # The server may read the inputs now.
            await call.run(_cuda.CUDA.record(stream).synchronize)
            received = await self._send(call, plan, request, model, options)
            with _cuda.CUDA.on(stream):
                made = received.outputs(inputs, out)
            if slot is not None:
                slot.busy = _cuda.CUDA.record(stream)
        except BaseException:  # Any kind: the server may still write there.
            self._drop(slot)
            raise
        self._give_back(slot)
        return received._replace(made=made)

    async def _send(
        self, call: Call, plan: Plan, request: Message, model: str, options: Options
    ) -> Received:
        while True:
            try:
                return _response.decode(await call.send_once(request), plan.memory)
            except Error as error:
                if isinstance(error, ResourceExhaustedError):  # The call has not been begun.
                    await call.pause_after(error)
                    continue
                self._sizes.forget(model, options)
                # Otherwise the call is wrong, and the next attempt says so.
                if may_be_the_regions(error):
                    if isinstance(error, NotFoundError):  # The server was restarted.
                        self._forget_server()
                    raise _Elsewhere(error, _PAUSE_AFTER_CALL_S) from None
                if plan.overwrites:
                    raise
                await call.pause_after(error)
                raise _Elsewhere(error, _PAUSE_AFTER_CALL_S) from None

    async def _outputs(
        self, call: Call, plan: Plan, model: str, options: Options
    ) -> dict[str, int]:
        """The bytes of the outputs that go to a slot."""
        await self._find_server_devices(call)
        specs = [each.spec for each in plan.inputs]
        try:
            sizes = await self._sizes.find(call, model, options, specs)
        except Error as error:
            raise _Elsewhere(error, _PAUSE_S) from None
        if sizes is None:
            raise _Elsewhere(
                InvalidArgumentError(f'inputs: not those of model "{model}", wanted its inputs')
            )
        if plan.placed.get(""):  # The only output.
            return {}
        plan.placed.pop("", None)
        return {name: size for name, size in sizes.items() if not plan.placed.get(name)}

    async def _find_server_devices(self, call: Call) -> None:
        if self._mode == OFF:
            raise _Elsewhere(UnimplementedError('device_memory: "off", wanted "auto"'))
        if not self._is_local:
            raise _Elsewhere(
                UnimplementedError(
                    f'device memory: target: "{self._target}", wanted one server on this machine'
                )
            )
        if self._server_devices:
            return
        try:
            info = await call.ask(_control.get_server_info())
        except Error as error:
            raise _Elsewhere(error, _PAUSE_S) from None
        found = [re.match(r"cuda:(\d+)", lane) for lane in info.lanes]
        self._server_devices = tuple(sorted({int(each[1]) for each in found if each}))
        if not self._server_devices:
            lanes = ", ".join(info.lanes)
            raise _Elsewhere(
                UnimplementedError(f"device memory: the server's lanes: {lanes}, wanted cuda:0"),
                _PAUSE_S,
            )

    async def _slot(self, call: Call, device: int, nbytes: int) -> Slot:
        """A free slot, or a new one."""
        size = max(BLOCK_BYTES, 1 << (nbytes - 1).bit_length())
        while True:
            with self._lock:
                for slot in self._free:
                    if slot.memory.device == device and slot.memory.nbytes == size:
                        self._free.remove(slot)
                        return slot
            # It is free until a call takes it: if the call is cancelled meanwhile, it stays free.
            await call.run(functools.partial(self._new_slot, device, size))

    def _new_slot(self, device: int, size: int) -> None:
        self._make_room(size)
        try:
            slot = Slot(*self._make(device, size))
        except BaseException:
            self._count(-size)
            raise
        with self._lock:
            self._free.append(slot)

    def _new_region(self, device: int, nbytes: int) -> DeviceRegion:
        return DeviceRegion(self._registrar, *self._make(device, nbytes))

    def _make_room(self, size: int) -> None:
        """Counts a slot of this size, which may replace free ones."""
        while True:
            with self._lock:
                held = self._taken + self._registrar.given_up_bytes()
                if self._slots < _MAX_REGIONS and held + size <= _MAX_BYTES:
                    self._taken += size
                    self._slots += 1
                    return
                slot = self._free.pop(0) if self._free else None
            if slot is None:
                raise _Elsewhere(
                    ResourceExhaustedError(
                        f"device memory: {size} bytes more than {held} in {self._slots} regions, "
                        f"wanted at most {_MAX_BYTES} in {_MAX_REGIONS}: Client.share has no limit"
                    )
                )
            self._drop(slot)
            del slot  # The sweep tells the server to release its memory.
            self._registrar.sweep()

    def _make(self, device: int, nbytes: int) -> tuple[DeviceMemory, str, Any]:
        """Device memory, the name under which the server has opened it, and a tensor of its bytes.
        Blocks."""
        self._registrar.sweep()
        size = -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES
        try:
            memory = DeviceMemory(_cuda.CUDA.driver(), device, size)
            flat = _cuda.bytes_over(memory)
            return memory, self._register(memory), flat
        except Error as error:
            raise _Elsewhere(error, _PAUSE_S) from None

    def _register(self, memory: DeviceMemory) -> str:
        """Uses the device's number in the server, which may see other devices."""
        first: Error | None = None
        known = self._numbers.get(memory.device)
        numbers = [memory.device if known is None else known, *self._server_devices]
        for number in dict.fromkeys(numbers):
            try:
                name = self._registrar.register(memory, number)
            except InvalidArgumentError as error:
                first = first or error
            else:
                self._numbers[memory.device] = number
                return name
        self._server_devices = ()
        raise first or UnimplementedError("device memory: the server has no such device")

    def _give_back(self, slot: Slot | None) -> None:
        if slot is None:
            return
        with self._lock:
            if self._end.alive:
                self._free.append(slot)

    def _drop(self, slot: Slot | None) -> None:
        if slot is not None:
            self._registrar.give_up(slot.name)
            self._count(-slot.memory.nbytes)

    def _forget_server(self) -> None:
        """Another server may have replaced it, which has opened none of the slots."""
        self._server_devices = ()
        with self._lock:
            free = list(self._free)
            self._free.clear()
        for slot in free:
            self._drop(slot)

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self._taken += nbytes
            self._slots += 1 if nbytes > 0 else -1


def _device_number(device: object) -> int:
    if "torch" not in sys.modules:
        raise InvalidArgumentError(f"device: {device!r}, wanted PyTorch to be imported")
    try:
        return _cuda.CUDA.device_number(device)
    except (RuntimeError, TypeError, ValueError):
        raise InvalidArgumentError(f"device: {device!r}, wanted a CUDA device") from None
