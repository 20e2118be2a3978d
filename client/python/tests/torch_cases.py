"""Calls of every operator of normd.torch, each beside PyTorch's own formula in float64."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

import normd.torch

SILU = 3  # An activation's number.
ROW, BLOCK, INT8, FLOAT8 = 1, 2, 1, 2


@dataclass
class Case:
    """One call: torch.ops.normd.<operator>(*arguments(tensor)); of a function that is a case of
    torch.ops.normd.normalize, see FUNCTIONS."""

    operator: str
    label: str
    arguments: Callable[[Any], tuple[Any, ...]]
    reference: Callable[..., Any]
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

    def __str__(self) -> str:
        return f"{self.operator}-{self.label}"

    @property
    def call(self) -> Any:
        function = FUNCTIONS.get(self.operator)
        if function is None:
            return getattr(torch.ops.normd, self.operator)
        return Function(getattr(normd.torch, self.operator), function)


class Function:
    """A function of normd.torch in an operator's form: called by position, with an overload out."""

    def __init__(self, function: Callable[..., Any], adapt: Callable[..., Any]) -> None:
        self._function, self._adapt = function, adapt

    def __call__(self, *arguments: Any) -> Any:
        return self._adapt(self._function, *arguments)

    default = __call__

    def out(self, *arguments: Any, out: Any, residual_out: Any = None) -> None:
        places = out if residual_out is None else (out, residual_out)
        results = self._adapt(functools.partial(self._function, out=places), *arguments)
        assert results is places


def _call_gated(f, x, gate, axis, axes, groups, weight, eps, before):
    shape = x.shape[axis : axis + axes]
    size = shape.numel() // groups
    return f(x, gate, shape, weight, eps=eps, group_size=size, norm_before_gate=before)


def _call_lp(f, x, axis, axes, statistics, eps=1e-12, more=0):
    dims = [dim for dim in range(x.dim()) if axis <= dim < axis + axes or more >> dim & 1]
    return f(x, {3: 1.0, 4: 2.0, 5: float("inf")}[statistics], dims, eps=eps)


def _call_modulated(f, *arguments):
    *arguments, eps, offset = arguments
    return f(*arguments, eps=eps, scale_offset=offset)


def _call_conditional(f, x, weight, bias, index=None, mix=None):
    return f(x, weight, bias, style_index=index, style_weights=mix)


# {function: a call of it with a case's arguments}
FUNCTIONS = {
    "gated_rms_norm": _call_gated,
    "lp_normalize": _call_lp,
    "adaptive_layer_norm": _call_modulated,
    "add_adaptive_layer_norm": _call_modulated,
    "adaptive_group_norm": _call_modulated,
    "adaptive_instance_norm": lambda f, x, style, eps: f(x, style, eps=eps),
    "conditional_instance_norm": _call_conditional,
}


class Maker:
    """Makes the tensors of a case: the same numbers for each device."""

    def __init__(self, device: str, dtype: torch.dtype, seed: int = 7) -> None:
        self.device, self.dtype = device, dtype
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> torch.Tensor:
        values = torch.randn(shape, generator=self._generator, dtype=torch.float64)
        return values.to(self.dtype).to(self.device)

    def positive(self, *shape: int) -> torch.Tensor:
        return self(*shape).abs() + 0.5

    def index(self, below: int, *shape: int) -> torch.Tensor:
        return torch.randint(below, shape, generator=self._generator).to(self.device)

    def channels_last(self, *shape: int) -> torch.Tensor:
        return self(*shape).movedim(1, -1).contiguous().movedim(-1, 1)

    def strided(self, *shape: int) -> torch.Tensor:
        return self(*shape[:-1], 2 * shape[-1])[..., ::2]


def double(value: Any) -> Any:
    is_real = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if is_real else value


