"""The operators as functions, with activations and types by name.

All are for inference: under autograd they raise RuntimeError. Tensors are float32, float64, float16
or bfloat16, on the CPU or on CUDA, where the work is enqueued on the current stream. A result is
dense: with the channels last in memory if x has them so, else row-major. Tensors with other layouts
are copied once by PyTorch's copy_, which its profiler shows below the operator. `out` takes the
result in place of a new tensor, and may be x. Errors of the operators are RuntimeError with the
argument, what came and what was wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normd.torch import _library
from normd.torch._checks import activation_code, axes_apart, axes_of, divided, elements_of

_ops = torch.ops.normd
# Looked up once. Calls omit default arguments: each argument costs some 0.1 us.
_instance_norm = _ops.instance_norm.default
_batch_norm = _ops.batch_norm.default
_group_norm = _ops.group_norm.default
_layer_norm = _ops.layer_norm.default
_rms_norm = _ops.rms_norm.default
_add_layer_norm = _ops.add_layer_norm.default
_add_rms_norm = _ops.add_rms_norm.default
_normalize = _ops.normalize.default
_LP_STATISTICS = {1.0: 3, 2.0: 4, float("inf"): 5}
_QUANTIZATIONS = {dtype: number for number, dtype in _library.QUANTIZED.items()}
# The numbers that kernels/norm_c.h gives them.
_MEAN_VARIANCE, _MEAN_SQUARE = 0, 1
_MULTIPLY_SILU = 3
# The form of `normalize`; for channels also axis and axes, for features these and groups.
_AXES = 1
_CHANNELS = (0, 1, 1)
_FEATURES = (2, 0, 1, 1)


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


def _activated(activation: str | None, slope: float) -> dict[str, Any]:
    """The options of the operator `normalize` for an activation."""
    return {} if activation is None else {"activation": activation_code(activation), "slope": slope}


def _modulated(
    scale: Tensor, shift: Tensor, scale_offset: float, activation: str | None, slope: float
) -> dict[str, Any]:
    """The same with a scale and a shift before it."""
    return {
        "scale": scale,
        "shift": shift,
        "scale_offset": scale_offset,
        **_activated(activation, slope),
    }


def _one(operator: Any, arguments: tuple[Any, ...], out: Tensor | None) -> Tensor:
    """An operator's result, or `out` with it."""
    if out is None:
        return operator.default(*arguments)
    operator.out(*arguments, out=out)
    return out


def _two(
    operator: Any, arguments: tuple[Any, ...], out: tuple[Tensor, Tensor] | None, **options: Any
) -> tuple[Tensor, Tensor]:
    """The same for an operator that also returns the sum that it normalized."""
    if out is None:
        return operator.default(*arguments, **options)[:2]
    operator.out(*arguments, out=out[0], residual_out=out[1], **options)
    return out


def _case(arguments: tuple[Any, ...], out: Tensor | None, **options: Any) -> Tensor:
    """The first result of the operator `normalize`, or `out` with it."""
    if out is None:
        return _normalize(*arguments, **options)[0]
    _ops.normalize.out(*arguments, out=out, **options)
    return out


def instance_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    eps: float = 1e-5,
    activation: str | None = None,
    slope: float = 0.01,
    out: Tensor | None = None,
) -> Tensor:
    """torch.nn.functional.instance_norm of x [N, C, *], then an activation.

    With running_mean and running_var [C] these are the statistics. weight and bias are [C].
    activation: None, "relu", "leaky_relu" (with `slope`), "silu", "gelu" or "gelu_tanh".
    """
    if out is None and activation is None:
        return _instance_norm(x, weight, bias, running_mean, running_var, eps)
    code = activation_code(activation)
    arguments = (x, weight, bias, running_mean, running_var, eps, code, slope)
    return _one(_ops.instance_norm, arguments, out)


def batch_norm(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    activation: str | None = None,
    slope: float = 0.01,
    out: Tensor | None = None,
) -> Tensor:
    """torch.nn.functional.batch_norm of x [N, C, *] with training=False, then an activation."""
    if out is None and activation is None:
        return _batch_norm(x, running_mean, running_var, weight, bias, eps)
    code = activation_code(activation)
    arguments = (x, running_mean, running_var, weight, bias, eps, code, slope)
    return _one(_ops.batch_norm, arguments, out)


def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    activation: str | None = None,
    slope: float = 0.01,
    out: Tensor | None = None,
) -> Tensor:
    """torch.nn.functional.group_norm of x [N, C, *], then an activation."""
    if num_groups < 1:
        raise ValueError(f"normd.torch.group_norm: num_groups: {num_groups}, wanted at least 1")
    if out is None and activation is None:
        return _group_norm(x, num_groups, weight, bias, eps)
    arguments = (x, num_groups, weight, bias, eps, activation_code(activation), slope)
    return _one(_ops.group_norm, arguments, out)


