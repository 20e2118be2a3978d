"""The places of one call's tensors on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normd import _cuda, _dtypes, _request, _torch
from normd._cuda import DeviceMemory
from normd._request import Options
from normd._response import DeviceBytes
from normd._tensors import Input, Part
from normd.device_memory import DeviceRegion
from normd.shared_memory import whole_pages


class Slot:
    """A region of the client's own, for one call at a time."""

    def __init__(self, memory: DeviceMemory, name: str, flat: Any) -> None:
        self.memory = memory
        self.name = name
        self.bytes = DeviceBytes(flat)
        self.busy: Any = None  # An event after the last call's results.


class Plan:
    """The places of a call's tensors, one by one: in the caller's regions, or in a slot."""

    def __init__(self, inputs: Sequence[Input], out: object, regions: list[DeviceRegion]) -> None:
        self.memory: dict[str, DeviceBytes] = {}
        self.used: dict[str, Slot | DeviceRegion] = {}  # The owners of the memory, by name.
        self._regions = regions
        given = out if isinstance(out, Mapping) else {"": out}
        self.placed: dict[str, Part | None] = {
            name: self._part_of(each) if _is_on_device(each) else None
            for name, each in given.items()
        }
        self.inputs = [each._replace(part=self._part_of(each.tensor)) for each in inputs]
        # The server reads indexes on the host.
        self.to_copy = [
            at
            for at, each in enumerate(self.inputs)
            if each.tensor is not None and not each.part and each.spec.dtype is not _dtypes.INT64
        ]

    @property
    def in_place(self) -> bool:
        """Whether everything lies in the caller's regions."""
        return not self.to_copy and all(self.placed.values())

    @property
    def overwrites(self) -> bool:
        """Whether the call overwrites an input."""
        parts = {each.part for each in self.inputs if each.part is not None}
        return any(part in parts for part in self.placed.values())

    def nbytes(self, outputs: Mapping[str, int]) -> int:
        """The bytes in a slot of the inputs to copy and of these outputs."""
        copied = [self.inputs[at].nbytes for at in self.to_copy]
        return sum(map(whole_pages, [*copied, *outputs.values()]))

    def lay_out(self, slot: Slot, outputs: Mapping[str, int]) -> None:
        """Copies the inputs, on the current stream, and places the outputs."""
        self.memory[slot.name] = slot.bytes
        self.used[slot.name] = slot
        end = 0

        def take(nbytes: int) -> Part:
            nonlocal end
            part = Part(slot.name, end, nbytes)
            end += whole_pages(nbytes)
            return part

        for at in self.to_copy:
            each = self.inputs[at]
            part = take(each.nbytes)
            to = _cuda.view(slot.bytes.flat, part.offset, each.spec.shape, each.spec.dtype)
            to.copy_(each.tensor)
            self.inputs[at] = each._replace(part=part)
        for name, nbytes in outputs.items():
            self.placed[name] = take(nbytes)

    def request(self, model: str, options: Options) -> list[bytes | memoryview]:
        """The message. It carries the tensors that lie in no region of a device."""
        sent = [each if each.part is not None else each.on_host() for each in self.inputs]
        wanted = self.placed if any(self.placed.values()) else {}
        return _request.encode(model, options, sent, wanted, not options.outputs)

    def _part_of(self, tensor: Any) -> Part | None:
        if tensor is None:
            return None
        for region in self._regions:
            at = region.find(tensor)
            if at is not None:
                self.memory[region.name] = DeviceBytes(region.bytes)
                self.used[region.name] = region
                return Part(region.name, at, int(tensor.numel() * tensor.element_size()))
        return None


def _is_on_device(value: object) -> bool:
    return _torch.is_tensor(value) and _cuda.CUDA.device_of(value) is not None
