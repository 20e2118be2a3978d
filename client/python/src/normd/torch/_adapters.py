"""Finds the layer of normd's that computes what a norm of another package computes.

No package is imported for it. Most norms repeat a few forms under hundreds of names. Such a norm is
recognised by its code: its forward uses nothing but what these forms use. Others are named below.
For either, the layer is the one whose results agree with the module's own forward on small random
tensors, with random parameters in the place of the module's.
"""

from __future__ import annotations

import inspect
import itertools
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from normd.torch import _adapted, modules


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# What the forwards of the recognised forms name: attributes, functions, modules.
_WORDS = _set(
    """torch nn functional F super forward _norm dtype to type_as float float32 float16 bfloat16
    pow square mean var rsqrt sqrt permute reshape unsqueeze weight bias eps epsilon
    variance_epsilon norm_eps with_scale elementwise_affine normalized_shape num_groups layer_norm
    LayerNorm group_norm rms_norm rms_norm2d data_format _fast_norm fast_layer_norm fast_group_norm
    fast_rms_norm fast_rms_norm2d running_mean running_var"""
)
_GATED_WORDS = _WORDS | _set(
    """silu ACT2FN activation shape view ndim len int squeeze group_size n_groups
    norm_before_gate"""
)
# Their code names more than a form needs, for other devices or for training.
_NAMED = _set(
    """diffusers.models.normalization.RMSNorm
    timm.layers.norm_act.BatchNormAct2d timm.layers.norm_act.FrozenBatchNormAct2d
    timm.layers.norm_act.SyncBatchNormAct torch.nn.modules.batchnorm.SyncBatchNorm"""
)
# Functions that mark the code of a norm.
_MARKS = _set(
    "batch_norm group_norm instance_norm layer_norm rms_norm normalize rsqrt var var_mean"
)
_TENSORS = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
# Children that may follow the norm within its module, in this order.
_TAIL = ("drop", "act", "activation")
_EPS = ("variance_epsilon", "eps", "epsilon", "norm_eps")
_NAME = re.compile("norm(?!al(?!iz))")
_VARIADIC = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_HALF, _SINGLE = torch.bfloat16, torch.float32
_TYPES = (_SINGLE, _HALF, torch.float16)


@dataclass(frozen=True, init=False)
class Adapted:
    """What an adapter returns: the layer that computes as the norm, and the attributes it needs.

    `layer` is a class of normd.torch or a subclass of one, and reads `weight` and `bias` from the
    norm. `attributes` are those of the layer, such as normalized_shape and eps. They are set on the
    norm beside its own. `inputs` has the shapes of the tensors that both are tried on; by default
    they follow from the attributes.
    """

    layer: type[modules.Activated]
    attributes: dict[str, Any]
    inputs: tuple[tuple[int, ...], ...]

    def __init__(
        self,
        layer: type[modules.Activated],
        *,
        inputs: tuple[tuple[int, ...], ...] | None = None,
        **attributes: Any,
    ) -> None:
        object.__setattr__(self, "layer", layer)
        object.__setattr__(self, "attributes", attributes)
        object.__setattr__(self, "inputs", inputs or _inputs_of(layer, attributes))


Adapter = Callable[[Any], Adapted | str]


# The relative error of a layer in float32: a variance over n - 1 has a larger one up to 500,000
# elements.
_ERROR = 1e-6


def _other_sizes(sizes: tuple[int, ...]) -> list[int]:
    """Four sizes, different from these and from each other."""
    return list(itertools.islice((size for size in itertools.count(3) if size not in sizes), 4))


