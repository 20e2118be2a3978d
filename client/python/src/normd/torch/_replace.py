"""Puts normd's layers in the place of a whole model's norms."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from normd.torch import modules
from normd.torch._adapted import Around, GatedRMSNorm, has_own_forward, turn_back
from normd.torch._adapters import Adapter, adapt, is_norm
from normd.torch._checks import ACTIVATIONS, FLOATS

_LAYERS: dict[type[nn.Module], type[modules.Activated]] = {
    nn.BatchNorm1d: modules.BatchNorm1d,
    nn.BatchNorm2d: modules.BatchNorm2d,
    nn.BatchNorm3d: modules.BatchNorm3d,
    nn.GroupNorm: modules.GroupNorm,
    nn.InstanceNorm1d: modules.InstanceNorm1d,
    nn.InstanceNorm2d: modules.InstanceNorm2d,
    nn.InstanceNorm3d: modules.InstanceNorm3d,
    nn.LayerNorm: modules.LayerNorm,
    nn.RMSNorm: modules.RMSNorm,
}


@dataclass
class Report:
    """The result of `replace`.

    Attributes:
      replaced: the names of the layers that compute with normd now, with their class. Those within
        an nn.TransformerEncoderLayer do so unless PyTorch's fast path computes the whole layer.
      fused: the names of activations that their norm computes now, with the norm's name.
      left: the names of norms that are as they were, with the reason.

    The name of a model that is a norm itself is "".
    """

    replaced: dict[str, str] = field(default_factory=dict)
    fused: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        root = "the model itself"
        lines = [f"{name or root}: {kind}" for name, kind in self.replaced.items()]
        lines += [f"{name}: computed by {norm or root}" for name, norm in self.fused.items()]
        lines += [f"{name or root}: left alone: {why}" for name, why in self.left.items()]
        return "\n".join(lines) or "no further norms"


def _reason_to_leave(module: nn.Module) -> str | None:
    if has_own_forward(module):
        return "its forward is replaced on the object itself"
    if isinstance(module, nn.modules.batchnorm._NormBase):
        is_batch_norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
        if is_batch_norm and module.running_mean is None:
            return "no running statistics"
        if module.training and (is_batch_norm or module.track_running_stats):
            return "in training: call eval() first"
    for name, tensor in {**module._parameters, **module._buffers}.items():
        if tensor is None:
            continue
        if type(tensor) not in (torch.Tensor, nn.Parameter):
            return f"{name} is a {type(tensor).__name__}"
        if name != "num_batches_tracked" and tensor.dtype not in FLOATS:
            return f"{name} is {tensor.dtype}"
    return None


def _activation_of(module: nn.Module) -> tuple[str, float] | None:
    kind = type(module)
    if kind is nn.ReLU:
        return "relu", 0.01
    if kind is nn.SiLU:
        return "silu", 0.01
    if isinstance(module, nn.LeakyReLU) and kind is nn.LeakyReLU:
        return "leaky_relu", module.negative_slope
    if isinstance(module, nn.GELU) and kind is nn.GELU:
        return ("gelu" if module.approximate == "none" else "gelu_tanh"), 0.01
    return None


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _fuse(parent: nn.Module, before: str, after: str, norm: nn.Module, norm_name: str) -> bool:
    """Whether the norm computes the activation, a child of `parent`, from now on."""
    module = parent._modules[after]
    if module is None or not isinstance(norm, modules.Activated) or norm._code:
        return False
    if isinstance(norm, GatedRMSNorm):
        return False
    activation = _activation_of(module)
    if activation is None or _has_hooks(norm) or _has_hooks(module):
        return False
    norm._code, norm._slope = ACTIVATIONS[activation[0]], activation[1]
    parent._modules[after] = modules.Fused(module, norm, norm_name, parent, before)
    return True


def _fuse_in(model: nn.Module, report: Report) -> None:
    """Activations right behind a norm of the same nn.Sequential, or within the norm's module."""
    places: dict[nn.Module, int] = {}
    for module in model.modules():
        for child in module._modules.values():
            if child is not None:
                places[child] = places.get(child, 0) + 1
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        if isinstance(module, Around) and len(module._tail) == 1:
            after = module._tail[0]
            if _fuse(module, "", after, module, name):
                report.fused[prefix + after] = name
        elif type(module) is nn.Sequential and places.get(module, 0) <= 1:
            for before, after in itertools.pairwise(module._modules):
                norm = module._modules[before]
                if norm is None or places.get(norm, 0) > 1 or norm.__dict__.get("_tail"):
                    continue
                if _fuse(module, before, after, norm, prefix + before):
                    report.fused[prefix + after] = prefix + before


