"""The layers that take the place of other packages' norms, and the classes that they become.

A norm that is replaced stays the same object, with its parameters, buffers, children and hooks. Its
class becomes a subclass of both a layer of normd's, whose forward computes, and of its own class,
so that isinstance and methods for its state_dict stay as they are.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling as compiling
from torch.nn.utils.parametrize import is_parametrized

from normd.torch._calls import called
from normd.torch._decompositions import activate, for_inductor, traced
from normd.torch.fused import gated_rms_norm
from normd.torch.modules import Activated, pair_of, tensor_of

_batch_norm, _traced_batch_norm = called("batch_norm"), traced("batch_norm")
_rms_norm, _traced_rms_norm = called("rms_norm"), traced("rms_norm")

# The layer of normd's, the norm's own class, and whether Around comes before them.
Kinds = tuple[type[Activated], type[nn.Module], bool]


class Around(Activated):
    """Gives the result the type and the layout that the original gives it, then calls the children
    in `_tail`."""

    weight: Tensor
    _kinds: Kinds
    # The rank of the tensors that the layer computes; None is any. The original computes others.
    _rank: int | None = None
    # The result's type where x's and weight's differ: None is x's, "weight" is weight's, "promoted"
    # is the one that PyTorch promotes both to, "half" is weight's of 16 bits, else "promoted".
    _result: str | None = None
    # Whether the original's result for [N, C, H, W] has the channels last, whatever x has.
    _channels_last = False
    _tail: tuple[str, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        if self._rank is not None and x.dim() != self._rank:
            y = self._kinds[1].forward(self, x)
            return y if self._tail else activate(y, self._code, self._slope)
        turns = self._channels_last and x.dim() == 4
        if turns:
            x = x.contiguous(memory_format=torch.channels_last)
        if self._result is None or x.dtype == (dtype := tensor_of(self, "weight").dtype):
            y = super().forward(x)
        else:
            y = super().forward(x.to(torch.promote_types(x.dtype, dtype)))
            if self._result == "weight" or (self._result == "half" and dtype.itemsize == 2):
                y = y.to(dtype)
        if turns:
            y = y.contiguous(memory_format=torch.channels_last)
        for name in () if self._code else self._tail:  # It has the activation of its tail.
            y = getattr(self, name)(y)
        return y

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        alike = self._result is None or x.dtype == residual.dtype == self.weight.dtype
        if alike and (self._code or not self._tail) and self._rank in {None, x.dim()}:
            return super().add(x, residual)
        return Activated.add(self, x, residual)


class FrozenBatchNorm(Activated):
    """Batch normalization whose statistics never change, so that training() has no effect."""

    running_mean: Tensor
    eps: float

    def forward(self, x: Tensor) -> Tensor:
        statistics = pair_of(self, "running_mean", "running_var")
        norm = _traced_batch_norm if compiling() else _batch_norm
        return norm(x, *statistics, *pair_of(self), self.eps, self._code, self._slope)

    def _options(self) -> dict[str, object]:
        return {"num_features": self.running_mean.numel(), "eps": self.eps} | super()._options()


class WeightlessRMSNorm(Activated):
    """RMSNorm of the last dimension, whatever its size."""

    def forward(self, x: Tensor) -> Tensor:
        norm = _traced_rms_norm if compiling() else _rms_norm
        return norm(x, x.dim() - 1, 1, None, self.eps, 0.0, self._code, self._slope)

    def _options(self) -> dict[str, object]:
        return {"eps": self.eps} | super()._options()


class GatedRMSNorm(Activated):
    """RMSNorm of x * silu(gate) or, with norm_before_gate, RMSNorm of x times silu(gate)."""

    weight: Tensor
    eps: float
    group_size: int
    norm_before_gate: bool
    _kinds: Kinds

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        if gate is None or for_inductor() or not x.dtype == gate.dtype == self.weight.dtype:
            _, original, _ = self._kinds
            return original.forward(self, x, gate)
        return gated_rms_norm(
            x,
            gate,
            self.weight.numel(),
            self.weight,
            eps=self.eps,
            group_size=self.group_size,
            norm_before_gate=self.norm_before_gate,
        )

    def _options(self) -> dict[str, object]:
        names = ("group_size", "eps", "norm_before_gate")
        return {name: getattr(self, name) for name in names} | super()._options()


def _named(function: Any, original: Any) -> Any:
    """The function, which also takes the names of the original's parameters as keywords."""
    own = [*inspect.signature(function).parameters]
    theirs = [*inspect.signature(original).parameters]
    names = dict(zip(theirs, own, strict=False))
    if all(name == each for name, each in names.items()):
        return function  # A call through another function costs time.

    @functools.wraps(original)
    def forward(self: Any, *inputs: Any, **keywords: Any) -> Any:
        own_keywords = {names.get(name, name): value for name, value in keywords.items()}
        return function(self, *inputs, **own_keywords)

    return forward


