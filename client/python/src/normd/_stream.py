"""A NormalizeStream call without its transport: its outgoing and its incoming bytes.

Client and aio.Client move the messages; this module has their contents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from normd import _dtypes, _torch, _wire
from normd._closing import Closing
from normd._npy import NpySink, NpySource
from normd._request import Options, encode_without_data
from normd._response import (
    Response,
    StageTimes,
    decode_stages,
    decode_tensor,
    fill,
    named_outputs,
)
from normd._tensors import (
    Array,
    Input,
    TensorSpec,
    bytes_of,
    check_out,
    file_of,
    is_path,
    memory_of,
    named,
    overlap,
    to_input,
    written_path,
)
from normd.errors import InvalidArgumentError, ProtocolError

Progress = bool | Callable[[int, int], None]

DEFAULT_CHUNK_BYTES = 1 << 20


class Source(Protocol):
    """The source of an input. It may be read again from its beginning."""

    spec: TensorSpec

    def read(self, offset: int, size: int) -> memoryview:
        """The tensor's bytes from `offset` on, which must be there."""

    def close(self) -> None:
        """Releases the source."""


class Sink(Protocol):
    """The destination of an output."""

    def write(self, offset: int, data: memoryview) -> None:
        """Takes the output's next bytes, from `offset` on."""

    def end(self) -> None:
        """The output is complete, and the others may still fail."""

    def commit(self) -> Any:
        """All outputs are complete: returns the caller's result."""

    def abort(self) -> None:
        """The call has failed: the written bytes are not the output. Also after `commit`."""


class ArraySource:
    """An array in memory, or mapped to it."""

    def __init__(self, tensor: Input) -> None:
        self.spec = tensor.spec
        self.input = tensor

    def read(self, offset: int, size: int) -> memoryview:
        """A view of the array."""
        return self.input.data[offset : offset + size]

    def close(self) -> None:
        """Does nothing: the array is the caller's."""


class ArraySink:
    """An array that is filled."""

    def __init__(self, array: Array, result: Callable[[Array], Any]) -> None:
        self._array = array
        self._data = bytes_of(array)
        self._result = result

    def write(self, offset: int, data: memoryview) -> None:
        """Copies into the array."""
        self._data[offset : offset + len(data)] = data

    def end(self) -> None:
        """Does nothing."""

    def commit(self) -> Any:
        """The array, as the caller's kind of tensor."""
        return self._result(self._array)

    def abort(self) -> None:
        """Does nothing: the array's contents are then unspecified."""


class StreamOrder:
    """The order of the bytes: a sample of each tensor in turn; a single tensor unchanged."""

    def __init__(self, specs: Sequence[TensorSpec], samples: int) -> None:
        """Each tensor has `samples` samples of one size. 0, from older servers: a sample is the
        last dimension. ProtocolError for tensors that do not divide like this."""
        self._samples = [_sample_bytes(spec, samples) for spec in specs]
        self._at = [0] * len(specs)
        self._next = 0

    def take(self, most: int) -> tuple[int, int, int]:
        """The next run: which tensor, from which offset, how many bytes, from 1 to `most`."""
        if len(self._at) == 1:
            begin = self._at[0]
            self._at[0] += most
            return 0, begin, most
        while not self._samples[self._next]:
            self._advance()
        tensor = self._next
        begin = self._at[tensor]
        left = self._samples[tensor] - begin % self._samples[tensor]
        size = min(left, most)
        self._at[tensor] += size
        if size == left:
            self._advance()
        return tensor, begin, size

    def _advance(self) -> None:
        self._next = (self._next + 1) % len(self._at)


def _sample_bytes(spec: TensorSpec, samples: int) -> int:
    if samples == 0:
        return (spec.shape[-1] if spec.shape else 1) * spec.dtype.itemsize
    elements = math.prod(spec.shape)
    if samples < 0 or elements % samples:
        raise ProtocolError(
            f"the server's response: {samples} samples, wanted a divisor of {elements} elements"
        )
    return elements // samples * spec.dtype.itemsize