def layer_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    axis: int | Sequence[int] | None = None,
    activation: str | None = None,
    slope: float = 0.01,
    out: Tensor | None = None,
) -> Tensor:
    """torch.nn.functional.layer_norm, then an activation.

    normalized_shape is that of x's last dimensions, or of those from `axis` on: with axis=1 and the
    channels of [N, C, H, W] it is ConvNeXt's LayerNorm2d. Several axes are these dimensions, which
    need not be adjacent. weight and bias have that shape.
    """
    first, axes, more = axes_of("layer_norm", x, normalized_shape, weight, bias, axis)
    if out is None and activation is None and not more:
        return _layer_norm(x, first, axes, weight, bias, eps)
    arguments = (x, first, axes, weight, bias, eps, activation_code(activation), slope, more)
    return _one(_ops.layer_norm, arguments, out)


def rms_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    *,
    eps: float | None = None,
    weight_offset: float = 0.0,
    axis: int | Sequence[int] | None = None,
    activation: str | None = None,
    slope: float = 0.01,
    out: Tensor | None = None,
) -> Tensor:
    """torch.nn.functional.rms_norm with weight_offset + weight (Gemma: 1), then an activation.

    eps None is torch.finfo(x.dtype).eps. Shapes as for layer_norm.
    """
    if eps is None:
        eps = torch.finfo(x.dtype).eps
    first, axes, more = axes_of("rms_norm", x, normalized_shape, weight, None, axis)
    if out is None and activation is None and weight_offset == 0 and not more:
        return _rms_norm(x, first, axes, weight, eps)
    code = activation_code(activation)
    arguments = (x, first, axes, weight, eps, weight_offset, code, slope, more)
    return _one(_ops.rms_norm, arguments, out)


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    activation: str | None = None,
    slope: float = 0.01,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """(layer_norm(v), v) of v = x + residual, rounded to their type.

    `out` is a tensor for each; (x, residual) writes over the inputs.
    """
    first, axes, _ = axes_of("add_layer_norm", x, normalized_shape, weight, bias)
    if out is None and activation is None:
        return _add_layer_norm(x, residual, first, axes, weight, bias, eps)
    code = activation_code(activation)
    arguments = (x, residual, first, axes, weight, bias, eps, code, slope)
    return _two(_ops.add_layer_norm, arguments, out)


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    activation: str | None = None,
    slope: float = 0.01,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """(rms_norm(v), v) of v = x + residual, rounded to their type; `out` as for add_layer_norm."""
    first, axes, _ = axes_of("add_rms_norm", x, normalized_shape, weight)
    if out is None and activation is None:
        return _add_rms_norm(x, residual, first, axes, weight, eps, weight_offset)
    code = activation_code(activation)
    arguments = (x, residual, first, axes, weight, eps, weight_offset, code, slope)
    return _two(_ops.add_rms_norm, arguments, out)


