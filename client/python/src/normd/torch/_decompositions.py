"""The operators of layers in PyTorch's own, for torch.compile, and for exporters that know no
others, as torch.onnx is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, _decomp

from normd.torch._checks import FLOATS
from normd.torch._library import dims_of, memory_order

functional: Any = torch.nn.functional  # Typed in part.
builtin: Any = torch
register_decomposition: Any = _decomp.register_decomposition

# By the numbers of kernels/norm_c.h.
_ACTIVATIONS: dict[int, Callable[[Tensor, float], Tensor]] = {
    0: lambda y, _: y,
    1: lambda y, _: functional.relu(y),
    2: functional.leaky_relu,
    3: lambda y, _: functional.silu(y),
    4: lambda y, _: functional.gelu(y),
    5: lambda y, _: functional.gelu(y, approximate="tanh"),
}


def _wide(x: Tensor) -> Tensor:
    """x in the type that the kernels compute in."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def activate(y: Tensor, activation: int, slope: float) -> Tensor:
    return _ACTIVATIONS[activation](y, slope)


def _finish(
    x: Tensor, y: Tensor, activation: int, slope: float, axis: int = 1, axes: int = 1
) -> Tensor:
    y = activate(y, activation, slope).to(x.dtype)
    dims = memory_order(x, axis, axes)
    return y.permute(dims).contiguous().permute([dims.index(dim) for dim in range(x.dim())])


def _like(x: Tensor, *parameters: Tensor | None) -> list[Any]:
    return [None if each is None else each.to(x.dtype) for each in parameters]


def _over(
    x: Tensor,
    axis: int,
    axes: int,
    more_axes: int,
    parameters: tuple[Tensor | None, ...],
    norm: Callable[..., Tensor],
) -> Tensor:
    """A norm of the last dimensions, over these ones."""
    dims = (*range(axis, axis + axes), *dims_of(more_axes))
    last = tuple(range(x.dim() - len(dims), x.dim()))
    moved = _wide(x) if dims == last else _wide(x).movedim(dims, last)
    shape = moved.shape[x.dim() - len(dims) :]
    shaped = (None if each is None else each.reshape(shape) for each in _like(moved, *parameters))
    y = norm(moved, shape, *shaped)
    return y if dims == last else y.movedim(last, dims)


def _batch_norm(
    x: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    eps: float = 1e-5, activation: int = 0, slope: float = 0.01,
) -> Any:  # fmt: skip
    wide = _wide(x)
    parameters = _like(wide, running_mean, running_var, weight, bias)
    return _finish(x, functional.batch_norm(wide, *parameters, eps=eps), activation, slope)


def _group_norm(
    x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5,
    activation: int = 0, slope: float = 0.01,
) -> Any:  # fmt: skip
    wide = _wide(x)
    if x.numel() == 0:  # PyTorch's refuses it.
        return _finish(x, wide, 0, 0)
    y = builtin.group_norm(wide, num_groups, *_like(wide, weight, bias), eps)
    return _finish(x, y, activation, slope)


def _instance_norm(
    x: Any, weight: Any = None, bias: Any = None, running_mean: Any = None, running_var: Any = None,
    eps: float = 1e-5, activation: int = 0, slope: float = 0.01,
) -> Any:  # fmt: skip
    if running_mean is None:
        return _group_norm(x, x.shape[1], weight, bias, eps, activation, slope)
    return _batch_norm(x, running_mean, running_var, weight, bias, eps, activation, slope)


def _layer_norm(
    x: Any, axis: int, axes: int, weight: Any = None, bias: Any = None, eps: float = 1e-5,
    activation: int = 0, slope: float = 0.01, more_axes: int = 0,
) -> Any:  # fmt: skip
    y = _over(
        x, axis, axes, more_axes, (weight, bias), lambda *a: functional.layer_norm(*a, eps=eps)
    )
    return _finish(x, y, activation, slope, *((0, 0) if more_axes else (axis, axes)))


def _rms_norm(
    x: Any, axis: int, axes: int, weight: Any = None, eps: float = 1e-5,
    weight_offset: float = 0.0, activation: int = 0, slope: float = 0.01, more_axes: int = 0,
) -> Any:  # fmt: skip
    if weight is not None and weight_offset:
        weight = weight.to(_wide(x).dtype) + weight_offset
    y = _over(x, axis, axes, more_axes, (weight,), lambda *a: functional.rms_norm(*a, eps=eps))
    return _finish(x, y, activation, slope, *((0, 0) if more_axes else (axis, axes)))


def _added(norm: Callable[..., Any]) -> Callable[..., Any]:
    def add(x: Any, residual: Any, *arguments: Any, **options: Any) -> Any:
        total = x + residual
        return norm(total, *arguments, **options), total

    return add


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "instance_norm": _instance_norm,
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "add_layer_norm": _added(_layer_norm),
    "add_rms_norm": _added(_rms_norm),
}
_TABLE = {getattr(torch.ops.normd, name).default: each for name, each in _FUNCTIONS.items()}
for _operator, _function in _TABLE.items():
    register_decomposition(_operator)(_function)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """{operator: the same in PyTorch's own}, for torch.export's run_decompositions().

    It has the operators that layers call; those of fused functions have none.
    """
    return dict(_TABLE)


# Inductor reads longer groups of channels twice from memory, normd's kernels once.
_FUSED_ELEMENTS = 1 << 16
# Where eps is among the arguments behind x.
_EPS = {"instance_norm": 4, "batch_norm": 4, "group_norm": 3, "layer_norm": 4, "rms_norm": 3}


def for_inductor() -> bool:
    """Whether torch.compile traces the call, and not torch.export.

    torch.compiler.is_exporting() is true for both in older versions of PyTorch.
    """
    exporting = getattr(torch.compiler, "_is_exporting_flag", False)
    return torch.compiler.is_dynamo_compiling() and not exporting


def traced(name: str) -> Callable[..., Any]:
    """What a layer calls while torch.compile traces it.

    That is PyTorch's own operators, for inductor to fuse with what is around them. It is normd's in
    torch.export, for groups of channels over _FUSED_ELEMENTS, for x without elements, and for what
    normd refuses.
    """
    operator, function = getattr(torch.ops.normd, name).default, _FUNCTIONS[name]

    def call(x: Tensor, *arguments: Any) -> Any:
        if not for_inductor():
            return operator(x, *arguments)
        tensors = [x, *(each for each in arguments if isinstance(each, Tensor))]
        refused = (
            any(each.dtype not in FLOATS for each in tensors)
            or not 0 <= arguments[_EPS[name]] < math.inf
            or (torch.is_grad_enabled() and any(each.requires_grad for each in tensors))
        )
        groups = 0
        if name in {"group_norm", "instance_norm"} and x.dim() > 1:
            groups = arguments[0] if name == "group_norm" else x.shape[1]
        long = groups > 0 and math.prod(x.shape[1:]) > groups * _FUSED_ELEMENTS
        fused = not refused and not long and x.numel() > 0
        return (function if fused else operator)(x, *arguments)

    return call
