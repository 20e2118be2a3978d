"""PyTorch's normalization layers on normd's kernels, for inference.

Each is a subclass of PyTorch's layer of the same name, with its parameters, buffers and state_dict,
and takes an activation that follows it. The parameters of a layer that is made here require no
gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling as compiling

from normd.torch._calls import OPS, called, two, wider_type
from normd.torch._checks import ACTIVATIONS, DEFAULT_EPS, activation_code, axes_of
from normd.torch._decompositions import for_inductor, traced

# Each called, and as torch.compile traces it.
_instance_norm, _traced_instance_norm = called("instance_norm"), traced("instance_norm")
_batch_norm, _traced_batch_norm = called("batch_norm"), traced("batch_norm")
_group_norm, _traced_group_norm = called("group_norm"), traced("group_norm")
_layer_norm, _traced_layer_norm = called("layer_norm"), traced("layer_norm")
_rms_norm, _traced_rms_norm = called("rms_norm"), traced("rms_norm")

_Device = torch.device | str | int | None
_Shape = int | list[int] | tuple[int, ...] | torch.Size


def tensor_of(module: nn.Module, name: str) -> Any:
    """The parameter or buffer of that name, or None.

    It is the attribute of that name, but nn.Module.__getattr__ makes half a microsecond of it.
    """
    parameters = module._parameters
    if name in parameters:
        return parameters[name]
    buffers = module._buffers
    return buffers[name] if name in buffers else getattr(module, name)


def pair_of(module: nn.Module, first: str = "weight", second: str = "bias") -> tuple[Any, Any]:
    """The same of two that are parameters, or buffers."""
    held: Any = module._parameters
    if first not in held:
        held = module._buffers
    if first in held and second in held:
        return held[first], held[second]
    return getattr(module, first), getattr(module, second)


def _without_bias(bias: bool) -> dict[str, bool]:
    """The option `bias`, which some layers of older PyTorch lack, only where it is needed."""
    return {} if bias else {"bias": False}


# The module that an object's class seems to be of. torch.fx keeps calls of those in torch.nn as
# they are, and looks into others, which cannot be traced.
LEAF = {"__module__": "torch.nn.normd"}


class Activated(nn.Module):
    """What the layers share: an activation after the norm, and a repr that says what computes."""

    _code = 0
    _slope = 0.01
    # The layer's and the original's name, where it took the place of another package's norm.
    _names: tuple[str, str] | None = None

    def _init_activation(self, activation: str | None, slope: float = 0.01) -> None:
        """Called after nn.Module.__init__ and the layer's own."""
        self._code = activation_code(activation)
        self._slope = slope
        self.requires_grad_(False)
        self.__dict__.update(LEAF)

    def __prepare_scriptable__(self) -> nn.Module:
        raise RuntimeError(
            f"{self._get_name()}: torch.jit.script, wanted torch.compile, torch.export or "
            "torch.jit.trace; normd.torch.restore(model) gives back a model's own layers"
        )

    def _get_name(self) -> str:
        return f"normd.{(self._names[0] if self._names else type(self).__name__).lstrip('_')}"

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(norm(v), v) of v = x + residual. Calls no hooks.

        LayerNorm and RMSNorm do it in one pass. Norms of channels take two steps: on
        the CPU in float32, `normalize` with its `residual` takes as long.
        """
        total = x + residual
        return self.forward(total), total

    def _options(self) -> dict[str, object]:
        """The options that PyTorch's layer lacks, for the repr."""
        options: dict[str, object] = {}
        if getattr(self, "weight_offset", 0.0):
            options["weight_offset"] = self.weight_offset
        if getattr(self, "axis", None) is not None:
            options["axis"] = self.axis
        if self._code:
            activation = next(name for name, code in ACTIVATIONS.items() if code == self._code)
            options["activation"] = activation
            if activation == "leaky_relu":
                options["slope"] = self._slope
        return options

    def extra_repr(self) -> str:
        parts = [super().extra_repr()]
        options = (f"{name}={value!r}" for name, value in self._options().items())
        parts += [option for option in options if option not in parts[0]]
        parts += [f"in place of {self._names[1]}"] if self._names else []
        return ", ".join(filter(None, parts))

    __repr__ = nn.Module.__repr__