def has_own_forward(module: nn.Module) -> bool:
    """Takes away the class's own forward, which removed hooks leave on the object, and says whether
    another one there hides the class's, and may call the one before."""
    forward = module.__dict__.get("forward")
    own = getattr(forward, "__func__", None) is type(module).forward
    if own and getattr(forward, "__self__", None) is module:
        del module.__dict__["forward"]
    return "forward" in module.__dict__


def turn_back(module: nn.Module) -> None:
    """Makes a norm what it was before `replace`."""
    kind = type(module)
    original, before, added = module.__dict__.pop("_replaced")
    for attribute in (*added, "_code", "_slope"):
        module.__dict__.pop(attribute, None)
    module.__dict__.update(before)
    if is_parametrized(module):  # PyTorch has made a subclass, with properties for the parameters.
        own = {"__dict__", "__weakref__"}
        members = {name: each for name, each in vars(kind).items() if name not in own}
        original = type(kind.__name__, (original,), members)
    module.__class__ = original


@functools.cache
def _read_by(kind: type[nn.Module]) -> set[str]:
    """The names in a norm's code, but for those in what makes it and prints it."""
    names: set[str] = set()
    for base in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        for name, member in vars(base).items():
            code = getattr(getattr(member, "fget", member), "__code__", None)
            if code is not None and name not in {"__init__", "extra_repr", "reset_parameters"}:
                names.update(each for each in code.co_names if not each.startswith("__"))
    return names - {"training", "forward"}


def _set(self: Any, name: str, value: Any) -> None:
    """Sets an attribute. The layer has been found by those that the norm had, so that with another
    one it is the norm's own forward that computes. Tensors of the same shape are looked up."""
    original, before = self._kinds[1], getattr(self, name, value)
    alike = before is value
    if isinstance(before, Tensor) and isinstance(value, Tensor):
        alike = before.shape == value.shape
    elif isinstance(value, bool | int | float | str | tuple):
        alike = type(before) is type(value) and before == value
    if not alike and name in _read_by(original):
        if has_own_forward(self):
            raise RuntimeError(
                f"{self._get_name()}: {name} set while its forward is replaced on the object "
                "itself, wanted the class's: remove its hooks first"
            )
        turn_back(self)
    original.__setattr__(self, name, value)


def _empty(kinds: Kinds) -> nn.Module:
    return object.__new__(class_of(*kinds))


def _reduce(self: Any, protocol: int) -> Any:
    return _empty, (self._kinds,), self.__dict__.copy()


@functools.cache
def _class_of(kinds: Any) -> type[Any]:
    layer, original, around = kinds
    bases = (Around, layer, original) if around else (layer, original)
    members = {
        "__module__": __name__,
        "__reduce_ex__": _reduce,
        "__setattr__": _set,
        "forward": _named((Around if around else layer).forward, original.forward),
        "_kinds": kinds,
        "_names": (layer.__name__, original.__name__),
    }
    return type(original.__name__, bases, members)


def class_of(*kinds: Any) -> type[Any]:
    """The class that a norm becomes, of Kinds. Its objects can be pickled and copied."""
    return _class_of(kinds)
