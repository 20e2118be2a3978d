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


def checked(tensor: Any, where: str) -> tuple[DataType, Any]:
    """The tensor's type, and the tensor without autograd.

    InvalidArgumentError, with `where` before the field, for other types, for tensors without dense
    elements, and for those that autograd follows: a call has no gradient.
    """
    torch: Any = sys.modules["torch"]
    check_dense(tensor, where)
    if torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None:
        raise InvalidArgumentError(
            f"{where}tangent: present, wanted the primal of the dual tensor: "
            "a call to the service has no derivative"
        )
    if tensor.requires_grad and torch.is_grad_enabled():
        raise InvalidArgumentError(
            f"{where}requires_grad: True, wanted x.detach() or torch.no_grad(): "
            "a call to the service has no gradient"
        )
    return data_type(tensor.dtype, where), tensor.detach().resolve_neg()


def check_dense(tensor: Any, where: str) -> None:
    """InvalidArgumentError, with `where` before the field, unless it has dense elements."""
    torch: Any = sys.modules["torch"]
    if tensor.is_nested or tensor.layout is not torch.strided:
        came = "nested" if tensor.is_nested else tensor.layout
        raise InvalidArgumentError(f"{where}layout: {came}, wanted a dense tensor")
    if tensor.device.type == "meta":
        raise InvalidArgumentError(f"{where}device: meta, wanted one with elements")
    try:
        absent = tensor.numel() > 0 and tensor.data_ptr() == 0
    except RuntimeError:  # A transform of torch.func has no memory either.
        absent = True
    if absent:
        raise InvalidArgumentError(f"{where}storage: none, wanted a tensor with elements")


def data_type(dtype: Any, where: str) -> DataType:
    """The data type of a PyTorch type; InvalidArgumentError for another."""
    found = _dtypes.OF_ARRAYS.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise InvalidArgumentError(f"{where}dtype: {dtype}, wanted {_dtypes.WANTED}")
    return found


def on_host(tensor: Any, dtype: DataType) -> Array:
    """The elements, as a NumPy array of their type or of integers.

    A dense CPU tensor is referred to in place; one of another device, or with other strides, is
    copied.
    """
    host = tensor.cpu().contiguous()
    bits = _bits_of(dtype)
    if bits is not None:
        host = host.view(getattr(sys.modules["torch"], bits))
    array: Array = host.numpy()
    return array


def _bits_of(dtype: DataType) -> str | None:
    """The integers that carry elements between NumPy and PyTorch if NumPy has no such type."""
    return {_dtypes.BFLOAT16: "int16", _dtypes.FLOAT8_E4M3: "int8"}.get(dtype)


def type_of(dtype: DataType) -> Any:
    """PyTorch's name of this type."""
    name = "float8_e4m3fn" if dtype is _dtypes.FLOAT8_E4M3 else dtype.name
    return getattr(sys.modules["torch"], name)


def result_like(tensor: Any) -> Callable[[Array, DataType], Any]:
    """Makes results: tensors with their own memory on the device of `tensor`."""
    torch: Any = sys.modules["torch"]
    device = tensor.device

    def make(array: Array, dtype: DataType) -> Any:
        result = torch.empty(array.shape, dtype=type_of(dtype))
        _copy(result, array, dtype)
        return result.to(device)

    return make


def fill(out: Any, array: Array, dtype: DataType) -> None:
    """Copies elements into a tensor of this type and their shape, on any device."""
    torch: Any = sys.modules["torch"]
    if out.device.type == "cpu":
        if out.data_ptr() != array.__array_interface__["data"][0]:
            _copy(out, array, dtype)
        return
    host = torch.empty(array.shape, dtype=out.dtype)
    _copy(host, array, dtype)
    out.copy_(host)


def check_out(out: Any, dtype: DataType, shape: tuple[int, ...], where: str) -> None:
    """InvalidArgumentError unless the tensor can take such a result."""
    check_dense(out, f"{where}.")
    if data_type(out.dtype, f"{where}.") is not dtype:
        raise InvalidArgumentError(f"{where}.dtype: {out.dtype}, wanted {dtype.name}")
    if out.is_neg():
        raise InvalidArgumentError(
            f"{where}.is_neg: True, wanted a tensor that is not a negated view"
        )
    if tuple(out.shape) != shape:
        raise InvalidArgumentError(f"{where}.shape: {list(out.shape)}, wanted {list(shape)}")
    if out.requires_grad:
        raise InvalidArgumentError(f"{where}.requires_grad: True, wanted a tensor without")
    if not out.is_contiguous():
        raise InvalidArgumentError(f"{where}: strided, wanted a contiguous tensor")


def _copy(to: Any, array: Array, dtype: DataType) -> None:
    """Writes into a tensor in host memory."""
    bits = _bits_of(dtype)
    if bits is None:
        np.copyto(to.numpy(), array)
    else:
        np.copyto(to.view(getattr(sys.modules["torch"], bits)).numpy(), array.view(bits))