def per_sample(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """[N, C] beside x [N, C, *]."""
    return values.reshape(*values.shape, *[1] * (x.dim() - 2))


def _axes_moved_last(x, axis, axes, more):
    """x with its normalized dimensions behind the others, these dimensions, and where they are."""
    first = (*range(axis, axis + axes), *(dim for dim in range(x.dim()) if more >> dim & 1))
    last = tuple(range(x.dim() - len(first), x.dim()))
    return x.movedim(first, last), first, last


def _layer(x, axis, axes, weight=None, bias=None, eps=1e-5, activation=0, slope=0.01, more=0):
    moved, first, last = _axes_moved_last(x, axis, axes, more)
    shape = moved.shape[-len(first) :]
    weight, bias = (None if each is None else each.reshape(shape) for each in (weight, bias))
    y = functional.layer_norm(moved, shape, weight, bias, eps).movedim(last, first)
    return functional.silu(y) if activation == SILU else y


def _rms(x, axis, axes, weight=None, eps=1e-5, offset=0.0, activation=0, slope=0.01, more=0):
    moved, first, last = _axes_moved_last(x, axis, axes, more)
    shape = moved.shape[-len(first) :]
    factor = None if weight is None else (weight + offset).reshape(shape)
    y = functional.rms_norm(moved, shape, factor, eps).movedim(last, first)
    return functional.silu(y) if activation == SILU else y


def _group(x, groups, weight=None, bias=None, eps=1e-5, activation=0, slope=0.01):
    y = functional.group_norm(x, groups, weight, bias, eps)
    return functional.silu(y) if activation == SILU else y


def _instance(x, weight=None, bias=None, mean=None, variance=None, eps=1e-5, *_):
    return functional.instance_norm(x, mean, variance, weight, bias, mean is None, eps=eps)


def _batch(x, mean, variance, weight=None, bias=None, eps=1e-5, *_):
    return functional.batch_norm(x, mean, variance, weight, bias, eps=eps)


def _added(norm):
    """(norm of the sum, the sum), of which the sum is rounded as the operator's is."""

    def compute(x, residual, *arguments, dtype):
        total = (x + residual).to(dtype).double()
        return norm(total, *arguments), total

    return compute


def _gated(x, gate, axis, axes, groups, weight, eps, before):
    shape = x.shape
    v = x if before else x * functional.silu(gate)
    rows = v.reshape(*shape[:axis], groups, -1)
    y = functional.rms_norm(rows, rows.shape[-1:], None, eps).reshape(shape) * weight
    return y * functional.silu(gate) if before else y


def _adaptive_layer(x, scale, shift, weight, bias, eps, offset, *_):
    middle = [1] * (x.dim() - 2)
    n, f = scale.shape
    y = functional.layer_norm(x, (f,), weight, bias, eps)
    return y * (offset + scale.view(n, *middle, f)) + shift.view(n, *middle, f)


def _add_adaptive_layer(x, residual, gate, scale, shift, *arguments, dtype):
    middle = [1] * (x.dim() - 2)
    n, f = gate.shape
    v = (residual + gate.view(n, *middle, f) * x).to(dtype).double()
    return _adaptive_layer(v, scale, shift, *arguments), v


def _adaptive_group(x, groups, scale, shift, weight, bias, eps, offset, *_):
    y = functional.group_norm(x, groups, weight, bias, eps)
    return y * (offset + per_sample(scale, x)) + per_sample(shift, x)


def _adain(x, style, eps, *_):
    flat = style.flatten(2)
    deviation = (flat.var(-1, correction=0) + eps).sqrt()
    y = functional.instance_norm(x, eps=eps)
    return y * per_sample(deviation, x) + per_sample(flat.mean(-1), x)


def _conditional(x, weight, bias, index=None, mix=None, eps=1e-5, *_):
    gamma = weight[index] if mix is None else mix @ weight
    beta = bias[index] if mix is None else mix @ bias
    y = functional.instance_norm(x, eps=eps)
    return y * per_sample(gamma, x) + per_sample(beta, x)


CASES = [
    Case("instance_norm", "plain", lambda t: (t(3, 4, 5, 6),), _instance),
    Case("instance_norm", "affine",
         lambda t: (t(3, 4, 37), t(4), t(4), None, None, 1e-3), _instance),
    Case("instance_norm", "channels_last",
         lambda t: (t.channels_last(3, 4, 5, 6), t(4), t(4)), _instance),
    Case("instance_norm", "running",
         lambda t: (t(3, 4, 7), t(4), t(4), t(4), t.positive(4)), _instance),
    Case("batch_norm", "affine", lambda t: (t(3, 4, 7), t(4), t.positive(4), t(4), t(4)), _batch),
    Case("batch_norm", "plain", lambda t: (t(5, 4), t(4), t.positive(4)), _batch),
    Case("group_norm", "affine", lambda t: (t(2, 6, 5, 7), 3, t(6), t(6)), _group),
    Case("group_norm", "silu_channels_last",
         lambda t: (t.channels_last(2, 8, 5, 6), 4, t(8), t(8), 1e-5, SILU), _group),
    Case("group_norm", "strided", lambda t: (t.strided(2, 6, 5, 7), 3, t(6), t(6)), _group),
    Case("layer_norm", "last", lambda t: (t(5, 3, 33), 2, 1, t(33), t(33)), _layer),
    Case("layer_norm", "two", lambda t: (t(5, 3, 33), 1, 2, t(3, 33), None), _layer),
    Case("layer_norm", "channels", lambda t: (t(2, 6, 5, 7), 1, 1, t(6), t(6)), _layer),
    Case("layer_norm", "channels_last",
         lambda t: (t.channels_last(2, 6, 5, 7), 1, 1, t(6), t(6), 1e-6, SILU), _layer),
    Case("layer_norm", "transposed", lambda t: (t(33, 5).t(), 1, 1, t(33)), _layer),
    Case("layer_norm", "first", lambda t: (t(33, 5), 0, 1, t(33), t(33)), _layer),
    Case("layer_norm", "first_transposed", lambda t: (t(5, 33).t(), 0, 1, t(33), t(33)), _layer),
    Case("layer_norm", "apart",
         lambda t: (t(2, 6, 5, 7), 1, 1, t(6, 7), t(6, 7), 1e-5, SILU, 0.01, 1 << 3), _layer),
    Case("layer_norm", "apart_strided",
         lambda t: (t.strided(2, 3, 2, 5, 7), 1, 2, t(42), None, 1e-5, 0, 0.01, 1 << 4), _layer),
    Case("layer_norm", "apart_by_1",
         lambda t: (t(2, 6, 1, 7), 1, 1, t(42), None, 1e-5, 0, 0.01, 1 << 3), _layer),
    Case("rms_norm", "apart",
         lambda t: (t(3, 4, 2, 5, 2, 3), 0, 1, t(12), 1e-6, 1.0, 0, 0.01, 1 << 2 | 1 << 4), _rms),
    Case("rms_norm", "apart_channels_last",
         lambda t: (t.channels_last(2, 6, 5, 7), 1, 1, t(30), 1e-6, 0.0, 0, 0.01, 1 << 2), _rms),
    Case("rms_norm", "two_first_innermost",
         lambda t: (t(7, 3, 5).movedim(0, -1), 0, 2, t(15)), _rms),
    Case("rms_norm", "last", lambda t: (t(5, 130), 1, 1, t(130)), _rms),
    Case("rms_norm", "gemma_silu", lambda t: (t(5, 64), 1, 1, t(64), 1e-6, 1.0, SILU), _rms),
    Case("rms_norm", "channels", lambda t: (t(2, 6, 5), 1, 1, t(6)), _rms),
    Case("add_layer_norm", "affine",
         lambda t: (t(5, 33), t(5, 33), 1, 1, t(33), t(33)), _added(_layer)),
    Case("add_layer_norm", "first_transposed",
         lambda t: (t(5, 33).t(), t(5, 33).t(), 0, 1, t(33), t(33)), _added(_layer)),
    Case("add_rms_norm", "weight", lambda t: (t(5, 33), t(5, 33), 1, 1, t(33)), _added(_rms)),
    Case("gated_rms_norm", "after",
         lambda t: (t(5, 64), t(5, 64), 1, 1, 4, t(64), 1e-5, False), _gated),
    Case("gated_rms_norm", "before",
         lambda t: (t(5, 64), t(5, 64), 1, 1, 1, t(64), 1e-5, True), _gated),
    Case("lp_normalize", "2", lambda t: (t(5, 33), 1, 1, 4, 1e-12),
         lambda x, *_: functional.normalize(x)),
    Case("lp_normalize", "1_channels", lambda t: (t(5, 3, 4), 1, 1, 3, 1e-12),
         lambda x, *_: functional.normalize(x, p=1)),
    Case("lp_normalize", "first_transposed", lambda t: (t(5, 33).t(), 0, 1, 4, 1e-12),
         lambda x, *_: functional.normalize(x, dim=0)),
    Case("lp_normalize", "apart", lambda t: (t(5, 3, 4), 0, 1, 4, 1e-12, 1 << 2),
         lambda x, *_: functional.normalize(x, dim=(0, 2))),
    Case("lp_normalize", "inf", lambda t: (t(5, 33), 1, 1, 5, 1e-12),
         lambda x, *_: functional.normalize(x, p=float("inf"))),
    Case("adaptive_layer_norm", "plain",
         lambda t: (t(2, 7, 16), t(2, 16), t(2, 16), None, None, 1e-6, 1.0), _adaptive_layer),
    Case("adaptive_layer_norm", "affine",
         lambda t: (t(2, 7, 16), t(2, 16), t(2, 16), t(16), t(16), 1e-6, 0.0), _adaptive_layer),
    Case("add_adaptive_layer_norm", "plain",
         lambda t: (t(2, 7, 16), t(2, 7, 16), t(2, 16), t(2, 16), t(2, 16), None, None, 1e-6, 1.0),
         _add_adaptive_layer),
    Case("adaptive_group_norm", "plain",
         lambda t: (t(2, 6, 5, 7), 3, t(2, 6), t(2, 6), None, None, 1e-5, 1.0), _adaptive_group),
    Case("adaptive_instance_norm", "plain",
         lambda t: (t(2, 6, 5, 7), t(2, 6, 4, 3), 1e-5), _adain),
    Case("conditional_instance_norm", "index",
         lambda t: (t(4, 6, 5, 7), t(3, 6), t(3, 6), t.index(3, 4), None), _conditional),
    Case("conditional_instance_norm", "mix",
         lambda t: (t(4, 6, 5, 7), t(3, 6), t(3, 6), None, t(4, 3)), _conditional),
]  # fmt: skip
FIRST = {case.operator: case for case in reversed(CASES)}  # The first case of each operator.
