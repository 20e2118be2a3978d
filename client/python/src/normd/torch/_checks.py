"""The checks before a call of an operator."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# The numbers of kernels/norm_c.h.
ACTIVATIONS = {None: 0, "relu": 1, "leaky_relu": 2, "silu": 3, "gelu": 4, "gelu_tanh": 5}
PRECISIONS = {"float32": 0, "tf32": 1, "bfloat16": 2, "float32_strict": 3}

FLOATS = frozenset((torch.float32, torch.float64, torch.float16, torch.bfloat16))
# rms_norm's, as in PyTorch: of the type that it computes in. The operator refuses other types.
DEFAULT_EPS = {
    dtype: torch.finfo(torch.promote_types(dtype, torch.float32)).eps for dtype in FLOATS
}


def activation_code(activation: str | None) -> int:
    """An activation's number; ValueError for an unknown one."""
    try:
        return ACTIVATIONS[activation]
    except (KeyError, TypeError):
        wanted = ", ".join(map(repr, ACTIVATIONS))
        raise ValueError(f"activation: {activation!r}, wanted one of {wanted}") from None


def sizes_of(shape: Any) -> tuple[int, ...]:
    """A shape, or one dimension's size, as a tuple. NumPy's integers pass too."""
    if isinstance(shape, int):
        return (shape,)
    return tuple(shape) if hasattr(shape, "__iter__") else (operator.index(shape),)


def axes_of(
    name: str,
    x: Tensor,
    shape: int | Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None = None,
    axis: int | Sequence[int] | None = None,
) -> tuple[int, int, int]:
    """The normalized dimensions of x: the first one, how many are adjacent to it, itself included,
    and a bit for each other one.

    `axis` is the first of them, or all of them; negative numbers count from the end. None: they are
    the last. ValueError unless x has that shape there, and for several dimensions also the
    parameters.
    """
    of_x = x.shape
    # The most frequent calls, at the least cost.
    last = shape if type(shape) is not tuple or len(shape) != 1 else shape[0]
    if axis is None and of_x and last == of_x[-1]:
        return len(of_x) - 1, 1, 0
    if axis is not None and not isinstance(axis, int) and hasattr(axis, "__iter__"):
        place = axes_apart(name, x, shape, axis)
        _check_affine(name, shape, weight, bias)
        return place
    sizes = sizes_of(shape)
    first: Any = -len(sizes) if axis is None else axis
    first += x.dim() if first < 0 else 0
    if not sizes or first < 0 or x.shape[first : first + len(sizes)] != sizes:
        raise ValueError(
            f"normd.torch.{name}: x.shape: {list(x.shape)}, wanted {list(sizes)} "
            + ("as its last dimensions" if axis is None else f"from dimension {axis} on")
        )
    if len(sizes) > 1:
        _check_affine(name, shape, weight, bias)
    return first, len(sizes), 0


def axes_apart(
    name: str, x: Tensor, shape: int | Sequence[int], axes: Sequence[int]
) -> tuple[int, int, int]:
    """These dimensions of x as axes_of returns them. ValueError unless they ascend and x has that
    shape there."""
    sizes, given = sizes_of(shape), [operator.index(axis) for axis in axes]
    axes = [axis + x.dim() if axis < 0 else axis for axis in given]
    ascending = all(a < b for a, b in itertools.pairwise(axes))
    if not axes or not ascending or axes[0] < 0 or axes[-1] >= x.dim():
        raise ValueError(
            f"normd.torch.{name}: axis: {given}, wanted different dimensions of {x.dim()}, in "
            "ascending order"
        )
    if tuple(x.shape[axis] for axis in axes) != sizes:
        raise ValueError(
            f"normd.torch.{name}: x.shape: {list(x.shape)}, wanted {list(sizes)} as its dimensions "
            f"{given}"
        )
    adjacent = 1
    while adjacent < len(axes) and axes[adjacent] == axes[0] + adjacent:
        adjacent += 1
    return axes[0], adjacent, sum(1 << axis for axis in axes[adjacent:])


def _check_affine(
    name: str, shape: int | Sequence[int], weight: Tensor | None, bias: Tensor | None
) -> None:
    """ValueError unless the given parameters have the normalized shape.

    The operators themselves only count elements. For one normalized dimension that is enough; for
    several, the same number of elements can have other shapes.
    """
    sizes = sizes_of(shape)
    for argument, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.shape != sizes:
            raise ValueError(
                f"normd.torch.{name}: {argument}.shape: {list(tensor.shape)}, wanted {list(sizes)}"
            )


def divided(name: str, field: str, elements: int, by: int) -> int:
    """elements / by; ValueError if it is not a whole number."""
    if by < 1 or elements % by:
        raise ValueError(f"normd.torch.{name}: {field}: {by}, wanted a divisor of {elements}")
    return elements // by


def elements_of(shape: int | Sequence[int]) -> int:
    return math.prod(sizes_of(shape))
