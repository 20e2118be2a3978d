"""A stream from its first message to its result, with its retries, on the thread that runs it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from normd._feed import Feed
from normd._request import Options
from normd._response import Response
from normd._stream import (
    DEFAULT_CHUNK_BYTES,
    Progress,
    ProgressBar,
    Reception,
    Sources,
    checked_chunk_bytes,
    checked_outputs,
)
from normd.errors import Error
from normd.retry import Attempts


@dataclass(frozen=True)
class StreamRequest:
    """The arguments of Client.normalize_stream."""

    model: str
    inputs: object
    out: object
    options: Options
    timeout: float | None
    progress: Progress = False
    chunk_bytes: int = DEFAULT_CHUNK_BYTES


class StreamRun:
    """One stream. `cancel` may be called from any thread, at any time."""

    def __init__(
        self,
        start: Callable[[object, float | None], Any],
        input_names: Callable[[str, int, float | None], Sequence[str]],
        to_error: Callable[[grpc.RpcError], Error],
        attempts: Attempts,
        request: StreamRequest,
    ) -> None:
        """`start` makes a gRPC call from its messages and timeout; `input_names` asks for the
        inputs of a model's version, in its order."""
        self._start = start
        self._input_names = input_names
        self._to_error = to_error
        self._attempts = attempts
        self._request = request
        self._cancelled = threading.Event()
        self._call: Any = None

    def cancel(self) -> None:
        """Ends the stream soon; `run` then raises an Error."""
        self._cancelled.set()
        call = self._call
        if call is not None:
            call.cancel()

    def run(self) -> Response:
        """Blocks. Raises as Client.normalize_stream says."""
        request = self._request
        checked_outputs(request.out)
        chunk_bytes = checked_chunk_bytes(request.chunk_bytes)
        with Sources(request.inputs) as sources, ProgressBar(request.progress) as bar:
            sources.check_apart(request.out)
            if len(sources.specs) > 1:
                version = request.options.version
                left = self._attempts.timeout()
                sources.order(self._input_names(request.model, version, left))
            header = sources.header(request.model, request.options)
            while True:
                reception = Reception(sources, request.out)
                feed = Feed(sources, header, chunk_bytes)
                try:
                    return self._attempt(feed, reception, bar)
                except Error as error:
                    if reception.header is not None:  # Some of the result may be written.
                        raise
                    if self._cancelled.wait(self._attempts.wait_after(error)):
                        raise

    def _attempt(self, feed: Feed, reception: Reception, bar: ProgressBar) -> Response:
        self._call = call = self._start(feed.messages(), self._attempts.timeout())
        feed.on_error(call.cancel)
        if self._cancelled.is_set():
            call.cancel()
        try:
            for message in call:
                reception.take(message)
                if reception.header is not None:
                    feed.accept(reception.header.max_chunk_bytes, reception.header.samples)
                bar.update(reception.received_bytes, reception.total_bytes)
            return reception.commit()
        except grpc.RpcError as error:
            reception.abort()
            feed.raise_error()
            raise self._to_error(error) from None
        except BaseException:
            reception.abort()
            raise
        finally:
            feed.end()
            call.cancel()
