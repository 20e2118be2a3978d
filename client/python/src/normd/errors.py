"""The exceptions of calls.

Every exception of this package is an `Error`. Those from the server's status have the class of its
code. If a message has normd's form ("shape[1]: 3 channels in [1, 3, 8], wanted 64"), `field`,
`came` and `wanted` are its parts.
"""

from __future__ import annotations

import re
from typing import Any

import grpc

# A path of fields, after the input that it belongs to: `input "y": shape`, `inputs[0].name`.
_FIELD = re.compile(
    r'((?:(?:input|output) "[^"]*": )?[a-z][a-z0-9_]*(?:\[\d+\]|\.[a-z][a-z0-9_]*)*): '
)

_BY_CODE: dict[grpc.StatusCode, type[Error]] = {}


def _parse(message: str) -> tuple[str | None, str | None, str | None]:
    """What a message says of a field: its name, what came, what was wanted."""
    match = _FIELD.match(message)
    if match is None:
        return None, None, None
    came, found, wanted = message[match.end() :].partition(", wanted ")
    if not found and came.startswith("wanted "):
        return match[1], None, came.removeprefix("wanted ")
    return match[1], came, wanted if found else None


class Error(Exception):
    """Base of all errors of this package.

    Attributes:
      code: gRPC's code; for errors found before a call, the code that the server would use.
      message: the server's text.
      field: the field in question, such as "shape[1]" or 'input "y": dtype'; None if the message
        names none. `came` and `wanted` say what it was and should have been, if they are known.
      target: the server's address; None for errors found before a call.
      retry_after: seconds after which the server would take the call; None without a hint.
    """

    code = grpc.StatusCode.UNKNOWN

    def __init_subclass__(cls, code: grpc.StatusCode | None = None) -> None:
        """`code`: the one whose exception the class is."""
        super().__init_subclass__()
        if code is not None:
            cls.code = code
            _BY_CODE[code] = cls

    def __init__(
        self,
        message: str,
        *,
        target: str | None = None,
        retry_after: float | None = None,
        code: grpc.StatusCode | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.target = target
        self.retry_after = retry_after
        if code is not None:
            self.code = code
        self.field, self.came, self.wanted = _parse(message)

    def __str__(self) -> str:
        return f"{self.target}: {self.message}" if self.target else self.message


class InvalidArgumentError(Error, ValueError, code=grpc.StatusCode.INVALID_ARGUMENT):
    """A field is wrong; the message names it."""


class NotFoundError(Error, LookupError, code=grpc.StatusCode.NOT_FOUND):
    """No such model, version or service."""


class ResourceExhaustedError(Error, code=grpc.StatusCode.RESOURCE_EXHAUSTED):
    """A queue or a budget is full; `retry_after` says when to retry."""


class FailedPreconditionError(Error, code=grpc.StatusCode.FAILED_PRECONDITION):
    """A file of the model repository is over one of the server's limits."""


class AbortedError(Error, code=grpc.StatusCode.ABORTED):
    """The model's files are being written: load it again."""


class UnavailableError(Error, ConnectionError, code=grpc.StatusCode.UNAVAILABLE):
    """The server cannot be reached, is gone, drains or is not ready; the call had no effect."""


class DeadlineExceededError(Error, TimeoutError, code=grpc.StatusCode.DEADLINE_EXCEEDED):
    """`timeout` or `queue_timeout` passed; the message says which if the server noticed it."""


class CancelledError(Error, code=grpc.StatusCode.CANCELLED):
    """The other side, or a proxy in between, cancelled the call."""


class InternalError(Error, code=grpc.StatusCode.INTERNAL):
    """The server or its device failed; with `retry_after`, another attempt may succeed."""


class UnimplementedError(Error, code=grpc.StatusCode.UNIMPLEMENTED):
    """The server does not know the method: it is not normd, or is an older version."""


class UnauthenticatedError(Error, PermissionError, code=grpc.StatusCode.UNAUTHENTICATED):
    """The token or certificate is missing or was refused; or the server's is not trusted."""


class PermissionDeniedError(Error, PermissionError, code=grpc.StatusCode.PERMISSION_DENIED):
    """The caller may not do this."""


class DataLossError(Error, OSError, code=grpc.StatusCode.DATA_LOSS):
    """A file has shrunk while it was read."""


class ProtocolError(InternalError):
    """The server's message breaks the protocol."""


class ClosedError(Error):
    """The client has been closed."""

    code = grpc.StatusCode.CANCELLED


# UNAVAILABLE with these words: no attempt succeeds, because the two sides do not trust each other.
_UNTRUSTED = re.compile("SSL_ERROR_SSL|CERTIFICATE_VERIFY_FAILED|Hostname Verification|Peer name ")
_PUSHBACK = "grpc-retry-pushback-ms"


def _pushback(metadata: Any) -> float | None:
    """The server's hint in seconds, from the trailing metadata of a call."""
    for key, value in metadata or ():
        if key == _PUSHBACK:
            try:
                milliseconds = int(value)
            except ValueError:
                return None
            return milliseconds / 1e3 if milliseconds >= 0 else None
    return None


def from_code(number: int, message: str) -> Error:
    """The exception for a numeric gRPC code."""
    code = next((each for each in grpc.StatusCode if each.value[0] == number), None)
    if code is None:
        return ProtocolError(f"code {number}: {message}")
    return _BY_CODE.get(code, Error)(message, code=code)


def from_rpc(error: Any, target: str) -> Error:
    """The exception for a call's status, from gRPC's synchronous or asyncio interface."""
    code: grpc.StatusCode = error.code()
    details: str = error.details() or code.name
    metadata = error.trailing_metadata()
    if code is grpc.StatusCode.UNAVAILABLE and _UNTRUSTED.search(details):
        return UnauthenticatedError(
            f"credentials: no TLS with this server, wanted those that it trusts, and a server that "
            f"they trust: {details}",
            target=target,
        )
    kind = _BY_CODE.get(code, Error)
    return kind(details, target=target, retry_after=_pushback(metadata), code=code)
