"""gRPC spoken by hand over python3-h2, to say what no well-behaved client says."""

import socket
import struct

import h2.config
import h2.connection
import h2.events
import h2.settings
from http_client import Closing

NORMALIZE = "/normd.v1.NormService/Normalize"
STREAM = "/normd.v1.NormService/NormalizeStream"

FLOAT32 = 1


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def integer_field(number, value):
    return varint(number << 3) + varint(value)


def bytes_field(number, value):
    return varint(number << 3 | 2) + varint(len(value)) + value


def tensor(shape, data=b"", dtype=FLOAT32, name=b""):
    """A Tensor message. `data` may be of any length."""
    message = bytes_field(1, name) if name else b""
    message += integer_field(2, dtype)
    message += bytes_field(3, b"".join(varint(dim) for dim in shape))
    return message + (bytes_field(4, data) if data else b"")


def normalize_request(model, shape, data=b"", **options):
    """A NormalizeRequest with one input."""
    return bytes_field(1, model.encode()) + bytes_field(3, tensor(shape, data, **options))


def stream_header(model, shape, **options):
    """The first message of a NormalizeStream call."""
    return bytes_field(1, normalize_request(model, shape, **options))


def stream_chunk(data):
    return bytes_field(2, data)


def framed(message, compressed=0, length=None):
    """A gRPC message with its prefix, which may claim another `length`."""
    return struct.pack(">BI", compressed, len(message) if length is None else length) + message


def connect(address, source=None, timeout=10.0):
    """A socket that is connected to `address`, over TLS if that is a TlsAddress; a text is the path
    of a unix socket."""
    if isinstance(address, str):
        unix = socket.socket(socket.AF_UNIX)
        unix.settimeout(timeout)
        unix.connect(address)
        return unix
    plain = socket.create_connection(address, timeout=timeout,
                                     source_address=(source, 0) if source else None)
    context = getattr(address, "context", None)
    return plain if context is None else context.wrap_socket(plain, server_hostname="localhost")


class Connection(Closing):
    """A client's HTTP/2 connection, blocking. `source` is the address it comes from: 127.0.0.2 is
    another peer than 127.0.0.1. Without `window` the flow-control windows are wide open and
    whatever arrives is acknowledged; with it, nothing more is taken than so many bytes for each
    stream and nothing is acknowledged: a client that does not read."""

    def __init__(self, address, source=None, window=None, timeout=10.0):
        self.socket = connect(address, source, timeout)
        # A call's header and message leave as two writes: together they would wait for an ACK, 40 ms.
        if not isinstance(address, str):
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reads = window is None
        # h2 counts sent frames like a proper client, but does not judge what we send.
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(
            client_side=True, validate_outbound_headers=False, normalize_outbound_headers=False,
            header_encoding="utf-8"))
        self.h2.local_settings = h2.settings.Settings(client=True, initial_values={
            h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: (1 << 30) if window is None else window,
            h2.settings.SettingCodes.ENABLE_PUSH: 0})
        self.h2.initiate_connection()
        if window is None:
            self.h2.increment_flow_control_window((1 << 30) - 65535)
        self.events = []
        self.closed = False
        self.flush()
        if not self.reads:
            self.pump()  # A client that does not acknowledge the server's settings gets no further.

    def flush(self):
        data = self.h2.data_to_send()
        if data:
            self.socket.sendall(data)

    def start(self, path=NORMALIZE, metadata=(), timeout=None):
        """Opens a call; returns its stream id. `timeout` is grpc-timeout's value, such as "5S"."""
        stream = self.h2.get_next_available_stream_id()
        headers = [(":method", "POST"), (":scheme", "http"), (":path", path),
                   (":authority", "localhost"), ("content-type", "application/grpc"),
                   ("te", "trailers")]
        if timeout is not None:
            headers.append(("grpc-timeout", timeout))
        self.h2.send_headers(stream, headers + list(metadata))
        self.flush()
        return stream

    def send(self, stream, data, end=False):
        """Sends all of `data` on `stream`, as the server's windows allow."""
        data = memoryview(data)  # So that the rest is not copied for each frame.
        while data:
            room = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)
            if room == 0:
                if not self.pump():
                    raise ConnectionError("the server has closed, or takes no more")
                continue
            part, data = bytes(data[:room]), data[room:]
            self.h2.send_data(stream, part, end_stream=end and not data)
            self.flush()

    def end(self, stream):
        self.h2.end_stream(stream)
        self.flush()

    def pump(self, timeout=None):
        """Reads what has come, once. False when nothing came in time or the connection is closed."""
        self.socket.settimeout(timeout if timeout is not None else 10.0)
        try:
            data = self.socket.recv(1 << 16)
        except (socket.timeout, ConnectionError):
            return False
        finally:
            self.socket.settimeout(10.0)
        if not data:
            self.closed = True
            return False
        for event in self.h2.receive_data(data):
            self.events.append(event)
            if isinstance(event, h2.events.DataReceived) and self.reads:
                if event.flow_controlled_length:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        self.flush()
        return True

    def status(self, stream, timeout=10.0):
        """(code, message) of a call's end; (None, why) when none came."""
        seen = 0
        while True:
            for event in self.events[seen:]:
                if getattr(event, "stream_id", None) != stream:
                    if isinstance(event, h2.events.ConnectionTerminated):
                        return None, f"GOAWAY {event.error_code}"
                    continue
                if isinstance(event, (h2.events.TrailersReceived, h2.events.ResponseReceived)):
                    fields = dict(event.headers)
                    if "grpc-status" in fields:
                        return int(fields["grpc-status"]), fields.get("grpc-message", "")
                if isinstance(event, h2.events.StreamReset):
                    return None, f"RST_STREAM {event.error_code}"
            seen = len(self.events)
            if not self.pump(timeout):
                return None, "closed" if self.closed else "nothing came"

    def call(self, message, path=NORMALIZE, **options):
        """A whole unary call; returns its (code, message)."""
        stream = self.start(path, **options)
        self.send(stream, framed(message), end=True)
        return self.status(stream)
