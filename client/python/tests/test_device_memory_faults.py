"""CUDA tensors that cannot stay on their device, and what is left of calls, over a fake one."""

from __future__ import annotations

import asyncio
import gc
import random
import re
import subprocess
import sys
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from conftest import Blocking
from device_cases import MODEL, SHAPE, assert_nothing_lives, close, same, values
from fake_cuda import Refusal

import normd
from normd import _device


@pytest.fixture
def far(make_client, server):
    return make_client(server.address, device_memory="off")


def refuses(code, message):
    refusal = Refusal(code, message)
    return lambda server, cuda: server.refuse.update(CudaSharedMemoryRegister=refusal)


@pytest.mark.parametrize(
    ("break_it", "kind", "match"),
    [
        (lambda server, cuda: setattr(server, "lanes", ["cpu:0"]), "Unimplemented", "lanes: cpu:0"),
        (refuses("UNIMPLEMENTED", "switched off here"), "Unimplemented", "switched off"),
        (refuses("PERMISSION_DENIED", "no admin"), "PermissionDenied", "no admin"),
        (refuses("RESOURCE_EXHAUSTED", "enough regions"), "ResourceExhausted", "enough"),
        (refuses("INVALID_ARGUMENT", "raw_handle: of nothing"), "InvalidArgument", "raw_handle"),
        (
            lambda server, cuda: setattr(cuda.fake_driver, "fails", "CUDA_ERROR_OUT_OF_MEMORY"),
            "Unavailable",
            "OUT_OF_MEMORY",
        ),
    ],
)
def test_where_it_cannot_be_the_result_is_the_same(
    cuda, make_device_server, make_client, far, caplog, break_it, kind, match
):
    server = make_device_server()
    break_it(server, cuda)
    x = values()
    expected = far.normalize(MODEL, x)
    out = cuda.tensor(torch.zeros_like(x))
    caplog.set_level("INFO", "normd")
    for options in ({}, {"stream_above": 1 << 16}):
        client = make_client(server.address, **options)
        for _ in range(3):
            assert same(client.normalize(MODEL, cuda.tensor(x)), expected)
            assert client.normalize(MODEL, cuda.tensor(x), out=out.zero_()) is out
            assert same(out, expected)
        strict = make_client(server.address, device_memory="require", retry=None, **options)
        for call in (
            lambda strict=strict: strict.normalize(MODEL, cuda.tensor(x)),
            lambda strict=strict: strict.share(1, device="cuda:0"),
            lambda client=client: client.share(1, device="cuda:0"),
        ):
            with pytest.raises(getattr(normd, f"{kind}Error"), match=match):
                call()
    assert server.inputs == []
    assert server.regions == {}
    told = [each for each in caplog.messages if "through the host's memory" in each]
    assert len(told) == 2, "once for each client that goes on"
    assert re.search(match, told[0])
    assert_nothing_lives(cuda)


def test_off_and_elsewhere(cuda, device_server, make_client, far):
    x = values()
    expected = far.normalize(MODEL, x)
    off = make_client(device_server.address, device_memory="off")
    assert same(off.normalize(MODEL, cuda.tensor(x)), expected)
    with pytest.raises(normd.UnimplementedError, match="off"):
        off.share(1, device=0)
    # A list of addresses may be any number of servers.
    addresses = [device_server.address] * 2
    several = make_client(addresses)
    assert same(several.normalize(MODEL, cuda.tensor(x)), expected)
    strict = make_client(addresses, device_memory="require")
    for call in (
        lambda: strict.share(1, device=0),
        lambda: strict.normalize(MODEL, cuda.tensor(x)),
    ):
        with pytest.raises(normd.UnimplementedError, match="wanted one server on this machine"):
            call()
    assert device_server.inputs == []
    with pytest.raises(normd.InvalidArgumentError, match='device_memory: "on", wanted'):
        make_client(device_server.address, device_memory="on")
    # What is of the host goes as ever.
    assert same(strict.normalize(MODEL, x), expected)


def test_a_client_holds_so_much(cuda, device_server, make_client, far, monkeypatch, caplog):
    caplog.set_level("INFO", "normd")
    monkeypatch.setattr(_device, "_MAX_BYTES", 4 << 20)
    client = make_client(device_server.address)
    for shape in ((2, 64, 16, 16), (8, 64, 32, 32), (8, 64, 33, 32), (2, 64, 16, 16)):
        x = values(shape)
        assert same(client.normalize(MODEL, cuda.tensor(x)), far.normalize(MODEL, x))
        held = sum(each.nbytes for each in device_server.regions.values())
        assert held <= 4 << 20
    assert [at for _, at in device_server.inputs] == [0, 0, 0], "the third is too large"
    (told,) = caplog.messages
    assert "through the host's memory" in told
    assert "wanted at most 4194304" in told
    strict = make_client(device_server.address, device_memory="require")
    with pytest.raises(normd.ResourceExhaustedError, match="wanted at most 4194304"):
        strict.normalize(MODEL, cuda.tensor(values((8, 64, 33, 32))))


