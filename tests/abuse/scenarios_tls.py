"""What holds behind TLS too, where the accept loop sees no frame (docs/threat_model.md, Behind TLS)."""

import time

from frames import CALL, CONTINUATION, END_HEADERS, HEADERS, SETTINGS, Raw, frame
from harness import Certificates, require, scenario
from scenarios_baseline import baseline
from scenarios_connections import (continuation_flood, honest_traffic, metadata_flood,
                                   metadata_of_idle_calls, ping_flood, rapid_reset)
from scenarios_messages import (cancelled_uploads, drip, half_sent, half_sent_crowd, little_oversize,
                                oversize, slow_upload)


def behind_tls(promise, function, long_only=False):
    """Registers a scenario once more, with TLS."""
    def run(context):
        context.tls = Certificates()
        function(context)
    run.__name__ = f"{function.__name__}_tls"
    scenario("19", f"behind TLS: {promise}", long_only)(run)


behind_tls("a well-formed call by hand is answered, a malformed one refused", baseline)
behind_tls("the limit of metadata holds for who acknowledges", metadata_flood)
behind_tls("calls without a message hold little, however much their metadata inflates",
           metadata_of_idle_calls)
behind_tls("CONTINUATION without an end: the connection ends before it holds much", continuation_flood)
behind_tls("a flood of pings ends its connection", ping_flood)
behind_tls("calls that are opened and reset at once harm nobody else", rapid_reset)
behind_tls("honest traffic leaves nothing behind that could be held against it", honest_traffic)
behind_tls("a message that drips in is noticed, and ends its connection", drip)
behind_tls("half-sent requests are given up after --message_timeout", half_sent)
behind_tls("half-sent requests of one address cost the calls of another nothing", half_sent_crowd)
behind_tls("uploads that are cancelled at any point leave nothing", cancelled_uploads)
behind_tls("a slow upload above the least rate goes through", slow_upload, long_only=True)
behind_tls("a message far above --max_request_bytes ends its connection", oversize)
behind_tls("messages little above --max_request_bytes get a status", little_oversize)


def settings_flood(context):
    """A client that sends SETTINGS without end and reads no acknowledgement of them."""
    with context.normd() as server, server.unharmed():
        memory = server.rss_mib()
        with Raw(server.address) as raw:
            block = frame(SETTINGS, 0, 0, b"\x00\x04\x00\x00\xff\xff") * 2000
            raw.socket.settimeout(1)
            sent, end = 0, time.monotonic() + (3 if context.short else 20)
            while time.monotonic() < end and raw.send(block):
                sent += 2000
            peak = server.rss_mib()
            server.require_serving("beside the flood")
        context.note(f"{sent} SETTINGS sent, memory {memory:.0f} -> {peak:.0f} MiB")
        require(peak - memory < 64, f"memory grew by {peak - memory:.0f} MiB")


@scenario("19", "SETTINGS without end, of which no acknowledgement is read, hold little memory")
def settings_flood_plain(context):
    settings_flood(context)


behind_tls("SETTINGS without end, of which no acknowledgement is read, hold little memory",
           settings_flood)


# What millions of small blocks have left: the C library keeps up to 64 MiB free at the top of each arena
# beside its first, of which a server has three, and gives no way to ask for them.
KEPT_IN_ARENAS_MIB = 3 * 64


def unacknowledged_calls(context):
    with context.normd("--max_connection_calls=8", "--message_timeout=1s") as server, \
            server.unharmed(memory_slack_mib=KEPT_IN_ARENAS_MIB):
        memory = server.rss_mib()
        with Raw(server.address, acknowledge=0) as raw:
            call, peak, end = 1, 0, time.monotonic() + (3 if context.short else 20)
            while time.monotonic() < end:
                block = b"".join(frame(HEADERS, END_HEADERS, call + 2 * i, CALL) for i in range(100))
                if not raw.send(block):
                    break
                call += 200
                peak = max(peak, server.rss_mib())
            server.require_serving("beside the calls")
            ended = server.metric("normd_connections_ended_total")
            context.note(f"{call // 2} calls begun, memory {memory:.0f} -> {peak:.0f} MiB, "
                         f"{ended:.0f} connections ended by normd")


behind_tls("calls of a client that never acknowledges SETTINGS harm nobody else", unacknowledged_calls)


def unacknowledged_metadata(context):
    """Calls with as much metadata as gRPC reads of who acknowledges nothing, compressed to a fiftieth."""
    with context.normd() as server, server.unharmed(memory_slack_mib=KEPT_IN_ARENAS_MIB):
        memory, peak = server.rss_mib(), 0
        with Raw(server.address, acknowledge=0) as raw:
            for at in range(20 if context.short else 60):
                block = CALL + (b"\x40\x01x\x01y" if at == 0 else b"") + b"\xbe" * (320 << 10)
                parts = [block[begin:begin + 16384] for begin in range(0, len(block), 16384)]
                for number, part in enumerate(parts):
                    raw.send(frame(CONTINUATION if number else HEADERS,
                                   END_HEADERS if number == len(parts) - 1 else 0, 2 * at + 1, part))
                peak = max(peak, server.rss_mib())
            server.require_serving("beside the calls")
            peak = max(peak, server.rss_mib())
        context.note(f"memory {memory:.0f} -> {peak:.0f} MiB")
        require(peak - memory < 256, f"memory grew by {peak - memory:.0f} MiB")


behind_tls("large metadata of a client that never acknowledges SETTINGS holds little",
           unacknowledged_metadata)