class Sources(Closing):
    """A stream's inputs. A context manager, which closes files."""

    def __init__(self, values: object) -> None:
        """From arrays or paths, one or a mapping of names. InvalidArgumentError, OSError."""
        self.sources: list[Source] = []
        self._files: list[Path] = []
        try:
            for name, value in named(values).items():
                self.sources.append(_source(name, value))
                if (file := file_of(value)) is not None:
                    self._files.append(file)
        except BaseException:
            self.close()
            raise
        self.total_bytes = sum(source.spec.nbytes for source in self.sources)

    @property
    def specs(self) -> list[TensorSpec]:
        """The inputs, in the stream's order."""
        return [source.spec for source in self.sources]

    def order(self, names: Sequence[str]) -> None:
        """Sorts the inputs in the model's order. The server judges unknown ones."""
        places = {name: place for place, name in enumerate(names)}
        self.sources.sort(key=lambda source: places.get(source.spec.name, len(places)))

    def close(self) -> None:
        """Closes the files."""
        for source in self.sources:
            source.close()

    def chunks(self, chunk_bytes: int, samples: int) -> Iterator[list[bytes | memoryview]]:
        """The messages after the header, each in parts to be joined."""
        order = StreamOrder(self.specs, samples)
        left = self.total_bytes
        while left:
            size = min(chunk_bytes, left)
            left -= size
            parts: list[bytes | memoryview] = [_wire.length_head(2, size)]
            while size:
                tensor, offset, run = order.take(size)
                parts.append(self.sources[tensor].read(offset, run))
                size -= run
            yield parts

    def header(self, model: str, options: Options) -> bytes:
        """The first message."""
        return _wire.bytes_field(1, encode_without_data(model, options, self.specs))

    def check_apart(self, out: object) -> None:
        """InvalidArgumentError if an output would be written over an input while that is read."""
        for path in out.values() if isinstance(out, Mapping) else [out]:
            written = written_path(path) if is_path(path) else None
            if written is None or not written.exists():
                continue
            if any(file.exists() and file.samefile(written) for file in self._files):
                raise InvalidArgumentError(
                    f'out: "{path}" is written as "{written}" until it is whole, which is an '
                    "input, wanted another file"
                )

    def half_over(self, out: Array) -> bool:
        """Whether an array overlaps an input without lying in its place."""
        place = memory_of(out)
        places = [
            memory_of(each.input.data) for each in self.sources if isinstance(each, ArraySource)
        ]
        return any(overlap(place, each) and place != each for each in places)

    def result_of(self, array: Array, spec: TensorSpec) -> Any:
        """A new array as the first input's kind of tensor."""
        first = self.sources[0]
        return (
            first.input.make_result(array, spec.dtype) if isinstance(first, ArraySource) else array
        )


def _source(name: str, value: object) -> Source:
    if is_path(value):
        return NpySource(name, value)  # type: ignore[arg-type]
    return ArraySource(to_input(name, value).on_host())


def checked_chunk_bytes(chunk_bytes: int) -> int:
    """The size of a message, if it is one."""
    if not isinstance(chunk_bytes, int) or chunk_bytes < 1:
        raise InvalidArgumentError(f"chunk_bytes: {chunk_bytes!r}, wanted an int of at least 1")
    return chunk_bytes


@dataclass(frozen=True)
class StreamHeader:
    """The server's first message."""

    model: str
    version: int
    outputs: list[TensorSpec]
    max_chunk_bytes: int
    samples: int


def _decode_header(data: bytes, at: int, end: int) -> StreamHeader:
    integers, places = _wire.read(data, at, end, 6)
    outputs = [
        decode_tensor(data, value, stop).spec
        for number, kind, value, stop in _wire.fields(data, at, end)
        if number == 3 and kind == _wire.LENGTH
    ]
    if not outputs or len({spec.name for spec in outputs}) != len(outputs):
        raise ProtocolError("the server's response: no output, or two of one name")
    if integers[5] <= 0:
        raise ProtocolError("the server's response: max_chunk_bytes: not above 0")
    model = _wire.text(data, *places[1])
    return StreamHeader(model, integers[2], outputs, integers[5], integers[6])


