"""The outputs of a model for inputs of certain shapes, computed from GetModel's answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from normd import _dtypes
from normd._tensors import TensorSpec
from normd.models import ModelInfo, TensorInfo

_ANY = -1
_DIMENSIONS = -2
_OWN_DIMENSIONS = -3


class _Bound:
    """The values of the patterns' wildcards, which all tensors of a request share."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}  # By place in the pattern.
        self.dimensions: tuple[int, ...] | None = None

    def bind(self, pattern: Sequence[int], shape: tuple[int, ...]) -> None:
        """Binds the wildcards to the shape; if it does not fit, to some values."""
        at = 0
        for place, size in enumerate(pattern):
            if size in (_DIMENSIONS, _OWN_DIMENSIONS):
                end = at + max(0, len(shape) - len(pattern) + 1)
                if size == _DIMENSIONS:
                    self.dimensions = shape[at:end]
                at = end
                continue
            if size == _ANY and at < len(shape):
                self.sizes[place] = shape[at]
            at += 1

    def fill(self, pattern: Sequence[int]) -> tuple[int, ...] | None:
        """None if something is not bound."""
        shape: list[int] = []
        for place, size in enumerate(pattern):
            if size == _DIMENSIONS and self.dimensions is not None:
                shape += self.dimensions
            elif size == _ANY and place in self.sizes:
                shape.append(self.sizes[place])
            elif size >= 0:
                shape.append(size)
            else:
                return None
        return tuple(shape)


def output_bytes(
    model: ModelInfo, inputs: Sequence[TensorSpec], wanted: Sequence[str]
) -> dict[str, int] | None:
    """The bytes of each output by name: of the wanted ones, or of all default ones.

    None if they cannot be computed, or the inputs are not the model's: the server will say why.
    """
    known = {each.name: each for each in model.inputs}
    bound = _Bound()
    for spec in inputs:
        info = model.inputs[0] if not spec.name and len(known) == 1 else known.get(spec.name)
        if info is None:
            return None
        bound.bind(info.shape, spec.shape)
    outputs = {each.name: each for each in model.outputs}
    names = wanted or [each.name for each in model.outputs if not each.on_request]
    found: dict[str, int] = {}
    for name in names:
        shape = bound.fill(outputs[name].shape) if name in outputs else None
        dtype = _type_of(outputs[name], inputs[0]) if shape is not None else None
        if shape is None or dtype is None:
            return None
        found[name] = math.prod(shape) * dtype.itemsize
    return found


def _type_of(output: TensorInfo, first: TensorSpec) -> _dtypes.DataType | None:
    name = output.dtype
    if first.dtype is _dtypes.FLOAT64 and output.dtype_of_float64:
        name = output.dtype_of_float64
    return _dtypes.BY_NAME.get(name) if name else first.dtype
