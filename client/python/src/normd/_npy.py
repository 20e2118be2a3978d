"""`.npy` files as the inputs and outputs of streams: read and written in parts, never whole."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format

from normd import _dtypes
from normd._tensors import TensorSpec, written_path
from normd.errors import DataLossError, InvalidArgumentError

_HEADERS = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
    # The difference is the encoding of structured types' names.
    (3, 0): npy_format.read_array_header_2_0,
}


def _conversion(dtype: np.dtype[Any]) -> str:
    """The line of Python that converts a file with other elements."""
    if dtype.hasobject:
        load, last = "numpy.load(path, allow_pickle=True)", ", if you trust who wrote the file"
    else:
        load, last = "numpy.load(path)", ""
    part = '["FIELD"]' if dtype.fields is not None else '.astype("float32")'
    return f"numpy.save(path, {load}{part}){last}"


class NpySource:
    """An open file with a checked header: its size matches dtype and shape.

    Its bytes are given row-major and little-endian in any case; a file in Fortran order is held in
    memory for that.
    """

    def __init__(self, name: str, path: str | os.PathLike[str]) -> None:
        """Opens the file. OSError when it does not open, InvalidArgumentError with the path for a
        file that is not a dense .npy file of one of the types, MemoryError for one in Fortran
        order that does not fit."""
        self.path = Path(path)
        self._row_major: memoryview | None = None  # All of a file in Fortran order.
        self._file = self.path.open("rb", buffering=0)
        try:
            self.spec, self._stored, fortran_order = self._read_header(name, self._file)
            self._begin = self._file.tell()
            size = os.fstat(self._file.fileno()).st_size - self._begin
            if size != self.spec.nbytes:
                raise InvalidArgumentError(
                    f"{self.path}: {size} bytes of data, wanted {self.spec.nbytes} for shape "
                    f"{list(self.spec.shape)} of {self.spec.dtype.name}"
                )
            if fortran_order and size > 0:
                self._row_major = self._load_fortran_order()
        except BaseException:
            self._file.close()
            raise

    def _read_header(self, name: str, file: BinaryIO) -> tuple[TensorSpec, np.dtype[Any], bool]:
        try:
            read = _HEADERS.get(npy_format.read_magic(file))
            if read is None:
                raise ValueError("a version of the format after 3.0")
            shape, fortran_order, dtype = read(file)
        except ValueError as error:
            raise InvalidArgumentError(f"{self.path}: not a .npy file: {error}") from error
        try:
            found = _dtypes.of_numpy(dtype, f"{self.path}: ")
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{error}; in Python: {_conversion(dtype)}") from None
        return TensorSpec(name, found, shape), dtype, fortran_order

    def _load_fortran_order(self) -> memoryview:
        whole = self._read_swapped(0, self.spec.nbytes)
        columns = np.frombuffer(whole, self.spec.dtype.npy).reshape(self.spec.shape, order="F")
        row_major: memoryview = np.ascontiguousarray(columns).reshape(-1).view(np.uint8).data
        return row_major

    def read(self, offset: int, size: int) -> memoryview:
        """The tensor's bytes from `offset` on. DataLossError when the file has shrunk."""
        if self._row_major is not None:
            return self._row_major[offset : offset + size]
        return self._read_swapped(offset, size)

    def _read_swapped(self, offset: int, size: int) -> memoryview:
        if _dtypes.is_little_endian(self._stored):
            return self._read_in_file(offset, size)
        # Whole elements; the first and the last may be cut.
        cut = offset % self._stored.itemsize
        whole = -(-(cut + size) // self._stored.itemsize) * self._stored.itemsize
        elements = np.frombuffer(self._read_in_file(offset - cut, whole), self._stored)
        swapped: memoryview = elements.byteswap().view(np.uint8).data
        return swapped[cut : cut + size]

    def _read_in_file(self, offset: int, size: int) -> memoryview:
        buffer = bytearray(size)
        view = memoryview(buffer)
        done = 0
        while done < size:
            count = os.preadv(self._file.fileno(), [view[done:]], self._begin + offset + done)
            if count == 0:
                raise DataLossError(f"{self.path}: the file has shrunk while it was read")
            done += count
        return view

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class NpySink:
    """A file that appears under its name when all of it has been written, and not before."""

    def __init__(self, path: str | os.PathLike[str], spec: TensorSpec) -> None:
        """Creates PATH.part with its header. OSError when that cannot be written."""
        self.path = Path(path)
        self._written = written_path(path)
        self._plain = self._written != self.path
        self._file = self._written.open("wb")
        header = {"descr": spec.dtype.npy, "fortran_order": False, "shape": spec.shape}
        npy_format.write_array_header_1_0(self._file, header)

    def write(self, offset: int, data: memoryview) -> None:
        """Writes the next bytes, from `offset` on. OSError as files raise it."""
        del offset  # They come in order.
        self._file.write(data)

    def end(self) -> None:
        """Writes the last bytes. OSError as files raise it."""
        self._file.close()

    def commit(self) -> Path:
        """Gives the complete file its name."""
        if self._plain:
            self._written = self._written.replace(self.path)
        return self.path

    def abort(self) -> None:
        """Removes the file."""
        with contextlib.suppress(OSError):  # Such as that of the failed call once more.
            self._file.close()
        if self._plain:
            with contextlib.suppress(OSError):
                self._written.unlink()
