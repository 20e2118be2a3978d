"""Networks that delay, lose and reorder packets."""

from cases import require, require_nothing_lost, scenario

DELAY_MS, JITTER_MS, LOSS = 5, 2, 0.01


def judge(result, link):
    require_nothing_lost(result)
    require(link.frames > 1000, "only", link.frames, "frames took the way")
    share = link.lost / link.frames
    require(LOSS / 2 < share < 2 * LOSS, link.lost, "of", link.frames, "frames were lost")
    result.note = f"by {link.how}: {link.frames} frames, {link.lost} lost"
    return [result]


@scenario("delay and loss on the way to a replica: nothing is lost or wrong")
def of_a_replica(setup):
    with setup.fleet() as fleet:
        with fleet.replicas[0].machine.disturbed(DELAY_MS, JITTER_MS, LOSS) as link:
            result = fleet.load(*setup.full(4), "--balance=round_robin").result()
    return judge(result, link)


@scenario("delay and loss on the way to all replicas: nothing is lost or wrong")
def of_the_clients(setup):
    with setup.fleet() as fleet:
        with fleet.client.disturbed(DELAY_MS, JITTER_MS, LOSS) as link:
            result = fleet.load(*setup.full(3), "--connections=16").result()
    require(result.p99_ms > DELAY_MS, "p99 is", result.p99_ms, "ms")
    return judge(result, link)
