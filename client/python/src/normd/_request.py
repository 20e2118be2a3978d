"""A Normalize request and its message, whose parts refer to the tensors in place."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import NamedTuple

from normd import _wire
from normd._tensors import (
    Input,
    Part,
    TensorSpec,
    check_apart,
    check_names,
    check_text,
    named,
    to_input,
)
from normd.errors import InvalidArgumentError


class Priority(enum.IntEnum):
    """The order of a caller's requests that wait for one model: higher first, with aging."""

    LOW = 1  # Nobody waits for the result.
    NORMAL = 2
    HIGH = 3  # Somebody waits for this result in particular.


class Precision(enum.IntEnum):
    """The rounding of a matrix product's factors; only for models that have a product."""

    FLOAT32 = 1
    TF32 = 2
    BFLOAT16 = 3
    FLOAT32_STRICT = 4


class Options(NamedTuple):
    """A request's fields beside its tensors. See Client.normalize."""

    version: int = 0
    priority: Priority | None = None
    queue_timeout_ns: int = 0  # 0: none.
    precision: Precision | None = None
    outputs: tuple[str, ...] = ()  # The wanted outputs; empty: the model's default ones.


def options_of(
    version: int,
    priority: Priority | None,
    queue_timeout: float | None,
    precision: Precision | None,
    out: object = None,
) -> Options:
    """A request's fields beside its tensors; InvalidArgumentError for a wrong type.

    The outputs that a mapping `out` names are the wanted ones, each in a place of its own.
    """
    if priority is not None and not isinstance(priority, Priority):
        raise InvalidArgumentError(f"priority: {priority!r}, wanted a normd.Priority")
    if precision is not None and not isinstance(precision, Precision):
        raise InvalidArgumentError(f"precision: {precision!r}, wanted a normd.Precision")
    names: tuple[str, ...] = ()
    if isinstance(out, Mapping):
        names = check_names(out, "out")
        check_apart(out)
    nanoseconds = _nanoseconds(queue_timeout)
    return Options(checked_version(version), priority, nanoseconds, precision, names)


_MAX_INT64 = (1 << 63) - 1


def checked_version(version: int) -> int:
    """The version, if it is an integer; the server judges the rest."""
    if not isinstance(version, int) or not -_MAX_INT64 <= version <= _MAX_INT64:
        raise InvalidArgumentError(f"version: {version!r}, wanted an int of 64 bits")
    return version


def checked_model(model: str) -> str:
    """The model's name, if a message can carry it; the server judges the rest."""
    check_text(model, "model: ", type(model).__name__)
    return model


def is_number(value: object) -> bool:
    """Whether it is one that has an order, of Python or NumPy."""
    return isinstance(value, Real)


# 31 years: gRPC adds it to the time since 1970, in nanoseconds of 64 bits.
_LONGEST_S = 1e9


def checked_seconds(field: str, seconds: float, wanted: str) -> float:
    """A time of the caller's, or the longest. InvalidArgumentError unless it is above 0."""
    if not is_number(seconds) or not seconds > 0:
        raise InvalidArgumentError(f"{field}: {seconds!r} s, wanted {wanted}")
    # Python's integers may be too large for a float, and NumPy's floats too small for the longest.
    return float(min(seconds if isinstance(seconds, int) else float(seconds), _LONGEST_S))


def _nanoseconds(seconds: float | None) -> int:
    if seconds is None:
        return 0
    wanted = "more than 0, or None"
    if seconds == math.inf:
        raise InvalidArgumentError(f"queue_timeout: {seconds!r} s, wanted {wanted}")
    return max(1, round(checked_seconds("queue_timeout", seconds, wanted) * 1e9))


def _part(number: int, part: Part | None) -> bytes:
    """A field of SharedMemory; nothing for None."""
    if part is None:
        return b""
    inner = (
        _wire.bytes_field(1, part.region.encode())
        + _wire.int_field(2, part.offset)
        + _wire.int_field(3, part.nbytes)
    )
    return _wire.length_head(number, len(inner)) + inner


def _output(name: str, part: Part | None = None) -> bytes:
    inner = _wire.bytes_field(1, name.encode()) + _part(2, part)
    return _wire.length_head(7, len(inner)) + inner


@functools.lru_cache(maxsize=256)
def _head(model: str, options: Options) -> bytes:
    return (
        _wire.bytes_field(1, model.encode())
        + _wire.int_field(2, options.version)
        + _wire.int_field(4, options.priority or 0)
        + _wire.int_field(5, options.queue_timeout_ns)
        + _wire.int_field(6, options.precision or 0)
        + b"".join(map(_output, options.outputs))
    )


@functools.lru_cache(maxsize=256)
def _tensor_head(spec: TensorSpec, data_bytes: int, part: Part | None = None) -> bytes:
    """The bytes before a tensor's `data_bytes` bytes; everything if it has none."""
    inner = (
        _wire.bytes_field(1, spec.name.encode())
        + _wire.int_field(2, spec.dtype.number)
        + _wire.bytes_field(3, b"".join(map(_wire.varint, spec.shape)))
        + _part(5, part)
    )
    if data_bytes:
        inner += _wire.length_head(4, data_bytes)
    return _wire.length_head(3, len(inner) + data_bytes) + inner


def message_head(model: str, options: Options) -> bytes:
    """The request's fields beside its tensors, encoded. InvalidArgumentError for a wrong model."""
    return _head(checked_model(model), options)


def encode(
    model: str,
    options: Options,
    inputs: Sequence[Input],
    placed: Mapping[str, Part | None] = {},
    unnamed_outputs: bool = False,
) -> list[bytes | memoryview]:
    """The message, in parts to be joined. InvalidArgumentError for more than 2 GiB.

    `placed`, if not empty, are the wanted outputs with their places, instead of those of `options`;
    with `unnamed_outputs` also all others except those on request.
    """
    if placed:
        options = options._replace(outputs=())
    parts: list[bytes | memoryview] = [message_head(model, options)]
    for tensor in inputs:
        if tensor.part is None:
            parts += (_tensor_head(tensor.spec, tensor.data.nbytes), tensor.data)
        else:
            parts.append(_tensor_head(tensor.spec, 0, tensor.part))
    if placed:
        parts += [_output(name, part) for name, part in placed.items()]
        if unnamed_outputs:
            parts.append(_wire.int_field(8, 1))
    size = sum(map(len, parts))
    if size > _wire.MAX_MESSAGE_BYTES:
        raise InvalidArgumentError(
            f"data: a message of {size} bytes, wanted at most {_wire.MAX_MESSAGE_BYTES}: "
            "normalize_stream takes tensors of any size"
        )
    return parts


def encode_without_data(model: str, options: Options, specs: Sequence[TensorSpec]) -> bytes:
    """The request in the form of a stream's header."""
    return message_head(model, options) + b"".join(_tensor_head(spec, 0) for spec in specs)


def total_bytes(inputs: Sequence[Input]) -> int:
    """The bytes of the inputs' elements."""
    return sum([each.nbytes for each in inputs])


def inputs_of(values: object) -> list[Input]:
    """A call's inputs, from one array or a mapping of names to arrays."""
    return [to_input(name, value) for name, value in named(values).items()]
