"""The messages of a synchronous client's stream, which gRPC reads on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from normd._stream import Sources


class Feed:
    """The header, then the chunks once the server has accepted it. One feed for each attempt."""

    def __init__(self, sources: Sources, header: bytes, chunk_bytes: int) -> None:
        self._sources = sources
        self._header = header
        self._chunk_bytes = chunk_bytes
        self._samples = 0
        self._go = threading.Event()
        # Held while a source is read, so that none is read after `end`.
        self._reading = threading.Lock()
        self._ended = False
        self._error: Exception | None = None
        self._cancel: Callable[[], object] = lambda: None

    def messages(self) -> Iterator[list[bytes | memoryview]]:
        """Each message in parts to be joined. Ends early after `end` or an error of a source."""
        yield [self._header]
        self._go.wait()
        chunks = self._sources.chunks(self._chunk_bytes, self._samples)
        while True:
            with self._reading:
                if self._ended:
                    return
                try:
                    chunk = next(chunks, None)
                except Exception as error:  # Raised again where the call was made.
                    self._error = error
                    self._cancel()
                    return
            if chunk is None:
                return
            yield chunk

    def on_error(self, cancel: Callable[[], object]) -> None:
        """Sets the function that ends the call if a source fails. Call it before `accept`."""
        self._cancel = cancel

    def accept(self, max_chunk_bytes: int, samples: int) -> None:
        """The server has accepted the header: the chunks may follow. May be called again."""
        if not self._go.is_set():
            self._samples = samples
            self._chunk_bytes = min(self._chunk_bytes, max_chunk_bytes)
            self._go.set()

    def end(self) -> None:
        """The call has ended: waits until no source is being read, and none will be."""
        with self._reading:
            self._ended = True
        self._go.set()

    def raise_error(self) -> None:
        """Raises a source's error, if that has ended the call."""
        if self._error is not None:
            raise self._error
