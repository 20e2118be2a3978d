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
    """The tensor's type and its elements, as a NumPy array of that type or of 16-bit integers.

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
    if dtype is _dtypes.BFLOAT16:
        host = host.view(torch.int16)
    return dtype, host.numpy()


def result_like(tensor: Any) -> Callable[[Array, DataType], Any]:
    """Makes results: tensors of their own memory on the device of `tensor`."""
    torch: Any = sys.modules["torch"]
    device = tensor.device

    def make(array: Array, dtype: DataType) -> Any:
        result = torch.empty(array.shape, dtype=getattr(torch, dtype.name))
        bits = result.view(torch.int16) if dtype is _dtypes.BFLOAT16 else result
        raw = array.view(np.int16) if dtype is _dtypes.BFLOAT16 else array
        np.copyto(bits.numpy(), raw)
        return result.to(device)

    return make
