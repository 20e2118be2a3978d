"""The element types of the protocol, and what NumPy calls them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from normd.errors import InvalidArgumentError


@dataclass(frozen=True, eq=False)
class DataType:
    """One element type: its name, number in the protocol, size, and name in .npy files."""

    name: str
    number: int
    itemsize: int
    npy: str


FLOAT32 = DataType("float32", 1, 4, "<f4")
FLOAT64 = DataType("float64", 2, 8, "<f8")
FLOAT16 = DataType("float16", 3, 2, "<f2")
# NumPy has no bfloat16: ml_dtypes brings one, and writes it to files as two raw bytes.
BFLOAT16 = DataType("bfloat16", 4, 2, "<V2")

DATA_TYPES = (FLOAT32, FLOAT64, FLOAT16, BFLOAT16)
BY_NUMBER = {dtype.number: dtype for dtype in DATA_TYPES}
BY_NAME = {dtype.name: dtype for dtype in DATA_TYPES}
WANTED = ", ".join(dtype.name for dtype in DATA_TYPES)


@functools.lru_cache(maxsize=64)
def _find(dtype: np.dtype[Any]) -> DataType | None:
    if dtype.fields is not None:
        return None
    if dtype.kind == "V" and dtype.itemsize == 2:
        return BFLOAT16
    return BY_NAME.get(dtype.name)


def of_numpy(dtype: np.dtype[Any], where: str) -> DataType:
    """The type of an array's elements, of either byte order; two raw bytes are a bfloat16.

    Raises InvalidArgumentError for another, with `where` before the field.
    """
    found = _find(dtype)
    if found is None:
        raise InvalidArgumentError(f"{where}dtype: {dtype.name}, wanted {WANTED}")
    return found


@functools.lru_cache(maxsize=64)
def is_little_endian(dtype: np.dtype[Any]) -> bool:
    """Whether elements of one of the types lie in memory as they do in a message."""
    return dtype.kind != "f" or dtype.newbyteorder("<") == dtype


@functools.lru_cache(maxsize=64)
def to_numpy(dtype: DataType) -> np.dtype[Any]:
    """NumPy's type, in little-endian order. bfloat16: ml_dtypes', or two raw bytes without it."""
    if dtype is not BFLOAT16:
        return np.dtype(dtype.npy)
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype("V2")
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16
