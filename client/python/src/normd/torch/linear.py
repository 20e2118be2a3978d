"""The fused layer: linear, norm over the features, then add, multiply and activation."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, is_grad_enabled, nn

from normd.torch import _library
from normd.torch._checks import PRECISIONS, activation_code, refuse_gradient

_linear_norm = torch.ops.normd.linear_norm.default
_prepare = torch.ops.normd.linear_norm_prepare.default
_DTYPES = {torch.float32: 1, torch.float16: 3, torch.bfloat16: 4}

Self = TypeVar("Self", bound="LinearNorm")


def _version(tensor: Tensor | None) -> tuple[int, int]:
    """Changes whenever the tensor is another or is written in place."""
    if tensor is None:
        return 0, 0
    return tensor.data_ptr(), -1 if tensor.is_inference() else tensor._version


class LinearNorm(nn.Linear):
    """z = linear(x); v = (z - mean(z)) / sqrt(var(z) + eps); then + y, * y and the activation.

    x is [*, in_features], y and the result [*, out_features]: float32, float16 or bfloat16. Mean
    and variance are those of each sample's features. y is wanted with `add` or `multiply`, and only
    then.

    precision of the products: "float32" (its class of error, on tensor cores if there are any),
    "tf32", "bfloat16" or "float32_strict".

    The weight is prepared for the kernels, in memory of its own, at the first call and after it has
    changed. Before torch.compile and before a capture call `prepare`.
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
        self._prepared: Tensor | None = None
        self._prepared_for: object = None
        self.requires_grad_(False)

    def prepare(self, dtype: torch.dtype | None = None) -> None:
        """Prepares the weight for inputs of this type, by default the weight's own."""
        dtype = dtype or self.weight.dtype
        if dtype not in _DTYPES:
            raise ValueError(f"dtype: {dtype}, wanted float32, float16 or bfloat16")
        with torch.no_grad():
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
        self._prepared, self._prepared_for = prepared, self._wanted(dtype)

    def _wanted(self, dtype: torch.dtype) -> object:
        return dtype, self.weight.device, _version(self.weight), _version(self.bias)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        if is_grad_enabled():
            refuse_gradient("LinearNorm", x, y, self.weight, self.bias)
        if torch.compiler.is_compiling():
            if self._prepared is None:
                raise RuntimeError("normd.torch.LinearNorm: not prepared, wanted prepare() first")
        elif self._prepared_for != self._wanted(x.dtype):
            self.prepare(x.dtype)
        return _linear_norm(
            x,
            y,
            self._prepared,
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
        self._prepared = self._prepared_for = None
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        """Copies prepare their weight themselves."""
        return {**self.__dict__, "_prepared": None, "_prepared_for": None}
