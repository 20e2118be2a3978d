"""The calls with small messages, for both clients: their requests and their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from normd import _protocol
from normd._request import checked_version
from normd.errors import InvalidArgumentError
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

_LIST_MODELS = _protocol.method("ListModels")
_GET_MODEL = _protocol.method("GetModel")
_LOAD_MODEL = _protocol.method("LoadModel")
_UNLOAD_MODEL = _protocol.method("UnloadModel")
_SERVER_INFO = _protocol.method("GetServerInfo")
_LIST_SHARED_MEMORY = _protocol.method("ListSharedMemory")
_HEALTH_CHECK = _protocol.method("Check", _protocol.HEALTH_SERVICE)

METHODS = (
    _LIST_MODELS,
    _GET_MODEL,
    _LOAD_MODEL,
    _UNLOAD_MODEL,
    _SERVER_INFO,
    _LIST_SHARED_MEMORY,
    _HEALTH_CHECK,
)


@dataclass(frozen=True)
class ControlCall(Generic[Result]):
    """One such call, for either client."""

    method: str
    request: bytes
    result: Callable[[bytes], Result]  # Reads the response.
    repeatable: bool = True  # Whether a policy may retry it.


def list_models() -> ControlCall[list[ModelInfo]]:
    def result(response: bytes) -> list[ModelInfo]:
        models = _protocol.ListModelsResponse.FromString(response).models
        return [model_info(each) for each in models]

    return ControlCall(_LIST_MODELS, _protocol.ListModelsRequest().SerializeToString(), result)


def get_model(model: str, version: int) -> ControlCall[ModelInfo]:
    request = _model_request(_protocol.GetModelRequest, model, version)
    return ControlCall(
        _GET_MODEL,
        request,
        lambda response: model_info(_protocol.GetModelResponse.FromString(response).model),
    )


def load_model(model: str, version: int) -> ControlCall[ModelInfo]:
    request = _model_request(_protocol.LoadModelRequest, model, version)
    return ControlCall(
        _LOAD_MODEL,
        request,
        lambda response: model_info(_protocol.LoadModelResponse.FromString(response).model),
        repeatable=False,
    )


def unload_model(model: str, version: int) -> ControlCall[list[int]]:
    request = _model_request(_protocol.UnloadModelRequest, model, version)
    return ControlCall(
        _UNLOAD_MODEL,
        request,
        lambda response: list(_protocol.UnloadModelResponse.FromString(response).versions),
        repeatable=False,
    )


def get_server_info() -> ControlCall[ServerInfo]:
    return ControlCall(
        _SERVER_INFO,
        _protocol.GetServerInfoRequest().SerializeToString(),
        lambda response: server_info(_protocol.GetServerInfoResponse.FromString(response)),
    )


def list_shared_memory() -> ControlCall[list[SharedMemoryInfo]]:
    def result(response: bytes) -> list[SharedMemoryInfo]:
        regions = _protocol.ListSharedMemoryResponse.FromString(response).regions
        return [shared_memory_info(each) for each in regions]

    request = _protocol.ListSharedMemoryRequest().SerializeToString()
    return ControlCall(_LIST_SHARED_MEMORY, request, result)


def check_health(model: str | None) -> ControlCall[HealthStatus]:
    return ControlCall(_HEALTH_CHECK, health_request(model), health_status)


def health_request(model: str | None) -> bytes:
    """The request of a check or a watch: for the server, or for a model."""
    service = f"{_protocol.SERVICE}/{model}" if model else ""
    encoded: bytes = _protocol.HealthCheckRequest(service=service).SerializeToString()
    return encoded


def health_status(response: bytes) -> HealthStatus:
    """The status in a check's response, or in one of a watch's."""
    return HealthStatus(_protocol.HealthCheckResponse.FromString(response).status)


def is_serving(response: bytes) -> bool:
    """Likewise, with a value for a status that this client does not know."""
    status: int = _protocol.HealthCheckResponse.FromString(response).status
    return status == HealthStatus.SERVING.value


def _model_request(kind: Any, model: str, version: int) -> bytes:
    """A request that names a version of a model."""
    if not isinstance(model, str):
        raise InvalidArgumentError(f"model: {type(model).__name__}, wanted a str")
    encoded: bytes = kind(model=model, version=checked_version(version)).SerializeToString()
    return encoded
