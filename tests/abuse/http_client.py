"""HTTP/1.1 by hand, to say what no well-behaved client says."""

import contextlib
import json
import select
import socket
import struct

INFER = "/v2/models/instance_norm_64/infer"


def head(path=INFER, method="POST", **fields):
    """A request's head; `fields` with _ for -."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def binary(shape):
    """(the JSON, the tensor) of a request whose tensors are binary both ways."""
    elements = 1
    for dim in shape:
        elements *= dim
    text = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": shape,
                                   "parameters": {"binary_data_size": 4 * elements}}],
                       "parameters": {"binary_data_output": True}}).encode()
    return text, struct.pack("<f", 1) * elements


def request(shape, **fields):
    """A whole request."""
    text, tensor = binary(shape)
    return head(Inference_Header_Content_Length=len(text),
                Content_Length=len(text) + len(tensor), **fields) + text + tensor


def chunk(data, extension=b""):
    return b"%x" % len(data) + extension + b"\r\n" + data + b"\r\n"


class Closing:
    """What has a socket, and closes it with the block that it is used in."""

    def close(self):
        with contextlib.suppress(OSError):
            self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


class ByHand(Closing):
    def send(self, data):
        """False when the server has closed."""
        try:
            self.socket.sendall(data)
            return True
        except OSError:
            return False


class Raw(ByHand):
    """A connection, blocking. `source` is the address it comes from. `window` is the size of the
    socket's receive buffer: a small one makes a client that does not read felt early."""

    def __init__(self, address, source=None, window=None, timeout=10.0):
        self.socket = socket.socket()
        if window is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        self.socket.settimeout(timeout)
        if source:
            self.socket.bind((source, 0))
        self.socket.connect(address)
        self.buffer = b""

    def read(self, timeout=10.0):
        """The next response as (status, head, body); None at the connection's end, or when nothing
        came within `timeout`."""
        self.socket.settimeout(timeout)
        try:
            while b"\r\n\r\n" not in self.buffer:
                if not self._more():
                    return None
            top, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
            lines = top.decode("latin-1").lower().split("\r\n")
            fields = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
            status, size = int(lines[0].split()[1]), int(fields.get("content-length", 0))
            if status < 200:
                return self.read(timeout)
            while len(self.buffer) < size:
                if not self._more():
                    return None
        except OSError:
            return None
        body, self.buffer = self.buffer[:size], self.buffer[size:]
        return status, top.decode("latin-1"), body

    def _more(self):
        data = self.socket.recv(1 << 16)
        self.buffer += data
        return bool(data)

    def closed(self, within):
        """Whether the server ends the connection; what comes before is dropped."""
        self.socket.settimeout(within)
        try:
            while self.socket.recv(1 << 16):
                pass
            return True
        except socket.timeout:
            return False
        except OSError:
            return True

    def trickle(self):
        """Takes at most a KiB of what has come. False when the server has ended the connection."""
        self.socket.setblocking(False)
        try:
            return bool(self.socket.recv(1024))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def reset(self, within):
        """Whether the server resets the connection, of which nothing is read."""
        poll = select.poll()
        poll.register(self.socket, 0)
        return bool(poll.poll(within * 1000))
