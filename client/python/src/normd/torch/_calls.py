"""What the functions share: the operator `normalize` by the names of its cases, and mixed types."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from normd.torch import _library  # noqa: F401  It registers the operators.
from normd.torch._checks import FLOATS, activation_code

OPS = torch.ops.normd
# Looked up once. Calls omit default arguments: each argument costs some 0.1 us.
NORMALIZE = OPS.normalize.default
# The numbers that kernels/norm_c.h gives them.
MEAN_VARIANCE, MEAN_SQUARE = 0, 1
MULTIPLY_SILU = 3
# The form of `normalize`; for channels also axis and axes, for features these and groups.
AXES = 1
CHANNELS = (0, 1, 1)
FEATURES = (2, 0, 1, 1)
# The arguments of `normalize` whose type has to be x's.
_LIKE_X = ("residual", "gate", "other", "scale", "shift", "style", "style_weights")
_RESULTS = ("out", "residual_out")


def called(name: str) -> Any:
    """An operator for calls that torch.compile does not trace: without the Python frame of the
    OpOverload, which passes its arguments on to `_op`."""
    operator = getattr(OPS, name).default
    return getattr(operator, "_op", operator)


def activated(activation: str | None, slope: float) -> dict[str, Any]:
    """The options of the operator `normalize` for an activation."""
    return {} if activation is None else {"activation": activation_code(activation), "slope": slope}


def modulated(
    scale: Tensor, shift: Tensor, scale_offset: float, activation: str | None, slope: float
) -> dict[str, Any]:
    """The same with a scale and a shift before it."""
    return {
        "scale": scale,
        "shift": shift,
        "scale_offset": scale_offset,
        **activated(activation, slope),
    }


def one(operator: Any, arguments: tuple[Any, ...], out: Tensor | None) -> Tensor:
    """An operator's result, or `out` with it."""
    if out is None:
        return operator.default(*arguments)
    operator.out(*arguments, out=out)
    return out


def wider_type(x: Tensor, *others: Tensor | None) -> torch.dtype | None:
    """The type that PyTorch promotes these to; None if all have x's, or one is of no type of ours,
    which the operator refuses by name."""
    types = {each.dtype for each in others if each is not None}
    if types <= {x.dtype} or not types | {x.dtype} <= FLOATS:
        return None
    wide = x.dtype
    for each in types:
        wide = torch.promote_types(wide, each)
    return wide


def _check_apart(out: tuple[Tensor, ...]) -> None:
    """ValueError if tensors begin at one place; the operators refuse further overlaps."""
    begins = {each.data_ptr() for each in out if each.numel()}
    if len(begins) < sum(each.numel() > 0 for each in out):
        raise ValueError(
            "normd.torch: residual_out: in the memory of out, wanted memory of its own"
        )


def _check_count(out: Any, count: int) -> None:
    if not isinstance(out, tuple | list) or len(out) != count:
        came = f"{len(out)} tensors" if isinstance(out, tuple | list) else type(out).__name__
        raise ValueError(f"normd.torch: out: {came}, wanted a tuple of {count} tensors")


def _rounded(
    x: Tensor, results: tuple[Tensor, ...], out: tuple[Tensor, ...] | None
) -> tuple[Tensor, ...]:
    """The norm in x's type, and the sum, if there is one, as it is; or `out` with them."""
    results = (results[0].to(x.dtype), *results[1:])
    if out is None:
        return results
    _check_apart(out)
    for name, result, place in zip(_RESULTS, results, out, strict=False):
        if place.dtype != result.dtype or place.shape != result.shape:
            raise ValueError(
                f"normd.torch: {name}: {place.dtype} {list(place.shape)}, wanted {result.dtype} "
                f"{list(result.shape)}"
            )
    for result, place in zip(results, out, strict=True):
        place.copy_(result)
    return out


def two(
    operator: Any, arguments: tuple[Any, ...], out: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """The norm of x + residual, the first two arguments, and that sum; or `out` with them."""
    x, residual, *others = arguments
    if out is not None:
        _check_count(out, 2)
    if (wide := wider_type(x, residual)) is not None:
        results = operator.default(x.to(wide), residual.to(wide), *others)
        return _rounded(x, results, out)  # type: ignore[return-value]
    if out is None:
        return operator.default(*arguments)
    operator.out(*arguments, out=out[0], residual_out=out[1])
    return out


def case(
    arguments: tuple[Any, ...], out: tuple[Tensor, ...] | None, **options: Any
) -> tuple[Tensor, ...]:
    """The results of the operator `normalize`; or `out` with them: the norm, and with
    write_residual the sum."""
    x = arguments[0]
    count = 2 if options.get("write_residual") else 1
    if out is not None:
        _check_count(out, count)
    if (wide := wider_type(x, *map(options.get, _LIKE_X))) is not None:
        for name in _LIKE_X:
            if options.get(name) is not None:
                options[name] = options[name].to(wide)
        return _rounded(x, NORMALIZE(x.to(wide), *arguments[1:], **options)[:count], out)
    if out is None:
        return NORMALIZE(*arguments, **options)[:count]
    OPS.normalize.out(*arguments, **dict(zip(_RESULTS, out, strict=False)), **options)
    return out


def case_of_one(arguments: tuple[Any, ...], out: Tensor | None, **options: Any) -> Tensor:
    """The same for the norm alone."""
    return case(arguments, None if out is None else (out,), **options)[0]
