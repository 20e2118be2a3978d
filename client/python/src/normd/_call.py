"""What the synchronous and the asyncio client share: methods, defaults and checked arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping

from normd import _protocol
from normd._request import Options, Precision, Priority
from normd.errors import InvalidArgumentError

DEFAULT_TIMEOUT = 60.0
DEFAULT_STREAM_ABOVE = 64 << 20

NORMALIZE = _protocol.method("Normalize")
NORMALIZE_STREAM = _protocol.method("NormalizeStream")
HEALTH_WATCH = _protocol.method("Watch", _protocol.HEALTH_SERVICE)


def checked_timeout(timeout: float | None, default: float | None = None) -> float | None:
    """Seconds for gRPC; None, for no limit, of an infinite one."""
    seconds = default if timeout is None else timeout
    if seconds is None or seconds == math.inf:
        return None
    if not seconds > 0:
        raise InvalidArgumentError(f"timeout: {seconds!r} s, wanted more than 0")
    return seconds


def options_of(
    version: int,
    priority: Priority | None,
    queue_timeout: float | None,
    precision: Precision | None,
    out: object = None,
) -> Options:
    """A request's fields beside its tensors; InvalidArgumentError for a wrong type.

    The outputs that a mapping `out` names are those that are wanted.
    """
    if priority is not None and not isinstance(priority, Priority):
        raise InvalidArgumentError(f"priority: {priority!r}, wanted a normd.Priority")
    if precision is not None and not isinstance(precision, Precision):
        raise InvalidArgumentError(f"precision: {precision!r}, wanted a normd.Precision")
    names = tuple(out) if isinstance(out, Mapping) else ()
    for name in names:
        if not isinstance(name, str):
            raise InvalidArgumentError(f"out: a name is {name!r}, wanted a str")
    return Options(version, priority, queue_timeout, precision, names)
