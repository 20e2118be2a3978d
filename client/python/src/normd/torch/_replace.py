"""Puts normd's layers in the place of PyTorch's in a whole model."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import torch
from torch import nn

from normd.torch import modules
from normd.torch._checks import ACTIVATIONS

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
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass
class Report:
    """The result of `replace`.

    Attributes:
      replaced: the names of the layers that compute with normd now, with their class.
      fused: the names of activations that their norm computes now, with the norm's name.
      left: the names of norms that are as they were, with the reason.
    """

    replaced: dict[str, str] = field(default_factory=dict)
    fused: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{name}: {kind}" for name, kind in self.replaced.items()]
        lines += [f"{name}: computed by {norm}" for name, norm in self.fused.items()]
        lines += [f"{name}: left alone: {reason}" for name, reason in self.left.items()]
        return "\n".join(lines) or "no norms"


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, tuple(_LAYERS)) or "norm" in type(module).__name__.lower()


def _reason_to_leave(module: nn.Module) -> str | None:
    kind = type(module)
    if kind not in _LAYERS:
        return f"{kind.__module__}.{kind.__qualname__} is not one of PyTorch's own layers"
    if isinstance(module, nn.modules.batchnorm._NormBase):
        is_batch_norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
        if is_batch_norm and module.running_mean is None:
            return "no running statistics"
        if module.training and (is_batch_norm or module.track_running_stats):
            return "in training: call eval() first"
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if name != "num_batches_tracked" and tensor.dtype not in _DTYPES:
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


def _fuse_in(
    sequence: nn.Sequential, prefix: str, report: Report, places: dict[nn.Module, int]
) -> None:
    """Activations right behind a norm of the same nn.Sequential, which has no other place."""
    names = list(sequence._modules)
    for before, after in itertools.pairwise(names):
        norm, module = sequence._modules[before], sequence._modules[after]
        if not isinstance(norm, modules.Activated) or norm._code or module is None:
            continue
        if places.get(norm, 0) > 1:
            continue
        activation = _activation_of(module)
        if activation is None or _has_hooks(norm) or _has_hooks(module):
            continue
        norm._code, norm._slope = ACTIVATIONS[activation[0]], activation[1]
        sequence._modules[after] = modules.Fused(module, prefix + before)
        report.fused[prefix + after] = prefix + before


def replace(model: nn.Module, *, fuse_activations: bool = False) -> Report:
    """Makes the norms of a model compute with normd, in place, and says what it has done.

    Layers stay the same objects, with their parameters, hooks and state_dict; their class becomes
    the one of the same name in normd.torch, a subclass. Subclasses of PyTorch's layers, BatchNorm
    in training and layers of other packages are left alone. The model is for inference only then.

    fuse_activations: a ReLU, LeakyReLU, SiLU or GELU right behind a norm in an nn.Sequential is
    computed with it, and its place taken by a Fused, an nn.Identity that names both; the norm's
    repr has the activation. Ask for it only if nothing reads the norm's own result: taps before the
    activation, slices of the nn.Sequential and what fuses the norm into a convolution afterwards
    would compute something else. The activation of a norm that appears in several places of the
    model stays.
    """
    report = Report()
    places: dict[nn.Module, int] = {}
    for module in model.modules():
        for child in module._modules.values():
            if child is not None:
                places[child] = places.get(child, 0) + 1
    for name, module in model.named_modules():
        if isinstance(module, modules.Activated) or not _is_norm(module):
            continue
        if (reason := _reason_to_leave(module)) is not None:
            report.left[name] = reason
            continue
        module.__class__ = _LAYERS[type(module)]
        report.replaced[name] = type(module).__name__
    if fuse_activations:
        for name, module in model.named_modules():
            if type(module) is nn.Sequential and places.get(module, 0) <= 1:
                _fuse_in(module, f"{name}." if name else "", report, places)
    return report