class Fused(nn.Identity):
    """Replaces an activation that the norm before it computes, as long as that does.

    Where another module has taken the norm's place in their nn.Sequential since, this one computes
    the activation. A new container of the same children is not seen: restore the model first.
    """

    def __init__(
        self, activation: nn.Module, norm: nn.Module, name: str, parent: nn.Module, before: str
    ) -> None:
        super().__init__()
        self._text = f"{activation}, computed by {name!r}"
        self.original = (activation, norm)  # A tuple, so that neither is a child.
        self._place = (parent, before)
        self.__dict__.update(LEAF)

    def forward(self, input: Tensor) -> Tensor:
        activation, norm = self.original
        parent, before = self._place
        # A norm does not call its own child: a module that took the child over from it does.
        computes = parent is not norm and bool(getattr(norm, "_code", 0))
        # A copy in the norm's place computes too, and so does the norm itself, wrapped or moved.
        if computes and not getattr(parent._modules.get(before), "_code", 0):
            computes = any(module is norm for module in parent.modules())
        return input if computes else activation(input)

    def extra_repr(self) -> str:
        return self._text


class GroupNorm(Activated, nn.GroupNorm):
    """torch.nn.GroupNorm."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: _Device = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        activation: str | None = None,
    ) -> None:
        super().__init__(
            num_groups, num_channels, eps, affine, device, dtype, **_without_bias(bias)
        )
        self._init_activation(activation)

    def forward(self, input: Tensor) -> Tensor:
        weight, bias = pair_of(self)
        norm = _traced_group_norm if compiling() else _group_norm
        if not self._code:  # Default arguments would cost a call time.
            return norm(input, self.num_groups, weight, bias, self.eps)
        return norm(input, self.num_groups, weight, bias, self.eps, self._code, self._slope)


class LayerNorm(Activated, nn.LayerNorm):
    """torch.nn.LayerNorm; `axis` as in normd.torch.layer_norm."""

    axis: int | Sequence[int] | None = None

    def __init__(
        self,
        normalized_shape: _Shape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: _Device = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str | None = None,
        axis: int | Sequence[int] | None = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)
        self._init_activation(activation)
        self.axis = axis

    def forward(self, input: Tensor) -> Tensor:
        weight, bias = pair_of(self)
        axis, axes, more = axes_of(
            "LayerNorm", input, self.normalized_shape, weight, bias, self.axis
        )
        norm = _traced_layer_norm if compiling() else _layer_norm
        if not self._code and not more:
            return norm(input, axis, axes, weight, bias, self.eps)
        return norm(input, axis, axes, weight, bias, self.eps, self._code, self._slope, more)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(norm(v), v) of v = x + residual in one pass; types as in normd.torch.add_layer_norm."""
        weight, bias = pair_of(self)
        axis, axes, more = axes_of("LayerNorm", x, self.normalized_shape, weight, bias, self.axis)
        if more or for_inductor():
            total = x + residual
            return LayerNorm.forward(self, total).to(x.dtype), total
        options = (weight, bias, self.eps, self._code, self._slope)
        return two(OPS.add_layer_norm, (x, residual, axis, axes, *options), None)


