"""What a call of several parts asks its client to do: the same for both, which wait differently."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from normd._control import ControlCall


@dataclass(frozen=True)
class Send:
    """A Normalize call; the result is its response."""

    request: list[bytes | memoryview]
    repeatable: bool = True  # Whether the client's policy may retry it.


@dataclass(frozen=True)
class Pause:
    """Some time until the next step."""

    seconds: float


Result = TypeVar("Result")
# A function is work that may block.
Step = ControlCall[Any] | Send | Pause | Callable[[], Any]
# Yields steps, is sent their results, or their errors thrown, and returns what it is for.
Steps = Generator[Step, Any, Result]


def follow(steps: Steps[Result], do: Callable[[Step], Any]) -> Result:
    """Does each, and returns what they return."""
    with contextlib.closing(steps):
        try:
            step = next(steps)
            while True:
                try:
                    done = do(step)
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(done)
        except StopIteration as end:
            found: Result = end.value
            return found


async def follow_async(steps: Steps[Result], do: Callable[[Step], Awaitable[Any]]) -> Result:
    """The same."""
    with contextlib.closing(steps):
        try:
            step = next(steps)
            while True:
                try:
                    done = await do(step)
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(done)
        except StopIteration as end:
            found: Result = end.value
            return found
