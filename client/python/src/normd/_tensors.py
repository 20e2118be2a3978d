"""From the arrays of a program to the tensors of a call, and back."""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from normd import _cuda, _dtypes, _torch
from normd._dtypes import DataType
from normd.errors import InvalidArgumentError

Array = np.ndarray[Any, np.dtype[Any]]
# Makes a result of the caller's kind from its elements in the message, which it may refer to.
MakeResult = Callable[[Array, DataType], Any]


class TensorSpec(NamedTuple):
    """A tensor without its elements. An only input or output may have an empty name."""

    name: str
    dtype: DataType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class Part(NamedTuple):
    """A part of a region that the server has mapped too."""

    region: str
    offset: int
    nbytes: int


class Input(NamedTuple):
    """An input of a call: dense, row-major, little-endian in host memory, or on a device."""

    spec: TensorSpec
    data: memoryview  # Its bytes; the caller's memory if that has this form.
    make_result: MakeResult
    part: Part | None = None  # Its place for the server; None: it is sent.
    tensor: Any = None  # PyTorch's, on a CUDA device, unchanged; `data` is then empty.

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return self.data.nbytes if self.tensor is None else self.spec.nbytes

    def on_host(self) -> Input:
        """A copy in host memory."""
        if self.tensor is None:
            return self
        array = _torch.on_host(self.tensor, self.spec.dtype)
        return self._replace(data=bytes_of(array), tensor=None)


def is_path(value: object) -> bool:
    """Whether an input or output is a file's path."""
    return isinstance(value, str | os.PathLike)


def written_path(path: Any) -> Path:
    """Where a file is written until it is whole; a device, a pipe or a folder is named itself."""
    whole = Path(path)
    plain = whole.is_file() or not whole.exists()
    return whole.with_name(whole.name + ".part") if plain else whole


def file_of(value: object) -> Path | None:
    """The file that an input is read from or mapped to."""
    if isinstance(value, np.memmap):
        value = value.filename
    return Path(value) if is_path(value) else None  # type: ignore[arg-type]


def memory_of(value: Any) -> range:
    """The addresses of the bytes of an array or a PyTorch tensor; none of a strided array."""
    if _torch.is_tensor(value):
        begin, nbytes = value.data_ptr(), value.numel() * value.element_size()
    else:
        array = np.asarray(value)
        begin = array.__array_interface__["data"][0]
        nbytes = array.nbytes if array.flags.c_contiguous else 0
    return range(begin, begin + nbytes)


def overlap(a: range, b: range) -> bool:
    """Whether two ranges have something in common."""
    return max(a.start, b.start) < min(a.stop, b.stop)


def check_apart(out: Mapping[str, object]) -> None:
    """InvalidArgumentError if two outputs would overwrite each other."""
    for (first, a), (second, b) in itertools.combinations(out.items(), 2):
        if is_path(a) and is_path(b):
            same = not _files(a).isdisjoint(_files(b))
        else:
            same = _has_memory(a) and _has_memory(b) and overlap(memory_of(a), memory_of(b))
        if same:
            raise InvalidArgumentError(
                f'out: "{second}" overlaps "{first}", wanted memory or a file of its own'
            )


def _files(path: Any) -> set[Path]:
    """The files that are written for an output: its own, and the one before that is complete."""
    own = Path(path)
    own = own.parent.resolve() / own.name
    written = written_path(own)
    return {own, written} if written != own else set()


def _has_memory(value: object) -> bool:
    if _torch.is_tensor(value):
        _torch.check_dense(value, "out.")
        return True
    return isinstance(value, np.ndarray)


_NO_BYTES = memoryview(b"")


def bytes_of(array: Array) -> memoryview:
    """The bytes of a C-contiguous array, in place; writable if it is."""
    flat: Any = array.reshape(-1).view(np.uint8)
    return memoryview(flat)