@dataclass
class Reception:
    """Takes the server's messages in turn and checks them against the protocol."""

    sources: Sources
    out: object  # As the caller gave it.
    header: StreamHeader | None = None
    received_bytes: int = 0
    total_bytes: int = 0
    _stages: StageTimes | None = None
    _sinks: dict[str, Sink] = field(default_factory=dict)
    _order: StreamOrder | None = None

    def take(self, message: bytes) -> None:
        """The next message. ProtocolError; errors of the sinks; InvalidArgumentError for `out`."""
        for number, kind, value, end in _wire.fields(message, 0, len(message)):
            if kind != _wire.LENGTH or number not in (1, 2, 3):
                continue
            if (number == 1) != (self.header is None) or self._stages is not None:
                raise ProtocolError("the server's response: a message out of order")
            if number == 1:
                self._begin(_decode_header(message, value, end))
            elif number == 2:
                self._write(memoryview(message)[value:end])
            else:
                if self.received_bytes < self.total_bytes:
                    raise ProtocolError("the server's response: a trailer before the tensors' end")
                _, places = _wire.read(message, value, end, 1)
                self._stages = decode_stages(message, *places[1])

    def _begin(self, header: StreamHeader) -> None:
        self.header = header
        StreamOrder(self.sources.specs, header.samples)  # ProtocolError if they do not fit.
        names = [spec.name for spec in header.outputs]
        given = named_outputs(self.out, names)
        self.total_bytes = sum(spec.nbytes for spec in header.outputs)
        self._order = StreamOrder(header.outputs, header.samples)
        for spec in header.outputs:
            if given is None:
                self._sinks[spec.name] = self._sink(spec, None)
            elif spec.name in given:
                self._sinks[spec.name] = self._sink(spec, given[spec.name])

    def _sink(self, spec: TensorSpec, out: object) -> Sink:
        if out is None:
            return _later(spec, lambda made: self.sources.result_of(made, spec))
        if is_path(out):
            return NpySink(out, spec)  # type: ignore[arg-type]
        if _torch.is_tensor(out):
            _torch.check_out(out, spec.dtype, spec.shape, "out")
        elif not self.sources.half_over(array := check_out(out, spec)):
            return ArraySink(array, lambda filled: filled)
        return _later(spec, lambda made: fill(out, made, spec))

    def _write(self, data: memoryview) -> None:
        if self._order is None or self.header is None:
            raise ProtocolError("the server's response: its first message is no header")
        if len(data) > self.total_bytes - self.received_bytes:
            raise ProtocolError("the server's response: more bytes than the tensor has")
        self.received_bytes += len(data)
        while data:
            tensor, offset, run = self._order.take(len(data))
            sink = self._sinks.get(self.header.outputs[tensor].name)
            if sink is not None:
                sink.write(offset, data[:run])
            data = data[run:]

    def commit(self) -> Response:
        """The call has succeeded. ProtocolError unless everything has come."""
        if self.header is None or self._stages is None:
            raise ProtocolError("the server's response: it ended before the trailer")
        for sink in self._sinks.values():
            sink.end()
        outputs = {name: sink.commit() for name, sink in self._sinks.items()}
        return Response(self.header.model, self.header.version, outputs, self._stages, None)

    def abort(self) -> None:
        """The call has failed: removes the files."""
        for sink in self._sinks.values():
            sink.abort()


def _later(spec: TensorSpec, result: Callable[[Array], Any]) -> Sink:
    """Fills new memory, of which `result` makes the caller's at the end."""
    return ArraySink(np.empty(spec.shape, _dtypes.to_numpy(spec.dtype)), result)


class ProgressBar(Closing):
    """Reports the output's bytes to a callable, to a tqdm bar, or to nobody."""

    def __init__(self, progress: Progress) -> None:
        """InvalidArgumentError if tqdm is wanted and not installed."""
        self._callback = progress if callable(progress) else None
        self._tqdm = progress is True
        self._bar: Any = None
        if self._tqdm:
            try:
                import tqdm  # noqa: F401
            except ImportError:
                raise InvalidArgumentError(
                    "progress: True, wanted tqdm to be installed (pip install normd[tqdm]), or a "
                    "callable that takes the bytes done and the bytes in all"
                ) from None

    def close(self) -> None:
        """Ends the bar at its position."""
        if self._bar is not None:
            self._bar.close()

    def update(self, done: int, total: int) -> None:
        """Reports this many of the output's bytes."""
        if self._callback is not None:
            self._callback(done, total)
        elif self._tqdm:
            if self._bar is None:
                from tqdm.auto import tqdm

                self._bar = tqdm(total=total, unit="B", unit_scale=True)
            self._bar.update(done - self._bar.n)


def checked_outputs(out: object) -> None:
    """Refuses an invalid `out` before a call is made. InvalidArgumentError."""
    values = out.values() if isinstance(out, Mapping) else [out]
    for value in values:
        if value is None or is_path(value) or isinstance(value, np.ndarray):
            continue
        if not _torch.is_tensor(value):
            raise InvalidArgumentError(
                f"out: {type(value).__name__}, wanted a NumPy array, a PyTorch tensor or a path"
            )
