"""The classes of the protocol's messages, and the methods' names.

The classes are made when the package is imported, from the descriptors that protoc wrote when it
was built, in a pool of their own. So they work with any release of protobuf's runtime, and beside
modules that a program has generated from the same files by itself.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from normd.errors import ProtocolError

SERVICE = "normd.v1.NormService"
HEALTH_SERVICE = "grpc.health.v1.Health"


def _load() -> descriptor_pool.DescriptorPool:
    files = descriptor_pb2.FileDescriptorSet.FromString(
        resources.files(__package__).joinpath("protocol.binpb").read_bytes()
    )
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)  # type: ignore[no-untyped-call, unused-ignore]
    return pool


_POOL = _load()


@functools.cache
def message(name: str) -> Any:
    """The class of a message, such as "normd.v1.GetModelRequest"."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))


def read(kind: Any, data: bytes) -> Any:
    """A server's message of a class. ProtocolError for bytes that are none."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ProtocolError(f"the server's response: {error}") from None


def enum_names(name: str) -> dict[int, str]:
    """The names of an enum's values by their numbers."""
    values = _POOL.FindEnumTypeByName(name).values
    return {value.number: value.name for value in values}


def method(name: str, service: str = SERVICE) -> str:
    """A method's full name, as gRPC wants it."""
    return f"/{service}/{name}"
