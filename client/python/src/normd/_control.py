"""The calls with small messages, for both clients: their requests and their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from normd import _protocol
from normd._request import checked_model, checked_version
from normd.models import (
    HealthStatus,
    ModelInfo,
    ServerInfo,
    SharedMemoryInfo,
    model_info,
    server_info,
    shared_memory_info,
)

Result = TypeVar("Result")

_HEALTH_CHECK = _protocol.method("Check", _protocol.HEALTH_SERVICE)
_HEALTH_REQUEST = _protocol.message("grpc.health.v1.HealthCheckRequest")
_HEALTH_RESPONSE = _protocol.message("grpc.health.v1.HealthCheckResponse")
_NAMES_OF_METHODS = (
    "ListModels",
    "GetModel",
    "LoadModel",
    "UnloadModel",
    "GetServerInfo",
    "ListSharedMemory",
)
METHODS = (*map(_protocol.method, _NAMES_OF_METHODS), _HEALTH_CHECK)


@dataclass(frozen=True)
class ControlCall(Generic[Result]):
    """One such call, for either client."""

    method: str
    request: bytes
    result: Callable[[bytes], Result]  # Reads the response.
    repeatable: bool = True  # Whether a policy may retry it.


def _call(
    name: str, result: Callable[[Any], Result], repeatable: bool = True, **fields: Any
) -> ControlCall[Result]:
    """A call of the method NAME with NAMERequest's `fields`; `result` is that of a NAMEResponse."""
    request: bytes = _protocol.message(f"normd.v1.{name}Request")(**fields).SerializeToString()
    response = _protocol.message(f"normd.v1.{name}Response")
    return ControlCall(
        _protocol.method(name),
        request,
        lambda data: result(_protocol.read(response, data)),
        repeatable,
    )


def _model_call(
    name: str, model: str, version: int, result: Callable[[Any], Result], repeatable: bool = True
) -> ControlCall[Result]:
    """The same where the request names a version of a model."""
    version = checked_version(version)
    return _call(name, result, repeatable, model=checked_model(model), version=version)


def _model_of(response: Any) -> ModelInfo:
    return model_info(response.model)


def list_models() -> ControlCall[list[ModelInfo]]:
    return _call("ListModels", lambda response: [model_info(each) for each in response.models])


def get_model(model: str, version: int) -> ControlCall[ModelInfo]:
    return _model_call("GetModel", model, version, _model_of)


def load_model(model: str, version: int) -> ControlCall[ModelInfo]:
    return _model_call("LoadModel", model, version, _model_of, repeatable=False)


def unload_model(model: str, version: int) -> ControlCall[list[int]]:
    return _model_call(
        "UnloadModel", model, version, lambda response: list(response.versions), repeatable=False
    )


def get_server_info() -> ControlCall[ServerInfo]:
    return _call("GetServerInfo", server_info)


def list_shared_memory() -> ControlCall[list[SharedMemoryInfo]]:
    return _call("ListSharedMemory", lambda response: [*map(shared_memory_info, response.regions)])


def check_health(model: str | None) -> ControlCall[HealthStatus]:
    return ControlCall(_HEALTH_CHECK, health_request(model), health_status)


def health_request(model: str | None) -> bytes:
    """The request of a check or a watch: for the server, or for a model."""
    service = f"{_protocol.SERVICE}/{checked_model(model)}" if model else ""
    encoded: bytes = _HEALTH_REQUEST(service=service).SerializeToString()
    return encoded


def health_status(response: bytes) -> HealthStatus:
    """The status in a check's response, or in one of a watch's."""
    return HealthStatus(_protocol.read(_HEALTH_RESPONSE, response).status)


def is_serving(response: bytes) -> bool:
    """Likewise, with a value for a status that this client does not know."""
    status: int = _protocol.read(_HEALTH_RESPONSE, response).status
    return status == HealthStatus.SERVING.value
