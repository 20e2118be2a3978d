"""What every server must bear, and a check of the harness itself."""

from harness import require, scenario
from h2_client import Connection, normalize_request


@scenario("0", "a well-formed call by hand is answered, a malformed one refused")
def baseline(context):
    with context.normd() as server, server.unharmed():
        with Connection(server.address) as client:
            ones = b"\x00\x00\x80\x3f" * 64
            code, message = client.call(normalize_request("instance_norm_64", [1, 64, 1, 1], ones))
            require(code == 0, f"Normalize: {code} {message}")
            code, message = client.call(normalize_request("instance_norm_64", [1, 64, 1, 2], ones))
            require(code == 3 and "data" in message, f"half of the data: {code} {message}")
