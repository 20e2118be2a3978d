"""Which calls put tensors into memory that the server has mapped too, and where.

Arrays in a region of the caller's (Client.share) stay where they are. Others are copied into a
region of the pool if the server is on this machine and takes regions, and the size makes it pay.
Errors with regions of the pool are not reported: the call is repeated with messages.
"""

from __future__ import annotations

import functools
import ipaddress
import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from normd import _channel, _control, _request, _response
from normd._pool import Lease, Pool
from normd._request import Options
from normd._response import Received
from normd._sizes import OutputSizes
from normd._tensors import Array, Input, Part, bytes_of
from normd._transport import Call
from normd.errors import (
    Error,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnimplementedError,
)
from normd.shared_memory import SharedRegion, whole_pages

# The input size from which copying into a region pays.
_POOL_FROM_BYTES = 64 << 10
# The pause after a server has refused a region, or a call with one has failed, as it does if
# another server listens at the address.
_PAUSE_S = 30.0
_PAUSE_AFTER_CALL_S = 1.0

AUTO = "auto"
OFF = "off"


class _Room(NamedTuple):
    """The size of a call's tensors in a region of the pool, each in pages of its own."""

    inputs: list[int]
    outputs: dict[str, int]

    @property
    def nbytes(self) -> int:
        return sum(map(whole_pages, [*self.inputs, *self.outputs.values()]))


class _Places(NamedTuple):
    """A call's inputs, with their places in the caller's regions, and its outputs there."""

    inputs: list[Input]
    placed: dict[str, Part | None]  # All wanted outputs; empty: none lies there.
    memory: dict[str, Array]


class Sharing:
    """The memory that one client shares with its server. Thread-safe."""

    def __init__(self, target: str, mode: str, token: str | None, sizes: OutputSizes) -> None:
        """`mode`: "auto", "off", or the server's --shared_memory_listen."""
        if mode not in (AUTO, OFF) and not str(mode).startswith("unix:"):
            raise InvalidArgumentError(
                f'shared_memory: "{mode}", wanted "auto", "off" or unix:///path'
            )
        self._mode = mode
        self._target = target
        self._token = token
        self._address = "" if mode in (AUTO, OFF) else mode
        self._regions: weakref.WeakSet[SharedRegion] = weakref.WeakSet()  # The caller's.
        self._pool = Pool()
        self._pool_from = 0.0 if mode != OFF and is_local(target) else math.inf  # When.
        self._sizes = sizes

    def close(self) -> None:
        """Makes the server release all regions."""
        self._pool_from = math.inf
        self._pool.close()
        for region in list(self._regions):
            region.close()

    async def share(self, call: Call, nbytes: int) -> SharedRegion:
        """Makes a region of the caller's."""
        if self._mode == OFF:
            raise UnimplementedError('shared_memory: "off", wanted "auto" or unix:///path')
        if not is_local(self._target):
            raise UnimplementedError(
                f'shared memory: target: "{self._target}", wanted one server on this machine'
            )
        address = await self._find_address(call)
        if not address:
            raise UnimplementedError(
                "shared memory: the server takes none, wanted its --shared_memory_listen"
            )
        region = await call.run(functools.partial(SharedRegion, address, nbytes, self._token))
        self._regions.add(region)
        return region

    def may_share(self, inputs: Sequence[Input]) -> bool:
        """Whether such a call may have tensors in regions."""
        return bool(self._regions) or self._may_pool(inputs)

    async def normalize(
        self, call: Call, model: str, options: Options, inputs: Sequence[Input], out: object
    ) -> Received:
        """The call, with as many tensors in regions as possible."""
        places = self._find_places(inputs, out)
        placed = places.placed
        received = None
        if not placed and self._may_pool(inputs):
            received = await self._with_pool(call, model, options, places)
        if received is None:
            unnamed = bool(placed) and not options.outputs
            request = _request.encode(model, options, places.inputs, placed, unnamed)
            received = _response.decode(await call.send(request), places.memory)
        return received

    def _find_places(self, inputs: Sequence[Input], out: object) -> _Places:
        """The part of a call that lies in the caller's regions."""
        regions = [region for region in list(self._regions) if not region.closed]
        memory: dict[str, Array] = {}

        def part_of(data: memoryview) -> Part | None:
            for region in regions:
                at = region.find(data)
                if at is not None:
                    memory[region.name] = region.memory
                    return Part(region.name, at, data.nbytes)
            return None

        given = out if isinstance(out, Mapping) else {"": out}
        placed = {name: _place(each, part_of) for name, each in given.items()}
        found = [each._replace(part=part_of(each.data)) for each in inputs]
        return _Places(found, placed if any(placed.values()) else {}, memory)

    def _may_pool(self, inputs: Sequence[Input]) -> bool:
        if self._pool_from == math.inf or _request.total_bytes(inputs) < _POOL_FROM_BYTES:
            return False
        return time.monotonic() >= self._pool_from

    async def _with_pool(
        self, call: Call, model: str, options: Options, places: _Places
    ) -> Received | None:
        """One attempt, with its outputs and the remaining inputs in a region of the pool. None: it
        has to go in messages."""
        room = await self._room(call, model, options, places.inputs)
        lease = None if room is None else await self._lease(call, room)
        if room is None or lease is None:
            return None
        memory = {**places.memory, lease.region.name: lease.memory}
        try:
            request = _fill(lease, room, model, options, places.inputs)
            received = _response.decode(await call.send_once(request), memory)
        except Error as error:
            lease.drop()
            self._forget(model, options)
            if not may_be_the_regions(error):
                await call.pause_after(error)
            return None
        except BaseException:  # The caller is gone, and the server may still compute.
            lease.drop()
            raise
        return received

    async def _room(
        self, call: Call, model: str, options: Options, inputs: Sequence[Input]
    ) -> _Room | None:
        """None if the server takes no regions, or the outputs cannot be computed."""
        try:
            if not await self._find_address(call):
                self._pause()
                return None
            specs = [each.spec for each in inputs]
            outputs = await self._sizes.find(call, model, options, specs)
        except Error:  # From calls that the caller has not made.
            self._pause()
            return None
        return (
            None
            if outputs is None
            else _Room([each.nbytes for each in inputs if each.part is None], outputs)
        )

    async def _lease(self, call: Call, room: _Room) -> Lease | None:
        """A free region, or a new one. None: the server takes no more."""
        lease = self._pool.lease(room.nbytes, None)
        if lease is not None:
            return lease
        make = functools.partial(SharedRegion, self._address, token=self._token)
        try:
            return await call.run(functools.partial(self._pool.lease, room.nbytes, make))
        except Error:
            self._pause()
            return None

    async def _find_address(self, call: Call) -> str:
        if not self._address:
            info = await call.ask(_control.get_server_info())
            self._address = info.shared_memory_listen
        return self._address

    def _forget(self, model: str, options: Options) -> None:
        """After a failure that a new server or version may have caused."""
        self._sizes.forget(model, options)
        self._pool.clear()
        self._pause(_PAUSE_AFTER_CALL_S)

    def _pause(self, seconds: float = _PAUSE_S) -> None:
        self._pool_from = max(self._pool_from, time.monotonic() + seconds)
        if self._mode == AUTO:
            self._address = ""