def test_a_server_that_was_started_anew(cuda, device_server, make_client, far):
    x = values()
    expected = far.normalize(MODEL, x)
    client = make_client(device_server.address)
    region = client.share(2 * x.nbytes, device=0)
    there, out = region.tensor(SHAPE), region.tensor(SHAPE)
    there.copy_(x)
    assert same(client.normalize(MODEL, cuda.tensor(x)), expected)
    device_server.restart()
    assert same(client.normalize(MODEL, cuda.tensor(x)), expected)
    assert same(client.normalize(MODEL, there, out=out.zero_()), expected)
    strict = make_client(device_server.address, device_memory="require")
    before = len(device_server.inputs)
    large = values((16, 64, 64, 32))
    for each in (x, large):
        strict.normalize(MODEL, cuda.tensor(each))
    device_server.restart()
    with pytest.raises(normd.NotFoundError, match="shared_memory"):
        strict.normalize(MODEL, cuda.tensor(x))
    for each in (large, x):  # In memory of its own anew, also where others were.
        assert same(strict.normalize(MODEL, cuda.tensor(each)), far.normalize(MODEL, each))
    assert len(device_server.inputs) == before + 4


@pytest.mark.parametrize("how", ["the same memory", "other memory", "a region"])
def test_a_server_that_was_started_anew_waits_for_streams(
    cuda, device_server, make_client, far, how
):
    """The server's check of order is what fails."""
    x, large = values(), values((16, 64, 64, 32))
    client = make_client(device_server.address, device_memory="require")
    client.normalize(MODEL, cuda.tensor(x))
    device_server.restart()
    if how == "the same memory":
        with pytest.raises(normd.NotFoundError, match="shared_memory"):
            client.normalize(MODEL, cuda.tensor(x))
        assert same(client.normalize(MODEL, cuda.tensor(x)), far.normalize(MODEL, x))
    elif how == "other memory":
        assert same(client.normalize(MODEL, cuda.tensor(large)), far.normalize(MODEL, large))
    else:
        region = client.share(2 * x.nbytes, device=0)
        there, out = region.tensor(SHAPE), region.tensor(SHAPE)
        with cuda.on(cuda.current):
            there.copy_(x)
        assert same(client.normalize(MODEL, there, out=out), far.normalize(MODEL, x))


def test_a_server_that_was_started_anew_on_other_devices(cuda, device_server, make_client, far):
    x = values()
    client = make_client(device_server.address, device_memory="require")
    client.normalize(MODEL, cuda.tensor(x))
    device_server.restart()
    device_server.shift, device_server.lanes = 3, ["cuda:3/0"]
    with pytest.raises(normd.NotFoundError, match="shared_memory"):
        client.normalize(MODEL, cuda.tensor(x))
    assert same(client.normalize(MODEL, cuda.tensor(x)), far.normalize(MODEL, x))


def test_a_full_server_is_asked_again(cuda, device_server, make_client, far, monkeypatch):
    x = values()
    client = make_client(device_server.address, device_memory="require")
    compute = device_server._compute
    tries = []

    def full_at_first(*arguments: Any) -> bytes:
        tries.append(1)
        if len(tries) < 3:
            arguments[-1].set_trailing_metadata((("grpc-retry-pushback-ms", "1"),))
            raise Refusal("RESOURCE_EXHAUSTED", "full")
        return bytes(compute(*arguments))

    monkeypatch.setattr(device_server, "_compute", full_at_first)
    assert same(client.normalize(MODEL, cuda.tensor(x)), far.normalize(MODEL, x))
    assert len(tries) == 3
    assert device_server.registered == 1


def test_memory_of_a_call_that_was_given_up_is_nobody_elses(cuda, device_server, make_client, far):
    device_server.checks_order = False
    client = make_client(device_server.address, device_memory="require")
    inputs = [values(seed=seed) for seed in range(2)]
    expected = [far.normalize(MODEL, x) for x in inputs]
    client.normalize(MODEL, cuda.tensor(inputs[0]))
    device_server.hold.clear()
    with pytest.raises(normd.DeadlineExceededError):
        client.normalize(MODEL, cuda.tensor(inputs[0]), timeout=0.2)
    assert device_server.holding.acquire(timeout=30)
    (name,) = device_server.regions
    given_up = device_server.regions[name]
    # The first is still computed, and nobody may have its memory.
    done: list[Any] = []
    thread = threading.Thread(
        target=lambda: done.append(client.normalize(MODEL, cuda.tensor(inputs[1])))
    )
    thread.start()
    assert device_server.holding.acquire(timeout=30)
    assert device_server.holding.acquire(timeout=30)
    assert given_up.in_use == 1
    assert not given_up.memory.freed
    assert len(device_server.regions) == 2
    device_server.hold.set()
    thread.join(30)
    assert same(done[0], expected[1])
    while given_up.in_use:
        device_server.hold.wait(0.01)
    # The next region that is made sweeps it up.
    client.share(1, device=0)
    assert name not in device_server.regions
    gc.collect()
    assert given_up.memory.freed


