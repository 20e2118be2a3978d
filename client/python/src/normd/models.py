"""The server's information about its models and itself."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from normd import _dtypes, _protocol

_STATES = _protocol.enum_names("normd.v1.ModelInfo.State")
_KINDS = _protocol.enum_names("normd.v1.SharedMemoryInfo.Kind")


class HealthStatus(enum.Enum):
    """Whether a server or a model takes requests."""

    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3  # The server does not know the model; only watch_health returns this.


@dataclass(frozen=True)
class Parameter:
    """A model's parameter, named as in its safetensors file."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a model.

    Attributes:
      shape: a number for each dimension: its size, -1 for any, -2 for any number of dimensions of
        any size, -3 for the same in this tensor alone. The dimensions at -1 and -2 are the same in
        every tensor of a request.
      dtype: its type; empty: the request's, that of its first input.
      dtype_of_float64: its type in a request of float64, if it is another.
      on_request: an output that is returned only to a call whose `out` names it.
      values: for an int64 input, the number of its possible values, from 0 on.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = ""
    dtype_of_float64: str = ""
    on_request: bool = False
    values: int = 0


@dataclass(frozen=True)
class ModelInfo:
    """One version of a model.

    Attributes:
      state: "READY", or "FAILED" with the reason in `error`.
      operation: such as "instance_norm"; empty unless READY.
      config: config.textproto as a dict, with the fields' names in the protocol.
      parameters: the loaded ones; empty unless READY.
      load_ns: the duration of the load, in nanoseconds.
      inputs, outputs: in the model's order; empty unless READY.
    """

    name: str
    version: int
    state: str
    error: str
    operation: str
    config: dict[str, Any]
    parameters: tuple[Parameter, ...]
    load_ns: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]

    @property
    def ready(self) -> bool:
        """Whether this version takes requests."""
        return self.state == "READY"


@dataclass(frozen=True)
class ServerInfo:
    """The server's build and limits.

    Attributes:
      cuda: CUDA's version; empty in a build without it.
      lanes: such as "cpu:0".
      max_request_bytes: the largest tensor of one message; larger ones go as streams.
      max_inflight_bytes: inputs and outputs of all requests at once.
      simd: the CPU's instruction set in use.
      shared_memory_listen: the address where clients on its machine pass memory; empty: none.
    """

    version: str
    cuda: str
    lanes: tuple[str, ...]
    max_request_bytes: int
    max_inflight_bytes: int
    uptime_ns: int
    ready: bool
    simd: str
    shared_memory_listen: str = ""


@dataclass(frozen=True)
class SharedMemoryInfo:
    """A region that a client shares with the server.

    Attributes:
      kind: "NAMED", until it is unregistered; "DESCRIPTOR", as long as its client's connection; or
        "DEVICE", memory of a device, until it is unregistered.
      owner: the identity that registered it; empty without a policy.
      name, key: for a named one its name, and its file in /dev/shm; else empty.
      offset: its begin in its file.
      age_ns: since it was registered.
      in_use: requests use it.
      broken: its client has taken the memory away.
    """

    kind: str
    owner: str
    name: str
    key: str
    offset: int
    nbytes: int
    writable: bool
    age_ns: int
    in_use: bool
    broken: bool


def _fields(of: Any, message: Any, **others: Any) -> dict[str, Any]:
    """The fields of a class, as the message has them by the same names; `others` are given."""
    names = (name for name in of.__dataclass_fields__ if name not in others)
    return {name: getattr(message, name) for name in names} | others


def model_info(message: Any) -> ModelInfo:
    """From a normd.v1.ModelInfo."""
    found = _fields(
        ModelInfo,
        message,
        state=_STATES.get(message.state, str(message.state)),
        operation=message.config.WhichOneof("operation") or "",
        config=_as_dict(message.config),
        parameters=tuple(
            Parameter(each.name, _name_of_type(each.dtype), tuple(each.shape))
            for each in message.parameters
        ),
        inputs=tuple(map(_tensor_info, message.inputs)),
        outputs=tuple(map(_tensor_info, message.outputs)),
    )
    return ModelInfo(**found)


def _tensor_info(message: Any) -> TensorInfo:
    return TensorInfo(
        message.name,
        tuple(message.shape),
        _name_of_type(message.dtype) if message.dtype else "",
        _name_of_type(message.dtype_of_float64) if message.dtype_of_float64 else "",
        message.on_request,
        message.values,
    )


def _as_dict(message: Any) -> dict[str, Any]:
    """A message's fields that are set, by name, as Python values; enums by their names."""
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            found[field.name] = dict(value)
        elif field.message_type is not None:
            found[field.name] = _as_dict(value)
        elif field.enum_type is not None:
            names = {each.number: each.name for each in field.enum_type.values}
            numbers = value if isinstance(value, Sequence) else [value]
            named = [names.get(number, str(number)) for number in numbers]
            found[field.name] = named if isinstance(value, Sequence) else named[0]
        else:
            found[field.name] = (
                value if isinstance(value, str) or not isinstance(value, Sequence) else list(value)
            )
    return found


def _name_of_type(number: int) -> str:
    dtype = _dtypes.BY_NUMBER.get(number)
    return str(number) if dtype is None else dtype.name


def server_info(message: Any) -> ServerInfo:
    """From a normd.v1.GetServerInfoResponse."""
    return ServerInfo(**_fields(ServerInfo, message, lanes=tuple(message.lanes)))


def shared_memory_info(message: Any) -> SharedMemoryInfo:
    """From a normd.v1.SharedMemoryInfo."""
    kind = _KINDS.get(message.kind, str(message.kind))
    return SharedMemoryInfo(
        **_fields(SharedMemoryInfo, message, kind=kind, nbytes=message.byte_size)
    )