def is_local(target: str) -> bool:
    """Whether a gRPC target is one address of this machine, by its text."""
    if target.startswith("unix:"):
        return True
    host, _ = _channel.host_and_port(target)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _fill(
    lease: Lease, room: _Room, model: str, options: Options, inputs: Sequence[Input]
) -> list[bytes | memoryview]:
    """The request, with its inputs copied into the region."""
    name = lease.region.name
    at = 0
    found = []
    for each in inputs:
        if each.part is not None:
            found.append(each)
            continue
        end = at + each.data.nbytes
        np.copyto(lease.memory[at:end], np.frombuffer(each.data, np.uint8))
        found.append(each._replace(part=Part(name, at, each.data.nbytes)))
        at += whole_pages(each.data.nbytes)
    placed: dict[str, Part | None] = {}
    for output, nbytes in room.outputs.items():
        placed[output] = Part(name, at, nbytes)
        at += whole_pages(nbytes)
    return _request.encode(model, options, found, placed, unnamed_outputs=not options.outputs)


def may_be_the_regions(error: Error) -> bool:
    """Whether the same call with messages may succeed at once."""
    kinds = (NotFoundError, InvalidArgumentError, FailedPreconditionError, UnimplementedError)
    return isinstance(error, kinds) or error.code.name == "OUT_OF_RANGE"


def _place(value: object, part_of: Callable[[memoryview], Part | None]) -> Part | None:
    """The place in which the server writes an array of `out`, if it can."""
    if not isinstance(value, np.ndarray) or not value.flags.c_contiguous:
        return None
    return part_of(bytes_of(value)) if value.flags.writeable else None
