"""The limit of the bytes that an asyncio client has in flight."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator

from normd.errors import DeadlineExceededError

MAX_BYTES = 256 << 20


class Gate:
    """Lets messages pass in turn, while those that have passed and not ended have at most
    `MAX_BYTES`; a larger one passes alone. gRPC holds several copies of each. Belongs to an event
    loop."""

    def __init__(self) -> None:
        self._free = MAX_BYTES
        self._waiting: collections.deque[tuple[int, asyncio.Future[None]]] = collections.deque()

    @contextlib.asynccontextmanager
    async def passed(self, nbytes: int, timeout: float | None) -> AsyncIterator[None]:
        """While a message of these bytes is in flight. DeadlineExceededError after `timeout`."""
        nbytes = min(nbytes, MAX_BYTES)
        if nbytes and (self._waiting or nbytes > self._free):
            await self._wait(nbytes, timeout)
        else:
            self._free -= nbytes
        try:
            yield
        finally:
            self._leave(nbytes)

    async def _wait(self, nbytes: int, timeout: float | None) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((nbytes, turn))
        try:
            await asyncio.wait_for(turn, timeout)
        except BaseException as error:
            if turn.cancelled():
                self._leave(0)  # Those behind it may fit.
            elif turn.done():  # Its turn came just before it was given up.
                self._leave(nbytes)
            if isinstance(error, asyncio.TimeoutError):
                raise DeadlineExceededError(
                    f"timeout: passed while the client had {MAX_BYTES - self._free} bytes in "
                    f"flight, of {MAX_BYTES} at most"
                ) from None
            raise

    def _leave(self, nbytes: int) -> None:
        self._free += nbytes
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= self._free):
            nbytes, turn = self._waiting.popleft()
            if not turn.done():
                self._free -= nbytes
                turn.set_result(None)
