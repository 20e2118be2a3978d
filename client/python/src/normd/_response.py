"""The response of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from normd import _cuda, _dtypes, _torch, _wire
from normd._tensors import Array, Input, Part, TensorSpec, check_out
from normd.errors import InvalidArgumentError, ProtocolError


@dataclass(frozen=True)
class StageTimes:
    """The stages of a request's time on the server, in nanoseconds."""

    decode_ns: int = 0  # Parsing, validation, admission.
    queue_ns: int = 0  # From admission until a lane took the batch.
    gather_ns: int = 0  # To the lane's memory; for the whole batch.
    copy_in_ns: int = 0  # To the device; 0 on the CPU.
    compute_ns: int = 0  # The kernels; for the whole batch.
    copy_out_ns: int = 0  # From the device; 0 on the CPU.


@dataclass(frozen=True)
class BatchInfo:
    """The batch that a request was part of."""

    id: int = 0  # Counts batches since the server started.
    requests: int = 0  # Including this one.
    bytes: int = 0  # Input bytes.
    lane: str = ""  # Such as "cpu:0".


@dataclass(frozen=True)
class Response:
    """The result of Client.call.

    Attributes:
      model, version: the model that computed it.
      outputs: the results by name, in the model's order; at least one.
      stages: the times of the stages; for a stream sums over its pieces.
      batch: the batch that it was part of; None for a request that went as a stream.
    """

    model: str
    version: int
    outputs: dict[str, Any]
    stages: StageTimes
    batch: BatchInfo | None

    @property
    def output(self) -> Any:
        """The only output. InvalidArgumentError if there are several."""
        return only(self.outputs)


def only(outputs: Mapping[str, Any]) -> Any:
    """The only output of a model."""
    if len(outputs) != 1:
        names = ", ".join(f'"{name}"' for name in outputs)
        raise InvalidArgumentError(
            f"outputs: {names}, wanted only one: Client.call returns them by name"
        )
    return next(iter(outputs.values()))


def decode_stages(data: bytes, at: int, end: int) -> StageTimes:
    """Reads a StageTimes message."""
    integers, _ = _wire.read(data, at, end, 6)
    return StageTimes(*integers[1:])


def _decode_batch(data: bytes, at: int, end: int) -> BatchInfo:
    integers, places = _wire.read(data, at, end, 4)
    return BatchInfo(integers[1], integers[2], integers[3], _wire.text(data, *places[4]))


def _decode_part(data: bytes, at: int, end: int) -> Part:
    integers, places = _wire.read(data, at, end, 3)
    return Part(_wire.text(data, *places[1]), integers[2], integers[3])


class ReceivedTensor(NamedTuple):
    """A Tensor message: its type and shape, and the place of its bytes, in the message or in a
    region."""

    spec: TensorSpec
    begin: int
    end: int
    part: Part | None

    def check(self) -> None:
        """ProtocolError unless it has the bytes of its shape."""
        nbytes = self.end - self.begin if self.part is None else self.part.nbytes
        if nbytes != self.spec.nbytes or (self.part is not None and self.end > self.begin):
            raise ProtocolError(
                f"the server's response: {nbytes} bytes, wanted {self.spec.nbytes} for "
                f"shape {list(self.spec.shape)} of {self.spec.dtype.name}"
            )


def decode_tensor(data: bytes, at: int, end: int) -> ReceivedTensor:
    """Reads a Tensor message. ProtocolError for an invalid type or shape."""
    name = ""
    number_of_type = 0
    shape: list[int] = []
    begin = stop = 0
    part: Part | None = None
    for number, kind, value, last in _wire.fields(data, at, end):
        if kind == _wire.LENGTH:
            if number == 1:
                name = _wire.text(data, value, last)
            elif number == 3:
                shape += _wire.packed(data, value, last)
            elif number == 4:
                begin, stop = value, last
            elif number == 5:
                part = _decode_part(data, value, last)
        elif number == 2:
            number_of_type = value
        elif number == 3:
            shape.append(_wire.signed(value))
    dtype = _dtypes.BY_NUMBER.get(number_of_type)
    if dtype is None:
        raise ProtocolError(f"the server's response: output of data type {number_of_type}")
    if shape and min(shape) < 0:
        raise ProtocolError(f"the server's response: output of shape {shape}")
    return ReceivedTensor(TensorSpec(name, dtype, tuple(shape)), begin, stop, part)


class DeviceBytes:
    """A region of a device's memory, as a tensor of its bytes."""

    def __init__(self, flat: Any) -> None:
        self.flat = flat
        self.nbytes = int(flat.numel())

    def tensor(self, spec: TensorSpec, at: int) -> Any:
        """An output in this region."""
        return _cuda.view(self.flat, at, spec.shape, spec.dtype)


Memory = Array | DeviceBytes