def _replace_norms(
    model: nn.Module, adapters: Mapping[str | type, Adapter], report: Report
) -> None:
    for name, module in model.named_modules():
        kind = type(module)
        adapter = adapters.get(kind) or adapters.get(f"{kind.__module__}.{kind.__qualname__}")
        if isinstance(module, modules.Activated) or not (adapter or is_norm(module)):
            continue
        if ".quantized." in kind.__module__:
            report.left[name] = "quantized"
        elif (reason := _reason_to_leave(module)) is not None:
            report.left[name] = reason
        elif adapter is None and kind in _LAYERS:
            module.__dict__.update(modules.LEAF, _replaced=(kind, {}, tuple(modules.LEAF)))
            module.__class__ = _LAYERS[kind]
            report.replaced[name] = type(module).__name__
        elif isinstance(adapted := adapt(module, name, adapter), str):
            report.left[name] = adapted
        else:
            report.replaced[name] = adapted.layer.__name__.lstrip("_")


def replace(
    model: nn.Module,
    *,
    adapters: Mapping[str | type, Adapter] | None = None,
    fuse_activations: bool = False,
) -> Report:
    """Makes the norms of a model compute with normd, in place, and says what it has done.

    Layers stay the same objects, with their parameters, hooks and state_dict. The class of
    PyTorch's own becomes the one of the same name in normd.torch, a subclass. Norms of other
    packages become a subclass of their own class and of the layer that computes the same on small
    random tensors. If it does so for tensors of one rank alone, their own forward computes others.
    It computes all once an attribute is set to something else, other than a tensor of the same
    shape. BatchNorm in training and norms that compute something else are left alone. The model is
    for inference only then; `restore` undoes it.

    adapters: for further classes, by the class or by its qualified name. An adapter takes the norm
    and returns the layer that computes the same, or a sentence that says why it leaves this one:

        def scale_norm(norm):
            return normd.torch.Adapted(
                normd.torch.RMSNorm, normalized_shape=norm.dim, eps=norm.epsilon)
        normd.torch.replace(model, adapters={"package.module.ScaleNorm": scale_norm})

    fuse_activations: a ReLU, LeakyReLU, SiLU or GELU right behind a norm in an nn.Sequential, or
    within a module that is a norm with its activation (timm), is computed with it, and its place
    taken by a Fused, an nn.Identity that names both; the norm's repr has the activation. Ask for it
    only if nothing reads the norm's own result: taps before the activation, slices of the
    nn.Sequential and what fuses the norm into a convolution afterwards would compute something
    else. The activation of a norm that appears in several places of the model stays.
    """
    report = Report()
    try:
        _replace_norms(model, adapters or {}, report)
    except BaseException:
        for name in report.replaced:
            turn_back(model.get_submodule(name))
        raise
    if fuse_activations:
        _fuse_in(model, report)
    return report


def restore(model: nn.Module) -> list[str]:
    """Undoes `replace` in place; the names of the norms that are again what they were.

    Fused activations outside of `model`, a part of what was replaced, compute again if their norm
    is in it. RuntimeError, before anything is undone, if a hook has replaced a layer's forward on
    the object itself: it would go on to call the layer's.
    """
    for name, module in model.named_modules():
        if "_replaced" in module.__dict__ and has_own_forward(module):
            raise RuntimeError(
                f"normd.torch.restore: {name!r}: its forward is replaced on the object itself, "
                "wanted the class's: remove its hooks first"
            )
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if isinstance(child, modules.Fused):
                activation, norm = child.original
                module._modules[name] = activation
                norm.__dict__.pop("_code", None)
    restored = []
    for name, module in model.named_modules():
        if "_replaced" not in module.__dict__:
            continue
        turn_back(module)
        restored.append(name)
    return restored