class RMSNorm(Activated, nn.RMSNorm):
    """torch.nn.RMSNorm; adds `weight_offset` to the weight (Gemma: 1); `axis` as in LayerNorm."""

    weight_offset = 0.0
    axis: int | Sequence[int] | None = None

    def __init__(
        self,
        normalized_shape: _Shape,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: _Device = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str | None = None,
        weight_offset: float = 0.0,
        axis: int | Sequence[int] | None = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        self._init_activation(activation)
        self.weight_offset = weight_offset
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        if (eps := self.eps) is None:
            eps = DEFAULT_EPS.get(x.dtype, 0.0)
        weight, offset = tensor_of(self, "weight"), self.weight_offset
        axis, axes, more = axes_of("RMSNorm", x, self.normalized_shape, weight, None, self.axis)
        norm = _traced_rms_norm if compiling() else _rms_norm
        if not self._code and not offset and not more:
            return norm(x, axis, axes, weight, eps)
        return norm(x, axis, axes, weight, eps, offset, self._code, self._slope, more)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(norm(v), v) of v = x + residual in one pass; types as in normd.torch.add_rms_norm."""
        weight, eps = tensor_of(self, "weight"), self.eps
        if eps is None:
            eps = DEFAULT_EPS.get(wider_type(x, residual) or x.dtype, 0.0)
        axis, axes, more = axes_of("RMSNorm", x, self.normalized_shape, weight, None, self.axis)
        if more or for_inductor():
            total = x + residual
            return RMSNorm.forward(self, total).to(x.dtype), total
        options = (weight, eps, self.weight_offset, self._code, self._slope)
        return two(OPS.add_rms_norm, (x, residual, axis, axes, *options), None)


class AddLayerNorm(LayerNorm):
    """LayerNorm.add as a module: called with (x, residual), it returns (norm(v), v)."""

    def forward(  # type: ignore[override]
        self, x: Tensor, residual: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.add(x, residual)


class AddRMSNorm(RMSNorm):
    """RMSNorm.add as a module: called with (x, residual), it returns (norm(v), v)."""

    def forward(  # type: ignore[override]
        self, x: Tensor, residual: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.add(x, residual)


class _BatchNorm(Activated, nn.modules.batchnorm._BatchNorm):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: _Device = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        activation: str | None = None,
    ) -> None:
        options = _without_bias(bias)
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, **options
        )
        self._init_activation(activation)

    def forward(self, input: Tensor) -> Tensor:
        mean, variance = pair_of(self, "running_mean", "running_var")
        if self.training or mean is None or variance is None:
            came = "training" if self.training else "without running statistics"
            raise RuntimeError(
                f"normd.torch.BatchNorm: {came}, wanted eval() with running statistics"
            )
        self._check_input_dim(input)
        weight, bias = pair_of(self)
        norm = _traced_batch_norm if compiling() else _batch_norm
        if not self._code:
            return norm(input, mean, variance, weight, bias, self.eps)
        return norm(input, mean, variance, weight, bias, self.eps, self._code, self._slope)


class BatchNorm1d(_BatchNorm, nn.BatchNorm1d):
    """torch.nn.BatchNorm1d in eval()."""


class BatchNorm2d(_BatchNorm, nn.BatchNorm2d):
    """torch.nn.BatchNorm2d in eval()."""


class BatchNorm3d(_BatchNorm, nn.BatchNorm3d):
    """torch.nn.BatchNorm3d in eval()."""


class _InstanceNorm(Activated, nn.modules.instancenorm._InstanceNorm):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: _Device = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        activation: str | None = None,
    ) -> None:
        options = _without_bias(bias)
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, **options
        )
        self._init_activation(activation)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        has_batch = input.dim() != self._get_no_batch_dim()
        channels = input.shape[1 if has_batch else 0]
        if channels != self.num_features and self.affine:
            raise ValueError(
                f"normd.torch.InstanceNorm: x.shape: {list(input.shape)}, wanted "
                f"{self.num_features} channels"
            )
        mean = variance = None
        if self.track_running_stats:
            if self.training:
                raise RuntimeError(
                    "normd.torch.InstanceNorm: training with running statistics, wanted eval()"
                )
            mean, variance = pair_of(self, "running_mean", "running_var")
        weight, bias = pair_of(self)
        samples = input if has_batch else input.unsqueeze(0)
        norm = _traced_instance_norm if compiling() else _instance_norm
        y: Tensor = norm(samples, weight, bias, mean, variance, self.eps, self._code, self._slope)
        return y if has_batch else y.squeeze(0)


class InstanceNorm1d(_InstanceNorm, nn.InstanceNorm1d):
    """torch.nn.InstanceNorm1d."""


class InstanceNorm2d(_InstanceNorm, nn.InstanceNorm2d):
    """torch.nn.InstanceNorm2d."""


class InstanceNorm3d(_InstanceNorm, nn.InstanceNorm3d):
    """torch.nn.InstanceNorm3d."""
