"""HTTP/2 frames by hand, below what python3-h2 would send."""

import socket
import struct
import time

from h2_client import NORMALIZE, connect
from http_client import ByHand

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 1, 3, 4, 6, 9  # Kinds of frames.
ACK, END_HEADERS = 1, 4                                            # Their flags.


def literal(name, value):
    """A header for HPACK, not indexed, not compressed."""
    def text(string):
        return (bytes([len(string)]) if len(string) < 127 else
                b"\x7f" + hpack_rest(len(string) - 127)) + string
    return b"\x00" + text(name) + text(value)


def hpack_rest(value):
    out = bytearray()
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes(out + bytes([value]))


CALL = b"".join(literal(name, value) for name, value in [
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", NORMALIZE.encode()),
    (b":authority", b"localhost"), (b"content-type", b"application/grpc"), (b"te", b"trailers")])


class Raw(ByHand):
    """Frames by hand. It acknowledges the first `acknowledge` SETTINGS of the server."""

    def __init__(self, address, acknowledge=1, source=None):
        self.socket = connect(address, source, timeout=5)
        self.left = acknowledge
        self.buffer = b""
        self.frames = []
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0))
        while self.left > 0 and self.pump(2):
            pass

    def pump(self, timeout=0.2):
        """Reads once. False at the end or when nothing came."""
        self.socket.settimeout(timeout)
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            return False
        self.socket.settimeout(5)
        if not data:
            return False
        self.buffer += data
        while len(self.buffer) >= 9:
            size = int.from_bytes(self.buffer[:3], "big")
            if len(self.buffer) < 9 + size:
                break
            kind, flags = self.buffer[3], self.buffer[4]
            self.frames.append((kind, flags, self.buffer[9:9 + size]))
            self.buffer = self.buffer[9 + size:]
            if kind == SETTINGS and not flags & ACK and self.left > 0:
                self.left -= 1
                self.send(frame(SETTINGS, ACK, 0))
        return True

    def closed(self, within):
        """Whether the server ends the connection."""
        end = time.monotonic() + within
        self.socket.settimeout(0.2)
        while time.monotonic() < end:
            try:
                if not self.socket.recv(1 << 16):
                    return True
            except socket.timeout:
                pass
            except OSError:
                return True
        return False