def gated_rms_norm(
    x: Tensor,
    gate: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    *,
    eps: float = 1e-5,
    group_size: int | None = None,
    norm_before_gate: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """rms_norm(x * silu(gate)), or with norm_before_gate rms_norm(x) * silu(gate) (Mamba 2).

    group_size: a row is this many consecutive elements of the normalized shape. Errors of the
    operator call the gate `other`.
    """
    first, axes, _ = axes_of("gated_rms_norm", x, normalized_shape, weight)
    elements = elements_of(normalized_shape)
    groups = divided("gated_rms_norm", "group_size", elements, group_size or elements)
    arguments = (x, _AXES, first, axes, groups, _MEAN_SQUARE, eps, weight)
    combine = {"combine_output" if norm_before_gate else "combine_input": _MULTIPLY_SILU}
    return _case(arguments, out, other=gate, **combine)


def lp_normalize(
    x: Tensor,
    p: float = 2.0,
    dim: int | Sequence[int] = -1,
    *,
    eps: float = 1e-12,
    out: Tensor | None = None,
) -> Tensor:
    """torch.nn.functional.normalize with p 1, 2 or infinity; `dim` may be several dimensions."""
    if p not in _LP_STATISTICS:
        raise ValueError(f"normd.torch.lp_normalize: p: {p}, wanted 1, 2 or inf")
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    if not dims or not all(-x.dim() <= each < x.dim() for each in dims):
        raise ValueError(f"normd.torch.lp_normalize: dim: {dim}, wanted some of {x.dim()}")
    axes = sorted({each % x.dim() for each in dims})
    if len(axes) < len(dims):
        raise ValueError(
            f"normd.torch.lp_normalize: dim: {dim}, wanted different dimensions of {x.dim()}"
        )
    shape = [x.shape[axis] for axis in axes]
    first, adjacent, more = axes_apart("lp_normalize", x, shape, axes)
    arguments = (x, _AXES, first, adjacent, 1, _LP_STATISTICS[p], eps)
    return _case(arguments, out, more_axes=more)


def adaptive_layer_norm(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    scale_offset: float = 1.0,
    activation: str | None = None,
    slope: float = 0.01,
    out: Tensor | None = None,
) -> Tensor:
    """layer_norm over the last dimension of x [N, *, F], times scale_offset + scale, plus shift.

    scale and shift are [N, F], of x's type (AdaLN, DiT).
    """
    arguments = (x, *_FEATURES, _MEAN_VARIANCE, eps, weight, bias)
    options = _modulated(scale, shift, scale_offset, activation, slope)
    return _case(arguments, out, **options)


def add_adaptive_layer_norm(
    x: Tensor,
    residual: Tensor,
    gate: Tensor,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    scale_offset: float = 1.0,
    activation: str | None = None,
    slope: float = 0.01,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """(adaptive_layer_norm(v), v) of v = residual + gate * x: between two halves of a DiT block.

    gate, scale and shift are [N, F].
    """
    arguments = (x, *_FEATURES, _MEAN_VARIANCE, eps, weight, bias)
    options = _modulated(scale, shift, scale_offset, activation, slope)
    options |= {"residual": residual, "gate": gate, "write_residual": True}
    return _two(_ops.normalize, arguments, out, **options)


def adaptive_group_norm(
    x: Tensor,
    num_groups: int,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    scale_offset: float = 1.0,
    activation: str | None = None,
    slope: float = 0.01,
    out: Tensor | None = None,
) -> Tensor:
    """group_norm of x [N, C, *], times scale_offset + scale, plus shift, [N, C] (AdaGN, FiLM)."""
    arguments = (x, *_CHANNELS, num_groups, _MEAN_VARIANCE, eps, weight, bias)
    options = _modulated(scale, shift, scale_offset, activation, slope)
    return _case(arguments, out, **options)


def adaptive_instance_norm(
    x: Tensor,
    style: Tensor,
    *,
    eps: float = 1e-5,
    activation: str | None = None,
    slope: float = 0.01,
    out: Tensor | None = None,
) -> Tensor:
    """instance_norm of x [N, C, *] with the mean and deviation of style [N, C, *] (AdaIN)."""
    arguments = (x, *_CHANNELS, 0, _MEAN_VARIANCE, eps)
    return _case(arguments, out, style=style, **_activated(activation, slope))


def conditional_instance_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    style_index: Tensor | None = None,
    style_weights: Tensor | None = None,
    eps: float = 1e-5,
    activation: str | None = None,
    slope: float = 0.01,
    out: Tensor | None = None,
) -> Tensor:
    """instance_norm of x [N, C, *] with a style from a bank: weight and bias are [styles, C].

    Either style_index, int64 [N], names a style for each sample, or style_weights [N, styles] mixes
    them.
    """
    if (style_index is None) == (style_weights is None):
        came = "neither" if style_index is None else "both"
        raise ValueError(
            f"normd.torch.conditional_instance_norm: style_index, style_weights: {came}, wanted one"
        )
    arguments = (x, *_CHANNELS, 0, _MEAN_VARIANCE, eps, weight, bias)
    options = {"style_index": style_index, "style_weights": style_weights}
    return _case(arguments, out, **options, **_activated(activation, slope))


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
    values, residual_out, _, _, scales = _normalize(
        x,
        _AXES,
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
    over 127 or 448; or "block", the same for each 128 elements of a row.
    """
    return _quantized(
        "quantized_layer_norm",
        x,
        normalized_shape,
        dtype,
        scale,
        _MEAN_VARIANCE,
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
        _MEAN_SQUARE,
        eps,
        weight,
        residual=residual,
        weight_offset=weight_offset,
    )


def layer_norm_with_statistics(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """(layer_norm, mean, 1 / sqrt(variance + eps)); the latter have x's leading dimensions.

    They are float32, or float64 for float64.
    """
    first, axes, _ = axes_of("layer_norm_with_statistics", x, normalized_shape, weight, bias)
    y, _, mean, rstd, _ = _normalize(
        x, _AXES, first, axes, 1, _MEAN_VARIANCE, eps, weight, bias, statistics_out=True
    )
    return y, mean, rstd