def _nearby(shapes: tuple[tuple[int, ...], ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """The same with a dimension more, with one less, and with one of another size. None if the
    tensors differ in shape."""
    shape, count = shapes[0], len(shapes)
    if shapes.count(shape) < count:
        return
    other = next(size for size in itertools.count(2) if size not in shape)
    for i in range(len(shape) + 1):
        before, here, after = shape[:i], shape[i : i + 1], shape[i + 1 :]
        yield ((*before, other, *here, *after),) * count
        if here:
            yield ((*before, other, *after),) * count
            if len(shape) > 1:
                yield ((*before, *after),) * count


def _inputs_of(layer: type[modules.Activated], attributes: dict[str, Any]) -> Any:
    """One tensor, whose other sizes differ from the normalized ones."""
    shape = attributes.get("normalized_shape")
    channels = attributes.get("num_channels") or attributes.get("num_features")
    sizes = (shape,) if isinstance(shape, int) else tuple(shape or (channels or 8,))
    samples, first, second, _ = _other_sizes(sizes)
    if channels or attributes.get("axis") == 1:
        return ((samples, *sizes, first, second),)
    return ((samples, first, *sizes),)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _function(kind: type, name: str) -> Any:
    """The function of a class outside PyTorch, if it has one of that name."""
    for each in kind.__mro__:
        if name in vars(each):
            return None if each.__module__.startswith("torch.nn.modules.") else vars(each)[name]
    return None


def _words(code: CodeType) -> set[str]:
    nested = (each for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*map(_words, nested))


def _code(kind: type) -> CodeType | None:
    return getattr(_function(kind, "forward"), "__code__", None)


def _is_gated(kind: type) -> bool:
    code = _code(kind)
    return code is not None and code.co_argcount == 3


def is_norm(module: nn.Module) -> bool:
    """Whether it normalizes by itself: not whether it holds norms, or is named after one."""
    kind = type(module)
    if _name(kind) in _NAMED or isinstance(module, nn.modules.batchnorm._NormBase):
        return True
    if isinstance(module, nn.GroupNorm | nn.LayerNorm | nn.RMSNorm):
        return True
    normalizes_weights = kind.__module__.startswith("torch.nn.utils.")
    if normalizes_weights or not _NAME.search(kind.__name__.lower()):
        return False
    children = {name for name, child in module._modules.items() if child is not None}
    if not children - {*_TAIL}:
        return True
    code = _code(kind)
    return code is not None and bool((_words(code) - children) & _MARKS)


def _unfamiliar(module: nn.Module) -> str | None:
    """What about it is none of the recognised forms."""
    kind = type(module)
    tensors = {*module._parameters, *module._buffers}
    if more := sorted(tensors - _TENSORS):
        return f"no adapter for {_name(kind)}, which has {', '.join(more)}"
    if more := sorted({name for name, child in module._modules.items() if child} - {*_TAIL}):
        return f"no adapter for {_name(kind)}, which has a module {', '.join(more)}"
    if _name(kind) in _NAMED:
        return None
    gated = _is_gated(kind)
    for name in ("forward", "_norm"):
        function = _function(kind, name)
        code = getattr(function, "__code__", None)
        if function is None:
            continue
        if code is None or code.co_argcount > 2 + gated or code.co_flags & _VARIADIC:
            return f"no adapter for {_name(kind)}, whose {name} is no function of x and a gate"
        known = (_GATED_WORDS if gated else _WORDS).union(module._modules)
        if more := sorted(_words(code) - known):
            return f"no adapter for {_name(kind)}, whose {name} uses {', '.join(more)}"
    return None


def _candidates(module: Any) -> Iterator[Adapted]:
    """The layers that its attributes fit."""
    tensors = {**module._parameters, **module._buffers}
    weight, bias = tensors.get("weight"), tensors.get("bias")
    numbers = (getattr(module, name, "") for name in _EPS)
    own = [each for each in numbers if isinstance(each, int | float | None)]
    for eps in own[:1] or [1e-5, 1e-6]:
        if "running_mean" in tensors:
            is_own = isinstance(module, nn.modules.batchnorm._BatchNorm)
            layer: Any = modules._BatchNorm if is_own else _adapted.FrozenBatchNorm
            size = tensors["running_mean"].numel()
            rank = {nn.BatchNorm1d: 1, nn.BatchNorm3d: 3}
            dims = next((rank[each] for each in type(module).__mro__ if each in rank), 2)
            samples, *positions = _other_sizes((size,))
            yield Adapted(layer, eps=eps, inputs=((samples, size, *positions[:dims]),))
        elif isinstance(module, nn.GroupNorm):
            groups, channels = module.num_groups, module.num_channels
            yield Adapted(modules.GroupNorm, eps=eps, num_groups=groups, num_channels=channels)
        elif _is_gated(type(module)):
            if weight is None or bias is not None:
                continue
            size = weight.numel()
            groups = getattr(module, "n_groups", None) or 1
            group = getattr(module, "group_size", None) or size // groups
            for before in (False, True):
                yield Adapted(
                    _adapted.GatedRMSNorm,
                    inputs=((_other_sizes((size,))[0], size),) * 2,
                    eps=eps,
                    group_size=group,
                    norm_before_gate=before,
                )
        elif weight is None and not hasattr(module, "normalized_shape"):
            yield Adapted(_adapted.WeightlessRMSNorm, eps=eps)
        else:
            yield from _rows(module, weight, bias, eps)


def _rows(module: Any, weight: Tensor | None, bias: Tensor | None, eps: Any) -> Iterator[Adapted]:
    """LayerNorm and RMSNorm, over the last dimensions or over the channels of [N, C, *]."""
    shape = module.normalized_shape if weight is None else weight.shape
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    samples, first, second, _ = _other_sizes(shape)
    rows = (samples, first, *shape)
    images, sequences = (samples, *shape, first, second), (samples, *shape, first)
    for axis, inputs in ((None, rows), (1, images), (1, sequences)):
        options = {"normalized_shape": shape, "eps": eps, "axis": axis, "inputs": (inputs,)}
        if eps is not None:
            yield Adapted(modules.LayerNorm, **options)
        for offset in (0.0, 1.0) if bias is None else ():
            yield Adapted(modules.RMSNorm, **options, weight_offset=offset)
    if bias is None:  # The weight is there, but not used.
        yield Adapted(_adapted.WeightlessRMSNorm, eps=eps, inputs=(rows,))


def _attributes(module: nn.Module, adapted: Adapted) -> dict[str, Any]:
    """Those of the layer, with what it expects beside them."""
    attributes = dict(adapted.attributes)
    shape = attributes.get("normalized_shape")
    if shape is not None:
        attributes["normalized_shape"] = (shape,) if isinstance(shape, int) else tuple(shape)
        attributes["elementwise_affine"] = module._parameters.get("weight") is not None
    for name in ("weight", "bias"):
        if name not in module._parameters and name not in module._buffers:
            attributes[name] = None
    return attributes


class _Probe:
    """Tries a module's own forward and a layer's on the same small tensors."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        tensors = itertools.chain(module.parameters(), module.buffers())
        devices = {tensor.device for tensor in tensors} or {torch.device("cpu")}
        device = devices.pop()
        self.device = torch.device("cpu") if device.type == "meta" else device
        self._random = torch.Generator().manual_seed(0)

    def _tensor(self, like: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        if like is None or not like.is_floating_point():
            return like
        values = torch.rand(like.shape, generator=self._random, device="cpu") + 0.5
        return values.to(self.device, dtype)

    def _copy(self, eps: float, dtype: torch.dtype) -> Any:
        """The module in eval(), with random parameters of this type. Its forward calls no hooks."""
        copied = object.__new__(type(self._module))
        copied.__dict__.update(self._module.__dict__, training=False)
        for name in ("_parameters", "_buffers"):
            tensors = self._module.__dict__[name].items()
            copied.__dict__[name] = {key: self._tensor(value, dtype) for key, value in tensors}
        variance = copied._buffers.get("running_var")
        if variance is not None:
            variance[0] = eps  # So that the result shows where eps is added.
        return copied

    def _inputs(self, shapes: Any, eps: float, dtype: torch.dtype) -> list[Tensor]:
        """Three samples: about as small as eps, of about 1, and around a mean."""
        tensors = []
        for shape in shapes:
            x = torch.randn(shape, generator=self._random, device="cpu")
            if len(shape) > 1 and shape[0] > 2:
                x[0] *= eps**0.5
                x[2] = x[2] * 4 + 3
            tensors.append(x.to(self.device, dtype))
        return tensors

    def _own(
        self, adapted: Adapted, shapes: Any, dtype: torch.dtype, weight_dtype: torch.dtype
    ) -> tuple[Any, list[Tensor], Any]:
        """A copy, its inputs, and its result: None where it raises."""
        # In float16 not so small that a norm that computes in it loses its squares.
        eps = max(adapted.attributes.get("eps") or 1e-6, 1e-12, torch.finfo(dtype).tiny)
        copied = self._copy(eps, weight_dtype)
        x = self._inputs(shapes, eps, dtype)
        try:
            return copied, x, copied.forward(*(each.clone() for each in x))
        except Exception:
            return copied, x, None

    def _compare(self, adapted: Adapted, dtype: torch.dtype, made: Any) -> str | None:
        """In what the layer differs from the module on what _own has made."""
        copied, x, wanted = made
        _turn(copied, adapted, None)
        try:
            y = copied.forward(*x)
        except Exception as raised:
            return f"that it raises {type(raised).__name__}"
        if not isinstance(wanted, Tensor) or (y.shape, y.dtype) != (wanted.shape, wanted.dtype):
            return "the shape or the type of its result"
        error = (y.double() - wanted.double()).norm() / wanted.double().norm()
        return None if error < (_ERROR if dtype == _SINGLE else 0.03) else "its result"

    def _other_shapes(self, adapted: Adapted) -> Iterator[tuple[int, str]]:
        """The ranks of nearby shapes for which the layer differs from the module, and in what."""
        for shapes in _nearby(adapted.inputs):
            made = self._own(adapted, shapes, _SINGLE, _SINGLE)
            wanted = made[2]
            if not isinstance(wanted, Tensor) or wanted.shape != shapes[0]:
                continue  # It is not for such tensors.
            if difference := self._compare(adapted, _SINGLE, made):
                yield len(shapes[0]), f"{difference} for {list(shapes[0])}"

    @torch.no_grad()
    def difference(self, adapted: Adapted) -> tuple[str | None, int | None]:
        """In what the layer differs from the module, None if in nothing; and the only rank for
        which it does not, None if that is any."""
        for dtype in _TYPES:
            made = self._own(adapted, adapted.inputs, dtype, dtype)
            if made[2] is None and dtype != _SINGLE:
                continue  # It wants float32 parameters.
            if difference := self._compare(adapted, dtype, made):
                return difference, None
        rank, only = len(adapted.inputs[0]), None
        for other, difference in self._other_shapes(adapted):
            if other == rank or len(adapted.inputs) > 1:
                return difference, None
            only = rank
        return None, only

    @torch.no_grad()
    def result(self, adapted: Adapted) -> str | None:
        """The type of the module's result where x and weight differ, as Around._result says it."""
        module = self._module
        weight = module._parameters.get("weight", module._buffers.get("weight"))
        if weight is None or len(adapted.inputs) > 1:
            return None

        def type_for(x: torch.dtype, weight: torch.dtype) -> torch.dtype | None:
            y = self._own(adapted, adapted.inputs, x, weight)[2]
            return None if y is None else y.dtype

        if type_for(_SINGLE, _HALF) == _HALF:
            return "half" if type_for(torch.float64, _SINGLE) == torch.float64 else "weight"
        return "promoted" if type_for(_HALF, _SINGLE) == _SINGLE else None

    @torch.no_grad()
    def has_channels_last(self, adapted: Adapted) -> bool:
        """Whether the result for a row-major [N, C, H, W] has the channels last: the convolutions
        behind it compute in that layout then, which may be faster."""
        if adapted.attributes.get("axis") != 1 or len(adapted.inputs[0]) != 4:
            return False
        y = self._own(adapted, adapted.inputs, _SINGLE, _SINGLE)[2]
        if y is None or y.is_contiguous():
            return False
        return y.is_contiguous(memory_format=torch.channels_last)


def _tail_of(module: nn.Module) -> tuple[str, ...]:
    """The children that follow the norm within the module and do something."""
    children = module._modules
    names = (name for name in _TAIL if children.get(name) is not None)
    # A Fused, which is an nn.Identity too, may do something.
    return tuple(name for name in names if type(children[name]) is not nn.Identity)


def _turn(
    module: nn.Module,
    adapted: Adapted,
    result: str | None,
    channels_last: bool = False,
    rank: int | None = None,
) -> None:
    """Makes the module compute by the layer; `_replaced` keeps what it was."""
    original = type(module)
    attributes = _attributes(module, adapted) | modules.LEAF
    tail = _tail_of(module)
    around = bool(tail or result or channels_last or rank)
    if around:
        attributes |= {"_tail": tail, "_result": result, "_channels_last": channels_last}
        attributes["_rank"] = rank
    before = {name: module.__dict__[name] for name in attributes if name in module.__dict__}
    module.__dict__.update(attributes)
    module.__dict__["_replaced"] = (original, before, tuple(attributes))
    module.__class__ = _adapted.class_of(adapted.layer, original, around)


def adapt(module: nn.Module, name: str, adapter: Adapter | None) -> Adapted | str:
    """Replaces a norm that is not PyTorch's own, or says why not."""
    kind = type(module)
    if adapter is not None:
        given: Any = adapter if isinstance(adapter, type) else adapter(module)
        if not isinstance(given, Adapted | str):
            raise TypeError(
                f"normd.torch.replace: adapters: {given!r} for {name!r}, wanted a function that "
                "returns an Adapted or a sentence"
            )
        if isinstance(given, str):
            return given
        candidates = iter([given])
    else:
        if reason := _unfamiliar(module):
            return reason
        candidates = _candidates(module)
    probe = _Probe(module)
    with torch.autocast(probe.device.type, enabled=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns where types are mixed.
        for candidate in candidates:
            difference, rank = probe.difference(candidate)
            if difference is None:
                channels_last = probe.has_channels_last(candidate)
                _turn(module, candidate, probe.result(candidate), channels_last, rank)
                return candidate
    if adapter is None:
        return f"{_name(kind)} computes none of normd's norms"
    return f"{candidate.layer.__name__} differs from {_name(kind)} in {difference}"
