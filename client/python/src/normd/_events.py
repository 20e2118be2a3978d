"""Events of CUDA devices that a server may open too."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from typing import Any

# After so long the server has let go of a call that was given up.
_GIVEN_UP_S = 60.0


class SharedEvents:
    """The process's events, each of one call at a time. Thread-safe.

    They are used again and never destroyed. The driver may give the handle of a destroyed event to
    a new one, and a server that still has the old one open would ask that, and read inputs too
    early.

    Every step is one of a deque's or a dict's, so finalizers may call this at any time.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        """`make` makes an event, which becomes one of the device on which it is first recorded."""
        self._make = make
        self._free: dict[int, collections.deque[Any]] = {}  # By device.
        # Of calls that were given up: since when, the device, the event.
        self._given_up: collections.deque[tuple[float, int, Any]] = collections.deque()

    def take(self, device: int) -> Any:
        """A free one, or a new one. RuntimeError where none can be made."""
        self._end_given_up()
        try:
            return self._of(device).pop()
        except IndexError:
            return self._make()

    def give_back(self, device: int, event: Any) -> None:
        """The call has ended, and the server does not ask for the event any more."""
        self._of(device).append(event)

    def give_up(self, device: int, event: Any) -> None:
        """The call has ended here, but the server may ask for the event a while longer."""
        self._given_up.append((time.monotonic(), device, event))

    def _of(self, device: int) -> collections.deque[Any]:
        return self._free.setdefault(device, collections.deque())

    def _end_given_up(self) -> None:
        """Frees those that were given up long ago."""
        until = time.monotonic() - _GIVEN_UP_S
        while True:
            try:
                oldest = self._given_up.popleft()
            except IndexError:
                return
            if oldest[0] > until:
                self._given_up.appendleft(oldest)
                return
            self.give_back(*oldest[1:])
