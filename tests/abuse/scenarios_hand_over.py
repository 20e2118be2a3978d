"""The moment in which a connection is handed over to gRPC (docs/threat_model.md, Connections)."""

import itertools
import random
import threading
import time

from frames import ACK, CALL, CONTINUATION, HEADERS, PING, SETTINGS, Raw, frame, hpack_rest
from harness import require, scenario

# What floods leave in the heap is free, but in part in pieces of less than a page beside ones that are
# in use, which the C library cannot give back: up to 97 MiB after 32 floods, of which 3 were in use.
# It does not grow with their number, which is four times as many in the long form.
FRAGMENTED_MIB = 128

# A header block without an end. Its one header claims 1 GiB, so that the parser waits for all of it.
BLOCK = frame(HEADERS, 0, 1, CALL + b"\x00\x01x\x7f" + hpack_rest((1 << 30) - 127))


def flood(address, size, delay, give_up):
    """Acknowledges the server's settings and floods it `delay` seconds later with CONTINUATION frames
    of `size` bytes, until it closes or `give_up` is set. Returns the bytes sent."""
    with Raw(address, acknowledge=0) as raw:
        raw.pump(5)  # The settings.
        rest = frame(CONTINUATION, 0, 1, b"v" * size) * ((1 << 20) // (size + 9))
        begin = frame(SETTINGS, ACK, 0) + BLOCK + rest
        if delay is not None:
            raw.send(begin[:9])
            begin = begin[9:]
            until = time.perf_counter() + delay
            while time.perf_counter() < until:
                pass
        sent = 0
        while not give_up.is_set() and raw.send(begin if sent == 0 else rest):
            sent += len(rest)
        return sent


def greeted(address):
    """How long a new connection takes until gRPC itself answers on it."""
    began = time.monotonic()
    with Raw(address) as raw:
        require(raw.send(frame(PING, 0, 0, bytes(8))), "a ping is taken")
        while not any(kind == PING for kind, _, _ in raw.frames):
            require(raw.pump(10), "gRPC acknowledges a ping")
    return time.monotonic() - began


@scenario("8", "a flood in the moment of the hand-over to gRPC holds up no other connection")
def hand_over_flood(context):
    seed = random.SystemRandom().randrange(1 << 32)
    context.note(f"seed {seed}")
    chance = random.Random(seed)
    longest, sent = 0.0, []
    with context.normd("--message_timeout=1s", "--min_message_rate=4194304") as server:
        with server.unharmed(memory_slack_mib=FRAGMENTED_MIB):
            for size, together in itertools.product((16384, 1024),
                                                    (True, False) * (1 if context.short else 4)):
                delay = None if together else chance.uniform(0, 500e-6)
                give_up = threading.Event()
                floods = [threading.Thread(target=lambda: sent.append(
                    flood(server.address, size, delay, give_up))) for _ in range(2)]
                for thread in floods:
                    thread.start()
                end = time.monotonic() + 0.3
                try:
                    while time.monotonic() < end:
                        longest = max(longest, greeted(server.address))
                finally:
                    give_up.set()
                    for thread in floods:
                        thread.join()
                require(longest < 10, f"a new connection waited for {longest:.1f} s")
        ended = server.metric("normd_connections_ended_total")
        context.note(f"{len(sent)} floods, {max(sent) >> 20} MiB at most, {ended:.0f} ended by normd, a "
                     f"new connection waited for {longest * 1e3:.0f} ms at most")
