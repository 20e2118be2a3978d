"""Gives PyTorch the operators torch.ops.normd.*: schemas, native kernels and fake tensors."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensorMode

from normd.torch import _schemas

QUANTIZED = {1: torch.int8, 2: torch.float8_e4m3fn}
QUANTIZATION_BLOCK = 128
_CHANNELS, _AXES, _FEATURES = 0, 1, 2
_MEAN_VARIANCE = 0

_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)


def _load_native() -> ctypes.CDLL:
    path = Path(__file__).parents[1] / "libnormd_torch.so"
    if not path.exists():
        raise ImportError(
            f"{path.name}: missing from this build of normd, which had no C++ compiler. Install "
            "one, for the CPU also libhwy-dev, libtbb-dev and libdnnl-dev, for CUDA nvcc, and run "
            "pip install ./client/python again"
        )
    native = ctypes.CDLL(str(path))
    native.normd_torch_register.restype = ctypes.c_char_p
    native.normd_torch_forget_linear.argtypes = [ctypes.c_int64]
    native.normd_torch_forget_linear.restype = None
    return native


def memory_order(x: Tensor, axis: int, axes: int) -> list[int]:
    """The dimensions of a result as they lie in memory: with the axes innermost if they are so in
    x."""
    dims = [*range(axis), *range(axis + axes, x.dim()), *range(axis, axis + axes)]
    dense = x.is_contiguous() or not x.permute(dims).is_contiguous()
    return list(range(x.dim())) if dense else dims


def _like(x: Tensor, axis: int, axes: int, dtype: torch.dtype | None = None) -> Tensor:
    """A result of x's shape."""
    dims = memory_order(x, axis, axes)
    sizes = [x.shape[dim] for dim in dims]
    result = torch.empty(sizes, dtype=dtype or x.dtype, device=x.device)
    return result.permute([dims.index(dim) for dim in range(x.dim())])


def _rows(
    x: Tensor, form: int, axis: int, axes: int, groups: int, more_axes: int
) -> tuple[list[int], int]:
    """The shape of results with one element per row, and the elements of a row."""
    if form == _CHANNELS:
        groups = groups or x.shape[1]
        return [x.shape[0], groups], x.shape[1] // max(groups, 1) * math.prod(x.shape[2:])
    if form == _FEATURES:
        axis, axes = x.dim() - 1, 1
    normalized = {*range(axis, axis + axes), *dims_of(more_axes)}
    beside = [size for dim, size in enumerate(x.shape) if dim not in normalized]
    elements = math.prod(x.shape[dim] for dim in normalized)
    groups = groups or elements
    return beside + ([groups] if groups > 1 else []), elements // max(groups, 1)


def dims_of(bits: int) -> list[int]:
    return [dim for dim in range(bits.bit_length()) if bits >> dim & 1]


