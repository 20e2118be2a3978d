"""PyTorch tensors, for programs that have imported PyTorch. Nothing here imports it by itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from normd import _dtypes
from normd._dtypes import DataType
from normd.errors import InvalidArgumentError

Array = np.ndarray[Any, np.dtype[Any]]


def is_tensor(value: object) -> bool:
    """Whether it is a torch.Tensor. If it is one, PyTorch has been imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def to_host(tensor: Any, where: str) -> tuple[DataType, Array]:
    """The tensor's type and its elements, as a NumPy array of that type or of integers.

    A dense CPU tensor is referred to in place; one of another device, or with other strides, is
    copied. InvalidArgumentError, with `where` before the field, for other types and for tensors
    that autograd follows: a call has no gradient.
    """
    torch: Any = sys.modules["torch"]
    if tensor.requires_grad and torch.is_grad_enabled():
        raise InvalidArgumentError(
            f"{where}requires_grad: True, wanted x.detach() or torch.no_grad(): "
            "a call to the service has no gradient"
        )
    dtype = _dtypes.BY_NAME.get(str(tensor.dtype).removeprefix("torch."))
    if dtype is None:
        raise InvalidArgumentError(f"{where}dtype: {tensor.dtype}, wanted {_dtypes.WANTED}")
    host = tensor.detach().cpu().contiguous()
    bits = _bits_of(dtype)
    if bits is not None:
        host = host.view(getattr(torch, bits))
    return dtype, host.numpy()


def _bits_of(dtype: DataType) -> str | None:
    """The integers as which elements go between NumPy and PyTorch, where NumPy has no such type."""
    return {_dtypes.BFLOAT16: "int16", _dtypes.FLOAT8_E4M3: "int8"}.get(dtype)


def _type_of(dtype: DataType) -> Any:
    name = "float8_e4m3fn" if dtype is _dtypes.FLOAT8_E4M3 else dtype.name
    return getattr(sys.modules["torch"], name)


def result_like(tensor: Any) -> Callable[[Array, DataType], Any]:
    """Makes results: tensors of their own memory on the device of `tensor`."""
    torch: Any = sys.modules["torch"]
    device = tensor.device

    def make(array: Array, dtype: DataType) -> Any:
        result = torch.empty(array.shape, dtype=_type_of(dtype))
        bits = _bits_of(dtype)
        if bits is None:
            np.copyto(result.numpy(), array)
        else:
            np.copyto(result.view(getattr(torch, bits)).numpy(), array.view(bits))
        return result.to(device)

    return make
