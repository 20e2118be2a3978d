"""Which calls are retried, and when.

Written here because gRPC's own retry policy gives up on messages over a buffer's size, cannot tell
a full queue from a message that no retry makes smaller, and costs every call.
"""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass
from numbers import Integral, Real

from normd.errors import (
    Error,
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)

_LOG = logging.getLogger("normd")
# How long calls without a timeout are retried.
_WITHOUT_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Retry:
    """A policy. It retries calls that change nothing on the server and may be repeated: normalize
    (the same request has the same result), the model list, server information and health;
    streams up to the server's header, before a result has been written. It does not retry loads
    and unloads.

    A call is retried after UNAVAILABLE, and after RESOURCE_EXHAUSTED or INTERNAL if the server says
    when (`grpc-retry-pushback-ms`): until its timeout, or for a minute if it has none.
    logging.getLogger("normd") tells each retry: of a full server at INFO, others at WARNING.

    Attributes:
      attempts: at most, including the first; None: as many as the time allows.
      initial: seconds before the second attempt. Each further wait is twice as long, `longest` at
        most; a random share of up to a half is taken off, so that clients do not come together.
      longest: seconds; a server that asks for a longer wait is not asked again.
    """

    attempts: int | None = None
    initial: float = 0.05
    longest: float = 2.0

    def __post_init__(self) -> None:
        whole = isinstance(self.attempts, Integral) and self.attempts > 0
        if self.attempts is not None and not whole:
            raise InvalidArgumentError(
                f"attempts: {self.attempts!r}, wanted a whole number from 1 on, or None"
            )
        numbers = isinstance(self.initial, Real) and isinstance(self.longest, Real)
        if not (numbers and 0 <= self.initial <= self.longest):
            raise InvalidArgumentError(
                f"initial, longest: {self.initial}, {self.longest}, wanted 0 <= initial <= longest"
            )


class Attempts:
    """The attempts at one call, and its remaining time."""

    def __init__(self, policy: Retry | None, timeout: float | None) -> None:
        self._policy = policy
        now = time.monotonic()
        self._deadline = None if timeout is None else now + timeout
        self._retry_until = now + (_WITHOUT_TIMEOUT_S if timeout is None else timeout)
        self._failed = 0

    def timeout(self) -> float | None:
        """The remaining seconds; None: no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def wait_after(self, error: Error) -> float:
        """The seconds to wait before the next attempt. Raises `error` if there is none."""
        self._failed += 1
        policy = self._policy
        if policy is None or self._failed == policy.attempts:
            raise error
        wait = self._wait(policy, error)
        left = self._retry_until - time.monotonic()
        if wait is None or wait > policy.longest or wait >= left:
            raise error
        # As text: keeping the error would keep its frames, and with them the call's memory.
        level = logging.INFO if isinstance(error, ResourceExhaustedError) else logging.WARNING
        _LOG.log(level, "attempt %d failed, the next in %.2f s: %s", self._failed, wait, str(error))
        return wait

    def _wait(self, policy: Retry, error: Error) -> float | None:
        if isinstance(error, (ResourceExhaustedError, InternalError)):
            return error.retry_after
        if not isinstance(error, UnavailableError):
            return None
        if error.retry_after is not None:
            return error.retry_after
        longest = min(policy.longest, policy.initial * 2.0 ** min(self._failed - 1, 60))
        return longest * random.uniform(0.5, 1.0)
