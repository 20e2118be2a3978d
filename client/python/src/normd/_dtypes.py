"""The element types of the protocol, and their names in NumPy."""

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
# NumPy has no bfloat16: ml_dtypes has one, and writes it to files as two raw bytes.
BFLOAT16 = DataType("bfloat16", 4, 2, "<V2")
# For quantized outputs. float8 is OCP's E4M3 without infinities; in NumPy it is like bfloat16.
INT8 = DataType("int8", 5, 1, "|i1")
FLOAT8_E4M3 = DataType("float8_e4m3", 6, 1, "<V1")
INT64 = DataType("int64", 7, 8, "<i8")  # For indexes.

DATA_TYPES = (FLOAT32, FLOAT64, FLOAT16, BFLOAT16, INT8, FLOAT8_E4M3, INT64)
BY_NUMBER = {dtype.number: dtype for dtype in DATA_TYPES}
BY_NAME = {dtype.name: dtype for dtype in DATA_TYPES}
WANTED = "float32, float64, float16, bfloat16, or int64 for indexes"
_RAW = {"void8": FLOAT8_E4M3, "void16": BFLOAT16}
_ML_DTYPES = {BFLOAT16: "bfloat16", FLOAT8_E4M3: "float8_e4m3fn"}
# By the names of NumPy, ml_dtypes and PyTorch, whose float8_e4m3 is another format.
OF_ARRAYS = {_ML_DTYPES.get(dtype, dtype.name): dtype for dtype in DATA_TYPES}


@functools.lru_cache(maxsize=64)
def _find(dtype: np.dtype[Any]) -> DataType | None:
    if dtype.fields is not None:
        return None
    return _RAW.get(dtype.name) or OF_ARRAYS.get(dtype.name)


def of_numpy(dtype: np.dtype[Any], where: str) -> DataType:
    """The type of an array's elements, of either byte order. Two raw bytes are a bfloat16, one is a
    float8.

    Raises InvalidArgumentError for another, with `where` before the field.
    """
    found = _find(dtype)
    if found is None:
        raise InvalidArgumentError(f"{where}dtype: {dtype.name}, wanted {WANTED}")
    return found


@functools.lru_cache(maxsize=64)
def is_little_endian(dtype: np.dtype[Any]) -> bool:
    """Whether elements of the type have the same form in memory as in a message."""
    return dtype.kind not in "fi" or dtype.newbyteorder("<") == dtype


@functools.lru_cache(maxsize=64)
def to_numpy(dtype: DataType) -> np.dtype[Any]:
    """NumPy's type, little-endian; else that of ml_dtypes, or raw bytes without it."""
    name = _ML_DTYPES.get(dtype)
    if name is None:
        return np.dtype(dtype.npy)
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype(dtype.npy)
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found
