"""The operators as functions, with activations and types by name.

All are for inference: under autograd they raise RuntimeError. Tensors are float32, float64, float16
or bfloat16, on the CPU or on CUDA, where the work is enqueued on the current stream. A result is
dense: with the channels last in memory if x has them so, else row-major. An x of rows that lie
together, at one distance from each other or from one group of them to the next, is read where it
lies; tensors with other layouts are copied once by PyTorch's copy_, which its profiler shows below
the operator. `out` takes the result in place of a new tensor, and may be x. Errors of the operators
are RuntimeError with the argument, what came and what was wanted.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from normd.torch._calls import AXES, MEAN_VARIANCE, NORMALIZE, OPS, case_of_one, one
from normd.torch._checks import DEFAULT_EPS, activation_code, axes_apart, axes_of, sizes_of

_instance_norm = OPS.instance_norm.default
_batch_norm = OPS.batch_norm.default
_group_norm = OPS.group_norm.default
_layer_norm = OPS.layer_norm.default
_rms_norm = OPS.rms_norm.default
_LP_STATISTICS = {1.0: 3, 2.0: 4, float("inf"): 5}


def instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    activation: str | None = None,
    slope: float = 0.01,
    out: Tensor | None = None,
) -> Tensor:
    """torch.nn.functional.instance_norm of x [N, C, *], then an activation.

    With use_input_stats=False the statistics are running_mean and running_var [C], which no call
    changes; `momentum` has no effect. weight and bias are [C].
    activation: None, "relu", "leaky_relu" (with `slope`), "silu", "gelu" or "gelu_tanh".
    """
    given = running_mean is not None or running_var is not None
    if given if use_input_stats else running_mean is None or running_var is None:
        came = "with" if given else "without"
        raise ValueError(
            f"normd.torch.instance_norm: use_input_stats: {use_input_stats} {came} running_mean or "
            "running_var, wanted True without both, or False with both: none is updated"
        )
    if out is None and activation is None:
        return _instance_norm(x, weight, bias, running_mean, running_var, eps)
    code = activation_code(activation)
    arguments = (x, weight, bias, running_mean, running_var, eps, code, slope)
    return one(OPS.instance_norm, arguments, out)


def batch_norm(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    activation: str | None = None,
    slope: float = 0.01,
    out: Tensor | None = None,
) -> Tensor:
    """torch.nn.functional.batch_norm of x [N, C, *] with training=False, then an activation.

    `momentum` has no effect.
    """
    if training:
        raise ValueError("normd.torch.batch_norm: training: True, wanted False")
    if out is None and activation is None:
        return _batch_norm(x, running_mean, running_var, weight, bias, eps)
    code = activation_code(activation)
    arguments = (x, running_mean, running_var, weight, bias, eps, code, slope)
    return one(OPS.batch_norm, arguments, out)


def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
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
    return one(OPS.group_norm, arguments, out)


def layer_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
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
    return one(OPS.layer_norm, arguments, out)


def rms_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    weight_offset: float = 0.0,
    axis: int | Sequence[int] | None = None,
    activation: str | None = None,
    slope: float = 0.01,
    out: Tensor | None = None,
) -> Tensor:
    """torch.nn.functional.rms_norm with weight_offset + weight (Gemma: 1), then an activation.

    eps None is PyTorch's: the machine epsilon of float64 for float64, else of float32. Shapes as
    for layer_norm.
    """
    if eps is None:
        eps = DEFAULT_EPS.get(x.dtype, 0.0)
    first, axes, more = axes_of("rms_norm", x, normalized_shape, weight, None, axis)
    if out is None and activation is None and weight_offset == 0 and not more:
        return _rms_norm(x, first, axes, weight, eps)
    code = activation_code(activation)
    arguments = (x, first, axes, weight, eps, weight_offset, code, slope, more)
    return one(OPS.rms_norm, arguments, out)


def lp_normalize(
    x: Tensor,
    p: float = 2.0,
    dim: int | Sequence[int] = 1,
    eps: float = 1e-12,
    out: Tensor | None = None,
) -> Tensor:
    """torch.nn.functional.normalize with p 1, 2 or infinity; `dim` may be several dimensions."""
    if p not in _LP_STATISTICS:
        raise ValueError(f"normd.torch.lp_normalize: p: {p}, wanted 1, 2 or inf")
    if x.dim() == 0:  # PyTorch takes it as one of one element.
        y = lp_normalize(x[None], p, dim, eps, None if out is None else out[None])
        return y[0] if out is None else out
    dims = sizes_of(dim)
    if not dims or not all(-x.dim() <= each < x.dim() for each in dims):
        raise ValueError(f"normd.torch.lp_normalize: dim: {dim}, wanted some of {x.dim()}")
    axes = sorted({each % x.dim() for each in dims})
    if len(axes) < len(dims):
        raise ValueError(
            f"normd.torch.lp_normalize: dim: {dim}, wanted different dimensions of {x.dim()}"
        )
    shape = [x.shape[axis] for axis in axes]
    first, adjacent, more = axes_apart("lp_normalize", x, shape, axes)
    arguments = (x, AXES, first, adjacent, 1, _LP_STATISTICS[p], eps)
    return case_of_one(arguments, out, more_axes=more)


def layer_norm_with_statistics(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """(layer_norm, mean, 1 / sqrt(variance + eps)); the latter have x's leading dimensions.

    They are float32, or float64 for float64.
    """
    first, axes, _ = axes_of("layer_norm_with_statistics", x, normalized_shape, weight, bias)
    y, _, mean, rstd, _ = NORMALIZE(
        x, AXES, first, axes, 1, MEAN_VARIANCE, eps, weight, bias, statistics_out=True
    )
    return y, mean, rstd
