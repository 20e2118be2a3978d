"""Regions for calls whose arrays are in none: one per call, reused by later calls."""

from __future__ import annotations

import collections
import os
import weakref
from collections.abc import Callable

import numpy as np

from normd._tensors import Array, bytes_of
from normd.shared_memory import SharedRegion

# Per client, including those of results that are still referenced.
_MAX_REGIONS = 64
_MAX_BYTES = 1 << 30
_MIN_BYTES = 128 << 10
# Regions of one size that wait for their next call.
_IDLE = 2


class Lease:
    """One call's region. It is free again when nothing refers to `memory` any more."""

    def __init__(self, region: SharedRegion, memory: Array, end: weakref.finalize) -> None:  # type: ignore[type-arg]
        self.region = region
        self.memory = memory
        self._end = end

    def drop(self) -> None:
        """Drops it for good, because the server may still write to it."""
        self._end.detach()
        self.region.close()


class Pool:
    """Thread-safe."""

    def __init__(self) -> None:
        self._free: dict[int, collections.deque[SharedRegion]] = {}
        self._all: weakref.WeakSet[SharedRegion] = weakref.WeakSet()
        _POOLS.add(self)

    def lease(self, nbytes: int, make: Callable[[int], SharedRegion] | None) -> Lease | None:
        """A region of at least `size` bytes, from `make` if none is free.

        None if there would be too many, or if none is free and there is no `make`.
        """
        size = max(_MIN_BYTES, 1 << (nbytes - 1).bit_length())
        free = self._free.setdefault(size, collections.deque(maxlen=_IDLE))
        try:
            region = free.pop()
        except IndexError:
            if make is None or not self._has_room(size):
                return None
            region = make(size)
            self._all.add(region)
        # Each lease has its own array: results are views of it, and keep it alive. Finalizers run
        # in any thread at any time, so they do only one step.
        memory: Array = np.frombuffer(bytes_of(region.memory), np.uint8)
        return Lease(region, memory, weakref.finalize(memory, free.append, region))

    def clear(self) -> None:
        """Drops the free regions."""
        for free in list(self._free.values()):
            free.clear()

    def forget(self) -> None:
        """Leases none of its regions again: those in use return to lists that nothing reads."""
        self._free = {}

    def close(self) -> None:
        """Makes the server release all regions."""
        self.clear()
        for region in list(self._all):
            region.close()

    def _has_room(self, size: int) -> bool:
        if self._fits(size):
            return True
        self.clear()
        return self._fits(size)

    def _fits(self, size: int) -> bool:
        sizes = [region.nbytes for region in list(self._all)]
        return len(sizes) < _MAX_REGIONS and sum(sizes) + size <= _MAX_BYTES


_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()


def _forget_all() -> None:
    for pool in list(_POOLS):
        pool.forget()


# Either process may hold a result that the other has dropped. Other threads may call in between.
os.register_at_fork(before=_forget_all, after_in_parent=_forget_all, after_in_child=_forget_all)