@functools.lru_cache(maxsize=64)
def _numpy_result(like: np.dtype[Any]) -> MakeResult:
    """Views in the host's byte order of the input's type, or of the result's, if that differs."""
    of_input = like.newbyteorder("=") if like.kind == "f" else like
    input_type = _dtypes.of_numpy(like, "")

    def make(array: Array, dtype: DataType) -> Array:
        if dtype is not input_type or array.dtype == of_input:
            return array
        return array.view(of_input)

    return make


def _as_array(value: object, where: str) -> Array:
    if type(value) is np.ndarray:
        return value
    if np.ma.is_masked(value):
        raise InvalidArgumentError(f"{where}mask: has True, wanted no element masked: x.filled()")
    try:
        if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
            return np.asarray(value)
        if hasattr(value, "__dlpack__"):
            return np.asarray(np.from_dlpack(value))
    except Exception as error:  # Whatever a type raises that cannot be one.
        raise InvalidArgumentError(
            f"{where}type: {type(value).__name__}, wanted one that becomes a NumPy array: {error}"
        ) from error
    raise InvalidArgumentError(
        f"{where}type: {type(value).__name__}, wanted a NumPy array, a PyTorch tensor or an object "
        "with __array__ or __dlpack__"
    )


def to_input(name: str, value: object) -> Input:
    """An input from an array or tensor of the caller's; InvalidArgumentError names the problem.

    Copies only data that is not dense, row-major and little-endian in host memory; a tensor of a
    CUDA device stays there.
    """
    where = f'input "{name}": ' if name else ""
    if _torch.is_tensor(value):
        dtype, tensor = _torch.checked(value, where)
        spec = TensorSpec(name, dtype, tuple(tensor.shape))
        there = Input(spec, _NO_BYTES, _torch.result_like(value), tensor=tensor)
        return there if _cuda.CUDA.device_of(tensor) is not None else there.on_host()
    array = _as_array(value, where)
    dtype = _dtypes.of_numpy(array.dtype, where)
    make_result = _numpy_result(array.dtype)
    if not _dtypes.is_little_endian(array.dtype):
        array = array.astype(dtype.npy)
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return Input(TensorSpec(name, dtype, array.shape), bytes_of(array), make_result)


def check_text(value: object, where: str, came: str) -> None:
    """InvalidArgumentError unless it is a string that a message, which is UTF-8, can carry."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{where}{came}, wanted a str")
    if not value.isascii() and any("\ud800" <= each <= "\udfff" for each in value):
        raise InvalidArgumentError(f"{where}{value!r}, wanted a str without surrogates")


def check_names(values: Mapping[Any, object], field: str) -> tuple[str, ...]:
    """The names of a call's inputs or outputs. InvalidArgumentError for others than strings."""
    for name in values:
        check_text(name, f"{field}: a name is ", repr(name))
    return tuple(values)


def named(values: object) -> dict[str, object]:
    """The inputs by name; an only unnamed one has the empty name."""
    if not isinstance(values, Mapping):
        return {"": values}
    if not values:
        raise InvalidArgumentError("inputs: none, wanted at least one")
    check_names(values, "inputs")
    return dict(values)


def check_out(out: object, spec: TensorSpec, where: str = "out") -> Array:
    """The array that takes a result in place; InvalidArgumentError unless it fits exactly."""
    if not isinstance(out, np.ndarray) or (type(out) is not np.ndarray and np.ma.is_masked(out)):
        raise InvalidArgumentError(
            f"{where}: {type(out).__name__}, wanted a NumPy array or a PyTorch tensor"
        )
    of_out = _dtypes.of_numpy(out.dtype, f"{where}.")
    if of_out is not spec.dtype or not _dtypes.is_little_endian(out.dtype):
        raise InvalidArgumentError(f"{where}.dtype: {out.dtype}, wanted {spec.dtype.name}")
    if out.shape != spec.shape:
        raise InvalidArgumentError(f"{where}.shape: {list(out.shape)}, wanted {list(spec.shape)}")
    if not (out.flags.c_contiguous and out.flags.writeable):
        raise InvalidArgumentError(f"{where}: strided or read-only, wanted C-contiguous, writable")
    return out
