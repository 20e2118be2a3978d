"""Norms with what comes before or after them in one pass, as functions.

residual, gate, scale, shift and style may be of other types than x: the call then computes in the
type that PyTorch promotes all of them to, in copies, and rounds the norm to x's; the sum with the
residual keeps that type. The rest is as in normd.torch.functional.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from normd.torch._calls import (
    AXES,
    CHANNELS,
    FEATURES,
    MEAN_SQUARE,
    MEAN_VARIANCE,
    MULTIPLY_SILU,
    OPS,
    activated,
    case,
    case_of_one,
    modulated,
    two,
)
from normd.torch._checks import activation_code, axes_of, divided, elements_of

_add_layer_norm = OPS.add_layer_norm.default
_add_rms_norm = OPS.add_rms_norm.default


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    activation: str | None = None,
    slope: float = 0.01,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """(layer_norm(v), v) of v = x + residual, rounded to the type of that sum.

    `out` is a tensor for each; (x, residual) writes over the inputs.
    """
    first, axes, _ = axes_of("add_layer_norm", x, normalized_shape, weight, bias)
    if out is None and activation is None and residual.dtype == x.dtype:
        return _add_layer_norm(x, residual, first, axes, weight, bias, eps)
    code = activation_code(activation)
    arguments = (x, residual, first, axes, weight, bias, eps, code, slope)
    return two(OPS.add_layer_norm, arguments, out)


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    weight_offset: float = 0.0,
    activation: str | None = None,
    slope: float = 0.01,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """(rms_norm(v), v) of v = x + residual; the rest is as for add_layer_norm."""
    first, axes, _ = axes_of("add_rms_norm", x, normalized_shape, weight)
    if out is None and activation is None and residual.dtype == x.dtype:
        return _add_rms_norm(x, residual, first, axes, weight, eps, weight_offset)
    code = activation_code(activation)
    arguments = (x, residual, first, axes, weight, eps, weight_offset, code, slope)
    return two(OPS.add_rms_norm, arguments, out)


def gated_rms_norm(
    x: Tensor,
    gate: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float = 1e-5,
    *,
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
    arguments = (x, AXES, first, axes, groups, MEAN_SQUARE, eps, weight)
    combine = {"combine_output" if norm_before_gate else "combine_input": MULTIPLY_SILU}
    return case_of_one(arguments, out, other=gate, **combine)


def adaptive_layer_norm(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    scale_offset: float = 1.0,
    activation: str | None = None,
    slope: float = 0.01,
    out: Tensor | None = None,
) -> Tensor:
    """layer_norm over the last dimension of x [N, *, F], times scale_offset + scale, plus shift.

    scale and shift are [N, F] (AdaLN, DiT).
    """
    arguments = (x, *FEATURES, MEAN_VARIANCE, eps, weight, bias)
    options = modulated(scale, shift, scale_offset, activation, slope)
    return case_of_one(arguments, out, **options)


def add_adaptive_layer_norm(
    x: Tensor,
    residual: Tensor,
    gate: Tensor,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    scale_offset: float = 1.0,
    activation: str | None = None,
    slope: float = 0.01,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """(adaptive_layer_norm(v), v) of v = residual + gate * x: between two halves of a DiT block.

    gate, scale and shift are [N, F].
    """
    arguments = (x, *FEATURES, MEAN_VARIANCE, eps, weight, bias)
    options = modulated(scale, shift, scale_offset, activation, slope)
    options |= {"residual": residual, "gate": gate, "write_residual": True}
    return case(arguments, out, **options)  # type: ignore[return-value]


def adaptive_group_norm(
    x: Tensor,
    num_groups: int,
    scale: Tensor,
    shift: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    scale_offset: float = 1.0,
    activation: str | None = None,
    slope: float = 0.01,
    out: Tensor | None = None,
) -> Tensor:
    """group_norm of x [N, C, *], times scale_offset + scale, plus shift, [N, C] (AdaGN, FiLM)."""
    arguments = (x, *CHANNELS, num_groups, MEAN_VARIANCE, eps, weight, bias)
    options = modulated(scale, shift, scale_offset, activation, slope)
    return case_of_one(arguments, out, **options)


def adaptive_instance_norm(
    x: Tensor,
    style: Tensor,
    eps: float = 1e-5,
    *,
    activation: str | None = None,
    slope: float = 0.01,
    out: Tensor | None = None,
) -> Tensor:
    """instance_norm of x [N, C, *] with the mean and deviation of style [N, C, *] (AdaIN)."""
    arguments = (x, *CHANNELS, 0, MEAN_VARIANCE, eps)
    return case_of_one(arguments, out, style=style, **activated(activation, slope))


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
    arguments = (x, *CHANNELS, 0, MEAN_VARIANCE, eps, weight, bias)
    options = {"style_index": style_index, "style_weights": style_weights}
    return case_of_one(arguments, out, **options, **activated(activation, slope))
