"""Protobuf's encoding, as far as the messages that carry tensors need it.

protobuf's own classes copy a tensor's bytes into the message and out of it. Here a message is a
list of parts that refers to the tensor's memory, joined once, and a received one is read in place.
Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator

from normd.errors import ProtocolError

VARINT = 0
FIXED64 = 1
LENGTH = 2
FIXED32 = 5

MAX_MESSAGE_BYTES = (1 << 31) - 1
_U64 = (1 << 64) - 1


def varint(value: int) -> bytes:
    """The varint of an int64; negative numbers take ten bytes."""
    value &= _U64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def int_field(number: int, value: int) -> bytes:
    """A field of an integer type; nothing for 0, which an absent field means."""
    return varint(number << 3 | VARINT) + varint(value) if value else b""


def length_head(number: int, size: int) -> bytes:
    """The bytes before the `size` bytes of a string, a message or packed numbers."""
    return varint(number << 3 | LENGTH) + varint(size)


def bytes_field(number: int, value: bytes) -> bytes:
    """A field of a string or of packed numbers; nothing for an empty one."""
    return length_head(number, len(value)) + value if value else b""


def _read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = 0
    shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _U64, at
        shift += 7
    raise ProtocolError("malformed protobuf: a varint is cut short or too long")


def fields(  # noqa: PLR0912 The short forms of varints are read in place.
    data: bytes, at: int, end: int
) -> Iterator[tuple[int, int, int, int]]:
    """Walks over a message's fields in `data[at:end]`: (number, kind, value or begin, end).

    A VARINT field gives its value, as an unsigned 64-bit number, and 0; a LENGTH field gives the
    begin and end of its bytes. Others are skipped: the protocol has none.
    """
    while at < end:
        tag = data[at]
        at += 1
        if tag > 0x7F:
            tag, at = _read_varint(data, at - 1, end)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise ProtocolError("malformed protobuf: field number 0")
        if kind == LENGTH:
            if at < end and data[at] <= 0x7F:  # Nearly all are; this is faster.
                size = data[at]
                at += 1
            else:
                size, at = _read_varint(data, at, end)
            if size > end - at:
                raise ProtocolError(
                    f"malformed protobuf: a field of {size} bytes, where {end - at} are left"
                )
            yield number, kind, at, at + size
            at += size
        elif kind == VARINT:
            if at < end and data[at] <= 0x7F:
                value = data[at]
                at += 1
            else:
                value, at = _read_varint(data, at, end)
            yield number, kind, value, 0
        elif kind in (FIXED64, FIXED32):
            at += 8 if kind == FIXED64 else 4
            if at > end:
                raise ProtocolError("malformed protobuf: a number is cut short")
        else:
            raise ProtocolError(f"malformed protobuf: wire type {kind}")


def read(data: bytes, at: int, end: int, last: int) -> tuple[list[int], list[tuple[int, int]]]:
    """A small message, by its fields' numbers up to `last`: their integers, and the begin and end
    of those with a length; 0 where a field is absent. Of several of one number the last counts."""
    integers = [0] * (last + 1)
    places = [(0, 0)] * (last + 1)
    for number, kind, value, stop in fields(data, at, end):
        if number > last:
            continue
        if kind == VARINT:
            integers[number] = signed(value)
        else:
            places[number] = value, stop
    return integers, places


def signed(value: int) -> int:
    """The int64 of a varint's 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def packed(data: bytes, at: int, end: int) -> list[int]:
    """The numbers of a packed field of int64."""
    part = data[at:end]
    if part.isascii():  # Each number is one byte; this is faster.
        return list(part)
    values = []
    while at < end:
        value, at = _read_varint(data, at, end)
        values.append(signed(value))
    return values


def text(data: bytes, at: int, end: int) -> str:
    """A string field's text."""
    try:
        return data[at:end].decode()
    except UnicodeDecodeError:
        raise ProtocolError("malformed protobuf: a string that is not UTF-8") from None
