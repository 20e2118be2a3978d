"""Norms whose result is quantized, as functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from normd.torch import _library
from normd.torch._calls import AXES, MEAN_SQUARE, MEAN_VARIANCE, NORMALIZE, wider_type
from normd.torch._checks import axes_of

_QUANTIZATIONS = {dtype: number for number, dtype in _library.QUANTIZED.items()}


class Quantized(NamedTuple):
    """A quantized result; it stands for `values * scales`.

    Attributes:
      values: int8 or float8_e4m3fn, of x's shape.
      scales: float32; one for each row, or for each block of 128 elements of a row; None with the
        caller's scale.
      residual_out: x + residual, if there is a residual.
    """

    values: Tensor
    scales: Tensor | None
    residual_out: Tensor | None = None


def _quantized(
    name: str,
    x: Tensor,
    normalized_shape: int | Sequence[int],
    dtype: torch.dtype,
    scale: float | str,
    statistics: int,
    eps: float,
    weight: Tensor | None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    weight_offset: float = 0.0,
) -> Quantized:
    if dtype not in _QUANTIZATIONS:
        raise ValueError(f"normd.torch.{name}: dtype: {dtype}, wanted int8 or float8_e4m3fn")
    granularity = {"row": 1, "block": 2}.get(scale, 0) if isinstance(scale, str) else 0
    if isinstance(scale, str) and not granularity:
        raise ValueError(f'normd.torch.{name}: scale: {scale!r}, wanted "row", "block" or a number')
    first, axes, _ = axes_of(name, x, normalized_shape, weight, bias)
    if residual is not None and (wide := wider_type(x, residual)) is not None:
        x, residual = x.to(wide), residual.to(wide)
    values, residual_out, _, _, scales = NORMALIZE(
        x,
        AXES,
        first,
        axes,
        1,
        statistics,
        eps,
        weight,
        bias,
        residual=residual,
        weight_offset=weight_offset,
        write_residual=residual is not None,
        quantization=_QUANTIZATIONS[dtype],
        quantization_scale=granularity,
        output_scale=0.0 if isinstance(scale, str) else scale,
    )
    return Quantized(
        values, scales if granularity else None, None if residual is None else residual_out
    )


def quantized_layer_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.int8,
    scale: float | str = "row",
    eps: float = 1e-5,
    residual: Tensor | None = None,
) -> Quantized:
    """layer_norm of x, or of x + residual, as 8 bits.

    dtype: torch.int8 or torch.float8_e4m3fn. scale: a number; or "row", each row's largest value
    over 127 or 448; or "block", the same for each 128 elements of a row. A residual of another type
    than x is added in the type that PyTorch promotes both to, which residual_out has.
    """
    return _quantized(
        "quantized_layer_norm",
        x,
        normalized_shape,
        dtype,
        scale,
        MEAN_VARIANCE,
        eps,
        weight,
        bias,
        residual,
    )


def quantized_rms_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.int8,
    scale: float | str = "row",
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    residual: Tensor | None = None,
) -> Quantized:
    """rms_norm of x, or of x + residual, as 8 bits; `dtype` and `scale` as quantized_layer_norm."""
    return _quantized(
        "quantized_rms_norm",
        x,
        normalized_shape,
        dtype,
        scale,
        MEAN_SQUARE,
        eps,
        weight,
        residual=residual,
        weight_offset=weight_offset,
    )
