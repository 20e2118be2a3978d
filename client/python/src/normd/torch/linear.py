"""The fused layer: linear, norm over the features, then add, multiply and activation."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, is_grad_enabled, nn

from normd.torch import _library
from normd.torch._checks import PRECISIONS, activation_code
from normd.torch.modules import LEAF

_linear_norm = torch.ops.normd.linear_norm.default
_prepare = torch.ops.normd.linear_norm_prepare.default
_DTYPES = {torch.float32: 1, torch.float16: 3, torch.bfloat16: 4}

Self = TypeVar("Self", bound="LinearNorm")


class _Prepared(NamedTuple):
    """A weight in the kernels' form.

    Attributes:
      weight: from linear_norm_prepare.
      dtype: the inputs' type.
      made_of: the layer's parameters at that time; kept, so that no other tensor gets their
        addresses.
      versions: their versions.
    """

    weight: Tensor
    dtype: torch.dtype
    made_of: list[Tensor]
    versions: list[tuple[int, int]]


def _version(tensor: Tensor) -> tuple[int, int]:
    """Changes with the tensor, and with each write that PyTorch counts."""
    return tensor.data_ptr(), -1 if tensor.is_inference() else tensor._version


class LinearNorm(nn.Linear):
    """z = linear(x); v = (z - mean(z)) / sqrt(var(z) + eps); then + y, * y and the activation.

    x is [*, in_features], y and the result [*, out_features]: float32, float16 or bfloat16. Mean
    and variance are over each sample's features. y is required with `add` or `multiply`, and only
    then.

    precision of the products: "float32" (an error of its class, on tensor cores if there are any),
    "tf32", "bfloat16" or "float32_strict".

    Each call prepares the weight for the kernels, so it computes with the current weight. After
    `prepare` calls use the weight of that time, in memory of their own.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        eps: float = 1e-5,
        add: bool = False,
        multiply: bool = False,
        activation: str | None = None,
        slope: float = 0.01,
        precision: str = "float32",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        if precision not in PRECISIONS:
            raise ValueError(f"precision: {precision!r}, wanted one of {', '.join(PRECISIONS)}")
        self.eps, self.add, self.multiply = eps, add, multiply
        self._code = activation_code(activation)
        self._slope, self._precision = slope, PRECISIONS[precision]
        self._prepared: _Prepared | None = None
        self.requires_grad_(False)
        self.__dict__.update(LEAF)

    def __prepare_scriptable__(self) -> nn.Module:
        raise RuntimeError(
            "normd.torch.LinearNorm: torch.jit.script, wanted torch.compile, torch.export or "
            "torch.jit.trace"
        )

    def prepare(self, dtype: torch.dtype | None = None) -> None:
        """Prepares the current weight for inputs of this type, by default the weight's own.

        Calls are faster from then on, and may be compiled. Call it again after the weight has
        changed: a call raises RuntimeError for a change that PyTorch counts, but a write through
        `weight.data` or NumPy, or to an inference tensor, goes unnoticed. Other types of x raise as
        well. load_state_dict, moving the layer, and copying it drop the preparation.
        """
        dtype = dtype or self.weight.dtype
        with torch.no_grad():
            weight = self._prepare(dtype)
        parameters = list(self.parameters())
        self._prepared = _Prepared(
            weight,
            dtype,
            [each.detach() for each in parameters],
            [_version(each) for each in parameters],
        )

    def _prepare(self, dtype: torch.dtype) -> Tensor:
        if dtype not in _DTYPES:
            raise ValueError(f"dtype: {dtype}, wanted float32, float16 or bfloat16")
        prepared: Tensor = _prepare(
            self.weight,
            self.bias,
            _DTYPES[dtype],
            self.eps,
            self.add,
            self.multiply,
            self._code,
            self._slope,
            self._precision,
        )
        if prepared.device.type == "cpu":
            weakref.finalize(prepared, _library.native.normd_torch_forget_linear, prepared.item())
        return prepared

    def _checked(self, prepared: _Prepared, x: Tensor) -> Tensor:
        """The prepared weight, if a call with x may use it."""
        name, parameters = "normd.torch.LinearNorm", [self.weight]
        if self.bias is not None:
            parameters.append(self.bias)
        if prepared.dtype != x.dtype:
            raise RuntimeError(
                f"{name}: x.dtype: {x.dtype}, wanted {prepared.dtype} as given to prepare()"
            )
        if is_grad_enabled() and any(each.requires_grad for each in parameters):
            raise RuntimeError(
                f"{name}: weight or bias: requires a gradient, wanted a call under "
                "torch.no_grad() or torch.inference_mode()"
            )
        if torch.compiler.is_compiling():
            return prepared.weight
        if prepared.versions != [_version(each) for each in parameters]:
            raise RuntimeError(f"{name}: weight: changed since prepare(), wanted prepare() again")
        return prepared.weight

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        if self._prepared is not None:
            prepared = self._checked(self._prepared, x)
        elif torch.compiler.is_compiling():
            raise RuntimeError("normd.torch.LinearNorm: not prepared, wanted prepare() first")
        else:
            prepared = self._prepare(x.dtype)
        return _linear_norm(
            x,
            y,
            prepared,
            self.in_features,
            self.out_features,
            self.eps,
            self.add,
            self.multiply,
            self._code,
            self._slope,
            self._precision,
        )

    def _apply(self: Self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        self._prepared = None
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        self._prepared = None
        super()._load_from_state_dict(*arguments)

    def __getstate__(self) -> dict[str, Any]:
        """Copies are not prepared."""
        return {**self.__dict__, "_prepared": None}