def test_a_call_that_is_cancelled_while_memory_is_made(cuda, device_server):
    register, entered, gate = device_server._register, threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> bytes:
        entered.set()
        gate.wait(30)
        return bytes(register(*arguments))

    device_server.handlers["CudaSharedMemoryRegister"] = slowly
    client = Blocking(device_server.address, device_memory="require")
    try:
        call = client.client.normalize(MODEL, cuda.tensor(values()))
        future = asyncio.run_coroutine_threadsafe(call, client._loop)
        assert entered.wait(30)
        future.cancel()
        gate.set()
        region = client.share(1, device=0)
        client.normalize(MODEL, cuda.tensor(values()))
        assert device_server.registered == 2, "the call's memory is the next one's"
        assert region.name in device_server.regions
    finally:
        close(client)
    assert device_server.regions == {}


def test_close_leaves_nothing(cuda, device_server, make_client):
    client = make_client(device_server.address, device_memory="require")
    region = client.share(1 << 16, device=0)
    tensor = region.tensor(3)
    client.normalize(MODEL, cuda.tensor(values()))
    dropped = client.share(1 << 16, device=1)
    assert len(device_server.regions) == 3
    del dropped
    close(client)
    assert device_server.regions == {}
    assert region.closed
    assert cuda.fake_driver.live >= 1, "a tensor is there"
    assert tensor.tolist() == [0, 0, 0]
    del tensor, region, client
    gc.collect()


def test_a_client_that_is_forgotten_leaves_nothing(cuda, device_server):
    client = normd.Client(device_server.address, device_memory="require")
    client.normalize(MODEL, cuda.tensor(values()))
    assert len(device_server.regions) == 1
    assert client._devices._end.atexit, "nor at the end of the process"
    del client
    gc.collect()
    assert device_server.regions == {}
    assert_nothing_lives(cuda)


def test_a_process_that_ends_leaves_nothing(cuda, device_server):
    """Without a close, with a client that lives to the end."""
    handle = cuda.fake_driver.allocate(0, 2 << 20).handle
    program = f"""
import types, normd
client = normd.Client("{device_server.address}")
handle = bytes.fromhex("{handle.hex()}")
memory = types.SimpleNamespace(handle=handle, nbytes=2 << 20, device=0)
print(client._devices._register(memory))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True
    )
    assert ran.stdout.startswith("cuda-")
    assert device_server.registered == 1
    assert device_server.regions == {}


def test_a_server_that_hangs_holds_nobody_up(cuda, device_server, make_client):
    client = make_client(device_server.address, device_memory="require")
    client.normalize(MODEL, cuda.tensor(values()))
    (region,) = device_server.regions.values()
    device_server.refuse["CudaSharedMemoryUnregister"] = Refusal("UNAVAILABLE", "gone")
    close(client)
    gc.collect()
    assert not region.memory.freed, "the server may write to it"


@pytest.mark.parametrize("seed", range(2))
def test_whatever_comes_in_whatever_order(cuda, device_server, make_client, far, seed):
    """Random calls, regions and streams of several threads: bits, and the server's checks."""
    device_server.checks_order = False
    client = make_client(device_server.address, device_memory="require")
    shapes = [(1, 64, 16, 16), (2, 64, 33, 7), (3, 64, 65), (16, 64, 64, 16)]
    inputs = [values(shape, seed=at) for at, shape in enumerate(shapes)]
    expected = [far.normalize(MODEL, x) for x in inputs]
    failures: list[str] = []

    def run(number: int) -> None:
        pick = random.Random(100 * seed + number)
        region = None
        for _ in range(25):
            at = pick.randrange(len(shapes))
            x, y = inputs[at], expected[at]
            if region is None or pick.random() < 0.1:
                if region is not None and pick.random() < 0.5:
                    region.close()
                region = client.share(2 * max(each.nbytes for each in inputs), device=number % 2)
            a = cuda.tensor(x, number % 2)
            if pick.random() < 0.5:
                a = region.tensor(x.shape, offset=0).copy_(x)
            out = pick.choice([None, "there", "own", "same"])
            b = {
                None: None,
                "there": region.tensor(x.shape, offset=x.nbytes),
                "own": cuda.tensor(torch.empty_like(x), number % 2),
                "same": a,
            }[out]
            if not same(client.normalize(MODEL, a, out=b), y):
                failures.append(f"seed {seed}, thread {number}: {list(x.shape)}, out {out}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failures == []
    assert len(device_server.inputs) == 100
    close(client)
    assert device_server.regions == {}