def _normalize(
    x: Tensor,
    form: int,
    axis: int,
    axes: int,
    groups: int,
    statistics: int,
    *,
    write_residual: bool = False,
    statistics_out: bool = False,
    quantization: int = 0,
    quantization_scale: int = 0,
    more_axes: int = 0,
    **_options: Any,
) -> tuple[Tensor, ...]:
    if form == _CHANNELS:
        axis, axes = 1, 1
    elif form == _FEATURES:
        axis, axes = 0, 0
    none = [0]
    rows, length = _rows(x, form, axis, axes, groups, more_axes)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    has_mean = statistics_out and statistics == _MEAN_VARIANCE
    scales: list[int] = none
    if quantization and quantization_scale:
        blocks = [-(-length // QUANTIZATION_BLOCK)] if quantization_scale == 2 else []
        scales = rows + blocks
    if more_axes:
        axis, axes = 0, 0
    return (
        _like(x, axis, axes, QUANTIZED.get(quantization)),
        _like(x, axis, axes) if write_residual else x.new_empty(none),
        x.new_empty(rows, dtype=wide) if has_mean else x.new_empty(none),
        x.new_empty(rows, dtype=wide) if statistics_out else x.new_empty(none),
        x.new_empty(scales, dtype=torch.float32) if scales is not none else x.new_empty(none),
    )


def _fake(operator: str) -> Callable[..., Any]:
    """The fake kernel of an operator of `_schemas.NORMS`."""
    arguments, results = _schemas.NORMS[operator]
    names = [each.split()[1].split("=")[0] for each in arguments.split(",")]

    def fake(*values: Any, **options: Any) -> Any:
        # The dispatcher passes known arguments by position, without trailing defaults.
        given = {**dict(zip(names, values, strict=False)), **options}
        if operator == "normalize":
            return _normalize(**given)
        # Without axes they are the channels. Results over axes that are apart are row-major.
        axis, axes = given.get("axis", 1), given.get("axes", 1)
        if given.get("more_axes"):
            axis, axes = 0, 0
        made = tuple(_like(given["x"], axis, axes) for _ in results)
        return made if len(made) > 1 else made[0]

    return fake


def _linear_norm(
    x: Tensor,
    _y: Tensor | None,
    _prepared: Tensor,
    _in_features: int,
    out_features: int,
    *_arguments: Any,
    **_options: Any,
) -> Tensor:
    return x.new_empty([*x.shape[:-1], out_features])


def _writes(*_arguments: Any, **_options: Any) -> None:
    """An out variant's results already have their tensors."""


def _refuse_derivative(operator: Any) -> RuntimeError:
    return RuntimeError(
        f"{operator._schema.name}.out: called under autograd, wanted torch.no_grad(), "
        "torch.inference_mode() or detached tensors: the operator has no gradient"
    )


def _refuse_gradient_compiled(
    mode: Any, operator: Any, types: Any, arguments: Any = (), options: Any = None
) -> Any:
    """An out variant in torch.compile, which calls no native kernel."""
    tensors = [each for each in [*arguments, *(options or {}).values()] if isinstance(each, Tensor)]
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        raise _refuse_derivative(operator)
    return mode.__torch_dispatch__(operator, types, arguments, options)


def _refuse_functional(operator: Any) -> Callable[..., None]:
    """An out variant in torch.func.grad and the like, whose native kernel sees other tensors."""

    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise _refuse_derivative(operator)

    return refuse


def _plain(tensor: Any) -> Any:
    """The tensor, or a copy if it is the view of a conjugate or of an imaginary part of one."""
    if not isinstance(tensor, Tensor) or not (tensor.is_neg() or tensor.is_conj()):
        return tensor
    return tensor.resolve_conj().resolve_neg()


def _write_plain(operator: Any) -> Callable[..., None]:
    """An out variant on views with such a bit. PyTorch's kernel for them wants results returned."""

    def write(*arguments: Any, **places: Any) -> None:
        plain = {name: _plain(place) for name, place in places.items()}
        operator(*map(_plain, arguments), **plain)
        for name, place in places.items():
            if place is plain[name]:
                continue
            if place.is_inference() and not torch.is_inference_mode_enabled():
                raise RuntimeError(
                    f"{operator._schema.name}: {name}: an inference tensor, wanted a call in "
                    "torch.inference_mode()"
                )
            place.copy_(plain[name])
            torch.autograd.graph.increment_version(place)

    return write


def _on_one_device(operator: Any, fake: Callable[..., Any]) -> Callable[..., Any]:
    """The fake kernel, which refuses tensors of several devices as the native kernels do."""
    names = [argument.name for argument in operator._schema.arguments]

    def checked(x: Tensor, *arguments: Any, **options: Any) -> Any:
        for name, value in [*zip(names[1:], arguments, strict=False), *options.items()]:
            if isinstance(value, Tensor) and value.device != x.device:
                raise RuntimeError(
                    f"{operator._schema.name}: {name}.device: {value.device}, wanted {x.device} as "
                    "x's"
                )
        return fake(x, *arguments, **options)

    return checked


_library = torch.library.Library("normd", "DEF")
for _name, (_arguments, _results) in {**_schemas.NORMS, "linear_norm": _schemas.LINEAR}.items():
    _library.define(_schemas.functional(_name, _arguments, _results), tags=_TAGS)
    _library.define(_schemas.out_variant(_name, _arguments, _results), tags=_TAGS)
    _packet = getattr(torch.ops.normd, _name)
    for _operator, _kernel in (
        (_packet.default, _linear_norm if _name == "linear_norm" else _fake(_name)),
        (_packet.out, _writes),
    ):
        torch.library.register_fake(_operator, _on_one_device(_operator, _kernel), lib=_library)
    # PyTorch's kernel for operators without a derivative, which the native library registers, lets
    # tensors that are written to lose their gradient.
    torch.library.register_torch_dispatch(
        _packet.out, FunctionalTensorMode, _refuse_gradient_compiled, lib=_library
    )
    _library.impl(f"{_name}.out", _refuse_functional(_packet.out), "FuncTorchDynamicLayerBackMode")
    for _bit in ("Negative", "Conjugate"):
        _library.impl(f"{_name}.out", _write_plain(_packet.out), _bit)
_library.define(
    _schemas.functional("linear_norm_prepare", _schemas.LINEAR_PREPARE, ("prepared",)), tags=_TAGS
)

native = _load_native()
if (_error := native.normd_torch_register()) is not None:
    raise ImportError(_error.decode())