class Received(NamedTuple):
    """A NormalizeResponse, whose tensors stay in the message, or in place."""

    message: bytes
    model: str
    version: int
    tensors: list[ReceivedTensor]
    stages: tuple[int, int]
    batch: tuple[int, int]
    memory: Mapping[str, Memory]  # The regions that outputs are in, by name.
    made: dict[str, Any] | None = None  # The outputs, if they have already been made.

    def response(self, inputs: Sequence[Input], out: object) -> Response:
        """The caller's result; `outputs` makes its outputs."""
        return Response(
            self.model,
            self.version,
            self.outputs(inputs, out),
            decode_stages(self.message, *self.stages),
            _decode_batch(self.message, *self.batch),
        )

    def outputs(self, inputs: Sequence[Input], out: object) -> dict[str, Any]:
        """The results, as tensors of the first input's kind, or in the arrays of `out`."""
        if self.made is not None:
            return self.made
        given = named_outputs(out, [each.spec.name for each in self.tensors])
        results = {}
        for tensor in self.tensors:
            spec = tensor.spec
            if given is not None and spec.name not in given:
                continue
            target = given[spec.name] if given is not None else None
            memory: bytes | Memory = self.message
            at = tensor.begin
            if tensor.part is not None:
                memory, at = self.memory[tensor.part.region], tensor.part.offset
            if isinstance(memory, DeviceBytes):
                there = memory.tensor(spec, at)
                results[spec.name] = _from_device(there, spec, inputs[0], target)
                continue
            array = np.ndarray(spec.shape, _dtypes.to_numpy(spec.dtype), memory, at)
            array.flags.writeable = False
            if target is None:
                results[spec.name] = inputs[0].make_result(array, spec.dtype)
            else:
                results[spec.name] = fill(target, array, spec)
        return results


def _from_device(there: Any, spec: TensorSpec, first: Input, out: Any) -> Any:
    """An output on a device, copied to `out`, or to new memory of the first input's kind."""
    if out is None and first.tensor is not None:
        return there.clone()
    if _torch.is_tensor(out):
        _torch.check_out(out, spec.dtype, spec.shape, "out")
        if out.data_ptr() != there.data_ptr():
            out.copy_(there)
        return out
    array = _torch.on_host(there.clone(), spec.dtype).view(_dtypes.to_numpy(spec.dtype))
    if out is None:
        return first.make_result(array, spec.dtype)
    return fill(out, array, spec)


def fill(out: Any, array: Array, spec: TensorSpec) -> Any:
    """Copies an output to an array or tensor of the caller's, which is returned."""
    if _torch.is_tensor(out):
        _torch.check_out(out, spec.dtype, spec.shape, "out")
        _torch.fill(out, array, spec.dtype)
        return out
    checked = check_out(out, spec)
    if checked.__array_interface__["data"][0] != array.__array_interface__["data"][0]:
        np.copyto(checked, array.view(checked.dtype))
    return checked


def named_outputs(out: object, names: Sequence[str]) -> dict[str, object] | None:
    """The places of the wanted results, by name; None: all, in memory of their own.

    InvalidArgumentError for a name that no output has.
    """
    if out is None:
        return None
    if not isinstance(out, Mapping):
        if len(names) != 1:
            raise InvalidArgumentError(f"out: one, wanted a mapping for {', '.join(names)}")
        return {names[0]: out}
    for name in out:
        if name not in names:
            raise InvalidArgumentError(f'out: "{name}", wanted {", ".join(names)}')
    return dict(out)


def decode(message: bytes, memory: Mapping[str, Memory] = {}) -> Received:
    """Reads a NormalizeResponse. ProtocolError unless it has outputs whose bytes fit them.

    `memory` are the regions in which the request placed outputs, by name.
    """
    model = ""
    version = 0
    tensors: list[ReceivedTensor] = []
    stages = batch = (0, 0)
    for number, kind, value, end in _wire.fields(message, 0, len(message)):
        if kind == _wire.LENGTH:
            if number == 5:
                tensor = decode_tensor(message, value, end)
                tensor.check()
                _check_part(tensor.part, memory)
                tensors.append(tensor)
            elif number == 3:
                stages = (value, end)
            elif number == 4:
                batch = (value, end)
            elif number == 1:
                model = _wire.text(message, value, end)
        elif number == 2:
            version = _wire.signed(value)
    if len(tensors) != 1 and (
        not tensors or len({each.spec.name for each in tensors}) < len(tensors)
    ):
        raise ProtocolError("the server's response: no output, or two of one name")
    return Received(message, model, version, tensors, stages, batch, memory)


def _check_part(part: Part | None, memory: Mapping[str, Memory]) -> None:
    """ProtocolError for a part that is not in the request's regions."""
    if part is None:
        return
    region = memory.get(part.region)
    if region is None or not 0 <= part.offset <= region.nbytes - part.nbytes:
        raise ProtocolError(
            f"the server's response: an output in {part.nbytes} bytes from {part.offset} on of a "
            f'region "{part.region}", which the request did not name'
        )
