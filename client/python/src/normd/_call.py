"""What the synchronous and the asyncio client share: arguments checked, requests made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from normd import _protocol
from normd._request import Options, Precision, Priority, checked_version
from normd.errors import InvalidArgumentError

DEFAULT_TIMEOUT = 60.0
DEFAULT_STREAM_ABOVE = 64 << 20

NORMALIZE = _protocol.method("Normalize")
NORMALIZE_STREAM = _protocol.method("NormalizeStream")
HEALTH_WATCH = _protocol.method("Watch", _protocol.HEALTH_SERVICE)


@dataclass(frozen=True)
class Admin:
    """A call of small messages."""

    method: str
    response: Any
    repeatable: bool = True  # Whether a policy may retry it.


LIST_MODELS = Admin(_protocol.method("ListModels"), _protocol.ListModelsResponse)
GET_MODEL = Admin(_protocol.method("GetModel"), _protocol.GetModelResponse)
LOAD_MODEL = Admin(_protocol.method("LoadModel"), _protocol.LoadModelResponse, False)
UNLOAD_MODEL = Admin(_protocol.method("UnloadModel"), _protocol.UnloadModelResponse, False)
SERVER_INFO = Admin(_protocol.method("GetServerInfo"), _protocol.GetServerInfoResponse)
HEALTH_CHECK = Admin(
    _protocol.method("Check", _protocol.HEALTH_SERVICE), _protocol.HealthCheckResponse
)
ADMIN = (LIST_MODELS, GET_MODEL, LOAD_MODEL, UNLOAD_MODEL, SERVER_INFO, HEALTH_CHECK)


def model_request(kind: Any, model: str, version: int) -> bytes:
    """A request that names a version of a model."""
    if not isinstance(model, str):
        raise InvalidArgumentError(f"model: {type(model).__name__}, wanted a str")
    encoded: bytes = kind(model=model, version=checked_version(version)).SerializeToString()
    return encoded


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
) -> Options:
    """A request's fields beside its tensors; InvalidArgumentError for a wrong type."""
    if priority is not None and not isinstance(priority, Priority):
        raise InvalidArgumentError(f"priority: {priority!r}, wanted a normd.Priority")
    if precision is not None and not isinstance(precision, Precision):
        raise InvalidArgumentError(f"precision: {precision!r}, wanted a normd.Precision")
    return Options(version, priority, queue_timeout, precision)
