"""The base of objects that a `with` block closes."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import TypeVar

_Self = TypeVar("_Self", bound="Closing")


class Closing(abc.ABC):
    """A context manager that closes itself."""

    @abc.abstractmethod
    def close(self) -> None:
        """Releases the resources. May be called again."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
