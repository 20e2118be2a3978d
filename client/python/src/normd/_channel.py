"""A client's target and connection: credentials and gRPC's channel options."""

from __future__ import annotations

import ipaddress
import json
import re
import socket
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from normd.errors import Error, InvalidArgumentError, UnavailableError

Options = Sequence[tuple[str, Any]]

DEFAULT_TARGET = "127.0.0.1:8001"

# A connection is tried again after this time at least, so that a server that is back is found.
_LONGEST_PAUSE_MS = 2000
_PROBE_S = 2.0
# What gRPC says when a server has ended the connection without a word.
_CLOSED = re.compile("Socket closed|End of TCP stream|[Rr]eset by peer|Broken pipe")

_ROUND_ROBIN = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})


@dataclass(frozen=True)
class ChannelConfig:
    """The arguments of a channel."""

    target: str
    credentials: grpc.ChannelCredentials | None
    options: list[tuple[str, Any]]


def configure(
    target: str | Sequence[str],
    credentials: grpc.ChannelCredentials | None,
    token: str | None,
    server_name: str | None,
    options: Options,
) -> ChannelConfig:
    """Makes Client's arguments those of gRPC. InvalidArgumentError names a wrong one."""
    _check_types(target, credentials, token, server_name)
    if token is not None:
        if not token or not all("!" <= each <= "~" for each in token):
            odd = next((each for each in token if not "!" <= each <= "~"), "")
            raise InvalidArgumentError(
                f"token: has {odd!r}, wanted visible ASCII characters alone: a file's last line "
                "ends with a newline"
            )
        if credentials is None:
            raise InvalidArgumentError(
                "token: without credentials, wanted some too, such as "
                "grpc.ssl_channel_credentials(): it is not sent in the clear"
            )
        credentials = grpc.composite_channel_credentials(
            credentials, grpc.access_token_call_credentials(token)
        )
    # Results may be as large as requests: the server's limits apply, not gRPC's default of 4 MiB.
    all_options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.enable_retries", 0),  # normd.Retry does that.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", _LONGEST_PAUSE_MS),
    ]
    if server_name is not None:
        all_options.append(("grpc.ssl_target_name_override", server_name))
        all_options.append(("grpc.default_authority", server_name))
    if isinstance(target, str):
        joined = target
        if target.startswith("dns:"):  # One such name may have several addresses.
            all_options.append(("grpc.service_config", _ROUND_ROBIN))
    else:
        joined = _join(target)
        all_options.append(("grpc.service_config", _ROUND_ROBIN))
    if not joined:
        raise InvalidArgumentError("target: empty, wanted an address such as 127.0.0.1:8001")
    # The system's resolver would take a port above 65535 modulo 65536, and so call another server.
    port = host_and_port(joined)[1]
    if port.strip("+- ").isdecimal() and not _is_port(port):
        raise InvalidArgumentError(f'target: "{target}", wanted a port up to 65535')
    return ChannelConfig(joined, credentials, [*all_options, *options])


def _is_port(text: str) -> bool:
    return text.isdecimal() and len(text.lstrip("0")) <= 5 and int(text) <= 65535


def _check_types(*arguments: object) -> None:
    wanted: dict[str, tuple[type, ...]] = {
        "target": (str, Iterable),
        "credentials": (grpc.ChannelCredentials, type(None)),
        "token": (str, type(None)),
        "server_name": (str, type(None)),
    }
    for (field, types), value in zip(wanted.items(), arguments, strict=True):
        if not isinstance(value, types):
            names = " or ".join("None" if each is type(None) else each.__name__ for each in types)
            raise InvalidArgumentError(f"{field}: {type(value).__name__}, wanted {names}")


def make(config: ChannelConfig, interface: Any = grpc) -> Any:
    """A channel of gRPC's synchronous interface, or of grpc.aio."""
    if config.credentials is None:
        return interface.insecure_channel(config.target, config.options)
    return interface.secure_channel(config.target, config.credentials, config.options)


def _join(addresses: Sequence[str]) -> str:
    """One of gRPC's names for a list of addresses. Host names are looked up now."""
    found = [_resolve(address) for address in addresses]
    if not found:
        raise InvalidArgumentError("target: no address, wanted at least one")
    if all(host.version == 4 for host, _ in found):
        return "ipv4:" + ",".join(f"{host}:{port}" for host, port in found)
    hosts = [(f"::ffff:{host}" if host.version == 4 else str(host), port) for host, port in found]
    return "ipv6:" + ",".join(f"[{host}]:{port}" for host, port in hosts)


def _resolve(address: str) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]:
    host, colon, port = str(address).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not _is_port(port):
        raise InvalidArgumentError(f'target: "{address}" in a list, wanted HOST:PORT')
    try:
        resolved = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        raise InvalidArgumentError(f'target: "{address}": {error.strerror}') from error
    return ipaddress.ip_address(str(resolved).partition("%")[0]), int(port)


def may_explain(error: Error) -> bool:
    """Whether `explain` may know more than the error says."""
    return isinstance(error, UnavailableError) and _CLOSED.search(error.message) is not None


def explain(config: ChannelConfig, error: Error) -> Error:
    """A better error, if the server closed the connection because it speaks TLS and the client does
    not; else the same. Connects, and blocks for seconds at most."""
    host, port = host_and_port(config.target)
    if config.credentials is not None or not port.isdecimal() or not may_explain(error):
        return error
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # Nothing is sent.
    try:
        with (
            socket.create_connection((host, int(port)), _PROBE_S) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            return InvalidArgumentError(
                "credentials: None, wanted some, such as grpc.ssl_channel_credentials(): the "
                "server speaks TLS"
            )
    except OSError:  # It does not.
        return error


def host_and_port(target: str) -> tuple[str, str]:
    """The host and the port of a target that is one address; empty for others."""
    for scheme in ("dns:", "ipv4:", "ipv6:", "///"):
        target = target.removeprefix(scheme)
    host, _, port = target.rpartition(":")
    if not host or "," in target or "/" in target:
        return "", ""
    return host.removeprefix("[").removesuffix("]"), port
