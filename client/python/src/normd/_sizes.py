"""The sizes of a call's outputs, computed before it is made."""

from __future__ import annotations

from collections.abc import Sequence

from normd import _control
from normd._request import Options
from normd._shapes import output_bytes
from normd._tensors import TensorSpec
from normd._transport import Call
from normd.errors import InvalidArgumentError, NotFoundError
from normd.models import ModelInfo


class OutputSizes:
    """The server's answers about its models. Thread-safe."""

    def __init__(self) -> None:
        self._models: dict[tuple[str, int], ModelInfo] = {}

    async def find(
        self, call: Call, model: str, options: Options, inputs: Sequence[TensorSpec]
    ) -> dict[str, int] | None:
        """The bytes of each output by name. None if they cannot be computed: the call will say why.

        Raises the errors of asking the server.
        """
        key = (model, options.version)
        try:
            if key not in self._models:
                self._models[key] = await call.ask(_control.get_model(model, options.version))
        except (NotFoundError, InvalidArgumentError):
            return None
        info = self._models.get(key)  # Another thread may have forgotten it.
        return None if info is None else output_bytes(info, inputs, options.outputs)

    def forget(self, model: str, options: Options) -> None:
        """After a failure that a new server or version may have caused."""
        self._models.pop((model, options.version), None)
